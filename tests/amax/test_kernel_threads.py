# SPDX-License-Identifier: Apache-2.0
"""The C kernel among threads: it counts beside others, and an array that changes meanwhile does no harm."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.amax import kernel
from qdqtool.amax.histogram import POSITIVE, Histogram
from qdqtool.amax.trt_entropy import BINS, EntropyHistogram
from tests.amax.kernel_runs import (
    LARGE,
    MODULE,
    VARIANTS,
    by_numpy,
    compiled,
    some,
)


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
