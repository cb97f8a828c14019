# SPDX-License-Identifier: Apache-2.0
"""What the DLA can run, from rules/dla.toml: layers and limits by platform and version. Not what they mean."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from qdqtool.errors import QdqError
from qdqtool.rule_files import common_words, documents_of, rules_folder, spell_out
from qdqtool.rule_kinds import Rule
from qdqtool.rule_steps import Step, steps_of
from qdqtool.rulebook import holds
from qdqtool.trtversion import TrtVersion

Platform = Literal["xavier", "orin"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)
_ORIN_FROM = TrtVersion(8, 4, 0)
_XAVIER_TO = TrtVersion(8, 6, 0)
_ANY = sys.maxsize


@dataclass(frozen=True)
class Layer(Rule):
    """Operators that the DLA runs."""

    steps: tuple[Step, ...]
    platforms: tuple[str, ...]


@dataclass(frozen=True)
class Limit(Rule):
    """What a node must keep to, or a graph: the name of a check, and where its numbers lie.

    Attributes:
        check: a function of `dla/limits.py`, or of the whole graph.
        steps: the operators it is for; none for all.
        platforms: those it holds on.
        least, most: where the numbers that the check gives must lie.
        instead: what could be done about it; "" where nothing is known.
    """

    check: str
    steps: tuple[Step, ...]
    platforms: tuple[str, ...]
    least: int
    most: int
    instead: str


@dataclass(frozen=True)
class DlaRules:
    """Everything that one platform's DLA can run at one TensorRT version.

    `guessed_elsewhere` are the layers of other versions whose first version is a guess.
    """

    platform: Platform
    layers: tuple[Layer, ...]
    limits: tuple[Limit, ...]
    sets: Mapping[str, tuple[str, ...]]
    guessed_elsewhere: tuple[Layer, ...] = ()


def usual_platform(version: TrtVersion) -> Platform:
    """The board that a version is mostly for: Orin came with 8.4."""
    return "orin" if version >= _ORIN_FROM else "xavier"


def platforms_of(version: TrtVersion) -> tuple[Platform, ...]:
    """The boards whose DLA a version is for: JetPack 5 with TensorRT 8.5 was the last of Xavier."""
    first: tuple[Platform, ...] = ("xavier",) if version < _XAVIER_TO else ()
    return (*first, "orin") if version >= _ORIN_FROM else first


def load_dla_rules(version: TrtVersion, platform: Platform) -> DlaRules:
    """The layers and limits that hold for a version and a platform, in the order of the file.

    Raises:
        QdqError: no such platform, one that the version is not for, or a rule that is not of the schema, named.
    """
    if platform not in PLATFORMS:
        raise QdqError("--platform", f"{platform!r} is not one", f"choose {' or '.join(PLATFORMS)}")
    if platform == "orin" and version < _ORIN_FROM:
        raise QdqError(
            "--platform", f"TensorRT {version.text} does not support Orin, which came with 8.4", "choose xavier"
        )
    if platform == "xavier" and version.has_typed_dla:
        raise QdqError("--platform", f"TensorRT {version.text} supports a DLA on AGX Orin only", "choose orin")
    layers, limits, sets = _rules_in(rules_folder() / "dla.toml")
    of_platform = [rule for rule in layers if platform in rule.platforms]
    here = tuple(rule for rule in of_platform if holds(Path("dla.toml"), rule, version))
    elsewhere = tuple(rule for rule in of_platform if rule.status == "guess" and rule not in here)
    kept = tuple(r for r in limits if platform in r.platforms and holds(Path("dla.toml"), r, version))
    return DlaRules(platform, here, kept, spell_out(Path("dla.toml"), sets), elsewhere)


@functools.cache
def _rules_in(path: Path) -> tuple[list[Layer], list[Limit], dict[str, tuple[str, ...]]]:
    """All layers, limits and sets of a file and of those that it extends."""
    layers: list[Layer] = []
    limits: list[Limit] = []
    sets: dict[str, tuple[str, ...]] = {}
    for place, document in documents_of(path):
        sets = {**{str(name): tuple(ops) for name, ops in document.get("sets", {}).items()}, **sets}
        layers += [_layer(place, entry) for entry in document.get("layer", [])]
        limits += [_limit(place, entry) for entry in document.get("limit", [])]
    return layers, limits, sets


def _layer(path: Path, entry: Mapping[str, Any]) -> Layer:
    common = common_words(path, entry, frozenset({"ops"}), frozenset({"platforms"}))
    return Layer(**common, steps=steps_of(path, entry), platforms=_platforms(path, entry))


def _limit(path: Path, entry: Mapping[str, Any]) -> Limit:
    optional = frozenset({"ops", "platforms", "least", "most", "instead"})
    common = common_words(path, entry, frozenset({"check"}), optional)
    return Limit(
        **common,
        check=str(entry["check"]),
        steps=steps_of(path, entry) if "ops" in entry else (),
        platforms=_platforms(path, entry),
        least=_number(path, entry, "least", -_ANY),
        most=_number(path, entry, "most", _ANY),
        instead=str(entry.get("instead", "")),
    )


def _platforms(path: Path, entry: Mapping[str, Any]) -> tuple[str, ...]:
    named = tuple(entry.get("platforms", PLATFORMS))
    for name in named:
        if name not in PLATFORMS:
            raise QdqError(path, f"rule {entry['name']!r}: platform {name!r}", f"write {' or '.join(PLATFORMS)}")
    return named


def _number(path: Path, entry: Mapping[str, Any], key: str, usual: int) -> int:
    number = entry.get(key, usual)
    if isinstance(number, bool) or not isinstance(number, int):
        raise QdqError(path, f"rule {entry['name']!r}: {key} is {number!r}", "write a whole number")
    return number
