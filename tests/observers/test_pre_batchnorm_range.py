# SPDX-License-Identifier: Apache-2.0
"""The range before a BatchNormalization: when it may be read from what comes after, and that it is the same range."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.amax import kernel
from qdqtool.amax.histogram import Histogram
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.observers.pre_batchnorm_range import METHOD, Affine, AffineRange, before_norms
from tests.graphs import model_of
from tests.ort_session import session_of

Float32 = npt.NDArray[np.float32]
CHANNELS = 4
STATISTICS = {
    "s": [1.5, -0.5, 2.0, -0.1],
    "b": [0.3, -2.0, 0.0, 1.0],
    "m": [0.1, 0.0, -1.0, 2.0],
    "v": [1.0, 0.2, 4, 9],
}
VALUES = "<float[4,3,3,3] w, float[4] s, float[4] b, float[4] m, float[4] v>"
BETWEEN = "c = Conv(x, w)  "
NORM = "y = BatchNormalization(c, s, b, m, v)  "
LAST_BITS = 1e-4  # relative: what the head of affine.py promises


def with_values(model: onnx.ModelProto, values: Mapping[str, Any]) -> onnx.ModelProto:
    for one in model.graph.initializer:
        if one.name in values:
            one.CopyFrom(onnx.numpy_helper.from_array(np.array(values[one.name], np.float32), one.name))
    return model


def proto_of(
    body: str, outputs: str = "float[N,4,6,6] z", inputs: str = "", **statistics: list[float]
) -> onnx.ModelProto:
    """A graph with the statistics of its BatchNormalization as given."""
    model = model_of(f"net (float[N,3,8,8] x{inputs}) => ({outputs}) {VALUES} {{ {body} }}")
    return with_values(model, {**STATISTICS, **statistics})


def found_in(
    proto: onnx.ModelProto, *, names: tuple[str, ...] = ("x", "c", "y", "z"), kept: tuple[str, ...] = ()
) -> Any:
    return before_norms(GraphView(proto.graph), names, kept)


RELU = "z = Relu(y)"
PLAIN = BETWEEN + NORM + RELU


# When


def test_a_convolution_that_only_its_norm_reads() -> None:
    found = found_in(proto_of(PLAIN))
    assert list(found) == ["c"]
    factor = np.array(STATISTICS["s"]) / np.sqrt(np.array(STATISTICS["v"]) + 1e-5)
    assert found["c"].source == "y"
    np.testing.assert_allclose(found["c"].factor, factor, 1e-6)
    np.testing.assert_allclose(found["c"].shift, STATISTICS["b"] - np.array(STATISTICS["m"]) * factor, 1e-6)


@pytest.mark.parametrize(
    ("operator", "axes", "weight", "fits"),
    [("ConvTranspose", ",8,8", "3,4,3,3", True), ("Gemm", "", "3,4", False)],
)
def test_which_operators(operator: str, axes: str, weight: str, fits: bool) -> None:
    """Onnxruntime does not fold a matrix product, so that tensor is had for nothing."""
    graph = f"net (float[N,3{axes}] x) => (float[N,4] z) {VALUES.replace('4,3,3,3', weight)}"
    model = with_values(model_of(f"{graph} {{ c = {operator}(x, w)  {NORM} {RELU} }}"), STATISTICS)
    assert list(found_in(model)) == (["c"] if fits else [])


@pytest.mark.parametrize(
    "body",
    [
        BETWEEN + NORM + "r = Relu(y)  z = Add(r, c)",
        BETWEEN + "y = BatchNormalization(r, s, b, m, v)  r = Relu(c)  z = Relu(y)",
        BETWEEN + "y, n, o = BatchNormalization<training_mode=1>(c, s, b, m, v)  z = Relu(y)",
        BETWEEN + "g = Abs(s)  h = Mul(g, b)  i = Sub(h, x1)  y = BatchNormalization(c, i, b, m, v)  z = Relu(y)",
    ],
    ids=["two readers", "another operator between", "in training mode", "statistics from an input"],
)
def test_what_is_in_the_way(body: str) -> None:
    assert found_in(proto_of(body, inputs=", float[4] x1")) == {}
    assert list(found_in(proto_of(PLAIN, inputs=", float[4] x1"))) == ["c"]


def test_an_output_of_the_graph_is_fetched_anyway() -> None:
    assert found_in(proto_of(PLAIN, "float[N,4,6,6] z, float[N,4,6,6] c")) == {}
    assert list(found_in(proto_of(PLAIN, "float[N,4,6,6] z, float[N,4,6,6] y"))) == ["c"]


@pytest.mark.parametrize("missing", ["c", "y"])
def test_both_must_be_wanted(missing: str) -> None:
    names = tuple(name for name in ("x", "c", "y", "z") if name != missing)
    assert found_in(proto_of(PLAIN), names=names) == {}


def test_a_quantized_tensor_keeps_its_histogram() -> None:
    assert found_in(proto_of(PLAIN), kept=("c",)) == {}
    assert list(found_in(proto_of(PLAIN), kept=("x", "y", "z"))) == ["c"]


@pytest.mark.parametrize(
    ("statistics", "fits"),
    [
        ({"s": [1.0, 1.0, 0.0, 1.0]}, False),
        ({"s": [1.0, 1.0, 1e-3, 1.0]}, True),
        ({"b": [0.0, 0.0, 990.0, 0.0], "m": [0.0] * 4, "s": [1.0, 1.0, -1.0, 1.0], "v": [1.0] * 4}, True),
        ({"b": [0.0, 0.0, 1010.0, 0.0], "m": [0.0] * 4, "s": [1.0, 1.0, -1.0, 1.0], "v": [1.0] * 4}, False),
        ({"b": [0.0, 0.0, -1010.0, 0.0], "m": [0.0] * 4, "s": [1.0] * 4, "v": [1.0] * 4}, False),
        ({"v": [1.0, 1.0, -1.0, 1.0]}, False),
    ],
    ids=["dead channel", "weak channel", "nearly too steep", "too steep", "too steep below", "no variance"],
)
def test_every_channel_must_be_readable(statistics: dict[str, list[float]], fits: bool) -> None:
    assert list(found_in(proto_of(PLAIN, **statistics))) == (["c"] if fits else [])


# The range


def net_of(seed: int, transposed: bool, last: str = "z = Sigmoid(y)") -> onnx.ModelProto:
    """A random convolution and its norm, half of the factors negative; 6 channels."""
    r = np.random.default_rng(seed)
    operator, weight = ("ConvTranspose", "[3,6,3,3]") if transposed else ("Conv", "[6,3,3,3]")
    statistics = "float[6] s, float[6] b, float[6] m, float[6] v"
    text = f"net (float[N,3,9,11] x) => (float[N,6,H,W] z) <float{weight} w, {statistics}>"
    model = model_of(f"{text} {{ c = {operator}(x, w)  {NORM} {last} }}")
    values = {"s": r.normal(size=6), "b": r.normal(size=6), "m": r.normal(size=6), "v": r.uniform(0.1, 4, 6)}
    return with_values(model, values)


def fetched(model: onnx.ModelProto, x: Float32) -> dict[str, Float32]:
    made = onnx.ModelProto.FromString(model.SerializeToString())
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("c", "y"))
    session = session_of(made)
    return dict(zip(("c", "y"), session.run(["c", "y"], {"x": x}), strict=True))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_range_of_what_the_convolution_makes(seed: int, transposed: bool) -> None:
    model = net_of(seed, transposed)
    affine = found_in(model)["c"]
    assert min(affine.factor) < 0 < max(affine.factor)
    x = np.random.default_rng(seed).normal(1, 2, (6, 3, 9, 11)).astype(np.float32)
    x[3:] *= 3  # so that the first three samples do not hold the ends
    found = fetched(model, x)
    whole, pieces, other = AffineRange(affine), AffineRange(affine), AffineRange(affine)
    whole.add_in_numpy(found["y"])
    pieces.add_in_numpy(found["y"][:1])
    pieces.add_in_numpy(found["y"][1:3])
    other.add_in_numpy(found["y"][3:])
    assert pieces.ends.tobytes() != whole.ends.tobytes()
    pieces.merge(other)
    assert pieces.ends.tobytes() == whole.ends.tobytes()
    limit = LAST_BITS * float(np.abs(found["c"]).max())
    assert whole.low == pytest.approx(float(found["c"].min()), abs=limit)
    assert whole.high == pytest.approx(float(found["c"].max()), abs=limit)
    assert whole.amax == pytest.approx(float(np.abs(found["c"]).max()), rel=LAST_BITS)
    assert not (whole.is_empty or whole.has_inf or whole.all_zero)


def range_of(factor: tuple[float, ...] = (2.0, -4.0), shift: tuple[float, ...] = (1.0, 2.0)) -> AffineRange:
    return AffineRange(Affine("y", factor, shift))


def rows(*values: list[float]) -> Float32:
    return np.array([values], np.float32)


def test_a_negative_factor_turns_the_range_round() -> None:
    one = range_of()
    one.add_in_numpy(rows([1.0, 5.0], [-6.0, 2.0]))
    assert (one.low, one.high, one.amax) == (0.0, 2.0, np.float32(2.0))
    one.add_in_numpy(rows([3.0, 3.0], [2.0, 14.0]))
    assert (one.low, one.high, one.amax) == (-3.0, 2.0, np.float32(3.0))


def test_nothing_zero_and_infinite() -> None:
    one = range_of()
    one.add_in_numpy(np.zeros((0, 2, 3), np.float32))
    assert one.is_empty and not one.has_inf and not one.all_zero and one.amax == 0
    one.merge(range_of())
    assert one.is_empty
    one.add_in_numpy(rows([1.0], [2.0]))
    assert one.all_zero and not one.is_empty and not one.has_inf
    for odd in (np.inf, -np.inf):
        for channel in (0, 1):
            made, y = range_of(), rows([1.0, 0.5], [2.0, 3.0])
            y[0, channel] = odd
            made.add_in_numpy(y)
            assert made.has_inf and not made.is_empty and not made.all_zero
    small = range_of((1e-3, 1.0), (0.0, 0.0))
    small.add_in_numpy(rows([3e38], [0.0]))
    assert small.has_inf


def test_nan_and_the_sign_of_zero_are_not_kept() -> None:
    one, other = range_of(), range_of()
    one.add_in_numpy(rows([np.nan, -0.0, 3.0], [np.nan, np.nan, np.nan]))
    assert one.ends.tolist() == [[0.0, np.inf], [3.0, -np.inf]]
    assert not np.signbit(one.ends[0, 0])
    other.add_in_numpy(rows([0.0, 3.0, 3.0], [np.nan, np.nan, np.nan]))
    assert one.ends.tobytes() == other.ends.tobytes()


# In a calibration


def batches(count: int = 4) -> list[Mapping[str, Float32]]:
    r = np.random.default_rng(8)
    return [{"x": r.normal(size=(2, 3, 9, 11)).astype(np.float32)} for _ in range(count)]


def state_of(method: str = "max", **options: Any) -> Any:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    from qdqtool.observers.collect import count_batches
    from qdqtool.observers.options import CalibrationOptions

    points = options.pop("points", ())
    made = CalibrationOptions(method, progress=False, **options)
    return count_batches(Model(net_of(1, False)), batches(), made, points=points)


def table_of(state: Any, method: str) -> Any:
    from qdqtool.amax.method_table import parse_method
    from qdqtool.observers.table import read_table

    return read_table(state, parse_method(method))


@pytest.mark.parametrize("asked", ["numpy", "c"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_scale_is_that_of_observing(monkeypatch: pytest.MonkeyPatch, asked: str, workers: int) -> None:
    kernel.choose.cache_clear()
    monkeypatch.setenv(kernel.VARIABLE, asked if kernel.choose().module else "numpy")
    kernel.choose.cache_clear()
    less, everything = state_of(workers=workers), state_of(derive=False)
    kernel.choose.cache_clear()
    assert set(less.plan.affine) == set(less.observation.ranges) == {"c"}
    assert less.plan.affine["c"].source in less.observation.histograms["mergeable"]
    assert "c" not in less.plan.fetched
    tables = [table_of(state, "max") for state in (less, everything)]
    assert list(tables[0]) == list(tables[1])
    for name in tables[0]:
        np.testing.assert_allclose(tables[0][name].bits, tables[1][name].bits, LAST_BITS)
    assert (tables[0]["c"].origin, tables[0]["c"].method) == ("derived", METHOD)
    assert {tables[0][name].origin for name in tables[0] if name != "c"} == {"ptq"}
    assert tables[1]["c"].origin == "ptq"


def test_points_and_entropy_observe_everything() -> None:
    for state in (state_of("entropy"), state_of("entropy", beside="mse"), state_of(points=("c",))):
        assert not state.plan.affine and not state.observation.ranges
        assert "c" in state.plan.fetched


def test_a_checkpoint_keeps_the_ranges(tmp_path: Path) -> None:
    from qdqtool.observers.state_file import read_state

    whole = state_of(checkpoint=tmp_path / "c")
    kept = read_state(tmp_path / "c")
    assert kept.observation.ranges["c"].ends.tobytes() == whole.observation.ranges["c"].ends.tobytes()
    assert np.isfinite(kept.observation.ranges["c"].ends).all()
    assert isinstance(kept.observation.histograms["mergeable"]["y"], Histogram)
