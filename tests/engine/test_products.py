# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""One count of products for insert, forecasts and reports. Held against engines: tests/rtx/test_product_counts.py."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.engine.products import count_products
from qdqtool.graph.io import open_model
from qdqtool.graph.view import GraphView
from qdqtool.precision.options import Rest
from qdqtool.reporting.layer_boxes import predicted_boxes, product_counts
from qdqtool.trtversion import parse
from qdqtool.verbs.show_engine import predicted_layers
from qdqtool.workflows.report_look import look_at
from qdqtool.workflows.report_options import ReportOptions
from tests.engine.attention_net import ATTENTION, inserted
from tests.graphs import model_of


def counts(model: onnx.ModelProto, kind: str = "FP32") -> dict[str, int]:
    return count_products(GraphView(model.graph), lambda node: kind)


def test_each_product_counts_by_its_type() -> None:
    assert counts(model_of(ATTENTION), "FP16") == {"FP16": 6}
    paired = """g (float[1,8] x) => (float[1,8] y) <float[8,8] w, float[8,8] v, float s = {0.1}, int8 z = {0}> {
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) p = QuantizeLinear(w, s, z) e = DequantizeLinear(p, s, z)
      m = MatMul(d, e) y = MatMul(m, v) }"""
    assert list(counts(model_of(paired), "FP16").items()) == [("INT8", 1), ("FP16", 1)]
    weights_alone = paired.replace("MatMul(d, e)", "MatMul(x, e)")
    assert counts(model_of(weights_alone)) == {"FP32": 2}, "a float activation makes a float product"


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
@pytest.mark.parametrize(("how", "int8", "other"), [("int8", 5, 0), ("float", 4, 2)])
def test_an_attention_in_int8_is_one_kernel_for_every_verb(how: str, int8: int, other: int, rest: Rest) -> None:
    """Its second product was counted by one verb and not by the other, its first one, behind a Transpose, likewise."""
    done = inserted(how, rest)
    wanted = {"INT8": int8, **({rest.upper(): other} if other else {})}
    assert dict(predicted_layers(done.model, "11.4.1").forecast.products_by_type) == wanted
    found = look_at(open_model(done.model), ReportOptions(trt_version=parse("11.4.1"), parser=False))
    boxes = predicted_boxes(found.layers, {}, found.context.typed.types)
    assert product_counts(found.view, boxes, found.context.typed.types, found.context.file_view) == wanted
    if done.rest is not None:
        assert {kind: count for kind, count in done.rest.products.items() if count} == wanted


def test_an_attention_too_long_for_one_kernel_is_two_products() -> None:
    model = inserted("int8", "fp32").model
    assert counts(model) == {"INT8": 5}
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[2].dim_value = 513
    del model.graph.value_info[:]
    assert counts(model) == {"INT8": 6}
