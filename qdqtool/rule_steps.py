# SPDX-License-Identifier: Apache-2.0
"""The operators that a rule of rules/*.toml names: one by one in `ops`, or as a chain in `match`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError

_STEP = re.compile(r"^(?P<names>[\w-]+(\|[\w-]+)*)(:(?P<constraint>\w+))?(?P<optional>\?)?$")


@dataclass(frozen=True)
class Step:
    """One operator of a chain: the names it may have, a constraint by name, whether it may be absent."""

    names: tuple[str, ...]
    constraint: str
    optional: bool


def _step(path: Path, rule: str, word: str) -> Step:
    match = _STEP.match(word.strip())
    if match is None:
        raise QdqError(path, f"rule {rule!r}: cannot read {word!r}", "write Op, set, Op:constraint, or Op:constraint?")
    return Step(tuple(match["names"].split("|")), match["constraint"] or "", bool(match["optional"]))


def steps_of(path: Path, entry: Mapping[str, Any]) -> tuple[Step, ...]:
    """The operators that a rule's `ops` name."""
    return tuple(_step(path, str(entry["name"]), word) for word in entry["ops"])


def chain_of(path: Path, entry: Mapping[str, Any]) -> tuple[Step, ...]:
    """The operators of a chain, in the order of the data, that a rule's `match` names."""
    return tuple(_step(path, str(entry["name"]), word) for word in str(entry["match"]).split(">"))
