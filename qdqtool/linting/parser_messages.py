# SPDX-License-Identifier: Apache-2.0
"""rules/parser_messages.toml as a frozen value: which checks say what NVIDIA's parser says, and why not."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.limited_reading import RULES, read_toml
from qdqtool.rule_files import rules_folder


@dataclass(frozen=True)
class RefusalRule:
    """One kind of refusal.

    Attributes:
        name: what to call it.
        says: words that all stand in the parser's message.
        codes: checks that find the same.
        reason: why no check does; "" where one does.
        exact: the whole message, where words would be in others too.
        plugin: whether TensorRT may have a plugin for what TensorRT for RTX refuses.
    """

    name: str
    says: tuple[str, ...]
    codes: tuple[str, ...]
    reason: str = ""
    exact: str = ""
    plugin: bool = False

    def covers(self, message: str) -> bool:
        """Whether a message is of this kind."""
        return message == self.exact if self.exact else all(words in message for words in self.says)


@dataclass(frozen=True)
class ParserMessages:
    """The table.

    Attributes:
        refusals: kinds of refusals, the first that fits holds.
        accepted: code -> why the parser accepts what that check calls an error.
    """

    refusals: tuple[RefusalRule, ...]
    accepted: Mapping[str, str]

    def kind_of(self, message: str) -> RefusalRule | None:
        """The kind of a refusal; None for one that is not in the table."""
        return next((rule for rule in self.refusals if rule.covers(message)), None)


@functools.cache
def load_parser_messages() -> ParserMessages:
    """The table of this installation.

    Raises:
        QdqError: an entry that has neither codes nor a reason, or no words.
    """
    path = rules_folder() / "parser_messages.toml"
    document = read_toml(path, RULES)
    refusals = tuple(_refusal(entry) for entry in document["refusal"])
    for rule in refusals:
        if not (rule.codes or rule.reason) or not (rule.says or rule.exact):
            raise QdqError(path, f"refusal {rule.name!r}: no words, or neither codes nor a reason", "write them")
    return ParserMessages(refusals, {entry["code"]: entry["reason"] for entry in document["accepted"]})


def _refusal(entry: Mapping[str, Any]) -> RefusalRule:
    return RefusalRule(
        entry["name"],
        tuple(entry["says"]),
        tuple(entry["codes"]),
        entry.get("reason", ""),
        entry.get("exact", ""),
        entry.get("plugin", False),
    )
