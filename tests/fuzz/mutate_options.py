# SPDX-License-Identifier: Apache-2.0
"""A command line under attack: another value for an option, an option more, less or twice, odd names of outputs."""

from __future__ import annotations

import argparse
import functools
import importlib
import random
from collections.abc import Sequence

from tests.fuzz import odd_values

# What would make a run long by being asked for, start a cluster, or put files outside the run's folder.
_LEFT_ALONE = {"--steps", "--max-minutes", "--grad-accum", "--dask", "--dask-shards", "--dask-ship", "--help", "-h"}
_VERSIONS = (
    "8502",
    "7100",
    "8.5.2",
    "8.5",
    "10.3",
    "11.4",
    "11",
    "5.1.3",
    "jp4.6",
    "jp5.1.2",
    "drive6.0.9",
    "rtx1.0",
    "jp99",
    "0",
    "-1",
    "9" * 400,
)
_OUTPUTS = (
    "o" * 256,
    "o" * 250 + ".onnx",
    "a\nb.onnx",
    "no/such/folder.onnx",
    ".",
    "..",
    "/dev/full",
    "/dev/null",
    "\x1b[31m.onnx",
    "\udcff.onnx",
    "",
    "x.cache.json",
    "a b=c;d.onnx",
    "-x.onnx",
    "-",
)
_WORDS = (
    "",
    " ",
    "auto",
    "none",
    "all",
    "a=b",
    "a:b",
    "1:2:3",
    "0.5",
    "-0.5",
    "100",
    "101",
    "1/2",
    "0/0",
    "3/2",
    "(",
    "[",
    "*",
    "x" * 300,
    "\x1b[2J",
    "\u00e9",
    "\udcff",
    "run.py:main",
    "model.onnx",
    ".",
    "/dev/null",
    "1G",
    "-1G",
    "nan:inf",
    "size=0x0",
    "size=99999x99999",
    "Q001",
    "Q999",
)
_OWN = {"--trt-version": _VERSIONS, "-o": _OUTPUTS, "--output": _OUTPUTS, "--cache": _OUTPUTS, "--emit-dir": _OUTPUTS}


def mutate_words(random_: random.Random, words: Sequence[str]) -> tuple[list[str], str]:
    """Change a command line; the new words, and what was done."""
    changed, done = list(words), []
    for _ in range(random_.choice((1, 1, 2))):
        has_options = bool(_actions_of(changed[0], "".join(changed[1:2]) if changed[0] == "cache" else ""))
        changes = [_another_value] * 3 * has_options + [_one_less] * (len(changed) > 1) + [_one_word]
        done.append(random_.choice(changes)(random_, changed))
    return changed, ", ".join(done)


def _another_value(random_: random.Random, words: list[str]) -> str:
    """Give an option an odd value, whether it was there or not."""
    actions = _actions_of(words[0], "".join(words[1:2]) if words[0] == "cache" else "")
    given = [action for action in actions if set(action.option_strings) & set(words)]
    action = random_.choice(given) if given and random_.random() < 0.5 else random_.choice(actions)
    name = next((one for one in action.option_strings if one in words), action.option_strings[-1])
    values = [] if action.nargs == 0 else [_value(random_, action)]
    if name in words:
        at = words.index(name)
        words[at : at + 1 + len(values)] = [name, *values]
    else:
        words += [name, *values]
    return " ".join([name, *(ascii(value)[:40] for value in values)])


def _value(random_: random.Random, action: argparse.Action) -> str:
    own = next((_OWN[name] for name in action.option_strings if name in _OWN), None)
    if own and random_.random() < 0.7:
        return random_.choice(own)
    if action.choices and random_.random() < 0.8:
        return str(random_.choice(list(action.choices)))
    return random_.choice((str(odd_values.integer(random_)), str(odd_values.real(random_)), *random_.sample(_WORDS, 3)))


def _one_less(random_: random.Random, words: list[str]) -> str:
    return f"without {ascii(words.pop(random_.randrange(1, len(words))))[:40]}"


def _one_word(random_: random.Random, words: list[str]) -> str:
    word = random_.choice(_WORDS)
    words.insert(random_.randrange(1, len(words) + 1), word)
    return f"word {ascii(word)[:40]}"


@functools.cache
def _actions_of(verb: str, below: str) -> tuple[argparse.Action, ...]:
    """What argparse knows of a verb's options."""
    from qdqtool.cli.main import Parser

    parser: argparse.ArgumentParser = Parser(prog=f"qdqtool {verb}", allow_abbrev=False)
    importlib.import_module(f"qdqtool.cli.{verb}").add_arguments(parser)
    actions = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and below in action.choices:
            actions = list(action.choices[below]._actions)
    return tuple(a for a in actions if a.option_strings and not _LEFT_ALONE & set(a.option_strings))
