# SPDX-License-Identifier: Apache-2.0
"""The C kernel beside NumPy: the same state, bit for bit, whatever comes; and the choice between the two."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.amax import kernel
from qdqtool.amax.histogram import NEGATIVE, POSITIVE, Histogram
from qdqtool.amax.trt_entropy import BINS, EntropyHistogram
from qdqtool.errors import QdqError
from tests.amax.kernel_runs import (
    LARGE,
    MODULE,
    VARIANTS,
    Float32,
    Kind,
    assert_same,
    by_numpy,
    compiled,
    kinds,
    some,
    vectors,
)

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
@pytest.mark.parametrize("sign", [1, -1])
def test_values_that_are_zero_beside_the_largest_are_counted(kind: Kind, sign: int) -> None:
    """Their products with the factor of the exponent are 0: they fall into bin 0, not into none."""
    large, small = np.float32(3e38), np.full(LARGE, 2.0**-149, np.float32)
    assert_same(kind, np.array([sign * large, -sign], np.float32), sign * small, -sign * small)


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


# The choice


def test_the_choice_is_reported() -> None:
    if kernel.in_use() == "c":
        assert kernel.why().startswith("the C kernel ")
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
