# SPDX-License-Identifier: Apache-2.0
"""stdout and stderr of a command where nobody takes them: closed, on a full disk, or with a reader that is gone.

A command whose stdout cannot be written does its work all the same. What it prints is dropped, and `main` ends with 2,
where a reader is gone with the exit code that a shell gives for that.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

_STANDARD = (0, 1, 2)


@contextlib.contextmanager
def checked_streams() -> Iterator[CheckedStream]:
    """Replace stdout and stderr by streams that take everything while the block runs; the one of stdout is given.

    Where one is closed, what is written to it is dropped, as by /dev/null. Its number is taken, too: else the next file
    that is opened would have it, and libraries in C would print into a model.
    """
    before = sys.stdout, sys.stderr
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    with open(os.devnull, "w", encoding="utf-8") as nothing:  # noqa: PTH123 - a device
        out, errors = (CheckedStream(nothing if stream is None else stream) for stream in before)
        sys.stdout, sys.stderr = out, errors
        try:
            yield out
        finally:
            sys.stdout, sys.stderr = before


class CheckedStream:
    """A stream that drops what the system does not take."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.fault: OSError | None = None

    def write(self, text: str) -> int:
        """Write, and count the characters that were given."""
        with self._checked():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        with self._checked():
            self._stream.flush()

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = self.fault or error
            with contextlib.suppress(OSError):  # the stream of a test has no number
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # for what it still holds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
