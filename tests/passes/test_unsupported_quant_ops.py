# SPDX-License-Identifier: Apache-2.0
"""Operators that quantize without Q/DQ are refused by name, others are not."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.passes.unsupported_quant_ops import quantizes_by_operators, refuse_outsiders


def view_with(domain: str, op: str) -> GraphView:
    node = onnx.helper.make_node(op, ["x"], ["y"], domain=domain)
    return GraphView(onnx.helper.make_graph([node], "g", [], []))


@pytest.mark.parametrize(
    ("domain", "op", "message"),
    [
        ("", "QLinearConv", "computes with integers"),
        ("com.microsoft", "QLinearAdd", "computes with integers"),
        ("", "ConvInteger", "computes with integers"),
        ("", "MatMulInteger", "computes with integers"),
        ("", "DynamicQuantizeLinear", "with ranges found at run time"),
        ("onnx.brevitas", "Quant", "Brevitas or QONNX"),
        ("qonnx.custom_op.general", "BipolarQuant", "Brevitas or QONNX"),
        ("trt", "TRT_FP8QuantizeLinear", r"to FP8.*TensorRT 9\.1 "),
        ("trt", "TRT_MXFP8DynamicQuantize", r"to MXFP8.*TensorRT 10\.12 "),
        ("trt", "TRT_INT4DequantizeLinear", "INT4.*TensorRT 10 "),
    ],
)
def test_what_quantizes_otherwise_is_refused(domain: str, op: str, message: str) -> None:
    with pytest.raises(QdqError, match=f"^y: .*{message}") as caught:
        refuse_outsiders(view_with(domain, op))
    assert caught.value.todo


@pytest.mark.parametrize(
    ("domain", "op"), [("", "Conv"), ("own", "Quantile"), ("", "QuantizeLinear"), ("own", "QLinear")]
)
def test_others_pass(domain: str, op: str) -> None:
    refuse_outsiders(view_with(domain, op))


@pytest.mark.parametrize(
    ("domain", "op", "does"),
    [("trt", "TRT_FP4DynamicQuantize", True), ("", "QuantizeLinear", False), ("trt", "Own", False)],
)
def test_operators_of_tensorrt_alone_are_known(domain: str, op: str, does: bool) -> None:
    assert quantizes_by_operators(view_with(domain, op)) is does
