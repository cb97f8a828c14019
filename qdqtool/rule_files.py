# SPDX-License-Identifier: Apache-2.0
"""Files of rules as TOML has them, checked against the schema: tables, words, sets. What they mean is `rulebook.py`."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.limited_reading import RULES, read_toml

SCHEMA = 1
_TABLES = frozenset(
    [
        "fusion",
        "consumer",
        "commute",
        "weight",
        "bound",
        "shared_scale",
        "composite",
        "float",
        "attention",
        "late_bias",
        "common_scale",
        "stacked_concat",
        "unfolded",
        "layer",
        "limit",
    ]
)
_POLICY = {
    "points": ("groups", "every-tensor"),
    "float_heads": ("fp32", "fp16"),
    "no_int8": (),
    "weight_rounding": ("half_up", "half_away"),
    "depthwise": ("int8", "float"),
}


def rules_folder() -> Path:
    """Where rules/*.toml lie: in the installed package, or at the top of the source tree."""
    package = Path(__file__).resolve().parent
    for folder in (package / "rules", package.parent / "rules"):
        if (folder / "common.toml").is_file():
            return folder
    raise QdqError(package, "the rules are missing from this installation", "install qdqtool again")


@functools.cache
def format_rows() -> list[dict[str, Any]]:
    """The rows of rules/formats.toml as they stand: one for each number format."""
    rows: list[dict[str, Any]] = read_toml(rules_folder() / "formats.toml", RULES)["format"]
    return rows


def documents_of(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """A rules file and, after it, those that it extends, read and checked."""
    document = read_rules(path)
    chain = [(path, document)]
    while "extends" in document:
        path = rules_folder() / f"{document['extends']}.toml"
        document = read_rules(path)
        chain.append((path, document))
    return chain


def read_rules(path: Path) -> dict[str, Any]:
    """One file, its tables checked.

    Raises:
        QdqError: not TOML, another schema, a table or a value of the wrong kind (named).
    """
    document = read_toml(path, RULES)
    if document.get("schema") != SCHEMA:
        raise QdqError(
            path, f"schema is {document.get('schema')!r}, not {SCHEMA}", f"write schema = {SCHEMA} at its top"
        )
    known = {"schema", "extends", "target", "sets", "heads", "policy", *_TABLES}
    for key in sorted(document.keys() - known):
        near = difflib.get_close_matches(key, known, 1)
        raise QdqError(
            path, f"unknown table {key!r}" + (f", did you mean {near[0]!r}" if near else ""), "see rules/gpu.toml"
        )
    for key, value in document.items():
        _check_kind(path, key, value)
    return document


def _check_kind(path: Path, key: str, value: Any) -> None:
    """Refuse a table, a rule's `ops` or a word that is of another kind of TOML value than its place asks for."""
    if key in ("schema", "extends", "target"):
        return
    if key == "sets":
        fits = isinstance(value, dict) and all(map(_is_words, value.values()))
    elif key == "policy":
        fits = isinstance(value, dict) and all(
            item in _POLICY[name] if _POLICY.get(name) else name in _POLICY and _is_words(item)
            for name, item in value.items()
        )
    elif key == "heads":
        numbered = ("features", "scores")
        fits = isinstance(value, dict) and all(
            isinstance(item, dict) and all(type(number) is int for number in item.values())
            if name in numbered
            else _is_words(item)
            for name, item in value.items()
        )
    else:
        fits = isinstance(value, list) and all(isinstance(rule, dict) and _is_rule(rule) for rule in value)
    if not fits:
        raise QdqError(path, f"{key!r} holds a value of the wrong kind", "see rules/gpu.toml for the form")


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_rule(rule: Mapping[str, Any]) -> bool:
    """Whether lists are lists of words and everything else is text, numbers only where a rule asks for one."""
    numbers, words = (
        {"axis", "amax", "least", "least_queries", "most", "most_queries", "head_sizes"},
        {"ops", "text", "platforms", "formats"},
    )
    plain = (rule[key] for key in rule.keys() - words - numbers)
    return all(isinstance(value, str) for value in plain) and all(_is_words(rule.get(key, [])) for key in words)


def common_words(
    path: Path, entry: Mapping[str, Any], extra: frozenset[str], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """What every rule carries, of one that has the keys it must have and no others."""
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise QdqError(path, "a rule without a name", "name it")
    allowed = {"name", "trt", "rtx", "formats", "why", "see", "status"} | extra | optional
    for key in sorted(entry.keys() - allowed):
        near = difflib.get_close_matches(key, allowed, 1)
        raise QdqError(
            path,
            f"rule {name!r}: unknown key {key!r}" + (f", did you mean {near[0]!r}" if near else ""),
            "see rules/gpu.toml",
        )
    for key in sorted({"why", "see", "status"} | extra):
        if key not in entry:
            raise QdqError(path, f"rule {name!r}: no {key!r}", "every rule says what, why and where that is written")
    if entry["status"] not in ("documented", "measured", "guess"):
        raise QdqError(path, f"rule {name!r}: status {entry['status']!r}", "write documented, measured or guess")
    return {
        "name": name,
        "trt": str(entry.get("trt", "")),
        "rtx": str(entry.get("rtx", "")),
        "formats": tuple(entry.get("formats", ())),
        "why": entry["why"],
        "see": entry["see"],
        "status": entry["status"],
    }


def choice(path: Path, entry: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
    """The word of a rule under a key where it is one of those allowed; QdqError where not."""
    if entry[key] not in allowed:
        raise QdqError(path, f"rule {entry['name']!r}: {key} is {entry[key]!r}", f"write one of {', '.join(allowed)}")
    return str(entry[key])


def spell_out(path: Path, sets: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Sets of operators in which the names of other sets are replaced by what those hold, each operator once.

    Raises:
        QdqError: a set that holds itself.
    """
    found: dict[str, tuple[str, ...]] = {}

    def members(name: str, inside: tuple[str, ...]) -> tuple[str, ...]:
        if name in inside:
            raise QdqError(path, f"the set {name!r} holds itself ({' > '.join((*inside, name))})", "name operators")
        if name not in found:
            within = (*inside, name)
            words = (members(word, within) if word in sets else (word,) for word in sets[name])
            found[name] = tuple(dict.fromkeys(op for part in words for op in part))
        return found[name]

    return {name: members(name, ()) for name in sets}


@functools.cache
def operator_set(name: str) -> frozenset[str]:
    """The operators of a set in rules/common.toml: what they do with values by ONNX, whatever the target.

    Read once in a process: the files of an installation stay as they are.

    Raises:
        KeyError: there is no such set; our own names are fixed.
    """
    return _common_sets()[name]


@functools.cache
def _common_sets() -> Mapping[str, frozenset[str]]:
    path = rules_folder() / "common.toml"
    sets = {key: tuple(ops) for key, ops in read_rules(path)["sets"].items()}
    return {key: frozenset(ops) for key, ops in spell_out(path, sets).items()}
