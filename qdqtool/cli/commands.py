# SPDX-License-Identifier: Apache-2.0
"""The command line for those that call it: what verbs take, commands checked and called in this process."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from qdqtool.cli.main import VERBS, Parser, dispatch, joined, parser_of
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.errors import QdqError
from qdqtool.recipe.command_line import CommandShape, OptionKind
from qdqtool.trtversion import parse


class _StrictParser(Parser):
    """A parser whose faults are raised, not printed."""

    def error(self, message: str) -> NoReturn:
        """Raise the fault."""
        raise QdqError(self.prog, message, f"see {self.prog} --help")

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Raise that a word is no option."""
        self.error(f"unknown argument {words[0]}")


class Commands:
    """The verbs as they are typed; see `recipe.command_line.CommandLine`."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        self._said: set[str] = set()

    def verbs(self) -> tuple[str, ...]:
        """Every verb, with its action where it has some."""
        return tuple(name for verb in VERBS for name in _parsers(verb))

    def shape(self, verb: str) -> CommandShape:
        """What a verb takes; KeyError for what is none."""
        if verb.partition(" ")[0] not in VERBS:
            raise KeyError(verb)
        parser = _parsers(verb.split()[0])[verb]
        known: dict[str, tuple[str, OptionKind]] = {}
        positional = needed = False
        for action in parser._actions:
            positional = positional or not action.option_strings
            needed = needed or (not action.option_strings and action.required)
            for text in action.option_strings:
                if not (text.startswith("--no-") and isinstance(action, argparse.BooleanOptionalAction)):
                    known[text.lstrip("-")] = (text, _kind(action))
        for name in ("help", "untrusted"):  # of whole commands
            known.pop(name, None)
        return CommandShape(known, positional, needed)

    def check(self, words: Sequence[str]) -> None:
        """Parse a command without running it; what argparse refuses is raised as a QdqError."""
        parser, _ = parser_of(words[0], _StrictParser)
        with contextlib.redirect_stdout(io.StringIO()), _no_exit(parser):
            args, unknown = parser.parse_known_args(joined(words[1:]))
        if unknown:
            parser.refuse_unknown(unknown)
        _check_texts(args)

    def call(self, words: Sequence[str]) -> int:
        """Run a command in this process; its results go to stdout, faults are raised."""
        return dispatch(words, self._said)


def _check_texts(args: argparse.Namespace) -> None:
    """Read the options whose text verbs read only when they run, so that a wrong one is refused before."""
    for name in ("preprocess", "eval_preprocess"):
        given = getattr(args, name, None)
        if isinstance(given, str):
            parse_preprocess(given)
    version = getattr(args, "trt_version", None)
    if isinstance(version, str):
        parse(version)


@contextlib.contextmanager
def _no_exit(parser: Parser) -> Iterator[None]:
    try:
        yield
    except SystemExit:  # -h and its like
        parser.error("asks for help, which is not a step")


@functools.cache
def _parsers(verb: str) -> dict[str, argparse.ArgumentParser]:
    """Name -> parser: of the verb, or of its actions where it has some."""
    parser, _ = parser_of(verb, _StrictParser)
    below: list[Any] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        return {verb: parser}
    return {f"{verb} {name}": one for action in below for name, one in action.choices.items()}


def _kind(action: argparse.Action) -> OptionKind:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    if action.nargs == 0:
        return "flag"
    if isinstance(action, argparse._AppendAction):
        return "append"
    if action.nargs in ("+", "*"):
        return "many"
    return "optional" if action.nargs == "?" else "one"
