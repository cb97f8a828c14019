# SPDX-License-Identifier: Apache-2.0
"""rules/lint.toml as a frozen value: the lists of operators that checks go by. Not what they look for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from qdqtool.rule_files import operator_set, rules_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Words:
    """Operators by what is made of them.

    Attributes:
        integer: operators on integers, which TensorRT does not import.
        sizes: operators that give sizes, of rules/common.toml.
        roundings: operators by which a float becomes a size or place, or the other way round.
        places: op -> its inputs that hold sizes, places or counts.
        biases: op -> its input that holds the bias.
    """

    integer: frozenset[str]
    sizes: frozenset[str]
    roundings: frozenset[str]
    places: Mapping[str, tuple[int, ...]]
    biases: Mapping[str, int]


def load_words() -> Words:
    """The words of rules/lint.toml, and the sets of rules/common.toml beside them."""
    with (rules_folder() / "lint.toml").open("rb") as file:
        table = tomllib.load(file)["lint"]
    places = {op: tuple(indices) for op, indices in table["places"].items()}
    return Words(
        frozenset(table["integer"]),
        operator_set("sizes"),
        frozenset(table["roundings"]),
        places,
        dict(table["biases"]),
    )
