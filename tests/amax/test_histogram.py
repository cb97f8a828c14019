# SPDX-License-Identifier: Apache-2.0
"""The histogram against a slow oracle in exact arithmetic, and its law: no order, split or shard changes a bit."""

from __future__ import annotations

import io
import itertools
import math
import threading
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdqtool.amax.histogram import BINS, CHUNK, NEGATIVE, POSITIVE, Histogram, exponent_above, fold
from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.errors import QdqError

Float32 = npt.NDArray[np.float32]
DENORMAL = np.float32(2.0**-149)
LARGEST = np.finfo(np.float32).max

any_value = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
awkward = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 4096.0, -(2.0**-126), 2.0**-149, float(LARGEST), -float(LARGEST)]
)
vectors = hnp.arrays(np.float32, st.integers(0, 60), elements=st.one_of(any_value, awkward))


def hist_of(*batches: Float32) -> Histogram:
    made = Histogram()
    for batch in batches:
        made.add(batch)
    return made


def oracle(x: Float32) -> tuple[list[Counter[int]], list[int]]:
    """Bins and exponents of each sign, value by value in float64, which holds every product exactly."""
    sides: list[Counter[int]] = []
    exponents: list[int] = []
    finite = [float(v) for v in x.ravel() if math.isfinite(v)]
    for side in ([v for v in finite if v > 0], [-v for v in finite if v < 0]):
        exponent = -114
        while any(v >= 2.0**exponent for v in side):
            exponent += 1
        exponents.append(exponent)
        sides.append(Counter(math.floor(math.ldexp(v, 12 - exponent)) for v in side))
    return sides, exponents


def assert_like_oracle(x: Float32, hist: Histogram) -> None:
    sides, exponents = oracle(x)
    assert hist.exponents == exponents
    for side, counter in enumerate(sides):
        assert {int(b): int(hist.counts[side, b]) for b in np.flatnonzero(hist.counts[side])} == dict(counter)
    finite = x[np.isfinite(x)]
    assert hist.zeros == np.count_nonzero(finite == 0)
    assert hist.nans == np.count_nonzero(np.isnan(x))
    assert hist.positive_infs == np.count_nonzero(x == np.inf)
    assert hist.negative_infs == np.count_nonzero(x == -np.inf)
    assert hist.count == x.size
    assert hist.low == (finite.min() if finite.size else math.inf)
    assert hist.high == (finite.max() if finite.size else -math.inf)


@given(vectors)
def test_every_value_stands_in_the_bin_that_exact_arithmetic_gives_it(x: Float32) -> None:
    assert_like_oracle(x, hist_of(x))


@pytest.mark.parametrize("shift", [0.0, -1.0, 1.0, 4.0, -4.0])
def test_more_than_a_chunk(shift: float) -> None:
    x = (np.random.default_rng(3).standard_normal(CHUNK + 777) + shift).astype(np.float32)
    x[CHUNK:] *= 9.0  # the exponent grows in the second chunk
    hist = hist_of(x)
    assert hist.counts.sum() + hist.zeros == x.size
    edges = np.arange(BINS + 1) * 2.0 ** (hist.exponents[POSITIVE] - 12)
    expected, _ = np.histogram(x[x > 0].astype(np.float64), edges)
    assert np.array_equal(hist.counts[POSITIVE], expected)
    edges = np.arange(BINS + 1) * 2.0 ** (hist.exponents[NEGATIVE] - 12)
    expected, _ = np.histogram(-x[x < 0].astype(np.float64), edges)
    assert np.array_equal(hist.counts[NEGATIVE], expected)


@given(vectors, vectors)
def test_l8_adding_both_is_merging_both(a: Float32, b: Float32) -> None:
    together, ab, ba = hist_of(np.concatenate([a, b])), hist_of(a), hist_of(b)
    ab.merge(hist_of(b))
    ba.merge(hist_of(a))
    assert together.state() == ab.state() == ba.state() == hist_of(b, a).state()


@given(vectors, vectors, vectors)
def test_merging_is_associative_and_leaves_the_other_alone(a: Float32, b: Float32, c: Float32) -> None:
    left, right, tail, last = hist_of(a), hist_of(a), hist_of(b), hist_of(c)
    before = last.state()
    left.merge(hist_of(b))
    left.merge(last)
    tail.merge(last)
    right.merge(tail)
    assert left.state() == right.state()
    assert last.state() == before


@given(hnp.arrays(np.float32, st.integers(1, 80), elements=st.one_of(any_value, awkward)), st.data())
def test_random_splits_and_orders(x: Float32, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(x.size))))
    cuts = sorted(data.draw(st.lists(st.integers(0, x.size), max_size=5)))
    assert hist_of(*np.split(x[order], cuts)).state() == hist_of(x).state()


@given(vectors, vectors)
def test_rectified_is_the_histogram_behind_a_relu(a: Float32, b: Float32) -> None:
    seen = hist_of(a, b)
    before = seen.state()
    assert seen.rectified().state() == hist_of(np.maximum(a, 0), np.maximum(b, 0)).state()
    assert seen.rectified().rectified().state() == seen.rectified().state()
    assert seen.state() == before


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("extra", [[], [np.nan], [np.inf], [-np.inf], [0.0], [-0.0]])
def test_rectified_keeps_the_range_right(sign: float, extra: list[float]) -> None:
    """No zero comes from nowhere: a positive tensor keeps its smallest value, a negative one becomes zeros."""
    for values in ([], [1.5], [1.5, 7.0, 2.0**-149]):
        x = np.array([sign * v for v in values] + extra, np.float32)
        assert hist_of(x).rectified().state() == hist_of(np.maximum(x, 0)).state()
    assert hist_of(np.array([sign * 1.5, sign * 7.0], np.float32)).rectified().low == (1.5 if sign > 0 else 0.0)


@pytest.mark.parametrize("kind", [Histogram, EntropyHistogram])
def test_a_copy_counts_on_by_itself(kind: type[Histogram] | type[EntropyHistogram]) -> None:
    first = kind()
    first.add(np.array([1.0, -3.0, 0.0], np.float32))
    before, second = first.state(), first.copy()
    assert second.state() == before
    second.add(np.array([9.0], np.float32))
    assert first.state() == before != second.state()


def six_batches() -> list[Float32]:
    """Each asks for another exponent; among them zeros only, a power of two as the maximum, both signs, one sign."""
    rng = np.random.default_rng(7)
    batches = [rng.standard_normal(50) * 0.01, np.zeros(9), np.full(4, 8.0), -rng.gamma(2.0, 3.0, 40)]
    batches += [np.array([2.0**-149, -0.0, -64.0]), np.maximum(rng.standard_normal(60) * 5.0, 0.0)]
    return [batch.astype(np.float32) for batch in batches]


def block_bytes(histogram: Histogram) -> int:
    return histogram.block.nbytes


@given(vectors, vectors)
def test_wide_counts_are_those_of_narrow_ones(a: Float32, b: Float32) -> None:
    narrow, wide = hist_of(a, b), hist_of(a)
    wide.reserve(1 << 31)
    assert block_bytes(wide) > 1.9 * block_bytes(narrow)
    wide.add(b)
    assert wide.state() == narrow.state() and wide.copy().state() == narrow.state()
    assert wide.folded()[0].dtype == narrow.folded()[0].dtype == np.int64


def test_counts_go_beyond_32_bits() -> None:
    arrays = hist_of(np.array([3.0, -5.0, 0.0], np.float32)).to_arrays()
    arrays["counts"] *= (1 << 31) - 2
    many = Histogram.from_arrays(arrays)
    assert many.finite == 2 * ((1 << 31) - 2) + 1 and block_bytes(many) > 65_536
    arrays["counts"] = arrays["counts"] // 2
    half = Histogram.from_arrays(arrays)
    assert block_bytes(half) < 65_536
    half.merge(half.copy())
    half.merge(hist_of(np.full(3, 3.0, np.float32)))
    assert half.counts.max() == (1 << 31) - 2 + 3 and half.counts.dtype == np.int64


def test_all_720_orders_of_six_batches_give_one_state() -> None:
    batches = six_batches()
    states = {hist_of(*order).state() for order in itertools.permutations(batches)}
    assert len(states) == 1
    assert_like_oracle(np.concatenate(batches), hist_of(*batches))


def test_shards_in_threads_give_the_same_state() -> None:
    x = np.random.default_rng(5).standard_normal(4 * CHUNK).astype(np.float32)
    shards = [Histogram() for _ in range(4)]
    workers = [threading.Thread(target=h.add, args=(part,)) for h, part in zip(shards, np.split(x, 4), strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    total = Histogram()
    for shard in reversed(shards):
        total.merge(shard)
    assert total.state() == hist_of(x).state()


@pytest.mark.parametrize("exponent", [-126, -114, -10, 0, 7, 127])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_power_of_two_opens_the_next_exponent_whenever_it_comes(exponent: int, sign: float) -> None:
    edge = np.array([sign * 2.0**exponent], np.float32)
    below = np.nextafter(edge, np.float32(0.0))
    first, last = hist_of(edge, below), hist_of(below, edge)
    assert first.state() == last.state()
    side = POSITIVE if sign > 0 else NEGATIVE
    assert first.exponents[side] == max(exponent + 1, -114)
    if exponent >= -114:
        assert first.counts[side, 2048] == first.counts[side, 2047] == 1


def test_denormals_lie_in_bin_0_and_are_no_zeros() -> None:
    hist = hist_of(np.array([DENORMAL, -DENORMAL, 0.0, -0.0, 2.0**-127], np.float32))
    assert (hist.zeros, hist.counts[POSITIVE, 0], hist.counts[NEGATIVE, 0]) == (2, 2, 1)
    assert hist.exponents == [-114, -114]
    assert hist.folded()[1] == 2.0**-126


def test_the_largest_and_the_smallest_value_meet_without_overflow() -> None:
    x = np.array([LARGEST, -DENORMAL, DENORMAL, -LARGEST, 1.0], np.float32)
    with np.errstate(all="raise", under="ignore"):  # add() itself silences what cannot hurt
        hist = hist_of(x)
    assert_like_oracle(x, hist)
    assert hist.exponents == [128, 128]
    mixed = np.array([LARGEST, -DENORMAL], np.float32)  # factors 2**-116 and 2**126
    assert_like_oracle(mixed, hist_of(mixed))
    assert_like_oracle(-mixed, hist_of(-mixed))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = np.full(shape, -2.5, np.float32)
    hist = hist_of(x)
    assert hist.count == x.size
    assert hist.counts[NEGATIVE].sum() == x.size


def test_any_memory_order_and_the_input_is_left_alone() -> None:
    x = np.random.default_rng(2).standard_normal((6, 8, 10)).astype(np.float32)
    kept = x.copy()
    views = [x, np.asfortranarray(x), x.transpose(2, 0, 1), x[::-1, :, ::-1]]
    assert len({hist_of(view).state() for view in views}) == 1
    frozen = x.copy()
    frozen.setflags(write=False)
    assert hist_of(frozen).state() == hist_of(x).state()
    assert np.array_equal(x, kept)
    assert_like_oracle(np.ascontiguousarray(x[::2, 1:7, ::-3]), hist_of(x[::2, 1:7, ::-3]))


def test_float16_is_taken_exactly_and_other_types_are_not() -> None:
    x = np.random.default_rng(2).standard_normal(100).astype(np.float16)
    assert hist_of(x.astype(np.float32)).state() == hist_of(x).state()  # type: ignore[arg-type]
    for dtype in (np.float64, np.int64, np.bool_):
        with pytest.raises(TypeError, match="float32"):
            hist_of(np.zeros(3, dtype))


def test_what_cannot_be_counted_is_distinguished() -> None:
    empty, zero = Histogram(), hist_of(np.array([0.0, -0.0], np.float32))
    assert empty.is_empty and not empty.all_zero and empty.amax == 0
    assert zero.all_zero and not zero.is_empty and zero.amax == 0
    odd = hist_of(np.array([np.nan, np.inf, -np.inf, 0.0], np.float32))
    assert odd.nans > 0 and odd.has_inf and not odd.all_zero and not odd.is_empty
    assert (odd.nans, odd.infs, odd.zeros, odd.count, odd.finite) == (1, 2, 1, 4, 1)
    assert (odd.positive_infs, odd.negative_infs) == (1, 1)
    above = hist_of(np.array([np.inf, np.inf, -np.inf], np.float32))
    assert (above.positive_infs, above.negative_infs, above.infs) == (2, 1, 3)
    fine = hist_of(np.array([1.0, -3.0], np.float32))
    assert not (fine.nans > 0 or fine.has_inf or fine.all_zero or fine.is_empty)
    only = hist_of(np.array([np.nan], np.float32))
    assert only.nans > 0 and not only.is_empty and only.finite == 0 and only.amax == 0


@pytest.mark.parametrize(
    ("values", "expected"), [([1.5, -3.25], 3.25), ([2.0], 2.0), ([-1.0], 1.0), ([np.nan, 1], 1.0)]
)
def test_amax_is_the_exact_largest_magnitude(values: list[float], expected: float) -> None:
    amax = hist_of(np.array(values, np.float32)).amax
    assert amax.dtype == np.float32
    assert amax == np.float32(expected)


def test_minus_zero_does_not_make_the_order_visible() -> None:
    plus, minus = np.array([0.0], np.float32), np.array([-0.0], np.float32)
    assert hist_of(plus, minus).state() == hist_of(minus, plus).state()
    assert math.copysign(1.0, hist_of(minus).low) == 1.0


@given(vectors)
def test_folded_is_the_histogram_of_magnitudes(x: Float32) -> None:
    counts, width = hist_of(x).folded()
    magnitudes = hist_of(np.abs(x))
    assert np.array_equal(counts, magnitudes.counts[POSITIVE])
    assert width == 2.0 ** (magnitudes.exponents[POSITIVE] - 12)


def test_each_sign_keeps_its_own_resolution() -> None:
    hist = hist_of(np.array([1000.0, -0.25, -0.1], np.float32))
    assert hist.exponents == [10, -1]
    counts, width = hist.folded()
    assert width == 0.25
    assert (counts[0], counts[1], counts[4000], counts.sum()) == (1, 1, 1, 3)


@pytest.mark.parametrize("steps", [0, 1, 3, 11, 12, 13, 200])
def test_fold_is_halving_the_bin_number_so_often(steps: int) -> None:
    counts = np.random.default_rng(0).integers(0, 9, BINS)
    expected = np.bincount(np.arange(BINS) >> min(steps, 60), weights=counts, minlength=BINS)
    assert np.array_equal(fold(counts, steps), expected)


@given(st.floats(2.0**-149, float(LARGEST), width=32))
def test_exponent_above(value: float) -> None:
    exponent = exponent_above(value)
    assert value < 2.0**exponent if exponent < 128 else value <= LARGEST
    assert exponent == -114 or value >= 2.0 ** (exponent - 1)


@given(vectors)
@settings(max_examples=30)
def test_a_saved_state_comes_back_and_counts_on(x: Float32) -> None:
    file = io.BytesIO()
    np.savez(file, **hist_of(x).to_arrays())  # type: ignore[arg-type]
    file.seek(0)
    with np.load(file) as saved:
        loaded = Histogram.from_arrays(dict(saved))
    assert loaded.state() == hist_of(x).state()
    loaded.add(x)
    assert loaded.state() == hist_of(x, x).state()


def test_saving_copies() -> None:
    hist = hist_of(np.ones(3, np.float32))
    arrays = hist.to_arrays()
    loaded, before = Histogram.from_arrays(arrays), hist.state()
    arrays["counts"][:] = 5
    assert hist.state() == loaded.state() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("counts", None),
        ("counts", np.zeros((2, 9), np.int64)),
        ("counts", np.zeros((2, BINS), np.float64)),
        ("counts", np.full((2, BINS), -1, np.int64)),
        ("tally", np.array([0, -1, 0, 0])),
        ("tally", np.zeros(3, np.int64)),
        ("exponents", np.array([0, 129])),
        ("exponents", np.array([-115, 0])),
        ("range", np.zeros(2, np.float64)),
    ],
)
def test_a_malformed_state_is_refused_by_name(name: str, value: npt.NDArray[np.int64] | None) -> None:
    arrays = Histogram().to_arrays()
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    with pytest.raises(QdqError, match=rf"conv1_out: .*\({name}"):
        Histogram.from_arrays(arrays, "conv1_out")
