# SPDX-License-Identifier: Apache-2.0
"""Which code counts: the C kernel where it was built, else its twin in NumPy. Not what is counted (histogram.py).

Both leave the same bits in a histogram. The C kernel takes the GIL once per batch of tensors, so threads count at once.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError

VARIABLE = "QDQTOOL_KERNEL"
EXTENSION = "qdqtool.amax._kernel"
LAYOUT = 5  # of what the extension writes to and how it is called; it must have been built for the same


class Countable(Protocol):
    """A histogram: `Histogram` and `EntropyHistogram` are."""

    def reserve(self, count: int) -> None:
        """Make room for so many values more."""

    def add_in_numpy(self, x: npt.NDArray[np.float32]) -> None:
        """Count every element of `x`, which `flatten` has made."""


class Ranged(Protocol):
    """The range of each channel: `AffineRange` is one.

    Attributes:
        ends: float32[2, channels], C order: smallest values, largest values; +inf, -inf of nothing, no -0.0.
    """

    ends: npt.NDArray[np.float32]

    def add_in_numpy(self, y: npt.NDArray[np.float32]) -> None:
        """Take in float32[N, channels, ...]: all but NaN."""


@dataclass(frozen=True)
class Kernel:
    """The choice: the extension module (None: NumPy counts) and why."""

    module: Any
    why: str


def add_all(
    histograms: Sequence[Countable],
    arrays: Sequence[npt.NDArray[np.float32]],
    ranges: Sequence[Ranged | None] | None = None,
) -> None:
    """Count arrays[i], float32 (or float16) of any shape and memory order, into histograms[i].

    Where ranges[i] is not None, the axes of arrays[i] are [N, channels, ...], and the range of each channel is taken on
    the way: infinities count, NaN does not.

    In C the GIL is released once for the whole batch. Threads may call this at the same time with different
    histograms; one histogram may come more than once in a batch.

    Raises:
        TypeError: an array of another dtype; nothing has been counted then.
        ValueError: not as many arrays or ranges as histograms, or an array without the channels of its range; nothing
            has been counted then.
        QdqError: QDQTOOL_KERNEL asks for what is not there.
    """
    module = choose().module
    for histogram, array in zip(histograms, arrays, strict=False):
        histogram.reserve(array.size)
    if module is not None:
        module.add_all(histograms, arrays, flatten, 0, ranges)
        return
    given = [None] * len(histograms) if ranges is None else ranges
    for what, one in (("arrays", arrays), ("ranges", given)):
        if len(one) != len(histograms):
            raise ValueError(f"{len(histograms)} histograms, but {len(one)} {what}")
    ranged = [(bounds, array) for bounds, array in zip(given, arrays, strict=True) if bounds is not None]
    for bounds, array in ranged:
        channels = bounds.ends.shape[1]
        if array.ndim < 2 or array.shape[1] != channels:
            raise ValueError(f"an array without {channels} channels on axis 1")
    for histogram, flat in zip(histograms, [flatten(array) for array in arrays], strict=True):
        histogram.add_in_numpy(flat)
    for bounds, array in ranged:
        bounds.add_in_numpy(array.astype(np.float32, copy=False))


def in_use() -> str:
    """What counts in this process: "c" or "numpy"."""
    return "numpy" if choose().module is None else "c"


def why() -> str:
    """One sentence: which variant of the C kernel this processor gets, or why there is none."""
    return choose().why


@functools.lru_cache(maxsize=1)
def choose() -> Kernel:
    """The kernel of this process: the environment variable QDQTOOL_KERNEL ("c", "numpy") before what is installed.

    Raises:
        QdqError: the variable says "c" and the extension is not there, or says something else.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "c", "numpy"):
        raise QdqError(VARIABLE, f"is {asked!r}", "set it to c or numpy, or unset it")
    if asked == "numpy":
        return Kernel(None, f"NumPy counts, because {VARIABLE} says so")
    module, fault = _load()
    if module is not None:
        return Kernel(module, f"the C kernel counts, in its {module.variants()[0]} variant, chosen for this processor")
    if asked == "c":
        raise QdqError(VARIABLE, f"asks for the C kernel, but {fault}", "install a C compiler, then qdqtool again")
    return Kernel(None, f"NumPy counts, because {fault}")


def _load() -> tuple[Any, str]:
    """The extension, or None and what is wrong with it."""
    try:
        module = importlib.import_module(EXTENSION)
    except ModuleNotFoundError:
        return None, "the C kernel was not built when qdqtool was installed (no C compiler?)"
    except ImportError as error:
        return None, f"the C kernel does not load: {error}"
    if module.LAYOUT != LAYOUT:
        return None, "the C kernel was built from another version of qdqtool"
    return module, ""


def flatten(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The elements as a float32 vector, in memory order; copied only where they are not contiguous or are float16.

    Raises:
        TypeError: neither float32 nor float16.
    """
    if x.dtype not in (np.float32, np.float16):
        raise TypeError(f"a histogram takes float32 or float16, not {x.dtype}")
    return x.ravel(order="K").astype(np.float32, copy=False)
