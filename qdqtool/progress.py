# SPDX-License-Identifier: Apache-2.0
"""Whether progress is shown: one answer for every bar. What a bar counts, its owner knows.

`Heartbeat` is for work without a count: a line that says what is done and for how long, so that a terminal is never
silent.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_EVERY = 0.5  # seconds between two lines
_CLEAR = "\r\x1b[K"
_WIDTH = 100


def is_shown(progress: bool | None) -> bool:
    """What was asked for; where nothing was, whether stderr is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


class Heartbeat:
    """A line on stderr that says what is done and for how long, written again and again by a thread of its own.

    Attributes:
        prefix: what stands before every text.
    """

    def __init__(self, title: str, progress: bool | None) -> None:
        """Nothing is shown before the `with` block.

        Args:
            title: what stands at the beginning of the line.
            progress: whether there is one; None for where stderr is a terminal.
        """
        self.prefix = ""
        self._title, self._shown = title, is_shown(progress)
        self._text, self._since = "", time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heartbeat:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._shown:
            self._thread.join()
            self.clear()

    def begin(self, text: str) -> None:
        """Say what is done from now on."""
        self._text, self._since = f"{self.prefix}{text}", time.monotonic()

    def clear(self) -> None:
        """Take the line away until it is written anew, for others who write to the terminal."""
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def tick(self, text: str) -> None:
        """Say how far it is."""
        self._text = f"{self.prefix}{text}"

    def _beat(self) -> None:
        while not self._done.wait(_EVERY):
            line = f"{self._title}: {self._text}"[:_WIDTH]
            sys.stderr.write(f"{_CLEAR}{line}, {time.monotonic() - self._since:.0f} s")
            sys.stderr.flush()
