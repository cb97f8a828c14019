# SPDX-License-Identifier: Apache-2.0
"""Clipping values against brute force on the raw samples: the true error counts, not the histogram's idea of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.histogram_kinds import KINDS
from qdqtool.amax.method_table import METHODS, NAMES, Method, parse_method, row_of_scale
from qdqtool.amax.methods import (
    amax_entropy_stable,
    amax_max,
    amax_mse,
    amax_percentile,
    choose_amax,
    predicted_mse,
    predicted_sqnr,
    scale_from_amax,
)
from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.errors import QdqError

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], npt.NDArray[np.floating]]


def with_outliers(rng: np.random.Generator, n: int) -> Float64:
    x = rng.standard_normal(n)
    x[rng.integers(0, n, max(1, n // 2000))] *= 40.0
    return x


def mixture(rng: np.random.Generator, n: int) -> Float64:
    return np.where(rng.random(n) < 0.9, rng.normal(0.0, 0.1, n), rng.normal(3.0, 1.0, n))


def silu(rng: np.random.Generator, n: int) -> Float64:
    x = 2.0 * rng.standard_normal(n)
    return np.asarray(x / (1.0 + np.exp(-x)))


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "relu": lambda rng, n: np.maximum(rng.standard_normal(n) - 1.0, 0.0),
    "silu": silu,
    "heavy tail": lambda rng, n: rng.standard_t(2, size=n),
    "log-normal": lambda rng, n: rng.lognormal(0.0, 1.5, n),
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, n),
    "negative": lambda rng, n: -rng.gamma(2.0, size=n),
    "sigmoid": lambda rng, n: 1.0 / (1.0 + np.exp(-3.0 * rng.standard_normal(n))),
    "outliers": with_outliers,
    "mixture": mixture,
    "mostly zero": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.01),
    "few values": lambda rng, n: rng.choice([0.0, 0.3, 1.7, 5.0], n),
}


def hist_of(*batches: npt.NDArray[np.floating]) -> Histogram:
    made = Histogram()
    for batch in batches:
        made.add(np.asarray(batch, np.float32))
    return made


def true_mse(x: Float32, amax: float) -> float:
    """Quantize and dequantize the samples themselves: ties to even, saturated to [-128, 127]."""
    scale = float(scale_from_amax(np.float32(amax)))
    values = x.astype(np.float64)
    return float(np.mean((np.clip(np.rint(values / scale), -128, 127) * scale - values) ** 2))


# mse


@pytest.mark.parametrize("samples", [5, 40, 4000])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mse_is_as_good_as_the_best_of_2000_clipping_values_on_the_samples(name: str, samples: int) -> None:
    x = DISTRIBUTIONS[name](np.random.default_rng(samples), samples).astype(np.float32)
    x[0] = x[0] or 1.0  # five samples of "mostly zero" may all be
    hist = hist_of(x)
    largest = float(hist.amax)
    best = min(true_mse(x, amax) for amax in np.linspace(largest / 2000, largest, 2000))
    assert true_mse(x, float(amax_mse(hist))) <= best * 1.01


@pytest.mark.parametrize("step", [1.0, 0.25, -1.0])
def test_mse_of_pixels_is_as_good_as_the_best(step: float) -> None:
    """Whole numbers stand at the lower edges of their bins; spread over them they would cost 4 % more than the best."""
    x = np.random.default_rng(0).integers(0, 256, 20_000).astype(np.float32) * np.float32(step)
    best = min(true_mse(x, amax) for amax in np.linspace(200 * abs(step), 255 * abs(step), 600))
    found = amax_mse(hist_of(x))
    assert true_mse(x, float(found)) <= best * 1.01
    assert predicted_mse(hist_of(x), found) == pytest.approx(true_mse(x, float(found)), rel=0.01)


def test_whole_numbers_up_to_127_cost_nothing() -> None:
    hist = hist_of(np.arange(-127.0, 128.0))
    assert amax_mse(hist) == np.float32(127)
    assert predicted_mse(hist, 127.0) == 0.0
    assert predicted_sqnr(hist, 127.0) == math.inf


def test_mse_clips_where_max_would_waste_the_range() -> None:
    """One value at 60 among 400,000 of a unit normal is worth less than the resolution it costs."""
    x = np.random.default_rng(1).standard_normal(400_000).astype(np.float32)
    x[7] = 60.0
    amax = float(amax_mse(hist_of(x)))
    assert 3.0 < amax < 45.0
    assert true_mse(x, amax) < 0.7 * true_mse(x, 60.0)


@pytest.mark.parametrize("zeros", [1_000, 10_000_000])
def test_zeros_have_no_say(zeros: int) -> None:
    x = np.maximum(np.random.default_rng(3).standard_normal(3000), 0.0)
    plain, padded = hist_of(x), hist_of(x)
    padded.zeros += zeros
    assert amax_mse(plain).tobytes() == amax_mse(padded).tobytes()


@pytest.mark.parametrize(
    "values", [[3.0], [-3.0], [0.0, 0.0, 1e-20], [1.0, -1.0], [2.0**-140], [3.4e38, -3.4e38], [5.0, 5.0, 1e-3]]
)
def test_a_few_values_do_not_collapse(values: list[float]) -> None:
    x = np.array(values, np.float32)
    largest = float(np.abs(x).max())
    for amax in (amax_mse(hist_of(x)), amax_entropy_stable(hist_of(x)), amax_percentile(hist_of(x), 99.99)):
        assert 0.98 * largest <= float(amax) <= largest


def test_negative_values_have_one_level_more() -> None:
    """-128 against 127 levels over the same range: the scale may be 127/128 of the other."""
    x = np.random.default_rng(0).uniform(0.0, 4.0, 50_000)
    assert float(amax_mse(hist_of(-x))) == pytest.approx(float(amax_mse(hist_of(x))) * 127 / 128, rel=2e-3)


@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_no_method_goes_above_the_maximum_seen_or_down_to_zero(x: Float32) -> None:
    hist = hist_of(x)
    for method in ("mse", "percentile=50", "percentile", "max", "entropy-stable"):
        amax = choose_amax(parse_method(method), hist)
        assert isinstance(amax, np.float32)
        assert amax <= hist.amax
        assert (amax > 0) == (hist.amax > 0)


@pytest.mark.parametrize("method", ["mse", "percentile", "max", "entropy-stable"])
def test_order_and_shards_do_not_change_a_bit(method: str) -> None:
    rng = np.random.default_rng(4)
    batches = [(rng.laplace(size=700) * k).astype(np.float32) for k in (1.0, 0.1, 5.0, 0.0)]
    shards = [hist_of(batches[2], batches[0]), hist_of(batches[3], batches[1])]
    shards[1].merge(shards[0])
    found = [hist_of(*batches), hist_of(*reversed(batches)), shards[1]]
    assert len({choose_amax(parse_method(method), hist).tobytes() for hist in found}) == 1


@pytest.mark.parametrize("method", ["mse", "percentile", "max", "entropy-stable"])
def test_a_power_of_two_on_the_data_is_one_on_the_clipping_value(method: str) -> None:
    x = np.random.default_rng(6).laplace(size=3000).astype(np.float32)
    one = choose_amax(parse_method(method), hist_of(x))
    for power in (-90, -3, 10, 80):
        factor = np.float32(2.0**power)
        assert choose_amax(parse_method(method), hist_of(x * factor)) == one * factor


@pytest.mark.parametrize("hist", [Histogram(), hist_of(np.zeros(5))])
def test_nothing_but_zeros_has_clipping_value_zero(hist: Histogram) -> None:
    for method in ("mse", "percentile=10", "percentile", "max", "entropy-stable"):
        assert choose_amax(parse_method(method), hist) == 0
    assert predicted_mse(hist, 1.0) == 0.0
    assert predicted_sqnr(hist, 1.0) == math.inf


# The predicted error


@pytest.mark.parametrize("name", [n for n in DISTRIBUTIONS if n != "few values"])
@pytest.mark.parametrize("share", [1.0, 0.7, 0.2])
def test_predicted_mse_is_the_true_one(name: str, share: float) -> None:
    x = DISTRIBUTIONS[name](np.random.default_rng(12), 20_000).astype(np.float32)
    hist = hist_of(x)
    amax = share * float(hist.amax)
    assert predicted_mse(hist, amax) == pytest.approx(true_mse(x, amax), rel=0.05)
    signal = float(np.mean(x.astype(np.float64) ** 2))
    assert predicted_sqnr(hist, amax) == pytest.approx(10 * math.log10(signal / true_mse(x, amax)), abs=0.25)


def test_predicted_mse_against_the_integral_over_two_bins() -> None:
    """One value in each of two neighbors, [1, 1 + 2/2048): the mean over a fine even grid in them, clipped and not."""
    hist = hist_of(np.array([1.0, 1.0 + 1 / 2048]))
    grid = 1.0 + (np.arange(40_000) + 0.5) / 20_000 / 2048
    for amax in (0.5, 0.9, 1.0, 1.3, 40.0):
        scale = amax / 127
        expected = np.mean((np.clip(np.rint(grid / scale), -128, 127) * scale - grid) ** 2)
        assert predicted_mse(hist, amax) == pytest.approx(expected, rel=1e-4, abs=1e-12)


def test_zeros_share_in_the_mean_and_add_no_error() -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    assert predicted_mse(hist_of(x, np.zeros(3000)), 2.0) == pytest.approx(
        predicted_mse(hist_of(x), 2.0) / 4, rel=1e-12
    )
    assert predicted_sqnr(hist_of(x, np.zeros(3000)), 2.0) == pytest.approx(predicted_sqnr(hist_of(x), 2.0), rel=1e-12)


def test_mse_is_never_predicted_to_lose_against_the_other_methods() -> None:
    for name, draw in DISTRIBUTIONS.items():
        hist = hist_of(draw(np.random.default_rng(21), 5000))
        best = predicted_mse(hist, amax_mse(hist))
        for other in ("max", "percentile", "entropy-stable"):
            assert best <= predicted_mse(hist, choose_amax(parse_method(other), hist)) * (1 + 1e-6), (name, other)


# percentile and max


@pytest.mark.parametrize("percent", [50.0, 90.0, 99.0, 99.9])
@pytest.mark.parametrize("name", ["normal", "relu", "mixture", "uniform"])
def test_percentile_is_numpys_on_the_samples_to_a_bin(name: str, percent: float) -> None:
    x = DISTRIBUTIONS[name](np.random.default_rng(9), 20_001).astype(np.float32)
    hist = hist_of(x)
    expected = np.percentile(np.abs(x), percent)
    if expected == 0.0:
        assert amax_percentile(hist, percent) == hist.amax
    else:
        assert float(amax_percentile(hist, percent)) == pytest.approx(expected, abs=2 * hist.folded()[1])


def test_percentile_grows_with_the_percentage_and_ends_at_the_maximum() -> None:
    hist = hist_of(np.random.default_rng(9).laplace(size=5000))
    found = [float(amax_percentile(hist, percent)) for percent in (1, 10, 50, 99, 99.9, 99.9999, 100)]
    assert found == sorted(found)
    assert amax_percentile(hist, 100.0).tobytes() == amax_max(hist).tobytes() == hist.amax.tobytes()


def test_percentile_of_a_tensor_that_is_nearly_always_zero_is_its_maximum() -> None:
    assert amax_percentile(hist_of(np.zeros(100_000), np.array([0.5, 2.0])), 99.99) == np.float32(2.0)


# entropy-stable


def test_entropy_stable_cuts_a_heavy_tail_and_keeps_an_even_spread() -> None:
    rng = np.random.default_rng(2)
    tail, even = hist_of(rng.standard_t(3, 100_000)), hist_of(rng.uniform(-1, 1, 100_000))
    assert 3.0 < float(amax_entropy_stable(tail)) < 0.6 * float(tail.amax)
    assert float(amax_entropy_stable(even)) > 0.98


def test_entropy_stable_is_tensorrts_where_the_bins_are_the_same() -> None:
    """Maximum just below 1: 4096 bins of 2**-12 against 2048 of about 2**-11; choices near to each other."""
    x = np.abs(np.random.default_rng(3).standard_normal(200_000))
    x = (x / x.max()).astype(np.float32)
    trt = EntropyHistogram()
    trt.add(x)
    amax = trt.search()
    assert amax is not None
    assert float(amax_entropy_stable(hist_of(x))) == pytest.approx(float(amax), rel=0.1)


def test_entropy_stable_below_128_bins_is_the_maximum() -> None:
    x = np.array([2.0**-126, 2.0**-122], np.float32)
    assert amax_entropy_stable(hist_of(x)) == np.float32(2.0**-122)


# The scale


@pytest.mark.parametrize(("amax", "bits"), [(127.0, 0x3F800000), (1.0, 0x3C010204), (2.7537313, 0x3CB1A063)])
def test_scale_is_float32_amax_by_127_rounded_once(amax: float, bits: int) -> None:
    """3cb1a063 is the MinMax scale that TensorRT wrote for CIFAR images with this maximum."""
    scale = scale_from_amax(np.float32(amax))
    assert isinstance(scale, np.float32)
    assert int(scale.view(np.uint32)) == bits


def test_a_scale_is_never_denormal() -> None:
    smallest = np.float32(2.0**-126)
    for amax in (2.0**-149, 2.0**-126, 126.0 * 2.0**-126, 127.0 * 2.0**-126):
        assert scale_from_amax(np.float32(amax)).tobytes() == smallest.tobytes()
    assert scale_from_amax(np.float32(128.0 * 2.0**-126)) > smallest
    assert np.isfinite(scale_from_amax(np.finfo(np.float32).max))


@pytest.mark.parametrize("amax", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_clipping_value_is_an_error_that_names_the_tensor(amax: float) -> None:
    with pytest.raises(QdqError, match=r"conv1_out: .*clipping value") as caught:
        scale_from_amax(np.float32(amax), "conv1_out")
    assert caught.value.exit_code == 2


# Names


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("mse", Method("mse")),
        ("entropy", Method("entropy")),
        ("max", Method("max")),
        ("entropy-stable", Method("entropy-stable")),
        ("percentile", Method("percentile", 99.99)),
        ("percentile=99.5", Method("percentile", 99.5)),
        ("percentile=100", Method("percentile", 100.0)),
        (" mse ", Method("mse")),
    ],
)
def test_methods_are_read_and_spelled(text: str, method: Method) -> None:
    assert parse_method(text) == method
    assert parse_method(str(method)) == method
    assert hash(method) == hash(parse_method(text))


def test_every_method_but_those_by_consumers_has_its_arithmetic() -> None:
    for name, row in METHODS.items():
        hist = KINDS[row.histogram]()
        if row.by_consumers:
            assert not METHODS[row.starts_from].by_consumers
        else:
            assert choose_amax(parse_method(name), hist) == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [("max", "max"), ("percentile=99.9", "percentile"), ("auto:mse", "auto"), ("auto: as x", "auto"), ("as max", None)],
)
def test_a_scale_names_its_method(text: str, name: str | None) -> None:
    row = row_of_scale(text)
    assert (row and row.name) == name


def test_only_entropy_needs_tensorrts_histogram() -> None:
    needy = [name for name in NAMES if parse_method(name).row.histogram == "entropy"]
    assert needy == ["entropy"]
    with pytest.raises(ValueError, match="entropy"):
        choose_amax(Method("entropy"), Histogram())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("msee", "--method msee: no such method; did you mean mse?"),
        ("MSE", "--method MSE: no such method; did you mean mse?"),
        ("entropy_stable", "--method entropy_stable: no such method; did you mean entropy-stable?"),
        ("", f"--method : no such method; choose one of {', '.join(NAMES)}"),
        ("percentile=0", "--method percentile=0: the percentage must lie in (0, 100]; write --method percentile=99.99"),
        (
            "percentile=100.1",
            "--method percentile=100.1: the percentage must lie in (0, 100]; write --method percentile=99.99",
        ),
        (
            "percentile=nan",
            "--method percentile=nan: the percentage must lie in (0, 100]; write --method percentile=99.99",
        ),
        ("percentile=", "--method percentile=: the percentage must lie in (0, 100]; write --method percentile=99.99"),
        ("percentile=x", "--method percentile=x: the percentage must lie in (0, 100]; write --method percentile=99.99"),
        ("mse=3", "--method mse=3: mse takes no number; write --method mse"),
    ],
)
def test_a_bad_method_is_one_line_and_exit_code_2(text: str, message: str) -> None:
    with pytest.raises(QdqError) as caught:
        parse_method(text)
    assert caught.value.line() == message
    assert caught.value.exit_code == 2
