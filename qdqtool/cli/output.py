# SPDX-License-Identifier: Apache-2.0
"""How every verb speaks: results on stdout, everything else on stderr, one form for each, nothing for a terminal.

Names come from models that may be hostile: no line holds an escape sequence or a line break of theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping

from qdqtool.errors import printable
from qdqtool.progress import in_log

_WIDTH = 100  # columns of a warning in a terminal
# As a shell splits it: a comma inside a word and what is quoted belong to the command.
_QUOTED = r"""(?<=[\s='"$])(?:'[^']*'|"[^"]*")"""
_COMMAND = re.compile(rf"(?:(?<=: )|(?<=; )|(?<=run )|(?<=then ))(qdqtool [a-z]+ (?:{_QUOTED}|,(?=\S)|[^;,()])+)")


def print_json(document: Mapping[str, object]) -> None:
    """One JSON document on stdout, with the version of its schema; what a terminal would act on is escaped."""
    if "$schema" not in document:  # SARIF names its own
        document = {"schema": 1, **document}
    unicode = "utf" in (sys.stdout.encoding or "utf-8").lower()
    text = json.dumps(document, indent=1, ensure_ascii=not unicode)
    write_lines(line if line.isprintable() else _escaped(line) for line in text.split("\n"))


def print_lines(lines: Iterable[str], args: argparse.Namespace, *, asked: bool = False) -> None:
    """Lines on stdout, unless --quiet; those that were asked for in any case."""
    if asked or not args.quiet:
        write_lines(printable(line, None) for line in lines)


def warn(text: str, args: argparse.Namespace, kind: str = "warning", *, wrap: bool = False) -> None:
    """A warning on stderr, unless --quiet; see `write_error`."""
    if not args.quiet:
        write_error(f"qdqtool: {kind}: {printable(text)}", wrap=wrap)


def warn_or_note(text: str, args: argparse.Namespace) -> None:
    """`warn`, of a preprocessing that was taken from the model's file as a note."""
    from qdqtool.evaluation.known_preprocess import TAKEN

    warn(text, args, "note" if TAKEN in text else "warning")


def write_error(line: str, *, wrap: bool = False) -> None:
    """A line on stderr, after what stdout was given: both may go to one log.

    Args:
        line: the text.
        wrap: wrap it, as a terminal gets it, in a log, too: of a text with several commands to copy.
    """
    flush_stdout()
    lines = wrapped(line) if wrap or sys.stderr.isatty() else [line]
    sys.stderr.write("".join(f"{one}\n" for one in lines))


def wrapped(line: str) -> list[str]:
    """Lines of at most 100 characters; a command has a line of its own, whole, so that it can be copied."""
    lines: list[str] = []
    for place, part in enumerate(_COMMAND.split(line)):
        text, indent = part.strip(), "  " if lines else ""
        if place % 2:
            lines.append(f"    {text}")
        elif text := text.lstrip(";,. ") if lines else text:
            lines += textwrap.wrap(
                text,
                _WIDTH,
                initial_indent=indent,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


def flush_stdout() -> None:
    """Write what stdout holds back; where it cannot, its buffer keeps that, and `main` finds it out at the end."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()


def log_of_steps(args: argparse.Namespace, kind: str) -> Callable[[str], None]:
    """What writes a line for each step that is done: where stderr is a log, unless --quiet."""
    return in_log(lambda line: warn(line, args, kind))


def write_lines(lines: Iterable[str]) -> None:
    """Lines on stdout as they are; what its encoding cannot say is escaped."""
    text, encoding = "".join(f"{line}\n" for line in lines), sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _escaped(line: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
