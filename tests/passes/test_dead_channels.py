# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A scale of zero is repaired where its channel is dead, and stops no verb that throws the scale away."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.passes.dead_channels import find_dead_channels, repair_dead_channels
from qdqtool.passes.peel import peel_pairs
from qdqtool.trtversion import parse
from qdqtool.verbs.peel_options import PeelOptions
from tests.graphs import model_of
from tests.ort_session import PLAIN, session_of

SHAPE = (4, 4, 1, 1)
SCALES = np.array([0.02, 0, 0.01, 0.03], np.float32)


def net(
    weight: np.ndarray, scales: np.ndarray, *, stored: bool = True, x_scale: float = 0.02, opset: int = 17
) -> onnx.ModelProto:
    """A convolution with a pair on its input and one on its weight, stored as integers or in float."""
    quantize = "" if stored else "wq = QuantizeLinear<axis=0>(w, ws, wz)"
    text = f"""net (float[1,4,4,4] x) => (float[1,4,4,4] y) <float s = {{{x_scale}}}, int8 z = {{0}}, int8[4] wz = {{0,0,0,0}}>
    {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {quantize} wd = DequantizeLinear<axis=0>(wq, ws, wz) c = Conv(d, wd) y = Relu(c) }}"""
    model = model_of(text, opset)
    model.graph.initializer.append(numpy_helper.from_array(weight, "wq" if stored else "w"))
    model.graph.initializer.append(numpy_helper.from_array(scales, "ws"))
    return model


def integers() -> np.ndarray:
    return np.random.default_rng(1).integers(-127, 128, SHAPE).astype(np.int8)


def floats(*, dead: bool) -> np.ndarray:
    values = np.random.default_rng(1).normal(0, 0.5, SHAPE).astype(np.float32)
    values[1] = 0 if dead else values[1]
    return values


def outputs_of(model: onnx.ModelProto) -> bytes:
    x = np.random.default_rng(2).normal(0, 1, (1, 4, 4, 4)).astype(np.float32)
    return np.asarray(session_of(model, PLAIN).run(None, {"x": x})[0]).tobytes()


@pytest.mark.parametrize(
    "model",
    [net(integers(), SCALES), net(floats(dead=True), SCALES, stored=False), net(integers(), np.zeros(4, np.float32))],
    ids=["stored integers", "floats that are zero", "every channel"],
)
def test_a_dead_channel_gets_a_positive_scale_and_nothing_else_changes(model: onnx.ModelProto) -> None:
    before = outputs_of(model)
    assert repair_dead_channels(Model(model).view)
    view = GraphView(model.graph)
    scale = view.array("ws")
    assert scale is not None and (scale > 0).all()
    assert outputs_of(model) == before
    assert not list(find_dead_channels(view)) and not repair_dead_channels(Model(model).view)


def test_integers_without_a_zero_point_are_repaired() -> None:
    model = net(integers(), SCALES)
    node = next(one for one in model.graph.node if one.output[0] == "wd")
    del node.input[2]
    before = outputs_of(model)
    assert repair_dead_channels(Model(model).view) and outputs_of(model) == before


def test_the_other_scales_keep_their_bits() -> None:
    model = net(integers(), SCALES)
    repair_dead_channels(Model(model).view)
    scale = GraphView(model.graph).array("ws")
    assert scale is not None and scale.tobytes() == np.array([0.02, 0.01, 0.01, 0.03], np.float32).tobytes()


@pytest.mark.parametrize(
    "model",
    [
        net(floats(dead=False), SCALES, stored=False),
        net(integers(), np.array([0.02, -0.01, 0.01, 0.03], np.float32)),
        net(integers(), SCALES + np.float32(0.01), x_scale=0),
    ],
    ids=["floats that are not zero", "negative", "activation"],
)
def test_what_is_no_dead_channel_is_left_and_refused_by_what_would_write_it(model: onnx.ModelProto) -> None:
    assert not repair_dead_channels(Model(model).view)
    options = qdqtool.AmpOptions(assume_range=8.0)
    for write in (lambda: qdqtool.insert(model), lambda: qdqtool.amp(model, options=options)):
        with pytest.raises(QdqError, match="which TensorRT refuses; qdqtool insert --requantize --data"):
            write()
    for node in qdqtool.insert(
        model, data=[{"x": np.ones((1, 4, 4, 4), np.float32)}], options=requantizing()
    ).model.graph.node:
        assert node.op_type != "QuantizeLinear" or node.input[1] != "s"


def changed(model: onnx.ModelProto, output: str, index: int, value: np.ndarray) -> onnx.ModelProto:
    """One node, found by its output, reads a constant of its own."""
    (node,) = (one for one in model.graph.node if one.output[0] == output)
    node.input[index] = f"own{index}"
    model.graph.initializer.append(numpy_helper.from_array(value, f"own{index}"))
    return model


LEFT = {
    "Q and DQ differ": changed(net(floats(dead=True), SCALES, stored=False), "wd", 1, SCALES[::-1].copy()),
    "a scale too few": net(integers(), SCALES[:3]),
    "a zero point too few": changed(net(integers(), SCALES), "wd", 2, np.zeros(3, np.int8)),
    "codes of FP8 that are not zero": changed(
        changed(net(integers(), SCALES, opset=19), "wd", 0, integers().astype(ml_dtypes.float8_e4m3fn)),
        "wd",
        2,
        np.zeros(4, ml_dtypes.float8_e4m3fn),
    ),
}


@pytest.mark.parametrize("model", LEFT.values(), ids=LEFT)
def test_a_scale_of_zero_stays_where_its_channel_cannot_be_told(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    assert not repair_dead_channels(Model(model).view)
    assert model.SerializeToString(deterministic=True) == before


def requantizing() -> Any:
    from qdqtool.match.plan import PlanOptions

    return qdqtool.InsertOptions(requantize=True, plan=PlanOptions(float_heads="none"))


def test_insert_amp_peel_and_lint_write_a_model_with_a_dead_channel() -> None:
    model = net(integers(), SCALES)
    made = [
        qdqtool.insert(model).model,
        qdqtool.amp(model, options=qdqtool.AmpOptions(assume_range=8.0)).model,
        qdqtool.lint(model, qdqtool.LintOptions(fix=("all",))).model,
    ]
    for one in made:
        assert not [found for found in qdqtool.lint(one).findings if found.code == "Q010"]
    assert qdqtool.peel(model, PeelOptions(parse("8601"))).cache.entries["x"] == np.float32(0.02)


def four_bits(block: int) -> onnx.ModelProto:
    """A product whose weight [8, 4] is stored as INT4 with a scale per column, or per block of rows."""
    rows = 8 // block if block else 0
    attribute = f"axis=0, block_size={block}" if block else "axis=1"
    model = model_of(
        f"net (float[2,8] x) => (float[2,4] y) {{ w = DequantizeLinear<{attribute}>(wq, ws) m = MatMul(x, w) y = Relu(m) }}",
        21,
        10,
    )
    values = np.random.default_rng(4).integers(-8, 8, 32)
    model.graph.initializer.append(helper.make_tensor("wq", TensorProto.INT4, [8, 4], values.tolist()))
    scales = np.linspace(0.01, 0.02, max(rows, 1) * 4, dtype=np.float32).reshape([rows, 4] if block else [4])
    model.graph.initializer.append(numpy_helper.from_array(scales, "ws"))
    return model


@pytest.mark.parametrize("block", [0, 4], ids=["per column", "in blocks"])
def test_four_bits_are_requantized_and_one_scale_per_column_is_refused_where_it_is_wanted(block: int) -> None:
    """Blocks have no scale that a table could hold: they are taken out, as weights that `insert` stored are."""
    model = four_bits(block)
    if not block:
        with pytest.raises(QdqError, match="int4"):
            peel_pairs(Model(four_bits(block)))
    plain = four_bits(block)
    peel_pairs(Model(plain), drop_scales=not block)
    x = np.random.default_rng(2).normal(0, 1, (2, 8)).astype(np.float32)
    wanted = session_of(model, PLAIN).run(None, {"x": x})[0]
    assert np.allclose(session_of(plain, PLAIN).run(None, {"x": x})[0], wanted, atol=1e-6)
    made = qdqtool.insert(model, data=[{"x": x}], options=requantizing())
    assert {"x", "w"} <= GraphView(made.model.graph).pairs.keys()


def test_a_typed_model_is_repaired_where_no_types_are_asked_for() -> None:
    model = qdqtool.amp(net(integers(), SCALES + np.float32(0.01)), options=qdqtool.AmpOptions(assume_range=8.0)).model
    stored = next(t for t in model.graph.initializer if t.name == "ws")
    stored.CopyFrom(numpy_helper.from_array(SCALES, "ws"))
    model.graph.node[0].name = ""
    result = qdqtool.lint(model, qdqtool.LintOptions(fix=("all",)))
    assert {"Q010", "Q018"} <= {one.code for one in result.fixed}
    assert not {"Q010", "Q018"} & {one.code for one in result.findings} and result.model.graph.node[0].name
