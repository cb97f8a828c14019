# SPDX-License-Identifier: Apache-2.0

"""The training form computes what the file computes, says what is trained, and goes back into the file bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model, serialize
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.passes.insert import insert_pairs
from qdqtool.runtime.executor import Executor
from qdqtool.training.start_checks import check_same_forward
from qdqtool.training.training_graph import TrainingGraph, make_form
from tests.graphs import SMALL_NET, model_of, plan_of, table_of

WITH_NORM = """net (float[1,4,8,8] x) => (float[1,4,8,8] y)
 <float[4,4,3,3] w, float[4] g, float[4] b, float[4] m, float[4] v = {1.0, 2.0, 0.5, 1.5}>
{ c = Conv<pads=[1,1,1,1]>(x, w)  n = BatchNormalization(c, g, b, m, v)  y = Relu(n) }"""
DQ_ONLY = """net (float[1,2,4,4] x) => (float[1,2,4,4] y)
 <float s = {0.05}, int8 z = {0}, int8[2,2,1,1] w = {-128, 3, 127, -5}, float[2] ws = {0.01, 0.02}, int8[2] wz = {0, 1},
  int32[2] b = {100, -200}, float[2] bs = {0.0005, 0.001}>
{ xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
  wd = DequantizeLinear<axis=0>(w, ws, wz)  bd = DequantizeLinear<axis=0>(b, bs)
  c = Conv(xd, wd, bd)  y = Relu(c) }"""


def quantized(text: str) -> onnx.ModelProto:
    """A plain model with Q/DQ where the plan puts them."""
    model = model_of(text)
    plan = plan_of(model)
    insert_pairs(GraphView(model.graph), plan, table_of(plan))
    return model


def feed_of(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs; open axes are 2."""
    draw = np.random.default_rng(seed)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    shapes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in inputs}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def outputs_of(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return Executor(Model(model)).run(feed)


def values_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def assert_faithful(form: TrainingGraph, source: onnx.ModelProto) -> None:
    """To the bit the same forward, and the same file where nothing was trained."""
    assert check_same_forward(form, feed_of(source)) == 0
    assert serialize(form.write({}).proto) == serialize(source)
    assert serialize(form.write(form.initial()).proto) == serialize(source)


@pytest.mark.parametrize("text", [SMALL_NET, WITH_NORM])
def test_what_insert_makes(text: str) -> None:
    model = quantized(text)
    form = make_form(Model(model))
    assert_faithful(form, model)
    assert {node.op_type for node in form.proto.graph.node}.isdisjoint({"QuantizeLinear", "BatchNormalization"})
    assert form.scales == () and not form.notes and not form.cut
    assert [value.name for value in form.proto.graph.output] == ["y"]
    onnx.checker.check_model(form.proto)


def test_it_says_what_is_trained_and_through_which_pair() -> None:
    form = make_form(Model(quantized(SMALL_NET)))
    assert form.weights == ("w1", "b1", "w2", "fc")
    pair = form.weight_pairs["w1"]
    assert (pair.axis, pair.low, pair.high, pair.zero.any()) == (0, -128, 127, False)
    assert form.initial()[pair.scale].shape == (4,)
    assert form.weight_pairs["fc"].axis == 1
    assert form.activations["x_scale"] == ("x",)
    assert {node.input[0] for node in form.proto.graph.node if node.op_type == "Pair"} >= {"x", "r1"}


def test_bias_and_norm_have_no_pair() -> None:
    form = make_form(Model(quantized(WITH_NORM)))
    assert form.weights == ("w", "g", "b")
    assert set(form.weight_pairs) == {"w"}


def test_a_value_goes_back_by_name_and_nothing_else_moves() -> None:
    model = quantized(WITH_NORM)
    form = make_form(Model(model))
    values = form.initial()
    values["w"] = values["w"] * np.float32(1.25)
    values["g"] = values["g"] - np.float32(0.5)
    written = form.write(values).proto
    assert [n.SerializeToString() for n in written.graph.node] == [n.SerializeToString() for n in model.graph.node]
    before, after = values_of(model), values_of(written)
    assert {name for name in before if before[name].tobytes() != after[name].tobytes()} == {"w", "g"}
    assert after["w"].tobytes() == values["w"].tobytes()


def test_trained_form_and_written_file_compute_the_same() -> None:
    model = quantized(WITH_NORM)
    form = make_form(Model(model))
    draw = np.random.default_rng(3)
    values = {
        n: (v + 0.1 * draw.standard_normal(v.shape)).astype(np.float32)
        for n, v in form.initial().items()
        if n in form.weights
    }
    moved = make_form(form.write(values))
    assert check_same_forward(moved, feed_of(model)) == 0
    assert all(moved.initial()[name].tobytes() == values[name].tobytes() for name in values)


def test_integer_weights_are_floats_in_training_and_integers_in_the_file() -> None:
    model = model_of(DQ_ONLY)
    form = make_form(Model(model))
    assert_faithful(form, model)
    assert form.weights == ("w", "b")
    values = form.initial()
    np.testing.assert_array_equal(values["w"].reshape(2, 2), np.array([[-1.28, 0.03], [2.52, -0.12]], np.float32))
    np.testing.assert_allclose(values["b"], [0.05, -0.2], rtol=1e-6)
    values["w"] += np.float32(0.0105)
    values["b"][0] += np.float32(0.00026)
    written = values_of(form.write(values).proto)
    assert written["w"].dtype == np.int8 and written["b"].dtype == np.int32
    assert written["w"].reshape(-1).tolist() == [
        -127,
        4,
        127,
        -4,
    ]  # 1.05 steps of 0.01, and 0.525 of 0.02, cut off at 127
    assert written["b"].tolist() == [101, -200]


def test_learned_scales_are_parameters_and_integers_follow_them() -> None:
    model = model_of(DQ_ONLY)
    form = make_form(Model(model), ranges="learn")
    assert_faithful(form, model)
    assert form.scales == ("s", "ws")
    kinds = {node.op_type for node in form.proto.graph.node if node.domain == PAIR_DOMAIN}
    assert kinds == {"PairLearned", "PairAxis0Learned"}
    written = values_of(form.write({"ws": form.initial()["ws"] * 2, "s": np.array(0.125, np.float32)}).proto)
    assert written["s"] == np.float32(0.125)
    assert written["w"].reshape(-1).tolist() == [
        -64,
        2,
        64,
        -2,
    ]  # halves go to even: 1.5 is 2, -3 steps are -2 behind zero point 1


def test_fixed_scales_cannot_be_written() -> None:
    form = make_form(Model(quantized(SMALL_NET)))
    with pytest.raises(QdqError, match="must stay"):
        form.write({"x_scale": np.array(0.5, np.float32)})


def test_moved_scales_are_those_of_activations() -> None:
    form = make_form(Model(quantized(SMALL_NET)), ranges="ema")
    assert form.scales == ()
    assert set(form.origins) == {*form.weights, *form.activations}
    assert values_of(form.write({"x_scale": np.array(0.5, np.float32)}).proto)["x_scale"] == np.float32(0.5)


def test_tensors_that_share_a_scale_share_it_in_training() -> None:
    model = quantized(
        """net (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w3>
        { a = Conv(x, w1) ra = Relu(a) b = Conv(x, w2) rb = Relu(b) c = Concat<axis=1>(ra, rb) y = Conv(c, w3) }"""
    )
    form = make_form(Model(model), ranges="learn")
    assert_faithful(form, model)
    shared = [scale for scale, tensors in form.activations.items() if tensors == ("ra", "rb")]
    assert len(shared) == 1 and form.scales.count(shared[0]) == 1
    written = values_of(form.write({shared[0]: np.array(0.75, np.float32)}).proto)
    assert written["ra_scale"] == written["rb_scale"] == np.float32(0.75)
    assert len(make_form(Model(model)).activations) == len(form.activations) + 1


def test_a_pair_behind_a_pad_keeps_the_scale_of_the_one_before_it() -> None:
    """The skip is padded by channels; its pair has the scale of what is padded, and the Pad is a copy in INT8."""
    model = quantized(
        """net (float[1,4,8,8] x) => (float[1,8,8,8] y) <float[4,4,1,1] w1, float[8,4,1,1] w2, float[8,8,1,1] w3,
        int64[8] p = {0,0,0,0,0,4,0,0}> { a = Conv(x, w1) ra = Relu(a) b = Conv(ra, w2) q = Pad(ra, p) s = Add(b, q)
        rs = Relu(s) y = Conv(rs, w3) }"""
    )
    (behind,) = (tensor for tensor in model.graph.initializer if tensor.name == "q_scale")
    behind.CopyFrom(numpy_helper.from_array(values_of(model)["ra_scale"], "q_scale"))
    form = make_form(Model(model), ranges="learn")
    (shared,) = [scale for scale, tensors in form.activations.items() if set(tensors) == {"ra", "q"}]
    written = values_of(form.write({shared: np.array(0.75, np.float32)}).proto)
    assert written["ra_scale"] == written["q_scale"] == np.float32(0.75)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nothing", np.zeros(1, np.float32), "nothing that this form trains"),
        ("w", np.zeros((4, 4), np.float32), r"\[4, 4\] where the form has \[4, 4, 3, 3\]"),
        ("g", np.full(4, np.nan, np.float32), "NaN or infinity"),
    ],
)
def test_what_is_not_written(name: str, value: np.ndarray, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        make_form(Model(quantized(WITH_NORM))).write({name: value})


def test_a_scale_stays_positive() -> None:
    form = make_form(Model(quantized(WITH_NORM)), ranges="learn")
    with pytest.raises(QdqError, match=r"x_scale: .*positive"):
        form.write({"x_scale": np.zeros((), np.float32)})


def test_patterns_freeze_initializers_and_nodes() -> None:
    model = quantized(SMALL_NET)
    assert make_form(Model(model), freeze=["^w"]).weights == ("b1", "fc")
    assert make_form(Model(model), freeze=["c1$"]).weights == ("w2", "fc")
    assert "w1" in {tensor.name for tensor in make_form(Model(model), freeze=["^w1$"]).proto.graph.initializer}


@pytest.mark.parametrize(
    ("pattern", "message"), [("w11", "matches no trained parameter.*near: w1"), ("(", "not a regular expression")]
)
def test_patterns_that_mean_nothing_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        make_form(Model(quantized(SMALL_NET)), freeze=[pattern])


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(QdqError, match=r"weight .*trained"):
        make_form(Model(quantized(SMALL_NET)), freeze=["."])


def test_a_plain_model_is_trained_in_float() -> None:
    model = model_of(SMALL_NET)
    form = make_form(Model(model))
    assert_faithful(form, model)
    assert form.weights == ("w1", "b1", "w2", "fc") and not form.weight_pairs and not form.activations


def test_external_weights_come_in_and_only_changed_ones_stay(tmp_path: Path) -> None:
    model = quantized(SMALL_NET)
    feed = feed_of(model)
    expected = outputs_of(model, feed)["y"]
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    opened = open_model(tmp_path / "m.onnx")
    form = make_form(opened)
    assert serialize(form.write(form.initial()).proto) == serialize(opened.proto)
    written = form.write({"w1": form.initial()["w1"] + 1}).proto
    inside = [t.name for t in written.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    assert inside == ["w1"]
    assert Executor(Model(form.proto)).run(feed)["y"].tobytes() == expected.tobytes()


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "gen_resnet20_brevitas_qcdq",
        "gen_resnet20_nncf",
        "ort_conv.int4_weights.qdq",
        "ort_qdq_with_multi_consumer_dq_nodes.fixed.qdq16",
    ],
)
@pytest.mark.parametrize("ranges", ["fixed", "learn"])
def test_foreign_models(shared: Path, name: str, ranges: str) -> None:
    opened = open_model(shared / "corpus" / "qdq" / f"{name}.onnx")
    form = make_form(opened, ranges)  # type: ignore[arg-type]
    assert_faithful(form, opened.proto)
    assert len(form.weight_pairs) == {"g": 22, "o": 1}[name[0]] or len(form.weight_pairs) in (20, 6)


@pytest.mark.shared
def test_integer_outputs_are_cut_off_and_stay_in_the_file(shared: Path) -> None:
    opened = open_model(shared / "corpus" / "qdq" / "mlperf_resnet8_int8.onnx")
    form = make_form(opened)
    assert list(form.cut) == ["Identity_int8_prequant"] and "QuantizeLinear" in form.notes[0]
    assert [value.name for value in form.write({}).proto.graph.output] == ["Identity_int8"]
