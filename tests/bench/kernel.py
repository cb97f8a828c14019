# SPDX-License-Identifier: Apache-2.0
"""The kernels that count: nanoseconds per element, and random cases in which C and NumPy must leave the same state.

``python tests/bench/kernel.py`` times arrays that lie in the caches; ``--cold`` those that come from memory, as the
activations of a run do, with and without the ranges of channels, by one thread and by two; ``--identity N`` compares
N cases; ``--overhead`` times many small tensors.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.amax import kernel
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.observers.pre_batchnorm_range import Affine, AffineRange

Float32 = npt.NDArray[np.float32]
SIZES = (6_000, 64_000, 800_000)
_FINITE = [0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x807FFFFF, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF]
_OTHERS = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF]
SPECIAL = np.array([*_FINITE, *_OTHERS], np.uint32).view(np.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--identity", type=int, metavar="N", help="compare N random cases instead")
    parser.add_argument("--overhead", action="store_true", help="time 200 tensors of 8 elements instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cold", action="store_true", help="time arrays that are in no cache instead")
    given = parser.parse_args(arguments)
    print(kernel.why())
    if kernel.in_use() == "numpy" and (given.identity or given.overhead):
        print("no C kernel to compare", file=sys.stderr)
        return 2
    if given.identity:
        return identity(given.identity, given.seed)
    (overhead if given.overhead else cold if given.cold else table)()
    return 0


def nanoseconds(action: Callable[[], object], size: int) -> float:
    """Thread time per element: the median of seven rounds of about 20 ms."""
    action()
    rounds = max(1, int(2e7 / max(size, 1)) // 2)
    taken = []
    for _ in range(7):
        start = time.thread_time_ns()
        for _ in range(rounds):
            action()
        taken.append((time.thread_time_ns() - start) / rounds / size)
    return float(np.median(taken))


def table() -> None:
    """Nanoseconds per element of every kernel and every kind of data."""
    rng = np.random.default_rng(0)
    kinds: dict[str, Callable[[Float32], Float32]] = {"normal": lambda x: x, "after Relu": lambda x: np.maximum(x, 0)}
    module = kernel.choose().module
    names = module.variants() if module else ()
    for entropy in (False, True):
        print(
            f"\n{'EntropyHistogram' if entropy else 'Histogram':<24}"
            + "".join(f"{k + ' ' + str(s):>20}" for k in kinds for s in SIZES)
        )
        data = [make(rng.standard_normal(size).astype(np.float32)) for make in kinds.values() for size in SIZES]
        for number, name in enumerate(names):
            show(f"C, {name}", [timed_c(module, number, x, entropy=entropy) for x in data])
        show("NumPy", [timed_numpy(x, entropy=entropy) for x in data])
        show("np.histogram, 2048 bins", [nanoseconds(lambda x=x: np.histogram(x, 2048), x.size) for x in data])


def show(name: str, figures: list[float]) -> None:
    print(f"{name:<24}" + "".join(f"{figure:>20.2f}" for figure in figures), flush=True)


def timed_c(module: object, variant: int, x: Float32, *, entropy: bool) -> float:
    histogram = EntropyHistogram() if entropy else Histogram()
    return nanoseconds(lambda: module.add_all((histogram,), (x,), kernel.flatten, variant), x.size)  # type: ignore[attr-defined]


def timed_numpy(x: Float32, *, entropy: bool) -> float:
    histogram = EntropyHistogram() if entropy else Histogram()
    return nanoseconds(lambda: histogram.add_in_numpy(x), x.size)


def overhead() -> None:
    """Microseconds per tensor of a batch of small ones."""
    arrays = [np.full(8, 0.5, np.float32) for _ in range(200)]
    histograms = [Histogram() for _ in arrays]
    print(
        f"{nanoseconds(lambda: kernel.add_all(histograms, arrays), len(arrays)) / 1000:.2f} us per tensor of 8 elements"
    )


COLD = [(1, 16, 120, 160), (1, 32, 60, 80), (1, 64, 30, 40), (1, 128, 15, 20), (1, 256, 8, 10), (1, 512, 7, 7)]


def cold() -> None:
    """Nanoseconds per element of sets of tensors that take turns, 150 MB in all, so that none is still in a cache."""
    rng = np.random.default_rng(0)
    sets = [[rng.standard_normal(shape).astype(np.float32) for shape in COLD] * 2 for _ in range(28)]
    elements = sum(x.size for arrays in sets for x in arrays)
    ranges = [range_of(x.shape[1]) for x in sets[0]]
    for reported, given, threads in (("plain", None, 1), ("with ranges", ranges, 1), ("plain, two threads", None, 2)):
        taken = [spent(sets, given, threads) / elements for _ in range(5)]
        print(
            f"{reported:<20}{np.median(taken):>8.2f} ns of a thread per element, {min(taken):.2f} at best", flush=True
        )


def spent(sets: Sequence[Sequence[Float32]], ranges: Sequence[AffineRange] | None, threads: int) -> int:
    """Thread time, over all threads, that counting every set takes; each thread takes its share of the sets."""
    times: list[int] = []

    def work(mine: Sequence[Sequence[Float32]]) -> None:
        histograms = [Histogram() for _ in mine[0]]
        kernel.add_all(histograms, mine[0], ranges)
        start = time.thread_time_ns()
        for arrays in mine:
            kernel.add_all(histograms, arrays, ranges)
        times.append(time.thread_time_ns() - start)

    workers = [threading.Thread(target=work, args=(sets[k::threads],)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(times)


def range_of(channels: int) -> AffineRange:
    """A range of y itself."""
    return AffineRange(Affine("y", (1.0,) * channels, (0.0,) * channels))


def random_batch(rng: np.random.Generator) -> Float32:
    """Any size, sign, scale and layout; now and then NaN, infinities, denormals, the largest and random bits."""
    size = int(rng.choice([0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, rng.integers(1, 300), rng.integers(1, 40_000)]))
    kind = rng.integers(7)
    with np.errstate(all="ignore"):
        x = (rng.standard_normal(size) * np.exp2(rng.integers(-155, 130))).astype(np.float32)
        if kind == 1:
            x = np.maximum(x, 0)
        elif kind == 2:
            x = np.abs(x) * np.float32(rng.choice([-1.0, 1.0]))
        elif kind == 3:
            x = rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
        elif kind == 4:
            x = np.exp2(rng.integers(-149, 128, size)).astype(np.float32)
        elif kind == 5:
            x = (rng.integers(-2048, 2049, size) * rng.choice([1.0, 3.0, 2.0**-7])).astype(np.float32)
        if kind == 3 and rng.random() < 0.7:
            x = np.where(np.isfinite(x), x, np.float32(0.0)).astype(np.float32)
    if size and rng.random() < 0.3:
        places = rng.integers(0, size, int(rng.integers(1, 1 + min(size, 9))))
        x = x.copy()
        x[places] = rng.choice(SPECIAL[: int(rng.choice([2, 7, 11, SPECIAL.size]))], places.size)
    return laid_out(x, rng)


def laid_out(x: Float32, rng: np.random.Generator) -> Float32:
    """The same values: as they are, at an odd address, strided, backwards, two-dimensional in Fortran order."""
    way = rng.integers(6)
    if way == 0:
        memory = np.zeros(x.nbytes + 1, np.uint8)
        view = memory[1:].view(np.float32) if x.size else x
        view[...] = x
        return view
    if way == 1:
        return np.repeat(x, 3)[::3]
    if way == 2:
        return x[::-1]
    if way == 3 and x.size % 2 == 0:
        return np.asfortranarray(x.reshape(2, -1))
    return x


def channeled(x: Float32, channels: int, rng: np.random.Generator) -> Float32:
    """As many of the values as go into [N, channels, ...], in any layout of these axes; rows from none to long."""
    samples = int(rng.integers(1, 4))
    whole = x.ravel()[: x.size // (samples * channels) * samples * channels]
    rows = whole.reshape(samples, channels, -1)
    way = rng.integers(5)
    if way == 0:
        return np.asfortranarray(rows)
    if way == 1:
        return np.ascontiguousarray(rows.transpose(2, 1, 0)).transpose(2, 1, 0)
    if way == 2 and rows.shape[2] % 2 == 0:
        return rows.reshape(samples, channels, 2, -1)
    return rows


def identity(cases: int, seed: int) -> int:
    """C in all its variants beside NumPy over random batches, one histogram after another; 1 where a state differs.

    Every other pair of cases has the ranges of channels, too.
    """
    rng = np.random.default_rng(seed)
    module = kernel.choose().module
    variants = range(len(module.variants()))
    wrong = 0
    for case in range(cases):
        kind = EntropyHistogram if case % 2 else Histogram
        channels = int(rng.choice([1, 2, 3, 8, 17, 64])) if case % 4 > 1 else 0
        oracle, counted = kind(), [kind() for _ in variants]
        bounds, ranges = range_of(channels), [range_of(channels) for _ in variants]
        for _ in range(int(rng.integers(1, 5))):
            x = random_batch(rng)
            if channels:
                x = channeled(x, channels, rng)
                bounds.add_in_numpy(x)
            oracle.add_in_numpy(kernel.flatten(x))
            for variant, histogram in zip(variants, counted, strict=True):
                module.add_all([histogram], [x], kernel.flatten, variant, [ranges[variant] if channels else None])
        different = [
            module.variants()[v]
            for v in variants
            if counted[v].state() != oracle.state() or ranges[v].ends.tobytes() != bounds.ends.tobytes()
        ]
        if different:
            wrong += 1
            print(f"case {case} ({kind.__name__}, {channels} channels): {', '.join(different)} differ", flush=True)
    print(f"{cases} random cases (seed {seed}), variants {', '.join(module.variants())}: {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
