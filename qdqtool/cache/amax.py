# SPDX-License-Identifier: Apache-2.0
"""A scale as the clipping value that other formats keep, and back to the same bits. Not the formats themselves.

    amax = 127 * scale      needs 24 + 7 bits, so it is exact as float64, and its shortest decimal is read back exactly
    scale = float32(amax / 127)                  gives the bits back to every reader that computes with float64

A reader that keeps amax as float32 (onnxruntime, TensorRT's dynamic ranges) rounds it to 24 bits first. Then the scales
whose 24-bit significand is 64 modulo 128 (one in 128, where it is above 128/127 of its power of two) are out of reach:
the two float32 next to their amax lie halfway around it, and both give a neighbor, one unit in the last place away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from qdqtool.cache.text import Cache, Dropped
from qdqtool.errors import QdqError
from qdqtool.formats import INT8

STEPS = INT8.largest
_LARGEST, _SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


def amax_of(scale: np.float32) -> float:
    """The clipping value of a scale, exact as float64."""
    return INT8.amax_of(scale)


def scale_of(amax: float) -> np.float32:
    """The scale of a clipping value, rounded to float32 once; infinite where it is too large for one."""
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(amax / STEPS)


def inexact_as_float32(cache: Cache) -> list[str]:
    """Names whose scale a reader that keeps amax as float32 finds one unit in the last place away."""
    scales = np.array(list(cache.entries.values()), np.float32)
    with np.errstate(over="ignore", under="ignore"):
        found = (scales.astype(np.float64) * STEPS).astype(np.float32) / np.float32(STEPS)
    return [name for name, same in zip(cache.entries, found == scales, strict=True) if not same]


def check_float32(cache: Cache) -> None:
    """Refuse what a reader of float32 clipping values cannot hold (`std::stof` throws there).

    Raises:
        QdqError: an amax above float32's largest number or below its smallest normal one, with the tensor's name.
    """
    for name, scale in cache.entries.items():
        if not _SMALLEST <= amax_of(scale) <= _LARGEST:
            reason = f"its amax {amax_of(scale)!r} is not a normal float32, which the readers of this format need"
            raise QdqError(name, reason, "calibrate the tensor again, or leave it out")


def cache_of(ranges: Iterable[tuple[str, Any]], where: object) -> Cache:
    """The cache without a header that pairs of tensor name and amax stand for.

    Values of zero and of infinity are dropped, as in TensorRT's text.

    Raises:
        QdqError: an amax that is not a number, negative or NaN, an empty name, or a name with two values.
    """
    entries: dict[str, np.float32] = {}
    dropped: dict[str, Dropped] = {}
    seen: dict[str, float] = {}
    for name, value in ranges:
        amax = _number(name, value, where)
        if seen.setdefault(name, amax) != amax:
            raise QdqError(where, f"{name!r} has two values, {seen[name]!r} and {amax!r}", "keep one of the two")
        scale = scale_of(amax)
        if np.isfinite(scale) and scale > 0:
            entries[name] = scale
        else:
            dropped.setdefault(name, (name, repr(amax), "infinite" if scale > 0 else "zero"))
    return Cache(None, "", entries, tuple(dropped.values()))


def _number(name: str, value: Any, where: object) -> float:
    if not name.strip():
        raise QdqError(where, "a range without the name of a tensor", "repair or remove it")
    try:
        amax = float(value)
    except (TypeError, ValueError, OverflowError):
        raise QdqError(where, f"the range of {name!r} is {value!r:.40}, not a number", "repair or remove it") from None
    if amax != amax or isinstance(value, bool):
        raise QdqError(where, f"the range of {name!r} is not a number", "calibrate again")
    if amax < 0:
        reason = f"the range of {name!r} is negative ({amax!r}), as onnxruntime's writer keeps the larger of both ends"
        raise QdqError(where, reason, "convert the calibration.json beside it, which holds both of them")
    return amax
