# SPDX-License-Identifier: Apache-2.0
"""Every option that takes a number of things, with numbers that nobody means: a run ends in time, and small."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fuzz.fork_server import FuzzRun, FuzzTask
from tests.fuzz.fuzz_commands import COMMANDS, Command
from tests.fuzz.fuzz_seeds import Family
from tests.fuzz.mutants import lay_out, write_job

NUMBERS = (-1, 0, 2, 100_000, 2**31, 2**63 - 1, 10**30)
_DATA = ("--batch", "--limit", "--max-data")
_CALIBRATES = (*_DATA, "--workers", "--max-memory")
_TRAINS = ("--steps", "--grad-accum", "--threads", "--evaluate-every", "--patience", "--checkpoint-every")
# Command -> its options that count something.
OPTIONS = {
    "calibrate": (*_CALIBRATES, "--dask-shards"),
    "insert-data": (*_CALIBRATES, "--keep-float"),
    "ptq": _CALIBRATES,
    "peel-dla-data": _CALIBRATES,
    "condition": _DATA,
    "sensitivity": (*_CALIBRATES, "--top"),
    "simulate": _DATA,
    "compare": (*_DATA, "--top"),
    "evaluate": (*_DATA, "--seed", "--label-offset"),
    "infer": _DATA,
    "prune": ("-pg", "-nf"),
    "prune-taylor": _DATA,
    "finetune": (*_DATA, *_TRAINS, "--seed"),
}


def count_tasks(families: Sequence[Family]) -> Iterator[FuzzTask]:
    """A run of each option with each number."""
    by_name = {command.name: command for command in COMMANDS}
    for name, options in OPTIONS.items():
        command = by_name[name]
        family = next(one for one in families if set(command.roles) <= set(one.files))
        for option in options:
            for number in _numbers(option):
                prepare = functools.partial(_prepare, command, family, option, number)
                yield FuzzTask(f"{name}:{option.lstrip('-')}={number}", prepare)


def count_runs() -> int:
    """How many runs that is."""
    return sum(len(_numbers(option)) for options in OPTIONS.values() for option in options)


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
