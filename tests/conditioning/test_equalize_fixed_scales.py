# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Evening out within scales: the float function and the scales of activations stay, less is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import qdqtool
from qdqtool.conditioning.equalize_fixed_scales import Within, equalize_within
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.peel import peel_pairs
from qdqtool.runtime.executor import Executor
from tests.conditioning.nets import RELU, SILU, samples, spread, value_of
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

BATCHES = [{"x": row[None]} for row in samples(12)]


def quantized(proto: onnx.ModelProto) -> onnx.ModelProto:
    options = qdqtool.InsertOptions(
        plan=PlanOptions(float_heads="none"),
        calibration=qdqtool.CalibrationOptions("max", progress=False),
        keep_float=0,
    )
    made = qdqtool.insert(proto, data=lambda: BATCHES, options=options).model
    assert isinstance(made, onnx.ModelProto)
    return made


def scales_of(proto: onnx.ModelProto) -> dict[str, bytes]:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return {name: scale.bits.tobytes() for name, scale in peel_pairs(Model(copy)).scales.items()}


def plain_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    peel_pairs(Model(copy))
    return copy


def outputs(proto: onnx.ModelProto) -> npt.NDArray[np.float64]:
    run = Executor(Model(proto), ["y"], "m")
    return np.concatenate([run.run(batch)["y"] for batch in BATCHES]).astype(np.float64)


def decibels(exact: npt.NDArray[np.float64], got: npt.NDArray[np.float64]) -> float:
    return float(10 * np.log10((exact**2).sum() / ((exact - got) ** 2).sum()))


def equalized(proto: onnx.ModelProto) -> Within:
    before = proto.SerializeToString(deterministic=True)
    done = equalize_within(Model(proto), BATCHES)
    assert proto.SerializeToString(deterministic=True) == before
    return done


def test_it_loses_less_at_the_same_scales_and_computes_the_same() -> None:
    model = spread(RELU)
    start = quantized(model)
    done = equalized(start)
    assert done.tensors == ("r1",)
    assert scales_of(done.model.proto) == scales_of(start)
    exact = outputs(model)
    assert decibels(exact, outputs(plain_of(done.model.proto))) > 100
    assert decibels(exact, outputs(done.model.proto)) > decibels(exact, outputs(start)) + 3
    assert [node.SerializeToString() for node in done.model.proto.graph.node] == [
        node.SerializeToString() for node in start.graph.node
    ]


def test_the_scales_of_weights_are_what_a_builder_finds_by_them() -> None:
    done = equalized(quantized(spread(RELU)))
    for name in ("w1", "w2"):
        largest = np.abs(value_of(done.model.proto, name)).max(axis=(1, 2, 3))
        assert np.array_equal(value_of(done.model.proto, f"{name}_scale"), largest / np.float32(127))


def test_no_channel_grows_beyond_what_the_scale_holds() -> None:
    start = quantized(spread(RELU))
    done = equalized(start)
    run = Executor(Model(plain_of(done.model.proto)), ["r1"], "m")
    largest = max(float(np.abs(run.run(batch)["r1"]).max()) for batch in BATCHES)
    (limit,) = np.frombuffer(scales_of(start)["r1"], np.float32) * 127
    assert limit / 2 < largest <= limit * (1 + 1e-5)


def test_a_scale_with_a_range_of_its_own_keeps_its_proportion() -> None:
    start = quantized(spread(RELU))
    held = next(tensor for tensor in start.graph.initializer if tensor.name == "w2_scale")
    narrow = onnx.numpy_helper.to_array(held) * np.float32(0.5)
    held.CopyFrom(onnx.numpy_helper.from_array(narrow, "w2_scale"))
    done = equalized(start)
    largest = np.abs(value_of(done.model.proto, "w2")).max(axis=(1, 2, 3))
    assert np.allclose(value_of(done.model.proto, "w2_scale"), largest / 254, rtol=1e-6)


def test_one_scale_for_a_whole_weight_stays_one() -> None:
    start = quantized(spread(RELU))
    for tensor in start.graph.initializer:
        if tensor.name in ("w1_scale", "w2_scale"):
            largest = onnx.numpy_helper.to_array(tensor).max()
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(largest, np.float32), tensor.name))
        elif tensor.data_type == onnx.TensorProto.INT8:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(0, np.int8), tensor.name))
    done = equalized(start)
    assert done.tensors == ("r1",)
    assert value_of(done.model.proto, "w2_scale").shape == ()
    assert value_of(done.model.proto, "w2_scale") == np.abs(value_of(done.model.proto, "w2")).max() / np.float32(127)
    exact = outputs(spread(RELU))
    assert decibels(exact, outputs(done.model.proto)) > decibels(exact, outputs(start)) + 3


def test_weights_that_are_constant_nodes() -> None:
    start = quantized(spread(RELU))
    held = {tensor.name: tensor for tensor in start.graph.initializer if tensor.name in ("w1", "b1", "w2")}
    for name, tensor in held.items():
        start.graph.node.insert(0, onnx.helper.make_node("Constant", [], [name], value=tensor))
        start.graph.initializer.remove(tensor)
    done = equalized(start)
    assert done.tensors == ("r1",)
    exact = outputs(spread(RELU))
    assert decibels(exact, outputs(plain_of(done.model.proto))) > 100
    assert decibels(exact, outputs(done.model.proto)) > decibels(exact, outputs(start)) + 3


def test_what_could_only_be_divided_by_a_mul_stays() -> None:
    done = equalized(quantized(spread(SILU)))
    assert (done.tensors, done.why_not) == ((), "")


UP = """g (float[1,4,6,6] x) => (float[N] y) <float[4,4,1,1] w1, float[8,8,1,1] w2, float[4,8,1,1] w3, float[4,4,1,1] w4, float[4] up = {1,1,2,2}> {
    c = Conv(x, w1) r = Relu(c) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) d = Conv(p, w4) e = Relu(d)
    u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(e, , up) j = Concat<axis=1>(r, u)
    k = Conv(j, w2) l = Relu(k) y = Conv(l, w3) }"""


def test_second_pairs_hold_nothing_that_the_pairs_before_them_do_not() -> None:
    start = quantized(model_of(UP))
    assert {"j"} <= scales_of(start).keys(), "behind the Resize and the Concat"
    done = equalize_within(Model(start), [{"x": row[None]} for row in samples(4)])
    assert done.why_not == ""
    for node in start.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] == "j":
            scale = next(tensor for tensor in start.graph.initializer if tensor.name == node.input[1])
            half = onnx.numpy_helper.to_array(scale) / np.float32(2)
            scale.CopyFrom(onnx.numpy_helper.from_array(half, scale.name))
    assert "j has a Q/DQ pair" in equalize_within(Model(start), BATCHES).why_not, "it would clip"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gpu", "rtx"])
@pytest.mark.parametrize("name", ["digits_detector", "shapes_vit", "shapes_detr"])
def test_every_pair_of_insert_is_known(models: Path, name: str, target: str) -> None:
    options = qdqtool.InsertOptions(PlanOptions(target, attention="int8" if target == "rtx" else "auto"))  # type: ignore[arg-type]
    made = qdqtool.insert(onnx.load(models / f"{name}.onnx"), options=options).model
    value = made.graph.input[0]
    shape = [axis.dim_value or 2 for axis in value.type.tensor_type.shape.dim]
    data = [{value.name: np.random.default_rng(0).random(shape, np.float32)}]
    assert "has a Q/DQ pair" not in equalize_within(Model(made), data).why_not


def test_a_pair_where_insert_places_none_leaves_the_model_alone() -> None:
    start = quantized(spread(RELU))
    strange = onnx.ModelProto()
    strange.CopyFrom(start)
    q, dq = (onnx.NodeProto() for _ in range(2))
    pair = [n for n in start.graph.node if n.op_type.endswith("Linear") and "r1" in (n.input[0].split("_")[0],)][:2]
    q.CopyFrom(pair[0])
    dq.CopyFrom(pair[1])
    q.input[0], q.output[0], dq.input[0], dq.output[0] = "c1", "c1_q", "c1_q", "c1_dq"
    place = next(i for i, node in enumerate(strange.graph.node) if node.op_type == "Relu")
    strange.graph.node[place].input[0] = "c1_dq"
    strange.graph.node.insert(place, dq)
    strange.graph.node.insert(place, q)
    done = equalized(strange)
    assert done.model.proto is strange
    assert "c1 has a Q/DQ pair" in done.why_not


def test_a_scale_that_two_weights_share_leaves_the_model_alone() -> None:
    start = quantized(spread(RELU))
    for node in start.graph.node:
        for index, name in enumerate(node.input):
            if name in ("w1_scale", "w2_scale"):
                node.input[index] = "both"
                node.input[2] = "zero"
    start.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.01, np.float32), "both"))
    start.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int8), "zero"))
    done = equalized(start)
    assert done.model.proto is start
    assert "several weights" in done.why_not


def test_a_weight_that_two_operators_read_stays() -> None:
    text = """g (float[N,4,6,6] x) => (float[N,4,6,6] y) <float[4,4,1,1] w1, float[4,4,3,3] w2>
    { c1 = Conv(x, w1)  r1 = Relu(c1)  c2 = Conv<pads=[1,1,1,1]>(r1, w2)  r2 = Relu(c2)
      y = Conv<pads=[1,1,1,1]>(r2, w2) }"""
    done = equalized(quantized(model_of(text)))
    assert (done.tensors, done.why_not) == ((), "")
