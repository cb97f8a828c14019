# SPDX-License-Identifier: Apache-2.0
"""The C kernel beside NumPy: the same state, bit for bit, whatever comes; and the choice between the two."""

from __future__ import annotations

import importlib
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdqtool.amax import kernel
from qdqtool.amax.histogram import NEGATIVE, POSITIVE, Histogram
from qdqtool.amax.trt_entropy import BINS, EntropyHistogram
from qdqtool.errors import QdqError
from qdqtool.observers.pre_batchnorm_range import Affine, AffineRange

Float32 = npt.NDArray[np.float32]
Kind = type[Histogram] | type[EntropyHistogram]
MODULE = kernel.choose().module
VARIANTS = range(len(MODULE.variants())) if MODULE else range(0)
LARGE = 40_001  # counts in two tables, over many pieces, with a rest

compiled = pytest.mark.skipif(MODULE is None, reason=kernel.why())
kinds = pytest.mark.parametrize("kind", [Histogram, EntropyHistogram])

bits = hnp.arrays(np.uint32, st.integers(0, 70), elements=st.integers(0, 2**32 - 1)).map(lambda x: x.view(np.float32))
awkward = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-126), float(np.finfo(np.float32).max), np.inf])
plain = st.floats(-8.0, 8.0, width=32)
vectors = st.one_of(
    bits,
    hnp.arrays(np.float32, st.integers(0, 70), elements=st.one_of(plain, awkward)),
    hnp.arrays(np.float32, st.integers(0, 70), elements=plain),
)


@pytest.fixture(autouse=True)
def _choose_again() -> Iterator[None]:
    kernel.choose.cache_clear()
    yield
    kernel.choose.cache_clear()


def by_numpy(kind: Kind, *batches: npt.NDArray[Any]) -> bytes:
    made = kind()
    for batch in batches:
        made.add_in_numpy(kernel.flatten(batch))
    return made.state()


def by_c(kind: Kind, variant: int, *batches: npt.NDArray[Any]) -> bytes:
    made = kind()
    for batch in batches:
        MODULE.add_all([made], [batch], kernel.flatten, variant)
    return made.state()


def assert_same(kind: Kind, *batches: npt.NDArray[Any]) -> None:
    expected = by_numpy(kind, *batches)
    for variant in VARIANTS:
        assert by_c(kind, variant, *batches) == expected, MODULE.variants()[variant]


# The same state


@compiled
@kinds
@given(st.lists(vectors, max_size=4))
def test_c_and_numpy_leave_the_same_state(kind: Kind, batches: list[Float32]) -> None:
    assert_same(kind, *batches)


def large(name: str) -> Float32:
    x = np.random.default_rng(11).standard_normal(LARGE).astype(np.float32)
    if name == "after Relu":
        x = np.maximum(x, 0)
    elif name == "few zeros":
        x[::40] = -0.0
    elif name == "many negative zeros":
        x[np.abs(x) < 1] = -0.0
    elif name == "negative":
        x = -np.abs(x)
    elif name == "one value":
        x[:] = 0.75
    elif name == "grows":
        x *= np.repeat(np.exp2(np.arange(-100, 105, 5)), 976)[:LARGE].astype(np.float32)
    elif name == "specials":
        x[100::1000] = np.nan
        x[7000::900], x[::8999] = np.inf, -np.inf
    elif name == "a piece of NaN":
        x[4096:8192] = np.nan
    elif name == "bin edges":
        x = np.round(x * 256) / 256
    return x


LARGE_KINDS = ["normal", "after Relu", "few zeros", "many negative zeros", "negative", "one value", "grows"]


@compiled
@kinds
@pytest.mark.parametrize("name", [*LARGE_KINDS, "specials", "a piece of NaN", "bin edges"])
def test_large_arrays(kind: Kind, name: str) -> None:
    x = large(name)
    assert_same(kind, x)
    assert_same(kind, x[:6001] * np.float32(0.3), x, x[: LARGE // 2] * np.float32(3.0))


@compiled
@kinds
@pytest.mark.parametrize("size", [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 4095, 4096, 4097, 32767, 32768, 32769])
def test_every_rest_of_a_vector_and_a_piece(kind: Kind, size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    assert_same(kind, x)
    assert_same(kind, np.maximum(x, 0))


@compiled
@kinds
def test_any_address_order_and_type(kind: Kind) -> None:
    x = np.random.default_rng(0).standard_normal((6, 8, 10)).astype(np.float32)
    odd = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32)
    odd[:] = x.ravel()
    assert not odd.flags.aligned
    read_only = x.copy()
    read_only.setflags(write=False)
    for view in (odd, read_only, np.asfortranarray(x), x.transpose(2, 0, 1), x[::-1, :, ::3], x[0, 0, 0], x[:0]):
        assert_same(kind, view)
    assert_same(kind, x.astype(np.float16))


@compiled
@pytest.mark.parametrize("wide", [1e-3 * (1 + 2.0**-42), 0.1, 0.7e-30])
def test_a_width_that_no_data_gives_is_divided_by(wide: float) -> None:
    """By the first, 1 is nearer to bin 1000 from below than a width of 24 bits allows."""
    x = np.concatenate([np.ones(16), np.arange(2047) * wide, [2000 * wide]]).astype(np.float32)
    states = set()
    for variant in (None, *VARIANTS):
        made = EntropyHistogram()
        made.width = wide
        if variant is None:
            made.add_in_numpy(x)
        else:
            MODULE.add_all([made], [x], kernel.flatten, variant)
        states.add(made.state())
    assert len(states) == 1


@compiled
def test_quotients_on_and_beside_the_edges_of_bins() -> None:
    """Where a rounded product would fall on the wrong side: multiples of the width and their neighbors."""
    for top in (1.0, 3.0, 0.1, 16777215.0, 2.0**-149, float(np.finfo(np.float32).max)):
        largest = np.float32(top)
        edges = (np.arange(BINS + 1) * (float(largest) / BINS)).astype(np.float32)
        beside = [np.nextafter(edges, np.float32(0.0)), np.nextafter(edges[:-1], largest)]
        assert_same(EntropyHistogram, np.array([largest]), np.concatenate([edges, *beside]))


# Batches of tensors


def some(count: int) -> list[Float32]:
    rng = np.random.default_rng(21)
    return [rng.standard_normal(int(rng.integers(0, 5000))).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("asked", ["numpy", "c"])
def test_a_batch_is_each_by_itself(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    if asked == "c" and MODULE is None:
        pytest.skip(kernel.why())
    monkeypatch.setenv(kernel.VARIABLE, asked)
    assert kernel.in_use() == asked
    arrays = some(12)
    made: list[Histogram | EntropyHistogram] = [(Histogram, EntropyHistogram)[i % 2]() for i in range(12)]
    kernel.add_all(made, arrays)
    assert [h.state() for h in made] == [by_numpy(type(h), x) for h, x in zip(made, arrays, strict=True)]
    twice = Histogram()
    kernel.add_all((twice, twice), tuple(arrays[:2]))
    assert twice.state() == by_numpy(Histogram, *arrays[:2])
    kernel.add_all([], [])


@pytest.mark.parametrize("asked", ["numpy", "c"])
def test_what_cannot_be_counted_leaves_every_histogram_alone(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    if asked == "c" and MODULE is None:
        pytest.skip(kernel.why())
    monkeypatch.setenv(kernel.VARIABLE, asked)
    made, good = [Histogram(), Histogram()], np.ones(5, np.float32)
    for bad in (np.ones(5), np.ones(5, np.int32), good.astype(">f4"), np.ones(3, np.complex64)):
        with pytest.raises(TypeError, match="float32"):
            kernel.add_all(made, [good, bad])
    with pytest.raises(ValueError, match="2 histograms, but 1 arrays"):
        kernel.add_all(made, [good])
    assert all(h.is_empty for h in made)


@compiled
@pytest.mark.parametrize(
    "block",
    [
        np.zeros(100, np.int64),
        np.zeros(8200, np.int32),
        np.zeros(16400, np.int64)[::2],
        np.zeros((2, 4100), np.int64),
        np.zeros(8200, np.uint64),
        np.frombuffer(bytes(8200 * 8), np.int64),
    ],
)
def test_memory_of_another_form_is_never_written(block: npt.NDArray[Any]) -> None:
    histogram, before = Histogram(), block.copy()
    histogram.block = block
    with pytest.raises(TypeError, match="block"):
        MODULE.add_all([histogram], [np.ones(3, np.float32)], kernel.flatten)
    assert np.array_equal(block, before)


@compiled
def test_what_is_no_array_or_no_histogram_is_an_error() -> None:
    with pytest.raises(AttributeError):
        MODULE.add_all([object()], [np.ones(3, np.float32)], kernel.flatten)
    with pytest.raises(AttributeError):
        MODULE.add_all([Histogram()], [[1.0]], kernel.flatten)
    with pytest.raises(TypeError):
        MODULE.add_all([Histogram()], [np.ones(3)], lambda x: x)
    with pytest.raises(TypeError):
        MODULE.add_all(None, [], kernel.flatten)
    for variant in (-1, len(VARIANTS)):
        with pytest.raises(ValueError, match="variant"):
            MODULE.add_all([], [], kernel.flatten, variant)


@compiled
def test_no_reference_is_lost_or_kept() -> None:
    histogram, x, half = Histogram(), np.ones(9, np.float32), np.ones(9, np.float16)
    bad = np.ones(9)
    watched = (histogram, histogram.block, x, half, bad, kernel.flatten)
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(50):
        MODULE.add_all([histogram, histogram], [x, half], kernel.flatten)
        with pytest.raises(TypeError):
            MODULE.add_all([histogram, histogram], [x, bad], kernel.flatten)
        MODULE.add_all([histogram], [half], lambda _: x)
        with pytest.raises(TypeError):
            MODULE.add_all([histogram], [half], lambda _: bad)
    assert [sys.getrefcount(one) for one in watched] == before


# Ranges of channels


def range_of(channels: int) -> AffineRange:
    return AffineRange(Affine("y", (1.0,) * channels, (0.0,) * channels))


def assert_same_ranges(kind: Kind, channels: int, *batches: npt.NDArray[Any]) -> None:
    expected, states = range_of(channels), by_numpy(kind, *batches)
    for batch in batches:
        expected.add_in_numpy(batch.astype(np.float32))
    for variant in VARIANTS:
        made, bounds = kind(), range_of(channels)
        for batch in batches:
            MODULE.add_all([made], [batch], kernel.flatten, variant, [bounds])
        assert bounds.ends.tobytes() == expected.ends.tobytes(), MODULE.variants()[variant]
        assert made.state() == states


@compiled
@kinds
@pytest.mark.parametrize(
    "shape", [(3, 5, 7), (2, 3, 61, 70), (1, 40, 1, 1), (4, 6), (2, 9, 64), (1, 2, 20_001), (0, 4, 3)]
)
def test_ranges_of_rows_of_any_length(kind: Kind, shape: tuple[int, ...]) -> None:
    x = (np.random.default_rng(4).standard_normal(shape) * 3).astype(np.float32)
    assert_same_ranges(kind, shape[1], x, np.maximum(x, 0), x - np.float32(1.0))
    for view in (np.asfortranarray(x), x[::-1], x[:, ::-1], x.astype(np.float16), x.astype(np.float16)[..., ::-1]):
        assert_same_ranges(kind, shape[1], view)


@compiled
@kinds
def test_ranges_hold_infinities_and_no_nan_nor_minus_zero(kind: Kind) -> None:
    x = np.random.default_rng(5).standard_normal((2, 9, 500)).astype(np.float32)
    x[0, 1, 7], x[1, 2, 499], x[:, 3], x[0, 4, ::3] = np.inf, -np.inf, np.nan, np.nan
    x[:, 5], x[:, 6, ::2], x[:, 7] = -0.0, -0.0, -np.inf
    x[:, 6, 1::2] = 0.0
    assert_same_ranges(kind, 9, x)
    assert_same_ranges(kind, 9, x[:1], x[1:], -x)
    bounds = range_of(9)
    MODULE.add_all([kind()], [x], kernel.flatten, 0, [bounds])
    assert bounds.ends[1, 1] == np.inf and bounds.ends[0, 2] == -np.inf
    assert bounds.ends[:, 3].tolist() == [np.inf, -np.inf] and np.isfinite(bounds.ends[:, 4]).all()
    assert not np.signbit(bounds.ends[:, 5:7]).any()


@compiled
@given(vectors, st.integers(1, 5))
def test_ranges_of_any_bits(x: Float32, channels: int) -> None:
    assert_same_ranges(Histogram, channels, x[: x.size // channels * channels].reshape(1, channels, -1))


@pytest.mark.parametrize("asked", ["numpy", "c"])
def test_a_batch_has_ranges_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    if asked == "c" and MODULE is None:
        pytest.skip(kernel.why())
    monkeypatch.setenv(kernel.VARIABLE, asked)
    x = np.random.default_rng(6).standard_normal((2, 3, 5000)).astype(np.float32)
    made, bounds = [Histogram() for _ in range(3)], range_of(3)
    kernel.add_all(made, [x[0], x, x[1]], [None, bounds, None])
    assert bounds.ends.tobytes() == np.array([x.min((0, 2)), x.max((0, 2))]).tobytes()
    assert [h.state() for h in made] == [by_numpy(Histogram, one) for one in (x[0], x, x[1])]
    before = [h.state() for h in made], bounds.ends.tobytes()
    for bad, ranges, error in (
        (np.ones((2, 4, 3), np.float32), [None, None, bounds], "3 channels on axis 1"),
        (np.ones(3, np.float32), [None, None, bounds], "3 channels on axis 1"),
        (np.float32(1.0), [None, None, bounds], "3 channels on axis 1"),
        (x, [None, bounds], "3 histograms, but 2 ranges"),
    ):
        with pytest.raises(ValueError, match=error):
            kernel.add_all(made, [x, x, np.asarray(bad)], ranges)
    with pytest.raises(TypeError):
        kernel.add_all(made, [x, x, x.astype(np.float64)], [None, bounds, bounds])
    assert ([h.state() for h in made], bounds.ends.tobytes()) == before


@compiled
@pytest.mark.parametrize(
    "ends",
    [
        np.zeros((2, 3)),
        np.zeros((3, 2), np.float32),
        np.zeros(6, np.float32),
        np.zeros((2, 6), np.float32)[:, ::2],
        np.asfortranarray(np.zeros((2, 3), np.float32)),
        np.zeros((2, 3), ">f4"),
        np.zeros((2, 3), np.int32),
        np.frombuffer(bytes(24), np.float32).reshape(2, 3),
    ],
)
def test_ends_of_another_form_are_never_written(ends: npt.NDArray[Any]) -> None:
    bounds, before, histogram = types.SimpleNamespace(ends=ends), ends.copy(), Histogram()
    with pytest.raises(TypeError, match="ends of a range"):
        MODULE.add_all([histogram], [np.ones((1, 3, 2), np.float32)], kernel.flatten, 0, [bounds])
    assert np.array_equal(ends, before) and histogram.is_empty


@compiled
def test_no_reference_to_a_range_is_lost_or_kept() -> None:
    x, bounds, histogram = np.ones((2, 3, 4), np.float32), range_of(3), Histogram()
    turned = np.asfortranarray(x)
    watched = (x, turned, bounds, bounds.ends, histogram)
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(50):
        MODULE.add_all([histogram] * 2, [x, turned], kernel.flatten, 0, [bounds, bounds])
        for bad in (object(), types.SimpleNamespace(ends=None), types.SimpleNamespace(ends=np.ones(3))):
            with pytest.raises((AttributeError, TypeError)):
                MODULE.add_all([histogram] * 2, [turned, x], kernel.flatten, 0, [bounds, bad])
        with pytest.raises(ValueError, match="channels"):
            MODULE.add_all([histogram] * 2, [turned, x[0]], kernel.flatten, 0, [bounds, bounds])
        with pytest.raises(TypeError):
            MODULE.add_all([histogram], [x], kernel.flatten, 0, 5)
    assert [sys.getrefcount(one) for one in watched] == before


# Threads


def test_threads_count_at_the_same_time() -> None:
    arrays = some(40)
    made = [[Histogram() if i % 2 else EntropyHistogram() for i in range(40)] for _ in range(4)]
    start = threading.Barrier(4)

    def work(mine: list[Histogram | EntropyHistogram]) -> None:
        start.wait()
        for _ in range(5):
            kernel.add_all(mine, arrays)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [by_numpy(type(h), *[x] * 5) for h, x in zip(made[0], arrays, strict=True)]
    assert all([h.state() for h in mine] == expected for mine in made)


@compiled
def test_the_gil_is_free_while_c_counts() -> None:
    x = np.random.default_rng(0).standard_normal(500_000).astype(np.float32)
    histogram, started, done = Histogram(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        MODULE.add_all([histogram] * 60, [x] * 60, kernel.flatten)  # some 15 ms
        done.set()

    turns, thread, interval = 0, threading.Thread(target=work), sys.getswitchinterval()
    sys.setswitchinterval(60.0)  # nobody is made to hand the GIL over: only who lets it go
    try:
        thread.start()
        started.wait()
        while not done.is_set():
            turns += 1
            time.sleep(0.0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert turns > 20
    assert histogram.count == 60 * x.size


# The choice


def test_the_choice_is_reported() -> None:
    if kernel.in_use() == "c":
        assert kernel.why().startswith("the C kernel counts, in its ")
        assert MODULE.variants()[0] in kernel.why()
        assert MODULE.variants()[-1] == "baseline"
    else:
        assert kernel.why().startswith("NumPy counts, because ")


def test_numpy_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.VARIABLE, "numpy")
    assert (kernel.in_use(), kernel.why()) == ("numpy", "NumPy counts, because QDQTOOL_KERNEL says so")
    hist = Histogram()
    hist.add(np.array([1.0, -2.0], np.float32))
    assert (hist.counts[POSITIVE].sum(), hist.counts[NEGATIVE].sum()) == (1, 1)


@pytest.mark.parametrize(
    ("fault", "reported"),
    [("absent", "was not built"), ("broken", "does not load: wrong ELF class"), ("stale", "from another version")],
)
def test_without_the_extension_numpy_counts_and_says_why(
    monkeypatch: pytest.MonkeyPatch, fault: str, reported: str
) -> None:
    def load(name: str) -> Any:
        if fault == "absent":
            raise ModuleNotFoundError(name)
        if fault == "broken":
            raise ImportError("wrong ELF class")
        return types.SimpleNamespace(LAYOUT=kernel.LAYOUT + 1)

    monkeypatch.delenv(kernel.VARIABLE, raising=False)
    monkeypatch.setattr(importlib, "import_module", load)
    assert kernel.in_use() == "numpy"
    assert kernel.why().startswith("NumPy counts, because the C kernel ") and reported in kernel.why()
    monkeypatch.setenv(kernel.VARIABLE, "c")
    kernel.choose.cache_clear()
    with pytest.raises(
        QdqError, match=rf"QDQTOOL_KERNEL: asks for the C kernel, but the .*{reported}.*; install a C comp"
    ):
        Histogram().add(np.ones(2, np.float32))


def test_a_kernel_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.VARIABLE, "cuda")
    with pytest.raises(QdqError, match="QDQTOOL_KERNEL: is 'cuda'"):
        kernel.in_use()


# An array that changes while it is counted


def own_memory(before: int, behind: int) -> tuple[Histogram, npt.NDArray[np.int64], slice]:
    """A histogram whose block lies within a longer array: that array, and where the block is in it.

    What is counted are words of the block itself, seen as float32: zeros, and a count whose bits are those of 0.25.
    The first look finds values up to 0.25, and noting that (`high`, a float64) makes one of them 1.625: the second look
    finds what lies outside the range of the first, as if another thread had written it.
    """
    made = Histogram()
    place = slice(before, before + made.block.size)
    memory = np.zeros(before + made.block.size + behind, np.int64)
    made.block = memory[place]
    made.exponents = [-1, -1]
    made.counts[POSITIVE, 4] = np.float32(0.25).view(np.uint32)
    return made, memory, place


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_written_outside_a_histogram_whose_values_change_meanwhile(variant: int) -> None:
    made, memory, place = own_memory(100, 70_000)
    MODULE.add_all([made], [made.block[2:40].view(np.float32)], kernel.flatten, variant)
    assert made.high == 0.25 and made.block[2:40].view(np.float32).max() == 1.625
    assert not memory[: place.start].any() and not memory[place.stop :].any()


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_other_histogram_sees_values_that_change_meanwhile(variant: int) -> None:
    made, memory, place = own_memory(0, 30_000)
    other = Histogram()
    x = np.linspace(-1, 1, LARGE, dtype=np.float32)
    MODULE.add_all([made, other], [memory[2:].view(np.float32), x], kernel.flatten, variant)
    assert made.high == 0.25 and not memory[place.stop :].any()
    assert other.state() == by_numpy(Histogram, x)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_threads_that_write_while_it_counts(variant: int) -> None:
    """By chance this passes with a fault, too; the two tests above do not."""
    made, memory, place = own_memory(70_000, 70_000)
    empty = Histogram().block
    x = np.full(16_384, 0.5, np.float32)
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            x[1::2] = 3e4
            x[::3] = np.nan
            x[:] = 0.5

    writer = threading.Thread(target=flip)
    writer.start()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        made.block[:] = empty
        MODULE.add_all([made] * 4, [x] * 4, kernel.flatten, variant)
    stop.set()
    writer.join()
    assert not memory[: place.start].any() and not memory[place.stop :].any()


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_width_below_zero_ends(variant: int) -> None:
    made = EntropyHistogram()
    made.width = -1.0
    MODULE.add_all([made], [np.ones(5, np.float32)], kernel.flatten, variant)
    assert made.width == 1 / BINS and made.counts.sum() == 5
