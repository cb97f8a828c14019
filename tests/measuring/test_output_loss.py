# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The loss at the outputs: 0 for the model itself, by hand for a known error, never above 1 per channel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.measuring import output_loss
from qdqtool.measuring.output_loss import FloatOutputs, OutputReference, comparable_outputs
from qdqtool.runtime import stages
from qdqtool.runtime.activations import ObservableModel
from tests.graphs import model_of

SCALED = "g (float[N,6,5] x) => (float[N,6,5] y) <float[6,1] k> { y = Mul(x, k) }"


def with_factors(factors: list[float]) -> onnx.ModelProto:
    model = model_of(SCALED)
    value = np.array(factors, np.float32).reshape(-1, 1)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(value, "k"))
    return model


def reference_of(model: onnx.ModelProto, count: int = 3) -> OutputReference:
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((1, 6, 5)).astype(np.float32)} for _ in range(count)]
    return OutputReference.of(ObservableModel(Model(model), where="m"), data)


def test_the_model_itself_loses_nothing() -> None:
    model = with_factors([1.0] * 6)
    assert reference_of(model).loss(Model(model)) == 0.0


def test_outputs_that_a_pass_has_taken_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = with_factors([1.0] * 6), [{"x": np.ones((1, 6, 5), np.float32)}] * 2
    given = FloatOutputs(["y"], 2)
    given.take(0, {"y": np.zeros((1, 6, 5), np.float32)})
    assert OutputReference.of(ObservableModel(Model(model), where="m"), data, given).wanted[0][0].any(), (
        "one sample is missing"
    )
    given.take(1, {"y": np.zeros((1, 6, 5), np.float32), "other": np.ones(1, np.float32)})
    monkeypatch.setattr("qdqtool.measuring.output_loss._outputs", lambda *_: pytest.fail("it was run"))
    wanted = OutputReference.of(ObservableModel(Model(model), where="m"), data, given).wanted
    assert [array.dtype for arrays in wanted for array in arrays] == [np.float32] * 2 and not wanted[1][0].any()


def test_large_weights_lose_the_same_stage_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = "float[N,3,8,8]"
    body = "a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w) d = Add(c, x)"
    model = model_of(f"g ({shape} x) => ({shape} d, {shape} b) <float[3,3,3,3] w> {{ {body} }}")
    other = model_of(
        f"g ({shape} x) => ({shape} d, {shape} b) <float[3,3,3,3] w> {{ {body.replace('Relu', 'Sigmoid')} }}"
    )
    samples = [{"x": np.random.default_rng(k).standard_normal((1, 3, 8, 8)).astype(np.float32)} for k in range(3)]
    reference = OutputReference.of(ObservableModel(Model(model), where="m"), samples)
    whole = reference.loss(Model(other))
    monkeypatch.setattr(output_loss, "_LARGE_BYTES", -1)
    monkeypatch.setattr(stages, "_BYTES", 1)
    assert reference.loss(Model(other)) == pytest.approx(whole, rel=1e-6) and whole > 0.1
    assert reference.loss(Model(model)) == pytest.approx(0.0, abs=1e-12)


def test_the_loss_is_error_over_variance_per_channel() -> None:
    """Rows are the longer axis, so columns are the channels; an error of 10 % everywhere is 1 % of the power."""
    one = reference_of(with_factors([1.0] * 6), 200)
    assert one.loss(Model(with_factors([1.1] * 6))) == pytest.approx(0.01, rel=0.05)


def test_a_lost_channel_counts_one_and_no_more() -> None:
    model = model_of("g (float[N,2,50] x) => (float[N,2,50] y) <float[2,1] k> { y = Mul(x, k) }")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((2, 1), np.float32), "k"))
    data = [{"x": np.random.default_rng(0).standard_normal((1, 2, 50)).astype(np.float32)}]
    one = OutputReference.of(ObservableModel(Model(model), where="m"), data)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([[1], [100]], np.float32), "k"))
    assert one.loss(Model(model)) == 0.5


def test_a_channel_that_never_varies_is_left_out() -> None:
    text = "g (float[N,6,5] x) => (float[N,6,5] y) <float[6,5] k> { z = Sub(x, x) y = Add(z, k) }"
    other = model_of(text.replace("y = Add(z, k)", "w = Add(z, k) y = Add(w, k)"))
    assert 0.0 < reference_of(model_of(text), 1).loss(Model(other)) <= 1.0  # the columns vary over the rows
    assert reference_of(model_of(text)).loss(Model(other)) == 0.0  # but no image has a say in it
    flat = "g (float[N,6,5] x) => (float[N,6,5] y) { z = Sub(x, x) y = Add(z, z) }"
    assert reference_of(model_of(flat)).loss(Model(model_of(flat.replace("Add", "Sub")))) == 0.0


def test_a_decode_of_boxes_changes_nothing() -> None:
    """Anchors spread a channel over the image by far more than what a box adds to them."""
    raw = "g (float[N,40,4] x) => (float[N,40,4] y) <float k = {1.0}> { y = Mul(x, k) }"
    decoded = raw.replace("<", "<float[40,4] anchors, float tenth = {0.1}, ").replace(
        "y = Mul(x, k)", "z = Mul(x, k) t = Mul(z, tenth) y = Add(t, anchors)"
    )

    def loss(text: str) -> float:
        models = [model_of(text), model_of(text.replace("1.0", "1.1"))]
        for one in models:
            for value in one.graph.initializer:
                if value.name == "anchors":
                    grid = np.linspace(0, 320, 160, dtype=np.float32).reshape(40, 4)
                    value.CopyFrom(onnx.numpy_helper.from_array(grid, "anchors"))
        rng = np.random.default_rng(0)
        data = [{"x": rng.standard_normal((1, 40, 4)).astype(np.float32)} for _ in range(4)]
        return OutputReference.of(ObservableModel(Model(models[0]), where="m"), data).loss(Model(models[1]))

    assert loss(raw) > 0.005
    assert loss(decoded) == pytest.approx(loss(raw), rel=1e-3)


def test_the_mean_is_over_outputs_and_integers_are_left_out() -> None:
    text = """g (float[N,6,5] x) => (float[N,6,5] y, float[N,6,5] z, int64[3] s) <float[6,1] k>
              { y = Mul(x, k) z = Mul(x, x) s = Shape(x) }"""
    model = model_of(text)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((6, 1), np.float32), "k"))
    one = reference_of(model, 100)
    assert one.outputs == ("y", "z")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.full((6, 1), 1.2, np.float32), "k"))
    assert one.loss(Model(model)) == pytest.approx(0.02, rel=0.1)


def test_an_output_that_overflows_is_lost() -> None:
    one = reference_of(with_factors([1.0] * 6))
    with np.errstate(invalid="ignore"):
        assert one.loss(Model(with_factors([float("inf")] * 6))) == 1.0


def test_a_vector_of_classes_is_one_channel() -> None:
    text = "g (float[N,8] x) => (float[N,8] y) <float[8] k> { y = Mul(x, k) }"
    model = model_of(text)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(8, np.float32), "k"))
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    one = OutputReference.of(ObservableModel(Model(model), where="m"), [{"x": x}])
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1] * 7 + [2], np.float32), "k"))
    assert one.loss(Model(model)) == 1.0  # 7^2 over a variance sum of 42
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2] + [1] * 6, np.float32), "k"))
    assert one.loss(Model(model)) == pytest.approx(1 / 42)


@pytest.mark.parametrize("shape", ["2,1,4,3", "3", "1", "2,2"])
def test_a_first_axis_that_is_no_batch(shape: str) -> None:
    """States of recurrent networks: several layers come first."""
    text = f"g (float[{shape}] x) => (float[{shape}] y) <float k = {{1.0}}> {{ y = Mul(x, k) }}"
    x = np.random.default_rng(0).normal(size=[int(size) for size in shape.split(",")]).astype(np.float32)
    one = OutputReference.of(ObservableModel(Model(model_of(text)), where="m"), [{"x": x}, {"x": x + 1}])
    assert one.loss(Model(model_of(text))) == 0.0
    assert 0.0 < one.loss(Model(model_of(text.replace("1.0", "1.1")))) < 0.2


FOUND = """g (float[6,2] x) => (float[N,2] y) <float[2] k, float half = {0.5}> {
 m = Mul(x, k) s = ReduceSum<keepdims=0>(m, a) b = Greater(s, half) y = Compress<axis=0>(m, b) }"""


def test_as_many_rows_as_there_are_detections() -> None:
    def model(factor: float) -> onnx.ModelProto:
        made = model_of(FOUND.replace("float[2] k,", "float[2] k, int64[1] a = {1},"))
        value = onnx.numpy_helper.from_array(np.full(2, factor, np.float32), "k")
        next(one for one in made.graph.initializer if one.name == "k").CopyFrom(value)
        return made

    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
    one = OutputReference.of(ObservableModel(Model(model(1.0)), where="m"), [{"x": x}])
    assert one.loss(Model(model(1.0))) == 0.0
    assert one.loss(Model(model(0.1))) == 1.0
    nothing = OutputReference.of(ObservableModel(Model(model(0.1)), where="m"), [{"x": x}])
    assert nothing.loss(Model(model(0.1))) == 0.0


def test_samples_of_several_shapes_are_one_channel() -> None:
    text = "g (float[N,A,B] x) => (float[N,A,B] y) <float k = {1.0}> { y = Mul(x, k) }"
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(1, 4, size)).astype(np.float32)} for size in (5, 3, 5)]
    one = OutputReference.of(ObservableModel(Model(model_of(text)), where="m"), data)
    assert one.loss(Model(model_of(text))) == 0.0
    assert one.loss(Model(model_of(text.replace("1.0", "1.1")))) == pytest.approx(0.01, rel=0.2)


def test_a_model_without_a_float_output_is_refused() -> None:
    model = model_of("g (float[N,6,5] x) => (int64[3] s) { s = Shape(x) }")
    with pytest.raises(QdqError, match="no float32 output"):
        reference_of(model)


def test_a_few_large_places_that_hardly_vary_do_not_stand_for_a_channel() -> None:
    """One place in forty has a large value that no sample changes much; an error of 5 % there is all that there is."""
    text = """g (float[N,40,4] x) => (float[N,40,4] y) <float[40,4] border, float[40,4] k> {
              z = Mul(x, k) y = Add(z, border) }"""

    def model(factor: float, places: float = 1.0) -> onnx.ModelProto:
        made = model_of(text)
        border = np.zeros((40, 4), np.float32)
        border[0] = 1000 * factor
        values = {"border": border, "k": np.full((40, 4), places, np.float32)}
        for tensor in made.graph.initializer:
            tensor.CopyFrom(onnx.numpy_helper.from_array(values[tensor.name], tensor.name))
        return made

    data = [{"x": np.random.default_rng(i).standard_normal((1, 40, 4)).astype(np.float32)} for i in range(4)]
    one = OutputReference.of(ObservableModel(Model(model(1.0)), where="m"), data)
    assert one.loss(Model(model(1.05))) == pytest.approx(1 / 40)
    worse, worst = one.loss(Model(model(1.05, 1.5))), one.loss(Model(model(1.05, 2.5)))
    assert 1 / 40 < worse < worst <= 1.0  # the other places still tell models apart


# ---------------------------------------------------------------- what is compared

NMS = "n, boxes, scores = EfficientNMS_TRT(box, score)"
CUT = "box, score = Split<axis=1>(r, halves)"


def test_in_front_of_a_plugin_what_it_reads_is_compared() -> None:
    text = f"g (float[1,6,5] x) => (int32[1] n, float[1,9,4] boxes, float[1,9] scores) <int64[2] halves = {{4,2}}> {{ r = Relu(x) {CUT} {NMS} }}"
    assert comparable_outputs(ObservableModel(Model(model_of(text, 13)))) == ("box", "score")


def test_outputs_in_reach_are_compared_beside_them() -> None:
    text = f"g (float[1,6,5] x) => (float[1,9,4] boxes, float[1,6,5] r, int64[3] size) <int64[2] halves = {{4,2}}> {{ r = Relu(x) {CUT} {NMS} size = Shape(r) }}"
    assert comparable_outputs(ObservableModel(Model(model_of(text, 13)))) == ("r", "box", "score")


def test_outputs_of_a_plain_model_are_what_they_were() -> None:
    text = "g (float[1,6] x) => (float[1,6] y, int64[2] s, float[2] k, float[1,6] x) <float[2] k = {1,2}> { y = Relu(x) s = Shape(y) }"
    assert comparable_outputs(ObservableModel(Model(model_of(text)))) == ("y",)


def test_onnxruntime_is_asked_for_types_that_onnx_does_not_know() -> None:
    text = "g (float[1,4] x) => (float[1,4] y) { a = custom.Plugin(f, i) y = Relu(a) f = com.microsoft.FastGelu(x) i = Shape(f) }"
    model = model_of(text)
    for domain in ("com.microsoft", "custom"):
        model.opset_import.add(domain=domain, version=1)
    assert comparable_outputs(ObservableModel(Model(model))) == ("f",)
