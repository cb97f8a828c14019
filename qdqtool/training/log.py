# SPDX-License-Identifier: Apache-2.0
"""What is reported of a training while it runs: a log of JSON lines, a bar on a terminal. Not what comes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

from qdqtool.errors import QdqError
from qdqtool.files import replacing
from qdqtool.limited_reading import LOG, read_bytes
from qdqtool.progress import Bar, bar


class Listener(Protocol):
    """Receives what happens."""

    def step(self, facts: Mapping[str, Any]) -> None:
        """One update of the weights: step, loss, parts, rate, images_per_second, seconds, norm."""
        ...

    def event(self, facts: Mapping[str, Any]) -> None:
        """Something else: a measurement, a rate that was halved."""
        ...


class Reporter:
    """Tells a log and a bar."""

    def __init__(self, log: IO[str] | None, bar: Bar) -> None:
        self._log = log
        self._bar = bar

    def step(self, facts: Mapping[str, Any]) -> None:
        """See `Listener`."""
        self._write({"event": "step", **facts})
        self._bar.advance()
        self._bar.note(f"loss {facts['loss']:.4g}")

    def event(self, facts: Mapping[str, Any]) -> None:
        """See `Listener`."""
        self._write(facts)

    def _write(self, facts: Mapping[str, Any]) -> None:
        if self._log is not None:
            try:
                self._log.write(json.dumps(_finite(facts)) + "\n")
                self._log.flush()
            except OSError as error:
                raise _cannot_write(self._log.name, error) from error


def _finite(value: Any) -> Any:
    """The value as JSON has it: null for what is not a finite number."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


@contextmanager
def reporting(path: Path | None, done: int, total: int | None, progress: bool | None) -> Iterator[Reporter]:
    """Open the log and the bar.

    Raises:
        QdqError: the log cannot be written.
    """
    if path is not None:
        _cut(path, done)
    try:
        log = None if path is None else path.open("a", encoding="utf-8")
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        with bar("finetune", "step", total, progress, done) as drawn:
            yield Reporter(log, drawn)
    finally:
        if log is not None:
            with suppress(OSError):  # each line is written already, or its failure reported
                log.close()


def _cannot_write(path: object, error: OSError) -> QdqError:
    return QdqError(path, f"cannot be written ({error.strerror})", "give --log another file")


def _cut(path: Path, done: int) -> None:
    """Leave the lines of the first `done` steps; nothing of an earlier run where this one begins anew."""
    if not path.exists():
        return
    lines = read_bytes(path, LOG).decode("utf-8", "replace").splitlines(keepends=True) if done else []
    with replacing(path) as file:
        file.writelines(line.encode() for line in lines if _step_of(line) <= done)


def _step_of(line: str) -> float:
    """The step that a line tells of; infinity for half a line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf
