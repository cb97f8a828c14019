# SPDX-License-Identifier: Apache-2.0
"""Reads the pages of the documentation and the parsers of the command line, so that tests can hold them together."""

from __future__ import annotations

import argparse
import functools
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from qdqtool.cli import main as cli

PROJECT = Path(__file__).resolve().parents[2]
DOCS = sorted((PROJECT / "docs").rglob("*.md"))
PAGES = [PROJECT / "README.md", *DOCS]
VERB_PAGES = {verb: PROJECT / "docs" / f"{verb}.md" for verb in cli.VERBS}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class PageBlock:
    """A fenced block: its language, its text, the line it begins at."""

    kind: str
    text: str
    line: int


def blocks_of(page: Path) -> list[PageBlock]:
    text = page.read_text(encoding="utf-8")
    return [PageBlock(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in _FENCE.finditer(text)]


def prose_of(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def words_of(page: Path) -> set[str]:
    """What stands between backticks in the text, blocks left out."""
    return set(re.findall(r"`([^`\n]+)`", prose_of(page)))


def table_of(page: Path, header: str) -> list[str]:
    """The rows below the first table head that begins with `header`."""
    lines = prose_of(page).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {header} |")) + 2
    return list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))


def words_in(row: str) -> list[str]:
    """What stands between backticks in the first cell of a row."""
    return re.findall(r"`([^`]+)`", re.split(r"(?<!\\)\|", row)[1])


def first_cells(page: Path, header: str) -> list[str]:
    """What stands between backticks in the first column of a table."""
    return [word for row in table_of(page, header) for word in words_in(row)]


def rows_of(page: Path, header: str) -> dict[str, str]:
    """Each word of the first column of a table -> its row."""
    return {word: row for row in table_of(page, header) for word in words_in(row)}


class _ParserError(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


@functools.cache
def parsers_of(verb: str) -> list[argparse.ArgumentParser]:
    """The parser that the command line makes for a verb, and those of its actions."""

    def catch(self: argparse.ArgumentParser, *_: object) -> None:
        raise _ParserError(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.Parser, "parse_known_args", catch)
        with pytest.raises(_ParserError) as caught:
            cli.dispatch([verb])
    parser = caught.value.parser
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [parser, *(one for action in below for one in action.choices.values())]


@functools.cache
def options_of(verb: str) -> dict[str, argparse.Action]:
    """Option -> what argparse knows of it, hidden ones and help left out."""
    actions = [action for parser in parsers_of(verb) for action in parser._actions]
    shown = [a for a in actions if a.help != argparse.SUPPRESS and not isinstance(a, argparse._HelpAction)]
    return {name: action for action in shown for name in action.option_strings}
