# SPDX-License-Identifier: Apache-2.0
"""Color in the terminal: the first words of lines that matter, painted on their way to the stream.

No other file writes escape sequences.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

MODES = ("auto", "always", "never")

_RED, _YELLOW, _CYAN, _GREEN = "1;31", "33", "36", "1;32"
# What begins a line -> its color. Names of a model never do, and their escape sequences are taken out before.
_PAINTED = (
    (re.compile(r"qdqtool: error:"), _RED),
    (re.compile(r"(qdqtool: )?warning:"), _YELLOW),
    (re.compile(r"qdqtool: note:"), _CYAN),
    (re.compile(r"next:"), _GREEN),
    (re.compile(r"[A-Z]\d{3} [\w-]+(?=: \d+ error)"), _RED),
    (re.compile(r"[A-Z]\d{3} [\w-]+(?=: \d+ warning)"), _YELLOW),
)


@contextlib.contextmanager
def painted(argv: Sequence[str]) -> Iterator[None]:
    """Paint what is written to stdout and stderr while the block runs, each where it shall be."""
    mode, before = mode_of(argv), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (PaintedStream(one) if has_color(one, mode) else one for one in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def mode_of(argv: Sequence[str]) -> str:
    """What `--color` says, by the last one; `auto` where it is empty that is known."""
    mode = "auto"
    for word, behind in itertools.pairwise([*argv, ""]):
        said = behind if word == "--color" else word.removeprefix("--color=")
        mode = said if word.startswith("--color") and said in MODES else mode
    return mode


def has_color(stream: Any, mode: str) -> bool:
    """Whether a stream gets color: `auto` does so on a terminal that is not dumb, unless NO_COLOR is set and not empty.

    See no-color.org.
    """
    if mode != "auto":
        return mode == "always"
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class PaintedStream:
    """A stream that paints the first words of lines; everything else goes through as it is."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._begins = stream, True

    def write(self, text: str) -> int:
        """Write, and count the characters that were given."""
        lines = text.split("\n")
        shown = [_paint(line) if index or self._begins else line for index, line in enumerate(lines)]
        if text:
            self._begins = lines[-1] == "" or lines[-1].endswith("\r")  # where a bar was taken away, too
        self._stream.write("\n".join(shown))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _paint(line: str) -> str:
    for words, color in _PAINTED:
        if match := words.match(line):
            return f"\x1b[{color}m{match[0]}\x1b[0m{line[match.end() :]}"
    return line
