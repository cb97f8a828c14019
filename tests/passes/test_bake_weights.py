# SPDX-License-Identifier: Apache-2.0

"""Weights as TensorRT quantizes them: told where other integers come out, written so that the same do."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.graph.model import Model
from qdqtool.passes import bake_weights as module
from qdqtool.passes.bake_weights import Baked, bake_weights
from qdqtool.passes.peel import peel_pairs
from qdqtool.passes.quant_params import QuantParams
from qdqtool.scales import Scale
from tests.graphs import model_of, plan_of

LEVELS = np.array([[127, -3, 64, 2], [1, -127, 5, 6], [100, 3, -5, 1]], np.float32)
STEPS = np.array([0.5, 0.25, 0.125], np.float32)


def tensorrt(weight: np.ndarray, rounding: str) -> np.ndarray:
    """TensorRT's integers of a weight [out, in], in plain numpy of float64."""
    ratio = weight.astype(np.float64) / (np.abs(weight).max(axis=1, keepdims=True).astype(np.float64) / 127)
    rounded = np.floor(ratio + 0.5) if rounding == "half_up" else np.sign(ratio) * np.floor(np.abs(ratio) + 0.5)
    return np.clip(rounded, -127, 127)


def model_with(weight: np.ndarray, scale: np.ndarray = STEPS, moved: bool = False) -> onnx.ModelProto:
    """A MatMul or Conv whose weight [3, 4] stands after a pair with a scale per output channel."""
    axis = "<axis=0>" if scale.size > 1 else ""
    pair = f"wq = QuantizeLinear{axis}(w, ws, wz) wd = DequantizeLinear{axis}(wq, ws, wz)"
    x = "xq = QuantizeLinear(x, s, o) xd = DequantizeLinear(xq, s, o)"
    if moved:
        body, shape = f"{x} {pair} t = Transpose<perm=[1,0]>(wd) z = MatMul(xd, t)", "float[2,4] x"
    else:
        body, shape = f"{x} {pair} z = Conv(xd, wd)", "float[1,4,2,2] x"
    model = model_of(f"g ({shape}) => (float[N] z) <float s = {{1}}, int8 o = {{0}}> {{ {body} }}")
    values = {
        "w": weight if moved else weight.reshape(3, 4, 1, 1),
        "ws": scale if scale.size > 1 else scale.reshape(()),
        "wz": np.zeros(scale.size if scale.size > 1 else (), np.int8),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in values.items()
    )
    return model


def baked(model: onnx.ModelProto, rounding: str = "half_up", write: bool = True) -> tuple[Baked, np.ndarray]:
    peeled = peel_pairs(Model(model))
    done = bake_weights(peeled.model.view, plan_of(model).weights, peeled.codes, rounding, write=write)  # type: ignore[arg-type]
    value = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w")
    return done, value.reshape(3, 4)


@pytest.mark.parametrize("moved", [False, True], ids=["Conv", "Transpose and MatMul"])
def test_clipped_channels_are_written_so_that_the_same_integers_come_out(moved: bool) -> None:
    weight = LEVELS * STEPS[:, None]
    weight[0, 0] = 90.0  # 180 steps, which the pair cut to 127
    done, value = baked(model_with(weight, moved=moved))
    assert (done.channels, done.same, done.agreeing, done.nearest) == (3, 1, 1, 1)
    assert done.weights == ("w",) and done.largest_change == 53.0 and not done.unread
    assert (tensorrt(value, "half_up")[:2] == LEVELS[:2]).all()
    np.testing.assert_array_equal(value, LEVELS * STEPS[:, None])


def test_without_writing_the_counts_are_the_same_and_the_weights_stay() -> None:
    weight = LEVELS * STEPS[:, None]
    weight[0, 0] = 90.0
    reported, value = baked(model_with(weight), write=False)
    np.testing.assert_array_equal(value, weight)
    assert reported == baked(model_with(weight))[0]


def test_the_lowest_level_becomes_that_of_tensorrt() -> None:
    levels = LEVELS.copy()
    levels[2] = [-128, 3, 127, -7]
    done, value = baked(model_with(levels * STEPS[:, None]))
    assert (done.same, done.agreeing, done.nearest) == (2, 1, 0) and done.largest_change == 1.0
    assert tensorrt(value, "up")[2].tolist() == [-127, 3, 127, -7]


def test_one_range_for_all_channels_cannot_agree_where_the_largest_is_not_127() -> None:
    done, value = baked(model_with(LEVELS * np.float32(0.5) + np.float32(0.1), np.float32([0.5])))
    assert (done.channels, done.agreeing + done.same, done.nearest) == (3, 2, 1)
    np.testing.assert_array_equal(value[2], LEVELS[2] * np.float32(0.5))


@pytest.mark.parametrize("rounding", ["half_up", "half_away"])
def test_half_way_values_go_where_the_target_rounds_them(rounding: str) -> None:
    """-2.5 steps: to -2 with ties to even and up, to -3 away from zero; 1.5: to 2 all three ways."""
    weight = np.array([[127, -2.5, 1.5, 0], [127, 1.5, 0, 0], [127, 3, 0, 0]], np.float32)
    done, _ = baked(model_with(weight, np.ones(3, np.float32)), rounding)
    assert done.same == (3 if rounding == "half_up" else 2)
    assert done.agreeing == 3 - done.same and done.channels == 3
    assert done.ties == 3 - done.same  # they differ in nothing else


@pytest.mark.parametrize(
    ("row", "step", "ties"),
    [
        ([127, -2.5, 1.5, 0], 1.0, 1),  # -2.5 goes to -3, with ties to even to -2
        ([100, -2.5, 1.5, 0], 1.0, 0),  # another range, where -2.5 is no tie
        ([127, 3, 4, 5], 1.0, 0),  # the same integers
    ],
)
@pytest.mark.parametrize("scales", [1, 3])
def test_channels_that_differ_by_ties_alone_are_counted(row: list[float], step: float, ties: int, scales: int) -> None:
    weight = np.array([row, [127, 1, 2, 3], [127, 4, 5, 6]], np.float32)
    done, _ = baked(model_with(weight, np.full(scales, step, np.float32)), "away", write=False)
    assert done.ties == (ties if scales == 3 or row[0] == 127 else 0)
    assert done.to_json()["rounding_ties"] == done.ties


def test_a_weight_that_a_float_operator_reads_too_is_left_and_reported() -> None:
    model = model_with(LEVELS * STEPS[:, None] * np.float32(1.01))
    model.graph.node.append(onnx.helper.make_node("Relu", ["w"], ["y"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", 1, None))
    done, _ = baked(model)
    assert done.channels == 0 and done.unread == {"w": "Relu y reads it, too"}


def test_the_constant_of_a_node_is_written_where_it_stands() -> None:
    weight = LEVELS * STEPS[:, None]
    weight[0, 0] = 90.0
    model = model_with(weight)
    held = next(t for t in model.graph.initializer if t.name == "w")
    model.graph.initializer.remove(held)
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=held))
    peeled = peel_pairs(Model(model))
    bake_weights(peeled.model.view, plan_of(model).weights, peeled.codes, "up", write=True)
    value = numpy_helper.to_array(model.graph.node[0].attribute[0].t).reshape(3, 4)
    np.testing.assert_array_equal(value, LEVELS * STEPS[:, None])


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("rounding", ["half_up", "half_away"])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("own", [0, None])
def test_a_weight_in_blocks_is_compared_as_a_whole_one(
    axis: int | None, own: int | None, rounding: module.WeightRounding, write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = np.random.default_rng(3).normal(0, 1, (24, 16)).astype(np.float32)
    steps = np.abs(weight).max(axis=1).astype(np.float32) / np.float32(100) if own == 0 else np.float32(0.02)
    code = module.WeightCode(Scale.of(steps, axis=own), QuantParams("int8", np.zeros(steps.shape, np.int64), -128, 127))
    whole = module._compare(weight, code, axis, rounding, write=write)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 160)
    parts = module._compare(weight, code, axis, rounding, write=write)
    assert (parts.same, parts.agreeing, parts.nearest, parts.change) == (
        whole.same, whole.agreeing, whole.nearest, whole.change
    )  # fmt: skip
    assert whole.change > 0 and (whole.value is None) == (not write)
    if whole.value is not None and parts.value is not None:
        assert parts.value.tobytes() == whole.value.tobytes() != weight.tobytes()


def test_comparing_keeps_no_copy_of_a_large_weight() -> None:
    """48 MiB of weights in 12 tensors: measured at 41 MiB when all are compared, 270 MiB when each was kept."""
    weight = np.random.default_rng(4).normal(0, 1, (1024, 1024)).astype(np.float32)
    code = module.WeightCode(Scale.of(0.03), QuantParams("int8", np.zeros((), np.int64), -128, 127))
    tracemalloc.start()
    found = [module._compare(weight, code, 0, "half_up", write=False) for _ in range(12)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(one.change > 0 and one.value is None for one in found)
    assert peak < 16 * module._BLOCK_BYTES


def test_a_weight_with_a_zero_point_keeps_its_values() -> None:
    """int8 with zero point 3 and steps of .5: levels from -131 to 124."""
    code = module.WeightCode(Scale.of(0.5), QuantParams("int8", np.array(3), -128, 127))
    value = np.array([[-65.5, -1.0, 62.0, 70.0]], np.float32)
    _, levels, _, made = module._coded(value, code)
    assert levels.tolist() == [[-131, -2, 124, 124]] and made.tolist() == [[-65.5, -1.0, 62.0, 62.0]]


@pytest.mark.parametrize(("scale", "coarse"), [([0.5], 3), ([0.25], 0), (STEPS / 2, 0)], ids=["", "clips", "own"])
def test_channels_of_one_scale_for_the_whole_weight_are_counted(scale: list[float], coarse: int) -> None:
    done, _ = baked(model_with(LEVELS * STEPS[:, None] * 0.9, np.asarray(scale, np.float32)), write=False)
    assert done.coarse == coarse and done.agreeing + done.nearest == 3


@pytest.mark.parametrize(
    ("behind", "unread"),
    [
        ("t = Identity(wd)", {}),
        ("t = Reshape(wd, sizes)", {"w": "it reaches t through an operator that moves its channels"}),
    ],
    ids=["Identity", "Reshape"],
)
def test_channels_are_followed_through_what_keeps_them_alone(behind: str, unread: dict[str, str]) -> None:
    model = model_with(LEVELS * STEPS[:, None])
    del model.graph.node[-1]
    model.graph.node.extend(model_of(f"g (float[N] x) => (float[N] z) {{ {behind} z = Conv(xd, t) }}").graph.node)
    model.graph.initializer.append(numpy_helper.from_array(np.array([3, 4, 1, 1]), "sizes"))
    assert baked(model)[0].unread == unread
