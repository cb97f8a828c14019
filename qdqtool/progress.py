# SPDX-License-Identifier: Apache-2.0
"""How progress is shown: bars on stderr, and a line that names the work, counts it and says how long it will take.

`bar` is for verbs that show one bar; `in_log` for lines where stderr is a log. `steps` and `counting` count what
happens inside a verb and show nothing by themselves. `Heartbeat` is the line: it is written while nothing else is,
with the counts that are open at that time. What is counted, the caller knows.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

EVERY = 0.5  # seconds between two lines
_WIDTH = 100
_SOON = 1.0  # seconds after which a time left is shown
_T = TypeVar("_T")


def is_shown(progress: bool | None) -> bool:
    """What was asked for; where nothing was, whether stderr is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def silent(text: str) -> None:
    """Say nothing: where nobody asked for progress."""


def in_log(say: Callable[[str], None]) -> Callable[[str], None]:
    """What is called with a line for each step that is done: `say` where stderr is a log, `silent` on a terminal.

    A terminal has bars for that. The lines hold no times, so that the same input gives the same log.
    """
    return silent if is_shown(None) else say


class Count:
    """How many of how many are done, and since when."""

    def __init__(self, what: str, total: int | None, done: int = 0) -> None:
        """Begin to count."""
        self.total, self.done = total, done
        self.what, self._before = what, done
        self._start = self._last = time.monotonic()

    def advance(self, more: int = 1) -> None:
        """So many more are done."""
        self.done += more
        self._last = time.monotonic()

    def text(self) -> str:
        """What is at work: "sample 3 of 8"."""
        if self.total is None:
            return f"{self.what} {self.done + 1}"
        return f"{self.what} {min(self.done + 1, self.total)} of {self.total}"

    def seconds_left(self) -> float | None:
        """By the mean of those that are done; None where too little is known."""
        done, now = self.done - self._before, time.monotonic()
        if self.total is None or done < 1 or now - self._start < _SOON:
            return None
        return max(0.0, (self._last - self._start) / done * (self.total - self.done) - (now - self._last))


class _OpenCounts:
    """The counts that are open in this process, the outermost first: there is one terminal for all of them."""

    def __init__(self) -> None:
        self._counts: list[Count] = []
        self._lines = 0
        self._lock = threading.Lock()

    def add(self, count: Count) -> None:
        with self._lock:
            self._counts.append(count)

    def remove(self, count: Count) -> None:
        with self._lock:
            if count in self._counts:
                self._counts.remove(count)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A line shows the counts. The first one forgets those of walks that failed and that a traceback holds."""
        with self._lock:
            if not self._lines:
                self._counts.clear()
            self._lines += 1
        try:
            yield
        finally:
            with self._lock:
                self._lines -= 1

    def texts(self) -> tuple[list[str], float | None]:
        """The counts in words, and the seconds that are left of the outermost one that knows."""
        with self._lock:
            counts = list(self._counts)
        left = next((seconds for one in counts if (seconds := one.seconds_left()) is not None), None)
        shown: dict[str, Count] = {}
        for one in counts:  # of two that count the same, such as a walk in a walk, the one that knows its end
            if one.what not in shown or one.total is not None:
                shown[one.what] = one
        return [one.text() for one in shown.values()], left


_OPEN = _OpenCounts()


@contextmanager
def counting(what: str, total: int | None = None, done: int = 0) -> Iterator[Count]:
    """Count inside the block, for the line of a `Heartbeat`; nothing is shown without one."""
    count = Count(what, total, done)
    _OPEN.add(count)
    try:
        yield count
    finally:
        _OPEN.remove(count)


def steps(items: Iterable[_T], what: str, total: int | None = None) -> Iterator[_T]:
    """The items, counted while they are walked; see `counting`."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with counting(what, total) as count:
        for item in items:
            yield item
            count.advance()


class Bar:
    """What `bar` yields."""

    def __init__(self, advance: Callable[[int], object], note: Callable[[str], object]) -> None:
        self._advance, self.note = advance, note

    def advance(self, more: int = 1) -> None:
        """So many more are done."""
        self._advance(more)


@contextmanager
def bar(title: str, what: str, total: int | None, progress: bool | None, done: int = 0) -> Iterator[Bar]:
    """A bar on stderr where progress is shown, and else a count for the line of a `Heartbeat`."""
    if not is_shown(progress):
        with counting(what, total, done) as count:
            yield Bar(count.advance, lambda text: None)
        return
    from tqdm import tqdm

    with tqdm(desc=title, total=total, initial=done, unit=what, file=sys.stderr, leave=False) as drawn:
        yield Bar(drawn.update, lambda text: drawn.set_postfix_str(text, refresh=False))


def barred(items: Iterable[_T], title: str, what: str, total: int | None, progress: bool | None) -> Iterator[_T]:
    """The items, with a `bar` while they are walked."""
    with bar(title, what, total, progress) as drawn:
        for item in items:
            yield item
            drawn.advance()


def _format_seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Heartbeat:
    """A line on stderr that says what is done and for how long, written again and again by a thread of its own.

    After that stand the counts that are open, and about how long the outermost of them will take.
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
        """Nothing is shown before the `with` block."""
        self._title, self._shown, self._look = title, is_shown(progress), look
        self._after, self._every = after, every
        self._text = ""
        self._since = self._cleared = time.monotonic()
        self._stream, self._width = sys.stderr, 0
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._counts = _OPEN.shown()

    def __enter__(self) -> Heartbeat:
        self._counts.__enter__()
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
        self._counts.__exit__(kind, error, trace)

    def begin(self, text: str) -> None:
        """Say what is done from now on."""
        self._text, self._since = text, time.monotonic()

    def tick(self, text: str) -> None:
        """Say how far it is."""
        self._text = text

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
        counts, left = _OPEN.texts()
        line = f"{self._title}: {', '.join([text, *counts])}"[:_WIDTH] + f", {time.monotonic() - self._since:.0f} s"
        line += "" if left is None else f", about {_format_seconds(left)} left"
        self._stream.write(line)
        self._stream.flush()
        self._width = len(line)

    def _erase(self) -> None:
        if self._width:
            self._stream.write(f"\r{' ' * self._width}\r")
            self._stream.flush()
            self._width = 0
