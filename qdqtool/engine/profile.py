# SPDX-License-Identifier: Apache-2.0
"""The time of each layer, from `trtexec --exportProfile`: a measurement of the machine that ran it, not ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.limited_reading import LAYERS, parse_json, read_text

_TODO = "give the JSON of trtexec --exportProfile"


@dataclass(frozen=True)
class LayerTime:
    """What a profile says of one layer."""

    milliseconds: float
    percentage: float | None = None


def is_profile(document: object) -> bool:
    """Whether a JSON document is a profile: a list whose entries have times."""
    return isinstance(document, list) and any(isinstance(one, dict) and "averageMs" in one for one in document)


def read_profile(path: Path) -> dict[str, LayerTime]:
    """Layer -> its time, in the order of the file; layers of one name are added up.

    Raises:
        QdqError: a file that cannot be read, or is not a profile.
    """
    document = parse_json(read_text(path, LAYERS).lstrip("\ufeff"), path, LAYERS)
    if not is_profile(document):
        raise QdqError(path, "is not a profile of layers", _TODO)
    return times_in(path, document)


def times_in(path: Path, document: list[Any]) -> dict[str, LayerTime]:
    """The times in the document of a profile.

    Raises:
        QdqError: a layer without a time.
    """
    found: dict[str, LayerTime] = {}
    for entry in document:
        if not isinstance(entry, dict) or "name" not in entry:
            continue  # the first entry counts the runs
        name, time = entry["name"], _number(entry.get("averageMs"))
        if not isinstance(name, str) or time is None:
            raise QdqError(path, "has a layer without a name or a time", _TODO)
        share = _number(entry.get("percentage"))
        before = found.get(name, LayerTime(0.0, None if share is None else 0.0))
        shares = None if share is None or before.percentage is None else before.percentage + share
        found[name] = LayerTime(before.milliseconds + time, shares)
    return found


def _number(value: object) -> float | None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value < 1e12 and math.isfinite(value) else None  # type: ignore[arg-type, operator]
