# SPDX-License-Identifier: Apache-2.0
"""Whether progress is shown: one answer for every bar. What a bar counts, its owner knows.

`Heartbeat` is for work without a count: a line that says what is done and for how long, so that a terminal is never
silent.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

EVERY = 0.5  # seconds between two lines
_WIDTH = 100


def is_shown(progress: bool | None) -> bool:
    """What was asked for; where nothing was, whether stderr is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


class Heartbeat:
    """A line on stderr that says what is done and for how long, written again and again by a thread of its own.

    Attributes:
        prefix: what stands before every text.
    """

    def __init__(
        self,
        title: str,
        progress: bool | None,
        look: Callable[[], str] | None = None,
        *,
        after: float = 0.0,
        every: float = EVERY,
    ) -> None:
        """Nothing is shown before the `with` block.

        Args:
            title: what stands at the beginning of the line.
            progress: whether there is one; None for where stderr is a terminal.
            look: gives what is done, for each line anew; None for what `begin` and `tick` say.
            after: seconds from `clear` until it is shown again.
            every: seconds between two lines.
        """
        self.prefix = ""
        self._title, self._shown, self._look = title, is_shown(progress), look
        self._after, self._every = after, every
        self._text = ""
        self._since = self._cleared = time.monotonic()
        self._stream, self._width = sys.stderr, 0
        self._lock = threading.RLock()
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
            self._erase()

    def begin(self, text: str) -> None:
        """Say what is done from now on."""
        self._text, self._since = f"{self.prefix}{text}", time.monotonic()

    def tick(self, text: str) -> None:
        """Say how far it is."""
        self._text = f"{self.prefix}{text}"

    def clear(self) -> None:
        """Take the line away until it is written anew, for others who write to the terminal."""
        with self._lock:
            self._cleared = time.monotonic()
            self._erase()

    def _beat(self) -> None:
        while not self._done.wait(self._every):
            with self._lock:
                if time.monotonic() - self._cleared >= self._after:
                    self._show()

    def _show(self) -> None:
        self._erase()
        text = self._text if self._look is None else self._look()
        line = f"{self._title}: {text}"[:_WIDTH] + f", {time.monotonic() - self._since:.0f} s"
        self._stream.write(line)
        self._stream.flush()
        self._width = len(line)

    def _erase(self) -> None:
        if self._width:
            self._stream.write(f"\r{' ' * self._width}\r")
            self._stream.flush()
            self._width = 0
