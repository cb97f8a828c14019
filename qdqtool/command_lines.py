# SPDX-License-Identifier: Apache-2.0
"""Command lines as text: words that a shell splits as they were meant, each line runs as it is printed."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable
from pathlib import Path


def next_line(line: str) -> str:
    """A command line as a next step is printed."""
    return f"next: {line}"


def command(verb: str, *words: str) -> str:
    """A qdqtool command line for a shell."""
    return shell_line("qdqtool", verb, *words)


def peel_any(model: str | os.PathLike[str], version: object, *more: str) -> str:
    """The `peel` for a GPU that takes scales which differ and zero points, too."""
    kept = ["--on-conflict", "max", "--on-asymmetric", "widen"]
    return command("peel", file_word(model), "--target", "gpu", *option("--trt-version", version), *kept, *more)


def again(args: argparse.Namespace, *more: str) -> str:
    """The command that the user gave, with further options: of an option that is there twice, the last one holds."""
    return shell_line("qdqtool", *args.words, *more)


def shell_line(*words: str) -> str:
    """Words as one line that a shell splits into the same words; what a terminal would act on is escaped."""
    return " ".join(map(_quoted, words))


def file_word(path: str | os.PathLike[str]) -> str:
    """A file name as a positional argument: one that begins with a minus is no option."""
    text = os.fspath(path)
    return f"./{text}" if text.startswith("-") else text


def option(name: str, value: object) -> list[str]:
    """An option and its value as words: in one word where the value begins with a minus."""
    text = str(value)
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def output_beside(path: Path, word: str, ending: str | None = None) -> list[str]:
    """-o with a name beside a model's, so that what was written stays to be compared with."""
    endings = (".qdq.onnx", ".onnx")
    mine = next((one for one in endings if path.name.endswith(one)), path.suffix)
    stem = path.name.removesuffix(mine) if mine else path.name
    return option("-o", path.with_name(f"{stem}.{word}{ending or mine}"))


def trtexec_line(words: Iterable[str]) -> str:
    """A command line of trtexec from its unquoted arguments."""
    return shell_line("trtexec", *words)


def run_script(script: object) -> str:
    """Run the script that builds the engine."""
    return next_line(shell_line("sh", file_word(str(script))))


def stem_of(model: object) -> str:
    """A file's path without its last ending."""
    path = Path(str(model))
    return str(path.with_name(path.stem)) if path.name else str(path)


def _quoted(word: str) -> str:
    """A word for a shell; one with control characters or bytes that are not text is written as bash's $'...'."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (c if c.isprintable() and c not in "'\\" else _escaped(c) for c in word)
    return f"$'{''.join(escaped)}'"


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
