# SPDX-License-Identifier: Apache-2.0
"""rules/parser.toml as a frozen value: what TensorRT's ONNX parser imports, by version. Not what a model holds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.rule_files import common_words, rules_folder
from qdqtool.trtversion import TrtVersion, in_range

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class ParserRules:
    """What becomes of an operator, by its name.

    Attributes:
        operators: those that the parser makes layers of -> the ranges of versions that do.
        plugins: those that NVIDIA ships a plugin for -> the ranges of versions that do.
        removed: operators of the default domain that opset 10 took out of ONNX.
        counted: operators that it refuses with an empty optional input at the end.
        domains: domains that nobody writes TensorRT plugins for -> what to do about their operators.
    """

    operators: Mapping[str, tuple[str, ...]]
    plugins: Mapping[str, tuple[str, ...]]
    removed: frozenset[str]
    counted: frozenset[str]
    domains: Mapping[str, str]

    def imports(self, op: str, version: TrtVersion | None = None) -> bool:
        """Whether the parser of a version makes layers of an operator; None: of any version."""
        return _holds(self.operators.get(op, ()), version)

    def ships(self, op: str, version: TrtVersion | None = None) -> bool:
        """Whether NVIDIA ships a plugin of that name with a version; None: with any version."""
        return _holds(self.plugins.get(op, ()), version)


@functools.cache
def load_parser_rules() -> ParserRules:
    """The rules of this installation.

    Raises:
        QdqError: a rule that is not of the schema, named.
    """
    path = rules_folder() / "parser.toml"
    with path.open("rb") as file:
        document = tomllib.load(file)
    removed, counted = (frozenset(document["words"][key]) for key in ("removed", "counted"))
    operators, plugins = _ranges(path, document["operator"]), _ranges(path, document["plugin"])
    return ParserRules(operators, plugins, removed, counted, document["domains"])


def _ranges(path: Path, entries: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Operator -> the ranges of all rules that name it."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        trt = common_words(path, entry, frozenset({"ops", "trt"}))["trt"]
        if not trt:
            raise QdqError(path, f"rule {entry['name']!r}: no range of versions", 'write trt like ">=8.0,<11"')
        for op in entry["ops"]:
            found[op] = (*found.get(op, ()), trt)
    return found


def _holds(ranges: tuple[str, ...], version: TrtVersion | None) -> bool:
    return any(version is None or in_range(version, one) for one in ranges)
