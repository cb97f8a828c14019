# SPDX-License-Identifier: Apache-2.0
"""What a recipe needs of the command line, which stands above it: `cli/commands.py` gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

OptionKind = Literal["flag", "switch", "one", "optional", "many", "append"]


@dataclass(frozen=True)
class CommandShape:
    """What a verb takes.

    Attributes:
        options: option without dashes -> (as it is typed, how it takes values).
        takes_model: whether it has positional words.
        needs_model: whether it cannot do without.
    """

    options: Mapping[str, tuple[str, OptionKind]]
    takes_model: bool
    needs_model: bool


class CommandLine(Protocol):
    """The verbs as they are typed."""

    def verbs(self) -> Sequence[str]:
        """Every verb, with its action where it has some."""

    def shape(self, verb: str) -> CommandShape:
        """What a verb takes.

        Raises:
            KeyError: it is none of `verbs`.
        """

    def check(self, words: Sequence[str]) -> None:
        """Parse a command without running it.

        Raises:
            QdqError: an option that is unknown, misspelled, missing or of a wrong value.
        """

    def call(self, words: Sequence[str]) -> int:
        """Run a command in this process; its results go to stdout.

        Raises:
            QdqError: as the verb does.
        """
