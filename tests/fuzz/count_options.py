# SPDX-License-Identifier: Apache-2.0
"""Every option that takes a number of things, with numbers that nobody means: a run ends in time, and small."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from qdqtool.cli.main import parser_of
from tests.fuzz.fork_server import FuzzRun, FuzzTask
from tests.fuzz.fuzz_commands import COMMANDS, Command
from tests.fuzz.fuzz_seeds import Family
from tests.fuzz.mutants import lay_out, write_job

NUMBERS = (-1, 0, 2, 100_000, 2**31, 2**63 - 1, 10**30)
# Commands whose options that count something are tried.
COUNTING = (
    "calibrate",
    "insert-data",
    "ptq",
    "peel-dla-data",
    "condition",
    "sensitivity",
    "simulate",
    "compare",
    "evaluate",
    "infer",
    "prune-taylor",
    "finetune",
)


@functools.cache
def counts(verb: str) -> tuple[str, ...]:
    """The options of a verb that read 2 as the whole number."""
    found = []
    for action in parser_of(verb)[0]._actions:
        with contextlib.suppress(argparse.ArgumentTypeError, ValueError):
            value = action.type("2") if callable(action.type) else None
            if isinstance(getattr(value, "count", value), int):
                found.append(action.option_strings[-1])
    return tuple(found)


def count_tasks(families: Sequence[Family]) -> Iterator[FuzzTask]:
    """A run of each option with each number."""
    by_name = {command.name: command for command in COMMANDS}
    for name in COUNTING:
        command = by_name[name]
        family = next(one for one in families if set(command.roles) <= set(one.files))
        for option in counts(command.words.split()[0]):
            for number in _numbers(option):
                prepare = functools.partial(_prepare, command, family, option, number)
                yield FuzzTask(f"{name}:{option.lstrip('-')}={number}", prepare)


def count_runs() -> int:
    """How many runs that is."""
    verbs = [name.partition("-")[0] for name in COUNTING]
    return sum(len(_numbers(option)) for verb in verbs for option in counts(verb))


def _numbers(option: str) -> list[int]:
    """100,000 updates are hours, and are meant."""
    return [number for number in NUMBERS if option != "--steps" or number != 100_000]


def _prepare(command: Command, family: Family, option: str, number: int, folder: Path) -> FuzzRun:
    words = lay_out(command, family, folder / "run")
    if option in words:  # one that the command gives already
        words[words.index(option) + 1] = str(number)
    else:
        words += [option, str(number)]
    write_job(folder, words, f"{option} {number}")
    return FuzzRun(words)
