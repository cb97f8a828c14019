# SPDX-License-Identifier: Apache-2.0
"""rules/amp.toml as values: the lists of operators, what sums up, what is steep. Nothing is decided here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from qdqtool.errors import QdqError
from qdqtool.limited_reading import RULES, read_toml
from qdqtool.rule_files import rules_folder

SCHEMA = 1
OperatorList = Literal["allow", "infer", "clear", "deny"]
SumKind = Literal["sum", "squares", "exponentials"]
_STATUS = ("documented", "measured", "guess")
_TODO = "see rules/amp.toml for the form"


@dataclass(frozen=True)
class AmpRule:
    """What one entry says.

    Attributes:
        ops: the operators.
        word: its list, or the kind of its sum; "" for the others.
        input: the input that it is about; 0 where none is named.
        largest: the most that the type may hold there; 0 where none is named.
        why, see, status: as every rule has them.
    """

    ops: tuple[str, ...]
    word: str
    input: int
    largest: float
    why: str
    see: str
    status: str


@dataclass(frozen=True)
class AmpRules:
    """All of rules/amp.toml.

    Attributes:
        lists: operator -> the entry of its list.
        sums: operator -> what it adds up.
        steep: operator -> the input whose rounding is a wrong output.
        singular: operator -> the input that must not be rounded to 0.
        epsilons: operators that keep values from 0 by a small constant.
        addends: operators that only add a constant, with the input that it is; 0 for any.
        scores: operators that make numbers between 0 and 1.
        limits, cost: figures by name.
    """

    lists: Mapping[str, AmpRule]
    sums: Mapping[str, AmpRule]
    steep: Mapping[str, AmpRule]
    singular: Mapping[str, AmpRule]
    epsilons: Mapping[str, AmpRule]
    addends: Mapping[str, AmpRule]
    scores: Mapping[str, AmpRule]
    limits: Mapping[str, float]
    cost: Mapping[str, float]

    def list_of(self, op: str) -> OperatorList | None:
        """The list that an operator stands in; None for none."""
        rule = self.lists.get(op)
        return None if rule is None else rule.word  # type: ignore[return-value] # checked when it was read


@functools.cache
def amp_rules() -> AmpRules:
    """The rules of this installation, read once in a process."""
    return read_amp_rules(rules_folder() / "amp.toml")


def read_amp_rules(path: Path) -> AmpRules:
    """The rules of a file.

    Raises:
        QdqError: not TOML, another schema, an unknown table, an entry without what every rule says, an operator that
            is there twice.
    """
    document = read_toml(path, RULES)
    if document.get("schema") != SCHEMA:
        raise QdqError(path, f"schema is {document.get('schema')!r}, not {SCHEMA}", f"write schema = {SCHEMA}")
    tables = {"operators": "list", "sum": "kind", "steep": "", "singular": "", "epsilon": "", "addend": "", "score": ""}
    for key in sorted(document.keys() - {"schema", "limits", "cost", *tables}):
        raise QdqError(path, f"unknown table {key!r}", _TODO)
    lists, *others = (_by_operator(path, document, name, word) for name, word in tables.items())
    sums, steep, singular, epsilons, addends, scores = others
    figures = _figures(path, document, "limits"), _figures(path, document, "cost")
    return AmpRules(lists, sums, steep, singular, epsilons, addends, scores, *figures)


def _by_operator(path: Path, document: Mapping[str, Any], table: str, word: str) -> dict[str, AmpRule]:
    found: dict[str, AmpRule] = {}
    for entry in document.get(table, []):
        rule = _rule(path, table, entry, word)
        for op in rule.ops:
            if op in found:
                raise QdqError(path, f"[[{table}]]: {op} is there twice", "keep it once")
            found[op] = rule
    return found


def _rule(path: Path, table: str, entry: Mapping[str, Any], word: str) -> AmpRule:
    allowed = {"list": get_args(OperatorList), "kind": get_args(SumKind)}
    ops = entry.get("ops")
    texts = [entry.get(key) for key in ("why", "see", "status")]
    if not isinstance(ops, list) or not all(isinstance(one, str) and one for one in (*ops, *texts)):
        raise QdqError(path, f"[[{table}]]: an entry lacks ops, why, see or status", _TODO)
    if texts[2] not in _STATUS:
        raise QdqError(path, f"[[{table}]]: status {texts[2]!r}", f"write one of {', '.join(_STATUS)}")
    if word and entry.get(word) not in allowed[word]:
        raise QdqError(path, f"[[{table}]]: {word} {entry.get(word)!r}", f"write one of {', '.join(allowed[word])}")
    numbers = entry.get("input", 0), entry.get("largest", 0.0)
    if type(numbers[0]) is not int or type(numbers[1]) not in (int, float):
        raise QdqError(path, f"[[{table}]]: input and largest are numbers", _TODO)
    why, see, status = map(str, texts)
    return AmpRule(tuple(ops), str(entry.get(word, "")), numbers[0], float(numbers[1]), why, see, status)


def _figures(path: Path, document: Mapping[str, Any], table: str) -> dict[str, float]:
    entries = document.get(table, {})
    if not isinstance(entries, dict) or not all(type(one) in (int, float) and one > 0 for one in entries.values()):
        raise QdqError(path, f"[{table}] holds a value that is not a positive number", _TODO)
    return {key: float(value) for key, value in entries.items()}
