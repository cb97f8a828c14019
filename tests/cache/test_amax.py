# SPDX-License-Identifier: Apache-2.0
"""A scale as a clipping value and back: exact for float64, and where exactly a float32 reader cannot follow."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.amax import amax_of, inexact_as_float32, scale_of
from qdqtool.cache.text import Cache
from qdqtool.trtversion import TrtVersion

words = st.integers(0x01800000, 0x7B000000)  # scales whose amax is a normal float32
tables = st.dictionaries(st.text("abc", min_size=1), words, max_size=8)


def float32(word: int) -> np.float32:
    return np.array(word, np.uint32).view(np.float32)[()]


def cache_of(table: dict[str, int]) -> Cache:
    return Cache.of(TrtVersion(8, 5, 2), {name: float32(word) for name, word in table.items()})


def float32_reader(scale: np.float32) -> np.float32:
    """What onnxruntime's std::stof and TensorRT's division make of the decimal that we write."""
    return np.float32(np.float32(repr(amax_of(scale))) / np.float32(127))


@given(words)
def test_amax_is_exact_as_float64(word: int) -> None:
    amax = amax_of(float32(word))
    assert struct.unpack("<I", struct.pack("<f", float(repr(amax)) / 127))[0] == word  # TAO Deploy's own arithmetic
    assert int(scale_of(amax).view(np.uint32)) == word


def test_one_scale_in_128_is_out_of_reach_of_a_float32_amax() -> None:
    ends = np.arange(1 << 17), np.arange(7 << 20, (7 << 20) + (1 << 17)), np.arange((1 << 23) - (1 << 17), 1 << 23)
    significands = np.concatenate(ends).astype(np.uint32)
    scales = (significands | np.uint32(0x3C000000)).view(np.float32)
    back = (scales.astype(np.float64) * 127).astype(np.float32) / np.float32(127)
    wrong = np.flatnonzero(back != scales)
    low = (1 << 23) // 127  # below 128/127 of the power of two, amax has another exponent and room for all
    expected = np.flatnonzero((significands % 128 == 64) & (significands > low))
    assert np.array_equal(wrong, expected)
    off = np.abs(back.view(np.uint32).astype(np.int64) - scales.view(np.uint32).astype(np.int64))
    assert off.max() == 1
    for index in wrong[:: len(wrong) // 50]:  # no float32 at all would do, so the format cannot hold it
        amax = np.float32(float(scales[index]) * 127)
        near = [np.nextafter(amax, np.float32(0)), amax, np.nextafter(amax, np.float32(np.inf))]
        assert all(np.float32(a / np.float32(127)) != scales[index] for a in near)


@given(tables)
def test_those_scales_are_named(table: dict[str, int]) -> None:
    cache = cache_of(table)
    wanted = [name for name, scale in cache.entries.items() if float32_reader(scale) != scale]
    assert inexact_as_float32(cache) == wanted


def test_a_scale_out_of_reach_is_named() -> None:
    assert inexact_as_float32(cache_of({"a": 0x3C400000, "b": 0x3C400040})) == ["b"]
