# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What only an activation reads takes the scale of what comes out: when, and that nothing is lost by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import qdqtool
from qdqtool.amax.histogram import Histogram
from qdqtool.graph.view import GraphView
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.pre_activation import before_activations, before_silu, gates_of
from qdqtool.observers.pre_batchnorm_range import METHOD, Affine, AffineRange, before_norms
from tests.graphs import model_of
from tests.observers.test_pre_batchnorm_range import net_of

Float32 = npt.NDArray[np.float32]
ENDS = "<float[4,3,3,3] w, float[4,4,1,1] v, float lo, float hi, float up>"


def found_in(
    body: str, outputs: str = "float[N,4,6,6] z", inputs: str = "", opset: int = 17, **options: Any
) -> dict[str, str]:
    model = model_of(f"net (float[N,3,8,8] x{inputs}) => ({outputs}) {ENDS} {{ {body} }}", opset)
    for one in model.graph.initializer:
        if one.name in ("lo", "hi", "up"):
            value = np.float32({"lo": -1.0, "hi": 6.0, "up": 2.0}[one.name])
            one.CopyFrom(onnx.numpy_helper.from_array(np.array(value), one.name))
    return before_activations(GraphView(model.graph), ("x", "c", "y", "z", "d"), **options)


CONV = "c = Conv(x, w)  "


@pytest.mark.parametrize(
    "body",
    [
        CONV + "z = Relu(c)",
        CONV + "z = Clip(c, lo, hi)",
        CONV + "z = Clip(c, lo)",
        CONV + 'z = Clip(c, "", hi)',
    ],
)
def test_what_only_an_activation_reads(body: str) -> None:
    assert found_in(body) == {"c": "z"}


def test_bounds_as_attributes() -> None:
    assert found_in(CONV + "z = Clip<min=0.0, max=6.0>(c)", opset=9) == {"c": "z"}
    assert found_in(CONV + "z = Clip<min=1.0, max=6.0>(c)", opset=9) == {}


@pytest.mark.parametrize(
    "maker", ["c = Conv(x, w)  y = Add(c, c)  z = Relu(y)", "c = Conv(x, w)  y = Conv(c, v)  z = Relu(y)"]
)
def test_who_makes_it(maker: str) -> None:
    assert found_in(maker) == {"y": "z"}


@pytest.mark.parametrize(
    "body",
    [
        CONV + "z = LeakyRelu(c)",  # its negative part goes on
        CONV + "z = Sigmoid(c)",
        CONV + "z = Clip(c, up, hi)",  # 0 becomes 2
        CONV + "d = Relu(c)  z = Add(c, d)",  # two readers
        "z = Relu(x)",  # an input is there anyway
        CONV + "y = MaxPool<kernel_shape=[1,1]>(c)  z = Relu(y)",  # not fused with it
    ],
)
def test_what_needs_a_scale_of_its_own(body: str) -> None:
    assert found_in(body) == {}


def test_outputs_points_and_computed_bounds() -> None:
    assert found_in(CONV + "z = Relu(c)", "float[N,4,6,6] z, float[N,4,6,6] c") == {}
    assert found_in(CONV + "z = Relu(c)", kept=("c",)) == {}
    assert found_in(CONV + "z = Clip(c, l, hi)", inputs=", float l") == {}
    body = "net (float[N,3,8,8] x) => (float[N,4,6,6] z) <float[4,3,3,3] w> { c = Conv(x, w)  z = Relu(c) }"
    assert before_activations(GraphView(model_of(body).graph), ("x", "c")) == {}


# The range before a BatchNormalization, of what an activation lets through.


def test_only_what_gets_through_counts() -> None:
    made = AffineRange(Affine("z", (2.0, -1.0, 0.001), (1.0, 0.0, -0.5), cut=True))
    z = np.zeros((2, 3, 2, 2), np.float32)
    z[0, 0], z[1, 1, 0, 0] = (
        5.0,
        3.0,
    )  # the third channel is dead: what it holds cannot be determined, and does not matter
    made.add_in_numpy(z)
    assert (made.low, made.high) == (-3.0, 2.0)
    assert made.amax == 3
    open_one = AffineRange(Affine("z", (2.0, -1.0, 0.001), (1.0, 0.0, -0.5)))
    open_one.add_in_numpy(z)
    assert open_one.high == 500.0


def test_where_nothing_gets_through_there_still_is_a_range() -> None:
    made = AffineRange(Affine("z", (2.0,), (-1.0,), cut=True))
    made.add_in_numpy(np.zeros((1, 1, 4), np.float32))
    assert (made.low, made.high) == (0.5, 0.5)


def test_it_goes_through_json() -> None:
    one = Affine("z", (2.0, -1.5), (0.1, 0.2), cut=True)
    assert Affine.from_json(one.to_json()) == one


@pytest.mark.parametrize("activation", ["z = Relu(y)", "z = Clip(y, lo, hi)"])
@pytest.mark.parametrize("seed", range(4))
def test_y_has_the_scale_of_z_and_c_no_more_than_its_range(seed: int, activation: str) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    from qdqtool.calibration.engine import calibrate
    from qdqtool.observers.options import CalibrationOptions

    model = net_of(seed, False, activation)
    for name, value in (("lo", 0.0), ("hi", 6.0)):
        if activation.startswith("z = Clip"):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.float32), name))
    r = np.random.default_rng(seed)
    feed = [{"x": r.normal(size=(1, 3, 9, 11)).astype(np.float32)} for _ in range(4)]
    less = calibrate(model, feed, CalibrationOptions("percentile=100", progress=False))
    everything = calibrate(model, feed, CalibrationOptions("percentile=100", progress=False, derive=False))
    assert (less["y"].origin, less["y"].method) == ("derived", "as z")
    assert less["y"].same_bits(less["z"])
    assert (less["c"].origin, less["c"].method) == ("derived", METHOD)
    np.testing.assert_allclose(less["z"].bits, everything["z"].bits, 1e-5)
    assert less["c"].bits <= everything["c"].bits * np.float32(1.0001)  # no more than all of it
    view = GraphView(model.graph)
    names = ("x", "c", "y", "z")
    assert before_norms(view, names, (), before_activations(view, names))["c"].cut


def test_rounding_before_the_activation_loses_no_more_than_with_a_scale_of_its_own() -> None:
    """q(y, s) then Relu, for y with a long negative tail: with the scale of z the error is that of rounding z."""
    r = np.random.default_rng(4)
    y = np.concatenate([r.normal(size=4000), -r.exponential(20.0, 400)]).astype(np.float32)
    z = np.maximum(y, 0)

    def error(amax: float) -> float:
        step = amax / 127
        rounded = np.clip(np.round(y / step), -128, 127) * step
        return float(np.square(np.maximum(rounded, 0) - z).sum())

    assert error(float(z.max())) < 0.1 * error(float(np.abs(y).max()))


def test_max_tells_the_largest_value_of_each_tensor() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    from qdqtool.calibration.engine import calibrate
    from qdqtool.observers.options import CalibrationOptions

    r = np.random.default_rng(3)
    feed = [{"x": r.normal(size=(1, 3, 9, 11)).astype(np.float32)} for _ in range(4)]
    model = net_of(3, False, "z = Relu(y)")
    reported, own = (calibrate(model, feed, CalibrationOptions("max", progress=False, derive=d)) for d in (True, False))
    assert reported["y"].origin == "ptq"
    for name in ("x", "c", "y", "z"):
        np.testing.assert_allclose(reported[name].bits, own[name].bits, 1e-4)


SILU = CONV + "s = Sigmoid(c)  z = Mul(c, s)"


@pytest.mark.parametrize(
    ("body", "outputs", "found"),
    [
        (SILU, "z", {"c": "z"}),
        (CONV + "s = Sigmoid(c)  z = Mul(s, c)", "z", {"c": "z"}),
        (SILU, "z, float[N,4,6,6] c", {}),
        (SILU + "  y = Relu(c)", "z, float[N,4,6,6] y", {}),
        (CONV + "d = Relu(c)  s = Sigmoid(c)  z = Mul(d, s)", "z", {}),
        (CONV + "s = Sigmoid(c)  y = Relu(s)  z = Mul(c, y)", "z", {}),
    ],
)
def test_what_only_a_silu_reads(body: str, outputs: str, found: dict[str, str]) -> None:
    model = model_of(f"net (float[N,3,8,8] x) => (float[N,4,6,6] {outputs}) {ENDS} {{ {body} }}", 17)
    assert before_silu(GraphView(model.graph), ("x", "c", "s", "z")) == found


@pytest.mark.parametrize(
    ("body", "outputs", "kept", "found"),
    [
        (SILU, "z", (), {"s": "c"}),
        (SILU, "z", ("s",), {}),
        (SILU, "z, float[N,4,6,6] s", (), {}),
        (SILU + "  y = Relu(s)", "z, float[N,4,6,6] y", (), {}),
    ],
)
def test_the_gate_of_a_silu_that_nothing_else_reads(
    body: str, outputs: str, kept: tuple[str, ...], found: dict[str, str]
) -> None:
    model = model_of(f"net (float[N,3,8,8] x) => (float[N,4,6,6] {outputs}) {ENDS} {{ {body} }}", 17)
    assert gates_of(GraphView(model.graph), ("c",), kept) == found


PADDED = "g (float[1,4,8,8] x) => (float[N] y, float[N] z) <float[4,4,1,1] w, int64[8] p = {0,0,1,1,0,0,1,1}, float none> { c = Conv(x, w) d = Pad(c, p, none) m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d) y = Conv(m, w) r = Relu(y) z = Conv(r, w) }"


@pytest.mark.parametrize("method", ["auto", "mse", "max", "entropy"])
@pytest.mark.parametrize("none", [-np.inf, np.finfo(np.float32).min], ids=["Inf", "lowest"])
def test_what_is_padded_with_inf_takes_the_scale_from_behind_the_pool(none: float, method: str) -> None:
    model = model_of(PADDED)
    next(t for t in model.graph.initializer if t.name == "none").CopyFrom(
        onnx.numpy_helper.from_array(np.float32(none), "none")
    )
    data = [{"x": np.random.default_rng(seed).normal(size=(1, 4, 8, 8)).astype(np.float32)} for seed in range(3)]
    if method == "entropy" and np.isfinite(none):
        pytest.skip("TensorRT's histogram takes its width from the largest value, as TensorRT does")
    options = qdqtool.InsertOptions(calibration=qdqtool.CalibrationOptions(method, progress=False), keep_float=0)
    made = qdqtool.insert(model, data=data, options=options)
    scales = made.table.scales
    assert "d" in {point.tensor for point in made.plan.activations}
    assert scales["d"].bits.tobytes() == scales["m"].bits.tobytes() and float(scales["d"].bits) < 1


def test_inf_behind_the_pool_is_counted_still() -> None:
    """Behind the pool there is Inf, too: that is the data's, or a fault of the model."""
    plan = ObservationPlan.of(GraphView(model_of(PADDED).graph), ["d", "m"], ["mergeable"], {}, derive=True)
    assert plan.pooled == {"d": "m"}
    for behind, hidden in ((np.inf, False), (1.0, True)):
        counted = {"d": Histogram(), "m": Histogram()}
        counted["d"].add(np.array([-np.inf, 2.0], np.float32))
        counted["m"].add(np.array([behind, 2.0], np.float32))
        assert plan.derive("mergeable", counted)["d"].has_inf is not hidden
    assert ObservationPlan.from_json(plan.to_json()) == plan
    assert plan.without(["m"]).pooled == {}
