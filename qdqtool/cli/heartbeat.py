# SPDX-License-Identifier: Apache-2.0
"""A line on the terminal while a verb says nothing: what it is at, and for how long. Bars are their owners' matter.

A thread looks where the main thread is: the packages on its stack say what it is at. Nothing is passed down for that.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

_AFTER = 1.5  # seconds without a word
_EVERY = 0.5

# The deepest package on the stack that is here says what is being done.
_WORDS = {
    "qdqtool.mixed_precision": "measuring what operators lose in INT8",
    "qdqtool.conditioning": "looking for weight edits that help",
    "qdqtool.selection": "choosing scales",
    "qdqtool.observers": "counting values",
    "qdqtool.calibration": "calibrating",
    "qdqtool.pruning": "removing channels",
    "qdqtool.precision": "choosing types",
    "qdqtool.training": "training",
    "qdqtool.tensorrt_rtx": "waiting for TensorRT for RTX",
    "qdqtool.building": "waiting for TensorRT",
    "qdqtool.timing": "measuring latency",
    "qdqtool.evaluation": "judging",
    "qdqtool.simulation": "simulating",
    "qdqtool.linting": "looking for faults",
    "qdqtool.match": "planning",
    "qdqtool.passes": "editing the graph",
    "qdqtool.graph": "reading the model",
    "qdqtool.files": "writing",
}


@contextlib.contextmanager
def heartbeat(verb: str, after: float = _AFTER, every: float = _EVERY) -> Iterator[None]:
    """Show the line while the block runs, where stderr is a terminal.

    Args:
        verb: what stands before it.
        after: seconds without a word until it is shown.
        every: seconds between two of them.
    """
    if not verb or not sys.stderr.isatty():
        yield
        return
    beat = _Heartbeat(verb, sys.stderr, threading.get_ident(), after)
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Watched(stream, beat) for stream in streams)
    thread = threading.Thread(target=beat.work, args=(every,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        beat.stop()
        thread.join()
        sys.stdout, sys.stderr = streams


def doing(frame: FrameType | None) -> str:
    """What a stack is at: the words of its deepest package that has some."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        for package, words in _WORDS.items():
            if name == package or name.startswith(f"{package}."):
                return words
        frame = frame.f_back
    return "working"


class _Heartbeat:
    """The line: shown, taken away, shown again."""

    def __init__(self, verb: str, stream: Any, thread: int, after: float) -> None:
        self._verb, self._stream, self._thread, self._after = verb, stream, thread, after
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._start = self._heard = time.monotonic()
        self._shown = 0

    def work(self, every: float) -> None:
        """Look and show, until it is stopped."""
        while not self._ended.wait(every):
            with self._lock:
                if not self._ended.is_set() and time.monotonic() - self._heard >= self._after:
                    self._show()

    def before_words(self) -> None:
        """Take the line away, for somebody else writes."""
        with self._lock:
            self._heard = time.monotonic()
            self._erase()

    def stop(self) -> None:
        """Take the line away for good."""
        with self._lock:
            self._ended.set()
            self._erase()

    def _show(self) -> None:
        self._erase()
        seconds = time.monotonic() - self._start
        line = f"{self._verb}: {doing(sys._current_frames().get(self._thread))}, {seconds:.0f} s"
        self._stream.write(line)
        self._stream.flush()
        self._shown = len(line)

    def _erase(self) -> None:
        if self._shown:
            self._stream.write(f"\r{' ' * self._shown}\r")
            self._stream.flush()
            self._shown = 0


class _Watched:
    """A stream that tells when something is written to it."""

    def __init__(self, stream: Any, beat: _Heartbeat) -> None:
        self._stream, self._beat = stream, beat

    def write(self, text: str) -> int:
        """Write behind the line's removal."""
        self._beat.before_words()
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
