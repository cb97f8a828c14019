# SPDX-License-Identifier: Apache-2.0
"""A line on the terminal while a verb is empty: what it is at, and for how long. Bars are their owners' matter.

The line's thread looks where the main thread is: the packages on its stack say what it is at. Nothing is passed down
for that. The line itself is `progress.Heartbeat`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from qdqtool.progress import EVERY, Heartbeat

_AFTER = 0.7  # seconds without a word; the line comes up to half a second later, and after what holds the interpreter

# The deepest package on the stack that is here says what is being done.
_WORDS = {
    "qdqtool.measuring.typed_search": "running samples with FP16 rounding",
    "qdqtool.measuring.auto_scales": "choosing scales",
    "qdqtool.measuring.scale_choice": "choosing scales",
    "qdqtool.measuring": "measuring the loss of operators",
    "qdqtool.conditioning": "searching weight edits",
    "qdqtool.observers": "collecting histograms",
    "qdqtool.calibration": "calibrating",
    "qdqtool.pruning": "removing channels",
    "qdqtool.precision": "choosing float types",
    "qdqtool.training": "training",
    "qdqtool.datafree": "estimating ranges",
    "qdqtool.tensorrt_rtx": "waiting for TensorRT for RTX",
    "qdqtool.building": "waiting for TensorRT",
    "qdqtool.timing": "measuring latency",
    "qdqtool.evaluation": "measuring accuracy",
    "qdqtool.simulation": "simulating",
    "qdqtool.reporting": "laying out the report",
    "qdqtool.linting": "checking the model",
    "qdqtool.match": "planning",
    "qdqtool.passes": "editing the graph",
    "qdqtool.graph": "reading the model",
    "qdqtool.files": "writing",
}


@contextlib.contextmanager
def heartbeat(verb: str, after: float = _AFTER, every: float = EVERY) -> Iterator[None]:
    """Show the line while the block runs, where stderr is a terminal."""
    if not verb or not sys.stderr.isatty():
        yield
        return
    thread, streams = threading.get_ident(), (sys.stdout, sys.stderr)
    with Heartbeat(verb, True, lambda: doing(sys._current_frames().get(thread)), after=after, every=every) as beat:
        sys.stdout, sys.stderr = (_Watched(stream, beat) for stream in streams)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams


def doing(frame: FrameType | None) -> str:
    """What a stack is at: the words of its deepest package that has some."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        for package, words in _WORDS.items():
            if name == package or name.startswith(f"{package}."):
                if frame.f_code.co_name == "<module>":  # a module that is being imported
                    return "starting"
                return f"{words}{_how_far(frame)}"
        frame = frame.f_back
    return "starting"


def _how_far(frame: FrameType | None) -> str:
    """How far an object on the stack says that it is (`how_far`), such as a training; "" where none does."""
    while frame is not None:
        owner = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if owner is not None and isinstance(vars(type(owner)).get("how_far"), property):
            return f", {owner.how_far}"
        frame = frame.f_back
    return ""


class _Watched:
    """A stream that tells when something is written to it."""

    def __init__(self, stream: Any, beat: Heartbeat) -> None:
        self._stream, self._beat = stream, beat

    def write(self, text: str) -> int:
        """Write after the line's removal; a bar that was never shown writes "" when it closes, which is no word."""
        if text:
            self._beat.clear()
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
