# SPDX-License-Identifier: Apache-2.0
"""Keeping a calibration while it runs, and taking it up again. What the file holds is state_file.py's matter."""

from __future__ import annotations

import time
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.observers.observer_state import ObserverState
from qdqtool.observers.state_file import State, read_state, write_state

SECONDS = 2.0
_SHARE = 20  # writing takes at most one part in so many of the time


class Checkpoint:
    """A file that holds what has been counted: written after the first batch, then at most every two seconds.

    Where writing takes long (thousands of tensors), it is done less often: never more than a twentieth of the time.
    """

    def __init__(self, path: Path, state: State) -> None:
        """Make it."""
        self._path = path
        self._state = state
        self._next = 0.0

    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() >= self._next

    def write(self) -> None:
        """Write the file, whole or not at all.

        Raises:
            QdqError: it cannot be written.
        """
        start = time.monotonic()
        write_state(self._state, self._path, compress=False)
        end = time.monotonic()
        self._next = end + max(SECONDS, _SHARE * (end - start))


def open_checkpoint(path: Path, expected: State, *, resume: bool) -> ObserverState:
    """The observation to start from: the checkpoint's, or the empty one of `expected`.

    Raises:
        QdqError: a checkpoint is there and `resume` is False; it was made from another model, other data or other
            options; it is damaged.
    """
    if not path.exists():
        return expected.observation
    if not resume:
        raise QdqError(path, "holds an unfinished calibration", "continue it with --resume, or remove the file")
    found = read_state(path)
    reason = found.identity.differs(expected.identity)
    if not reason and found.plan.to_json() != expected.plan.to_json():
        reason = "method or set of tensors"
    if not reason and found.shard != expected.shard:
        reason = "--shard"
    if not reason and found.identity.passes != expected.identity.passes:
        reason = "--max-memory"
    if reason:
        raise QdqError(path, f"was made with a different {reason}", "give the same again, or remove the file")
    return found.observation
