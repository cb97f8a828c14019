# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Pads and splits written out compute what they computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.runtime.executor import Executor
from qdqtool.training.concrete import make_concrete
from qdqtool.training.shapes import run_once
from tests.graphs import model_of

FEED = {"x": np.random.default_rng(5).standard_normal((1, 4, 7, 10)).astype(np.float32)}


def concrete(text: str, opset: int = 17) -> tuple[onnx.ModelProto, onnx.ModelProto, bool]:
    model = model_of(text, opset, 10)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    shapes = {name: seen.shape for name, seen in run_once(model, None, FEED).items()}
    return model, copy, make_concrete(copy, shapes)


def assert_same(model: onnx.ModelProto, copy: onnx.ModelProto) -> None:
    theirs = Executor(model).run(FEED)
    assert all(value.tobytes() == theirs[name].tobytes() for name, value in Executor(copy).run(FEED).items())


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("SAME_UPPER", ", strides=[2,3]"),
        ("SAME_LOWER", ", strides=[2,3]"),
        ("SAME_UPPER", ""),
        ("VALID", ", dilations=[2,1]"),
    ],
)
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool", "AveragePool+", "ConvTranspose"])
def test_auto_pad_becomes_pads(mode: str, how: str, op: str) -> None:
    if op == "AveragePool" and "dilations" in how:
        how = ", ceil_mode=0"
    if op == "ConvTranspose" and "dilations" in how:
        how = ", strides=[3,2], output_padding=[1,0]"
    kernel = ", kernel_shape=[3,2]" if "Pool" in op else ""
    count = ", count_include_pad=1" if op.endswith("+") else ""
    if op.endswith("+") and "dilations" in how:
        how = ""
    if op == "Conv" and mode != "VALID" and "dilations" in how:
        how = ", strides=[1,2]"  # onnxruntime itself refuses both together
    op, weight = op.rstrip("+"), "" if "Pool" in op else ", w"
    model, copy, changed = concrete(
        f'net (float[1,4,7,10] x) => (y) <float[4,4,3,2] w> {{ y = {op}<auto_pad="{mode}"{kernel}{how}{count}>(x{weight}) }}'
    )
    assert changed
    assert {item.name for item in copy.graph.node[0].attribute} >= {"pads"}
    assert all(item.name != "auto_pad" for item in copy.graph.node[0].attribute)
    assert_same(model, copy)


@pytest.mark.parametrize("lengths", ["", ", l"])
@pytest.mark.parametrize("used", ["a", "b", "c", "ac"])
def test_a_split_that_is_read_in_part_becomes_slices(lengths: str, used: str) -> None:
    reads = " ".join(f"y{name} = Relu({name})" for name in used)
    outputs = ", ".join(f"y{name}" for name in used)
    how = "<axis=-1>" if lengths else "<axis=-1, num_outputs=3>"
    model, copy, changed = concrete(
        f"net (float[1,4,7,10] x) => ({outputs}) <int64[3] l = {{2, 5, 3}}> {{ a, b, c = Split{how}(x{lengths}) {reads} }}",
        18,
    )
    assert changed and [node.op_type for node in copy.graph.node] == ["Slice"] * len(used) + ["Relu"] * len(used)
    assert_same(model, copy)


def test_what_needs_nothing_stays() -> None:
    model, copy, changed = concrete(
        "net (float[1,4,7,10] x) => (y) <float[4,4,1,1] w> { a, b = Split<axis=1>(x) c = Concat<axis=1>(b, a) y = Conv(c, w) }"
    )
    assert not changed and copy == model


def test_computed_lengths_are_refused_where_they_matter() -> None:
    with pytest.raises(QdqError, match="lengths are computed"):
        concrete(
            "net (float[1,4,7,10] x) => (y) <int64[2] l = {1, 3}> { k = Neg(l) n = Neg(k) a, b = Split<axis=1>(x, n) y = Relu(a) }"
        )
