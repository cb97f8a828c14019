# SPDX-License-Identifier: Apache-2.0
"""TensorRT's entropy calibration: its published scales, and an independent loop-by-loop reference.

Every branch has a tensor on which it bites: the reference with the branch switched off gives another answer.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.amax.entropy_search import best_bin, divergence, neutralize
from qdqtool.amax.methods import scale_from_amax
from qdqtool.amax.trt_entropy import BINS, EntropyHistogram
from qdqtool.errors import QdqError

Float32 = npt.NDArray[np.float32]
BRANCHES = frozenset({"zero bin", "guard", "outliers", "empty end", "normalize", "fractional"})


def histogram_by_hand(batches: list[Float32], *, double: bool = True) -> tuple[list[int], float]:
    """Value by value; without doubling, what is too large goes into the last bin."""
    counts, width = [0] * BINS, 0.0
    for batch in batches:
        magnitudes = [abs(float(v)) for v in batch.ravel()]
        largest = max(magnitudes)
        if largest == 0.0:
            continue
        if width == 0.0:
            width = largest / BINS
        while double and largest > width * BINS:
            counts = [counts[2 * k] + counts[2 * k + 1] for k in range(BINS // 2)] + [0] * (BINS // 2)
            width *= 2.0
        for value in magnitudes:
            counts[min(math.floor(value / width), BINS - 1)] += 1
    return counts, width


def divergence_by_hand(h: list[int], i: int, branches: frozenset[str]) -> float | None:
    """One candidate as the algorithm is written down; None where it is passed over. Empty bins have P = Q = 0."""
    outliers = sum(h[i:]) if "outliers" in branches else 0
    bins = [j for j in range(i) if h[j] > 0]
    if "guard" in branches and len(bins) < 2:
        return None
    if "empty end" in branches and outliers > 0 and h[i - 1] == 0:
        return None
    sums, filled = [0.0] * 128, [0] * 128
    level = {j: j * 128 // i if "fractional" in branches else min(j // (i // 128), 127) for j in bins}
    for j in bins:
        sums[level[j]] += h[j]
        filled[level[j]] += 1
    q = {j: sums[level[j]] / filled[level[j]] for j in bins}
    p = {j: float(h[j]) for j in bins}
    if i - 1 in p:
        p[i - 1] += outliers
    total_p = float(sum(h[:i]) + outliers)
    total_q = sum(q.values()) if "normalize" in branches else total_p
    return sum(p[j] / total_p * math.log((p[j] / total_p) / (q[j] / total_q)) for j in bins) if bins else None


def best_by_hand(counts: list[int], branches: frozenset[str] = BRANCHES) -> int:
    """The first of the smallest divergences (equal to rounding); the last filled bin where there is none."""
    h = list(counts)
    if "zero bin" in branches:
        h[0] = h[1]
    best, least = max(max(k for k, c in enumerate(counts) if c) + 1, 128), math.inf
    for i in range(128, len(h) + 1):
        value = divergence_by_hand(h, i, branches)
        if value is not None and value < least - 1e-13:
            best, least = i, value
    return best


def without(branch: str) -> frozenset[str]:
    assert branch in BRANCHES
    return BRANCHES - {branch}


def observed(*batches: Float32) -> EntropyHistogram:
    made = EntropyHistogram()
    for batch in batches:
        made.add(batch)
    return made


def counts_of(size: int, filled: dict[int, int]) -> npt.NDArray[np.int64]:
    counts = np.zeros(size, np.int64)
    counts[list(filled)] = list(filled.values())
    return counts


def words(text: str) -> tuple[int, int]:
    """The bit pattern of an `expected_hex`, and how far from it we may be: "3e0a9eac (... 1 ulp, ...)" allows 1."""
    return int(text.split()[0], 16), 1 if "ulp" in text else 0


# The published values


def test_an_expected_value_may_come_with_a_remark() -> None:
    assert words("3ebfcfb9") == (0x3EBFCFB9, 0)
    assert words("3e0a9eac (ours 3e0a9eab: 1 ulp, GPU conv sum order)") == (0x3E0A9EAC, 1)


@pytest.mark.shared
def test_tensorrt_published_scales(shared: Path) -> None:
    rows = json.loads((shared / "trt/vectors/vectors.json").read_text())
    exact, wrong = 0, []
    for row in rows:
        with np.load(shared / "trt/vectors" / f"{row['name']}.npz") as data:
            hist = observed(*(data[key] for key in sorted(data.files, key=lambda key: int(key.split("_")[1]))))
        amax = hist.search()
        assert amax is not None
        want, slack = words(row["expected_hex"])
        got = int(scale_from_amax(amax).view(np.uint32))
        exact += got == want
        if abs(got - want) > slack or best_bin(hist.counts) != row["ref_bin"]:
            wrong.append(f"{row['name']}: {got:08x}, not {want:08x}")
    assert not wrong
    assert (exact, len(rows)) == (14, 15)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", ["cookbook_conv_10batches", "cookbook_uniform600_10batches", "time_embedding_freqs128", "yolo_strides_640"]
)
def test_the_reference_gives_the_published_bin_too(shared: Path, name: str) -> None:
    row = next(r for r in json.loads((shared / "trt/vectors/vectors.json").read_text()) if r["name"] == name)
    with np.load(shared / "trt/vectors" / f"{name}.npz") as data:
        batches = [data[key] for key in sorted(data.files, key=lambda key: int(key.split("_")[1]))]
    counts, width = histogram_by_hand(batches)
    hist = observed(*batches)
    assert (hist.counts.tolist(), hist.width) == (counts, width)
    assert best_by_hand(counts) == best_bin(hist.counts) == row["ref_bin"]


def test_the_scale_is_rounded_twice_threshold_first() -> None:
    """A constant 1: T = 2048.5 / 2048, the known bits 3c010a14; and a case where rounding once differs."""
    amax = observed(np.ones(4, np.float32)).search()
    assert amax is not None
    assert amax == np.float32(2048.5 / 2048)
    assert scale_from_amax(amax).view(np.uint32) == 0x3C010A14
    hist = observed(np.array([1.0, 47.488346, 21.0, 3.0], np.float32))
    threshold = (best_bin(hist.counts) + 0.5) * hist.width
    differs = [
        k
        for k in range(1, 400)
        if np.float32(np.float32(threshold * k) / np.float32(127)) != np.float32(threshold * k / 127.0)
    ]
    assert differs
    for k in differs[:5]:
        twice = np.float32(np.float32(threshold * k) / np.float32(127))
        assert scale_from_amax(np.float32(threshold * k)).tobytes() == twice.tobytes()


# The histogram


def test_batches_like_the_reference_bin_by_bin() -> None:
    rng = np.random.default_rng(11)
    batches = [(rng.standard_normal((2, 3, 40)) * grow).astype(np.float32) for grow in (0.3, 0.2, 1.0, 9.0, 0.1)]
    counts, width = histogram_by_hand(batches)
    hist = observed(*batches)
    assert (hist.counts.tolist(), hist.width) == (counts, width)
    assert width > float(np.abs(batches[0]).max()) / BINS


def test_more_than_a_chunk_and_any_memory_order() -> None:
    x = np.random.default_rng(1).standard_normal((7, 10_007)).astype(np.float32)
    expected = np.bincount(
        np.minimum(np.abs(x).astype(np.float64).ravel() // (float(np.abs(x).max()) / BINS), BINS - 1).astype(np.int64),
        minlength=BINS,
    )
    for view in (x, x.T, np.asfortranarray(x)):
        assert np.array_equal(observed(view).counts, expected)


def test_width_comes_from_the_first_batch_that_is_not_all_zero() -> None:
    zero, ones = np.zeros(5, np.float32), np.ones(3, np.float32)
    assert observed(zero, ones, ones * 0.3).width == 1.0 / BINS
    assert observed(zero, ones).search() == observed(ones).search()
    assert observed(zero).width == 0.0


def test_a_value_on_the_end_of_the_range_does_not_double_it() -> None:
    first = np.array([1.0, 0.5], np.float32)
    assert observed(first, first).width == 1.0 / BINS
    assert observed(first, first).counts[BINS - 1] == 2
    assert observed(first, np.nextafter(first, np.float32(2))).width == 2.0 / BINS


@pytest.mark.slow
def test_branch_range_doubling_bites() -> None:
    """Pairs merge and the width doubles: T lies beyond what either stopping at the range or one max would give."""
    rng = np.random.default_rng(4)
    batches = [rng.uniform(-1, 1, 400).astype(np.float32), rng.uniform(-2.5, 2.5, 400).astype(np.float32)]
    hist = observed(*batches)
    counts, width = histogram_by_hand(batches)
    assert width == 4 * float(np.abs(batches[0]).max()) / BINS
    assert hist.search() == np.float32((best_by_hand(counts) + 0.5) * width)
    kept, narrow = histogram_by_hand(batches, double=False)
    assert hist.search() != np.float32((best_by_hand(kept) + 0.5) * narrow)
    assert hist.search() != observed(np.concatenate(batches)).search()
    assert hist.search() != observed(*reversed(batches)).search()


# The search


def test_branch_clipping_bites() -> None:
    """A heavy tail is cut, and only because the outliers weigh on the last bin does the cut not fall much lower."""
    counts = counts_of(700, {k: 4000 // (k + 1) for k in range(150)} | {690: 1, 699: 1})
    assert best_bin(counts) == best_by_hand(counts.tolist())
    assert best_bin(counts) < 200
    assert best_by_hand(counts.tolist(), without("outliers")) != best_bin(counts)


def test_branch_zero_bin_bites() -> None:
    """A ReLU's zeros fill bin 0; they must not decide."""
    rng = np.random.default_rng(0)
    differ = 0
    for samples in (200, 1000, 5000):
        x = np.abs(rng.standard_normal(samples))
        counts = np.bincount(np.minimum(x / x.max() * 300, 299).astype(np.int64), minlength=300)
        chosen = best_bin(counts)
        counts[0] += 5000
        assert best_bin(counts) == best_by_hand(counts.tolist()) == chosen
        differ += best_by_hand(counts.tolist(), without("zero bin")) != chosen
    assert differ > 0


def test_branch_guard_bites() -> None:
    """One filled bin below the cut is represented without loss, and would throw everything else away."""
    counts = counts_of(600, {140: 3, 300: 2, 500: 2, 599: 1})
    assert best_bin(counts) == best_by_hand(counts.tolist()) > 141
    assert best_by_hand(counts.tolist(), without("guard")) == 141


def test_branch_empty_end_bites() -> None:
    """A cut after an empty bin has nowhere to put its outliers: passed over, not smoothed."""
    counts = counts_of(300, dict.fromkeys(range(2, 120, 3), 50) | {299: 1})
    chosen = best_bin(counts)
    assert chosen == best_by_hand(counts.tolist())
    assert neutralize(counts)[chosen - 1] > 0
    assert best_by_hand(counts.tolist(), without("empty end")) != chosen


@pytest.mark.parametrize("branch", ["normalize", "fractional", "outliers"])
def test_other_branches_bite_on_decaying_tails(branch: str) -> None:
    rng = np.random.default_rng(0)
    differ = 0
    for _ in range(12):
        counts = np.floor(rng.exponential(40, 220) * np.exp(-np.arange(220) / 60)).astype(np.int64)
        counts[-1] += 1
        assert best_bin(counts) == best_by_hand(counts.tolist())
        differ += best_by_hand(counts.tolist(), without(branch)) != best_bin(counts)
    assert differ > 0


def random_counts(rng: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
    """Dense, sparse, decaying, with ties, with empty ends: what real tensors look like, and worse."""
    kind = rng.integers(5)
    if kind == 0:
        counts = rng.integers(0, 1000, size)
    elif kind == 1:
        counts = rng.poisson(rng.exponential(2e4, size) * np.exp(-np.arange(size) / rng.uniform(10, size)))
    elif kind == 2:
        counts = (rng.random(size) < rng.uniform(0.01, 0.3)).astype(np.int64)  # many exact ties
    elif kind == 3:
        counts = rng.integers(0, 5, size) * (rng.random(size) < 0.2) * 7
    else:
        counts = rng.integers(1, 50, size)
        counts[rng.integers(1, size) :] = 0
    counts = np.asarray(counts, np.int64)
    counts[rng.integers(1, size)] += 1
    return counts


@pytest.mark.slow
def test_the_same_bin_as_the_reference_on_400_short_histograms() -> None:
    rng = np.random.default_rng(2026)
    wrong = []
    for trial in range(400):
        counts = random_counts(rng, int(rng.integers(128, 200)))
        if best_bin(counts) != best_by_hand(counts.tolist()):
            wrong.append(trial)
    assert not wrong


@pytest.mark.slow
def test_the_same_bin_as_the_definition_on_full_histograms() -> None:
    """2048 bins: every candidate by the definition, which the test above holds against the reference."""
    rng = np.random.default_rng(5)
    for _ in range(8):
        counts = random_counts(rng, BINS)
        h = neutralize(counts)
        values = {}
        for i in range(128, BINS + 1):
            if np.count_nonzero(h[:i]) >= 2 and (h[i - 1] > 0 or not h[i:].any()):
                values[i] = divergence(h, i)
        least = min(values.values())
        assert best_bin(counts) == min(i for i, value in values.items() if value <= least + 1e-13)


def test_one_candidate_by_definition_is_the_reference_formula() -> None:
    rng = np.random.default_rng(8)
    for _ in range(30):
        counts = rng.integers(0, 60, 200)
        counts[150:199] += 1
        h = neutralize(counts)
        i = int(rng.integers(150, 199))
        by_hand = divergence_by_hand(h.tolist(), i, BRANCHES)
        assert by_hand is not None
        assert divergence(h, i) == pytest.approx(by_hand, abs=1e-13)


def test_the_first_of_equal_candidates_wins() -> None:
    """After a doubling the upper half is empty; every cut above the last value loses nothing."""
    counts = counts_of(400, {30: 5, 90: 5})
    assert best_bin(counts) == 128 == best_by_hand(counts.tolist())


def test_no_candidate_left_means_nothing_is_clipped() -> None:
    assert best_bin(counts_of(BINS, {BINS - 1: 7})) == BINS
    assert best_bin(counts_of(BINS, {1500: 7})) == 1501
    assert best_bin(counts_of(BINS, {5: 7})) == 128
    assert best_by_hand(counts_of(400, {300: 7}).tolist()) == best_bin(counts_of(400, {300: 7})) == 301


def test_the_search_leaves_the_counts_alone() -> None:
    hist = observed(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    before = hist.state()
    assert hist.search() == hist.search()
    assert hist.state() == before


# What has no scale


def test_all_zero_has_no_scale() -> None:
    hist = observed(np.zeros(4, np.float32), np.zeros(2, np.float32))
    assert hist.search() is None
    assert hist.all_zero and not hist.is_empty
    fresh = EntropyHistogram()
    assert fresh.search() is None
    assert fresh.is_empty and not fresh.all_zero


def test_nan_and_infinities_are_counted_and_left_out() -> None:
    fine = np.array([1.0, -0.25, 0.5], np.float32)
    odd = observed(np.concatenate([fine, np.array([np.nan, np.inf, -np.inf, np.nan], np.float32)]))
    assert (odd.nans, odd.infs) == (2, 2)
    assert odd.nans > 0 and odd.has_inf
    assert odd.search() == observed(fine).search()
    for bad in (np.inf, -np.inf, np.nan):
        only = observed(np.array([bad, 0.0], np.float32))
        assert (only.has_inf, only.nans > 0) == (not math.isnan(bad), math.isnan(bad))
        assert only.search() is None and not only.all_zero and not only.is_empty


def test_the_largest_and_the_smallest_values() -> None:
    largest = np.array([np.finfo(np.float32).max, 1.0], np.float32)
    amax = observed(largest).search()
    assert amax is not None and np.isfinite(amax) and amax == largest[0]
    tiny = np.array([2.0**-149], np.float32)
    assert observed(tiny).width == 2.0**-160
    grown = observed(tiny, largest)
    assert grown.counts.sum() == 3
    assert grown.width * BINS >= float(largest[0])


def test_empty_batches_and_other_types() -> None:
    assert observed(np.zeros((0, 3), np.float32)).is_empty
    with pytest.raises(TypeError, match="float32"):
        EntropyHistogram().add(np.zeros(3))  # type: ignore[arg-type]


# Saving


def test_a_saved_state_comes_back_and_counts_on() -> None:
    rng = np.random.default_rng(9)
    first, second = (rng.standard_normal(50).astype(np.float32) * k for k in (1, 3))
    loaded = EntropyHistogram.from_arrays(observed(first).to_arrays())
    assert loaded.state() == observed(first).state()
    loaded.add(second)
    assert loaded.state() == observed(first, second).state()


@pytest.mark.parametrize("name", ["counts", "width", "tally"])
def test_a_malformed_state_is_refused_by_name(name: str) -> None:
    arrays = EntropyHistogram().to_arrays()
    arrays[name] = np.zeros(7)
    with pytest.raises(QdqError, match=rf"pool1: .*\({name}"):
        EntropyHistogram.from_arrays(arrays, "pool1")
