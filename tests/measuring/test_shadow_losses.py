# SPDX-License-Identifier: Apache-2.0
"""The shadow pass against the same computed in numpy and by real Q/DQ, on every weighted operator and old opsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.data.loader import Batch
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.measuring import operator_shadows, shadow_losses, thinning
from qdqtool.measuring.budget import MacBudget
from qdqtool.measuring.operator_shadows import LayerError, Trial, add_shadows
from qdqtool.measuring.output_loss import FloatOutputs
from qdqtool.measuring.shadow_losses import (
    FEW_SAMPLES,
    budget_of,
    samples_within,
    shadow_pass,
    thinning_within,
)
from qdqtool.runtime import stage_models
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.simulation.rounding import fake_quantize_weight
from qdqtool.simulation.shadow_copy import ShadowCopy
from tests.graphs import model_of
from tests.ort_session import session_of

CONV = """g (float[N,4,6,6] x) => (float[N,5,4,4] y) <float[5,4,3,3] w, float[5] b> { y = Conv(x, w, b) }"""
SCALES = tuple(np.float32(v) for v in (0.01, 0.03, 0.2))


def samples(shape: tuple[int, ...], count: int = 3, seed: int = 0) -> list[Batch]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def run(model: onnx.ModelProto, feed: Batch) -> np.ndarray:
    session = session_of(model)
    return np.asarray(session.run(None, feed)[0], np.float64)


def quantized(x: np.ndarray, scale: np.float32) -> np.ndarray:
    return (np.clip(np.rint(x / scale), -128, 127) * scale).astype(np.float32)


def by_hand(model: onnx.ModelProto, data: list[Batch], axis: int | None, channel: int) -> LayerError:
    """The same sums from whole runs of a model whose weight is replaced."""
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    int8 = onnx.ModelProto()
    int8.CopyFrom(model)
    other = next(tensor for tensor in int8.graph.initializer if tensor.name == "w")
    other.CopyFrom(onnx.numpy_helper.from_array(fake_quantize_weight(onnx.numpy_helper.to_array(weight), axis), "w"))
    plain = np.concatenate([np.moveaxis(run(model, one), channel, 0).reshape(5, -1) for one in data], axis=1)
    error, shift = [], []
    for scale in SCALES:
        tried = [run(int8, {"x": quantized(one["x"], scale)}) for one in data]
        gap = np.concatenate([np.moveaxis(one, channel, 0).reshape(5, -1) for one in tried], axis=1) - plain
        error.append((gap**2).sum())
        shift.append((gap.mean(axis=1) ** 2).sum() * gap.shape[1])
    signal = ((plain - plain.mean(axis=1, keepdims=True)) ** 2).sum()
    return LayerError(np.array(error), np.array(shift), float(signal))


def close(one: LayerError, other: LayerError) -> None:
    """Sums over squares in float32: four digits; means come out of them as differences."""
    np.testing.assert_allclose(one.error, other.error, rtol=1e-3)
    np.testing.assert_allclose(one.shift, other.shift, rtol=1e-2, atol=1e-4 * float(other.error.max()))
    assert one.signal == pytest.approx(other.signal, rel=1e-3)


@pytest.mark.parametrize("opset", [7, 11, 13, 17, 18])
def test_a_convolution_feels_what_numpy_says_at_any_opset(opset: int) -> None:
    model, data = model_of(CONV, opset), samples((1, 4, 6, 6))
    felt = shadow_pass(ObservableModel(Model(model)), data, [Trial("y", SCALES, 0)])
    close(felt["y"], by_hand(model, data, 0, 1))
    assert felt["y"].error.argmin() == 1  # the first clips, the last is coarse


@pytest.mark.parametrize(
    ("text", "shape", "axis", "channel"),
    [
        (
            "g (float[N,4,6,6] x) => (float[N,5,8,8] y) <float[4,5,3,3] w> { y = ConvTranspose(x, w) }",
            (1, 4, 6, 6),
            None,
            1,
        ),
        ("g (float[N,7] x) => (float[N,5] y) <float[5,7] w, float[5] b> { y = Gemm<transB=1>(x, w, b) }", (6, 7), 0, 1),
        ("g (float[N,7] x) => (float[N,5] y) <float[7,5] w> { y = Gemm(x, w) }", (6, 7), 1, 1),
        ("g (float[N,3,7] x) => (float[N,3,5] y) <float[7,5] w> { y = MatMul(x, w) }", (2, 3, 7), 1, 2),
        ("g (float[N,7] x) => (float[N,5] y) <float[7,5] w> { y = MatMul(x, w) }", (4, 7), 1, 1),
    ],
)
def test_every_weighted_operator_has_a_shadow(
    text: str, shape: tuple[int, ...], axis: int | None, channel: int
) -> None:
    model, data = model_of(text), samples(shape)
    close(
        shadow_pass(ObservableModel(Model(model)), data, [Trial("y", SCALES, axis)])["y"],
        by_hand(model, data, axis, channel),
    )


def test_a_depthwise_convolution_and_a_fixed_batch() -> None:
    text = "g (float[2,5,6,6] x) => (float[2,5,4,4] y) <float[5,1,3,3] w> { y = Conv<group=5>(x, w) }"
    model, data = model_of(text), samples((2, 5, 6, 6))
    close(shadow_pass(ObservableModel(Model(model)), data, [Trial("y", SCALES, 0)])["y"], by_hand(model, data, 0, 1))


def test_a_float_weight_stays_float() -> None:
    fine = (np.float32(1e-3),)  # nothing is clipped nor rounded much, so what remains is the weight's error
    model, data = model_of(CONV), samples((1, 4, 6, 6))
    int8 = shadow_pass(ObservableModel(Model(model)), data, [Trial("y", (np.float32(0.03),), 0)])["y"]
    half = shadow_pass(ObservableModel(Model(model)), data, [Trial("y", (np.float32(0.03),), 0, int8=False)])["y"]
    assert half.error[0] < int8.error[0]
    assert shadow_pass(ObservableModel(Model(model)), data, [Trial("y", fine, 0, int8=False)])["y"].error.shape == (1,)


def test_each_operator_sees_float_inputs_whatever_the_one_before_it_tries() -> None:
    text = """g (float[N,4,6,6] x) => (float[N,5,2,2] y) <float[4,4,3,3] v, float[5,4,3,3] w>
              { a = Conv(x, v) r = Relu(a) y = Conv(r, w) }"""
    model, data = model_of(text), samples((1, 4, 6, 6))
    both = shadow_pass(ObservableModel(Model(model)), data, [Trial("a", SCALES, 0), Trial("y", SCALES, 0)])
    alone = shadow_pass(ObservableModel(Model(model)), data, [Trial("y", SCALES, 0)])
    assert (both["y"].error == alone["y"].error).all() and both["y"].signal == alone["y"].signal
    assert both.keys() == {"a", "y"}


def test_the_model_is_not_changed_and_the_order_of_trials_does_not_matter() -> None:
    text = """g (float[N,4,6,6] x) => (float[N,5,4,4] y, float[N,4,4,4] z) <float[4,4,3,3] v, float[5,4,3,3] w>
              { y = Conv(x, w) z = Conv(x, v) }"""
    model, data = model_of(text), samples((1, 4, 6, 6))
    before = model.SerializeToString()
    trials = [Trial("y", SCALES, 0), Trial("z", SCALES[:2], 0)]
    one, other = (
        shadow_pass(ObservableModel(Model(model)), data, trials),
        shadow_pass(ObservableModel(Model(model)), data, trials[::-1]),
    )
    assert model.SerializeToString() == before
    for key in ("y", "z"):
        assert one[key].error.tobytes() == other[key].error.tobytes()


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        (CONV, 6),
        ("g (float[7,N] x) => (float[N,5] y) <float[7,5] w, float[5] b> { y = Gemm<transA=1>(x, w, b) }", 17),
        ("g (float[N,7,3] x) => (float[N,5,3] y) <float[5,7] w> { y = MatMul(w, x) }", 17),
    ],
)
def test_what_has_no_shadow_is_left_out(text: str, opset: int) -> None:
    assert shadow_pass(ObservableModel(Model(model_of(text, opset))), [], [Trial("y", SCALES, 0)]) == {}


@pytest.mark.parametrize("others", [0, 6])
def test_a_stage_without_a_shadow_is_run_for_the_later_ones_alone(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one holds a product whose weight stands on the left, and nothing reads what it makes."""
    convs = [f"r{k} = Conv<pads=[1,1,1,1]>({f'r{k - 1}' if k else 'x'}, v)" for k in range(others)]
    last = f"r{others - 1}" if others else "x"
    products = [f"m{k} = MatMul(w, {f'm{k - 1}' if k else last})" for k in range(6)]
    weights = "float[4,4,3,3] v, float[6,6] w" if others else "float[6,6] w"
    text = f"g (float[1,4,6,6] x) => (float[1,4,6,6] m5) <{weights}> {{ {' '.join((*convs, *products))} }}"
    trials = [Trial(f"r{k}", SCALES, 0) for k in range(others)] + [Trial(f"m{k}", SCALES, 0) for k in range(6)]
    monkeypatch.setattr(shadow_losses, "_HELD_BYTES", 0)
    monkeypatch.setattr("qdqtool.runtime.stages._OPERATORS", 2)
    found = shadow_pass(ObservableModel(Model(model_of(text))), samples((1, 4, 6, 6)), trials)
    assert list(found) == [f"r{k}" for k in range(others)]


def test_a_large_model_is_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """g (float[N,4,6,6] x) => (float[N,5,4,4] y, float[N,4,4,4] z) <float[4,4,3,3] v, float[5,4,3,3] w>
              { y = Conv(x, w) z = Conv(x, v) }"""
    model, data = model_of(text), samples((1, 4, 6, 6))
    trials = [Trial("y", SCALES, 0), Trial("z", SCALES, 0)]
    whole = shadow_pass(ObservableModel(Model(model)), data, trials)
    monkeypatch.setattr("qdqtool.measuring.shadow_losses._PART_BYTES", 1)
    parts = shadow_pass(ObservableModel(Model(model)), data, trials)
    assert all((whole[key].error == parts[key].error).all() for key in ("y", "z"))


@pytest.mark.parametrize("held", [1 << 40, 0], ids=["in one", "in stages"])
def test_outputs_of_the_float_model_are_taken_on_the_way(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_losses, "_HELD_BYTES", held)
    model, data = model_of(blocks(6, "1,4,6,6")), samples((1, 4, 6, 6))
    trials = [Trial(f"{letter}{k}", SCALES, 0, read=144) for k in range(6) for letter in "ab"]
    outputs = FloatOutputs(["r5"], 2)
    found = shadow_pass(ObservableModel(Model(model)), data, trials, outputs=outputs)
    alone = shadow_pass(ObservableModel(Model(model)), data, trials)
    assert all((found[key].error == alone[key].error).all() for key in alone)
    taken = outputs.of(2)
    assert taken is not None and outputs.of(3) is None
    want = OrtActivations(Model(model), ["r5"])
    for sample, arrays in zip(data, taken, strict=False):
        for wanted, array in zip(dict(want.run(sample)).values(), arrays, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def blocks(count: int, shape: str) -> str:
    """Residual blocks of two convolutions, whose strange sizes come from a Shape: numbers pass from stage to stage."""
    lines, last = ["s = Shape(x)"], "x"
    for k in range(count):
        lines.append(f"a{k} = Conv<pads=[1,1,1,1]>({last}, v) b{k} = Conv<pads=[1,1,1,1]>(a{k}, v)")
        lines.append(f"c{k} = Add(b{k}, {last}) r{k} = Reshape(c{k}, s)")
        last = f"r{k}"
    return f"g (float[{shape}] x) => (float[{shape}] {last}) <float[4,4,3,3] v> {{ {' '.join(lines)} }}"


@pytest.mark.parametrize("shape", ["1,4,6,6", "N,4,H,W"])
def test_what_would_hold_too_much_is_run_stage_by_stage(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = model_of(blocks(6, shape)), samples((1, 4, 6, 6))
    trials = [Trial(f"{letter}{k}", SCALES, 0, read=144) for k in range(6) for letter in "ab"]
    whole = shadow_pass(ObservableModel(Model(model)), data, trials)
    monkeypatch.setattr(shadow_losses, "_HELD_BYTES", 0)
    started = []
    real = stage_models.run_session
    monkeypatch.setattr(stage_models, "run_session", lambda s, *a: started.append(s) or real(s, *a))
    staged = shadow_pass(ObservableModel(Model(model)), data, trials)
    assert shadow_pass(ObservableModel(Model(model)), [], trials) == {}
    assert len(set(map(id, started))) == 3 and len(started) == 9
    assert list(staged) == list(whole)
    for key, one in whole.items():
        assert (staged[key].error == one.error).all() and (staged[key].shift == one.shift).all()


def test_scales_that_would_hold_too_much_beside_each_other_are_tried_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text, shape, axis in ((CONV, (1, 4, 6, 6), 0), (ROWS, (1, 256, 7), 1)):
        model, data, trials = model_of(text), samples(shape), [Trial("y", SCALES, axis, read=144)]
        together = shadow_pass(ObservableModel(Model(model)), data, trials)["y"]
        monkeypatch.setattr(operator_shadows, "_BESIDE_BYTES", 2 * 4 * 144)
        apart = shadow_pass(ObservableModel(Model(model)), data, trials)["y"]
        assert (apart.error == together.error).all() and apart.error.shape == (3,)
        assert (apart.shift == together.shift).all() and apart.signal == together.signal


def test_weights_outside_a_file_are_read_where_they_lie(tmp_path: Path) -> None:
    model, data = model_of(CONV), samples((1, 4, 6, 6))
    want = shadow_pass(ObservableModel(Model(model)), data, [Trial("y", SCALES, 0)])["y"]
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    light = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert (
        shadow_pass(ObservableModel(Model(light, tmp_path)), data, [Trial("y", SCALES, 0)])["y"].error == want.error
    ).all()


# ------------------------------------------------------------------------------------------ what a pass may cost

WIDE = "g (float[N,4,64,64] x) => (float[N,5,C,D] y) <float[5,4,3,3] w, float[5] b> { y = Conv<%s>(x, w, b) }"
POINT = "g (float[N,4,64,64] x) => (float[N,5,C,D] y) <float[5,4,1,1] w, float[5] b> { y = Conv<%s>(x, w, b) }"
ROWS = "g (float[N,256,7] x) => (float[N,256,5] y) <float[7,5] w> { y = MatMul(x, w) }"
PRODUCT = "g (float[M,7] x) => (float[M,5] y) <float[5,7] w> { y = Gemm<transB=1>(x, w) }"


# None that only a handful of values is clipped at, which a fourth of the positions may hold none of.
EVEN = tuple(np.float32(v) for v in (0.01, 0.05, 0.2))


@pytest.mark.parametrize(
    ("text", "shape", "axis", "macs"),
    [
        (WIDE % "pads=[1,1,1,1]", (1, 4, 64, 64), 0, 180 * 4096),
        (WIDE % "strides=[2,2]", (1, 4, 64, 64), 0, 180 * 961),
        (WIDE % "dilations=[2,2],pads=[0,1,2,3]", (1, 4, 64, 64), 0, 180 * 4000),
        (POINT % "strides=[1,1]", (1, 4, 64, 64), 0, 20 * 4096),
        (POINT % "pads=[1,1,1,1]", (1, 4, 64, 64), 0, 20 * 4356),
        (ROWS, (1, 256, 7), 1, 35 * 256),
        (PRODUCT, (256, 7), 0, 35 * 256),
    ],
)
def test_some_positions_say_what_all_do(text: str, shape: tuple[int, ...], axis: int, macs: int) -> None:
    model, data = model_of(text), samples(shape)
    trial = Trial("y", EVEN, axis, macs=macs)
    whole = shadow_pass(ObservableModel(Model(model)), data, [trial])["y"]
    few = shadow_pass(ObservableModel(Model(model)), data, [trial], budget=MacBudget(macs * 3 * 3 / 4))[
        "y"
    ]  # a fourth of it
    assert few.signal == pytest.approx(whole.signal / 4, rel=0.2)
    np.testing.assert_allclose(few.error / few.signal, whole.error / whole.signal, rtol=0.2)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_of_one_position_rounds_only_what_it_reads(stride: int) -> None:
    model, data = model_of(POINT % f"strides=[{stride},{stride}]"), samples((1, 4, 64, 64), 1)
    thinned = [{"x": np.ascontiguousarray(data[0]["x"][:, :, :: 4 * stride, ::stride])}]
    macs = 20 * 4096 // stride**2
    few = shadow_pass(
        ObservableModel(Model(model)), data, [Trial("y", SCALES, 0, macs=macs)], budget=MacBudget(macs * 3 / 4)
    )["y"]
    small = POINT.replace("64,64", f"{16 // stride:2},{64 // stride:2}") % "strides=[1,1]"
    close(few, shadow_pass(ObservableModel(Model(model_of(small))), thinned, [Trial("y", SCALES, 0)])["y"])


@pytest.mark.parametrize(
    ("height", "width", "thinning", "expected"),
    [
        (64, 64, 4, [4, 1]),  # whole rows
        (64, 64, 5, [9, 1]),  # no more than three by three would be
        (64, 64, 100, [16, 7]),  # four rows stay
        (16, 64, 9, [4, 3]),
        (8, 8, 9, [2, 2]),  # too few rows: as many of both
        (7, 640, 4, [2, 2]),
        (64, 2, 200, [16, 1]),
        (2, 4, 100, [1, 1]),  # eight positions stay
        (64, 64, 1, [1, 1]),
    ],
)
def test_rows_are_left_out_before_columns(height: int, width: int, thinning: int, expected: list[int]) -> None:
    text = "g (float[1,4,%d,%d] x) => (float[1,5,A,B] y) <float[5,4,3,3] w> { y = Conv<pads=[1,1,1,1]>(x, w) }"
    model = model_of(text % (height, width))
    copy, trial = ShadowCopy(model), Trial("y", SCALES, 0, macs=180 * height * width)
    add_shadows(copy, GraphView(model.graph), [trial], thinning)
    constants = {one.name: onnx.numpy_helper.to_array(one).tolist() for one in copy.model.graph.initializer}
    steps = [constants[node.input[4]] for node in copy.model.graph.node if node.op_type == "Slice"]
    assert steps == ([] if expected == [1, 1] else [expected])


TALL = "g (float[1,4,%d,24] x) => (float[1,5,A,B] y) <float[5,4,%d,%d] w> { y = Conv<%s>(x, w) }"


@pytest.mark.parametrize(
    ("height", "kernel", "words", "above", "gap"),
    [
        (64, (3, 3), "pads=[1,1,1,1]", 1, 1),
        (63, (3, 3), "pads=[1,1,1,1]", 1, 1),
        (61, (3, 3), "pads=[2,1,3,1]", 2, 1),
        (64, (3, 5), "pads=[0,1,2,3],dilations=[2,1]", 0, 2),
        (128, (7, 7), "pads=[3,3,3,3],strides=[2,2]", 3, 1),
        (128, (2, 1), "strides=[2,1]", 0, 1),
        (64, (5, 5), "pads=[2,2,2,2]", 2, 0),  # more than half of the rows are read
        (64, (3, 3), "pads=[10,1,1,1]", 10, 0),  # the second window begins with a row of the padding
    ],
)
def test_rows_that_no_position_reads_are_not_rounded(
    height: int, kernel: tuple[int, int], words: str, above: int, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = model_of(TALL % (height, *kernel, words)), samples((1, 4, height, 24))
    outputs = run(model, data[0]).shape[2]
    stride = 2 if "strides" in words else 1
    read = [stride * at - above + gap * place for at in range(0, outputs, 9) for place in range(kernel[0])]
    macs = 4 * kernel[0] * kernel[1] * run(model, data[0]).size
    trial, copy = Trial("y", SCALES, 0, macs=macs), ShadowCopy(model)
    add_shadows(copy, GraphView(model.graph), [trial], 9)
    constants = {one.name: onnx.numpy_helper.to_array(one).tolist() for one in copy.model.graph.initializer}
    rows = [constants[node.input[1]] for node in copy.model.graph.node if node.op_type == "Gather"]
    assert rows == ([[row for row in read if 0 <= row < height]] if gap else [])
    few = shadow_pass(ObservableModel(Model(model)), data, [trial], budget=MacBudget(macs * 3 * 3 / 9))["y"]
    monkeypatch.setattr(thinning, "_LEFT_OUT", 1000)
    close(few, shadow_pass(ObservableModel(Model(model)), data, [trial], budget=MacBudget(macs * 3 * 3 / 9))["y"])


@pytest.mark.parametrize(
    ("text", "shape", "opset", "macs"),
    [
        (CONV, (1, 4, 6, 6), 17, 180 * 16),  # too few positions
        (CONV.replace("Conv(", 'Conv<auto_pad="SAME_UPPER">('), (1, 4, 6, 6), 17, 180 * 4096),
        (WIDE % "pads=[1,1,1,1]", (1, 4, 64, 64), 9, 180 * 4096),  # no steps before opset 10
        (ROWS, (1, 256, 7), 17, 0),  # nobody knows what it costs
    ],
)
def test_where_positions_cannot_be_left_out_all_are_summed(
    text: str, shape: tuple[int, ...], opset: int, macs: int
) -> None:
    model, data = model_of(text, opset), samples(shape)
    trial = Trial("y", SCALES, 1 if text == ROWS else 0, macs=macs)
    few = shadow_pass(ObservableModel(Model(model)), data, [trial], budget=MacBudget(1.0))["y"]
    np.testing.assert_array_equal(few.error, shadow_pass(ObservableModel(Model(model)), data, [trial])["y"].error)


@pytest.mark.parametrize(
    ("macs", "walk", "kept", "thinning"),
    [
        (6 * 10**8, 0, 8, 1),  # 8 * 3 * 0.6 * 10^9 multiply-adds, of 64 * 10^9 that are always allowed
        (2 * 10**9, 0, FEW_SAMPLES, 5),  # 4 * 3 * 2 * 10^9, of 64 * 10^9 * (0.6 / 2)^2
        (4 * 10**9, 0, FEW_SAMPLES, 34),  # 48 * 10^9, of 1.44 * 10^9
        (4 * 10**9, 16, FEW_SAMPLES, 4),  # 48 * 10^9, of a fifth of 16 * 4 * 10^9
        (10**10, 130, 8, 1),  # a fifth of what 130 samples cost
    ],
)
def test_a_pass_costs_less_of_a_large_network_or_a_share_of_the_calibration(
    macs: int, walk: int, kept: int, thinning: int
) -> None:
    trials, data = [Trial("y", SCALES, 0, macs=macs)], samples((1,), 8)
    budget = budget_of(trials, walk)
    few = samples_within(budget, trials, data)
    assert (len(few), thinning_within(budget, trials, few)) == (kept, thinning)


@pytest.mark.parametrize(
    ("macs", "samples", "allowed"),
    [
        (0, 0, 64e9),
        (6 * 10**8, 16, 64e9),  # a fifth of 16 * 0.6 * 10^9 is less
        (6 * 10**9, 0, 0.64e9),  # ten times as large, a hundredth of 64 * 10^9
        (6 * 10**9, 16, 19.2e9),  # a fifth of 16 * 6 * 10^9
    ],
)
def test_a_larger_network_may_always_cost_less(macs: int, samples: int, allowed: float) -> None:
    assert MacBudget.beside_walk(macs, samples, 0.2).macs == pytest.approx(allowed)
