# SPDX-License-Identifier: Apache-2.0
"""Rounding written into plain graphs: where, with which scale, which way; what stays in float and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.formats import INT8
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.simulation.implicit import Implicit, simulate_implicit
from qdqtool.simulation.rounding import fake_quantize
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.runtime.executor import Executor

NET = """g (float[1,4,6,6] x) => (float[1,4,6,6] y) <float[4,4,3,3] w, float[4] b, float[4,4,3,3] v> {
    [one] c = Conv<pads=[1,1,1,1]>(x, w, b)
    r = Relu(c)
    [two] y = Conv<pads=[1,1,1,1]>(r, v)
}"""
SCALES = {"x": 0.02, "c": 0.05, "r": 0.03, "y": 0.07}


def entries(**scales: float) -> dict[str, np.float32]:
    return {name: np.float32(scale) for name, scale in (scales or SCALES).items()}


def simulated(model: onnx.ModelProto, scales: dict[str, np.float32], target: Any, **more: Any) -> Implicit:
    done = simulate_implicit(GraphView(model.graph), scales, target, None, **more)
    onnx.checker.check_model(model, full_check=True)
    return done


def image() -> dict[str, npt.NDArray[Any]]:
    return {"x": np.random.default_rng(0).normal(size=(1, 4, 6, 6)).astype(np.float32)}


def values(model: onnx.ModelProto, *names: str) -> list[npt.NDArray[Any]]:
    return list(Executor(Model(model), outputs=names).run(image()).values())


def test_gpu_rounds_what_int8_operators_read_and_nothing_inside_a_group() -> None:
    model = model_of(NET)
    done = simulated(model, entries(), "gpu")
    assert (done.tensors, done.weights, done.floats) == (("x", "r"), ("w", "v"), {})
    assert done.unused == ("c", "y"), "inside the group; read by nobody"
    x, r, kept, rounded = values(model, "x", "r", "x_int8", "r_int8")
    assert np.array_equal(kept, fake_quantize(x, np.float32(0.02), "even", INT8.codes))
    assert np.array_equal(rounded, fake_quantize(r, np.float32(0.03), "even", INT8.codes))
    assert not np.array_equal(r, rounded), "the tensor keeps its float values"


def test_dla_rounds_every_tensor_under_its_own_name() -> None:
    model, plain = model_of(NET), model_of(NET)
    done = simulated(model, entries(), "dla")
    assert (done.tensors, done.weights, done.unused) == (("x", "c", "r", "y"), ("w", "v"), ())
    assert [value.name for value in model.graph.output] == ["y"]
    raw, c, r, y = values(model, "c_unrounded", "c", "r", "y")
    assert np.array_equal(c, fake_quantize(raw, np.float32(0.05), "away", INT8.codes))
    assert np.array_equal(r, fake_quantize(np.maximum(c, 0), np.float32(0.03), "away", INT8.codes))
    levels = y / np.float32(0.07)
    assert np.abs(levels - np.rint(levels)).max() < 1e-4, "the output is rounded too"
    assert not np.array_equal(values(plain, "y")[0], y)


@pytest.mark.parametrize(("target", "how"), [("gpu", "up"), ("dla", "away")])
def test_weights_round_per_channel_each_target_its_way(target: Any, how: Any) -> None:
    model = model_of("g (float[1, 3] x) => (float[1, 2] y) <float[3, 2] w> { y = MatMul(x, w) }")
    ties = np.array([[127, 254], [0.5, -1], [-1.5, 3]], np.float32)  # scales 1 and 2: levels .5, -.5, -1.5, 1.5
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(ties, "w"))
    simulated(model, entries(x=1.0, y=1.0), target)
    made = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    want = {"up": [[127, 254], [1, 0], [-1, 4]], "away": [[127, 254], [1, -2], [-2, 4]]}[how]
    assert made["w_int8"].tolist() == want
    assert made["w"].tolist() == ties.tolist(), "the weight itself stays"


def test_the_whole_of_a_product_by_hand() -> None:
    model = model_of("g (float[1, 3] x) => (float[1, 2] y) <float[3, 2] w> { y = MatMul(x, w) }")
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    simulated(model, entries(x=0.01, y=0.02), "dla")
    x = np.array([[0.305, -1.28, 0.777]], np.float32)
    step = (np.abs(w).max(axis=0) / np.float32(127)).astype(np.float32)
    product = fake_quantize(x, np.float32(0.01), "away", INT8.codes) @ fake_quantize(w, step, "away", INT8.weight_codes)
    got = Executor(Model(model)).run({"x": x})["y"]
    assert np.array_equal(got, fake_quantize(product, np.float32(0.02), "away", INT8.codes))


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_activations_saturate_at_minus_128_and_weights_at_minus_127(target: Any) -> None:
    model = model_of("g (float[1, 2] x) => (float[1, 1] y) <float[2, 1] w> { y = MatMul(x, w) }")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([[-1], [0.5]], np.float32), "w"))
    simulated(model, entries(x=1.0, y=1.0), target)
    made = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w_int8")
    assert made[0, 0] == pytest.approx(-1, abs=1e-6)
    got = Executor(Model(model), outputs=["x_int8"]).run({"x": np.array([[-1000, 1000]], np.float32)})["x_int8"]
    assert got.tolist() == [[-128, 127]]


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_a_layer_without_a_scale_before_or_behind_it_is_float(target: Any) -> None:
    behind = simulated(model_of(NET), entries(x=0.1, c=0.1, r=0.1), target)
    assert behind.floats.keys() == {"two"} and behind.floats["two"].startswith("its output ")
    assert behind.weights == ("w",)
    before = simulated(model_of(NET), entries(c=0.1, r=0.1, y=0.1), target)
    assert before.floats.keys() == {"one"} and before.floats["one"].startswith("its input ")
    assert before.weights == ("v",)


def test_on_the_gpu_the_group_counts_and_not_what_is_inside() -> None:
    assert simulated(model_of(NET), entries(x=0.1, r=0.1, y=0.1), "gpu").floats == {}
    floats = simulated(model_of(NET), entries(x=0.1, r=0.1, y=0.1), "dla").floats
    assert floats.keys() == {"one"} and floats["one"].startswith("its output ")


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_kept_in_float(target: Any) -> None:
    done = simulated(model_of(NET), entries(), target, kept=("y",))
    assert (done.floats, done.weights) == ({"two": "kept in float"}, ("w",))
    assert ("r" in done.tensors) == (target == "dla"), "no INT8 operator of the GPU reads it"


def test_inputs_that_bodies_read_and_several_outputs() -> None:
    model = model_of(
        """g (float[4] x, bool k) => (float[4] y, float[2] p) {
        n, p = Split<axis = 0>(x)
        y = If (k) < then_branch = t () => (float[4] u) { u = Abs(x) },
        else_branch = e () => (float[4] v) { v = Neg(x) }
        >
    }""",
        opset=13,
    )
    done = simulate_implicit(GraphView(model.graph), entries(x=0.5, p=1.0, y=2.0), "dla", None)
    assert done.tensors == ("x", "p", "y")
    got = Executor(Model(model)).run({"x": np.array([0.3, -0.3, 0.75, 1.3], np.float32), "k": np.array(True)})
    assert got["p"].tolist() == [1.0, 2.0]  # .75 away to 1.0, 1.3 to 1.5, that away to 2.0
    assert got["y"].tolist() == [0.0, 0.0, 2.0, 2.0]  # .5 is a quarter of a step, 1.0 a half


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_scales_for_no_tensor_are_refused(target: Any) -> None:
    with pytest.raises(QdqError, match="none of the 1 scales"):
        simulate_implicit(GraphView(model_of(NET).graph), entries(other=0.1), target, None)


def test_a_broken_weight_is_named() -> None:
    model = model_of(NET)
    bad = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    bad[0, 0, 0, 0] = np.nan
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(bad, "w"))
    with pytest.raises(QdqError, match="w: the weight holds NaN or Inf"):
        simulate_implicit(GraphView(model.graph), entries(), "gpu", None)


def test_a_channel_of_zeros_stays_zero() -> None:
    model = model_of(NET)
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[1] = 0
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    simulated(model, entries(), "gpu")
    made = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w_int8")
    assert not made[1].any() and np.isfinite(made).all()


def test_names_that_are_taken_are_left_alone() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y) { x_int8 = Neg(x)  y_unrounded = Abs(x_int8)  y = Neg(y_unrounded) }"
    )
    done = simulated(model, entries(x=1.0, y=1.0), "dla")
    assert done.tensors == ("x", "y")
    assert Executor(Model(model)).run({"x": np.array([0.4, -2.6], np.float32)})["y"].tolist() == [0.0, -3.0]
