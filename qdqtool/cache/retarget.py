# SPDX-License-Identifier: Apache-2.0
"""A calibration cache carried to another TensorRT: a new header, the same scales. Not a recalibration."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

from qdqtool.cache.check import MADE_UP
from qdqtool.cache.text import ENTROPY, ENTROPY_2, LEGACY, Cache
from qdqtool.errors import QdqError
from qdqtool.options import converted
from qdqtool.trtversion import TrtVersion, parse, require_caches


def retarget(cache: Cache, version: TrtVersion | str, where: object = "cache") -> Cache:
    """The same scales, to the bit, under the header of another TensorRT.

    The algorithm stays what it was. The bare header `1` of TensorRT 4 and 5.0 (entropy calibration) becomes
    `EntropyCalibration2`, as publishers of such tables have done: its scales mean the same. A table of the legacy
    calibrator is refused: no later header names that calibrator with its quantile and cutoff, and another header would
    claim a calibration that never was.

    Args:
        cache: what to carry; it stays as it is.
        version: the TensorRT that shall read it: a TrtVersion, or text such as "8502" or "jp5.1".
        where: the name of the cache for messages.

    Raises:
        QdqError: TensorRT 11 or later, which reads no caches, or a cache of the legacy calibrator.
    """
    version = converted(version, TrtVersion, parse, "version")
    require_caches(version)
    if cache.algorithm == LEGACY:
        reason = "holds scales of the legacy calibrator, which no header of a later TensorRT can say"
        raise QdqError(where, reason, "calibrate again for EntropyCalibration2")
    bare = cache.version is None and cache.algorithm == ENTROPY
    algorithm = ENTROPY_2 if bare else cache.algorithm
    return dataclasses.replace(cache, version=version, algorithm=algorithm, header=version.header(algorithm))


def cautions(cache: Cache, version: TrtVersion) -> tuple[str, ...]:
    """What may go wrong when `version` reads the scales of `cache`: one line each, often none.

    TensorRT ignores names that it does not find, so an entry under a name of its own making (a constant, a plugin
    output) is lost without a word where another version numbers its layers in another way.
    """
    own = sum(bool(MADE_UP.search(name)) for name in cache.entries)
    lines = [version.warning] if version.warning else []
    if own and cache.version != version:
        entries = "1 entry has a name" if own == 1 else f"{own} entries have names"
        lines.append(
            f"{entries} made by TensorRT itself, such as (Unnamed Layer* 3); another version may not find them"
        )
    if cache.dropped:
        count = "1 entry" if len(cache.dropped) == 1 else f"{len(cache.dropped)} entries"
        lines.append(f"{count} of zero or infinity left out; TensorRT runs those tensors in float")
    return tuple(lines)


def default_output(path: str | os.PathLike[str], version: TrtVersion) -> Path:
    """The name beside `path` for the cache of a version: `m.cache` -> `m.trt8502.cache`."""
    source = Path(path)
    stem = re.sub(r"\.trt\d+$", "", source.stem) or "calibration"
    return source.with_name(f"{stem}.trt{version.header_number}.cache")
