# SPDX-License-Identifier: Apache-2.0
"""What is reported of a training while it runs: a log in JSON lines or CSV, a bar on a terminal. Not its result."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

from qdqtool.errors import QdqError
from qdqtool.files import replacing
from qdqtool.limited_reading import LOG, read_bytes, read_text
from qdqtool.progress import Bar, bar

COLUMNS = (
    "event",
    "step",
    "loss",
    "measure",
    "rate",
    "norm",
    "loss_scale",
    "images_per_second",
    "data_seconds",
    "gradient_seconds",
    "exchange_seconds",
    "update_seconds",
    "seconds",
    "cpu_seconds",
    "halvings",
    "reason",
)
"""Columns of a log in CSV: all but the parts of the loss."""


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
        self._line = _csv_line if log is not None and _is_csv(log.name) else _json_line

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
                self._log.write(self._line(_finite(facts)))
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


def _is_csv(path: object) -> bool:
    return Path(str(path)).suffix.lower() == ".csv"


def _json_line(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts) + "\n"


def _csv_line(facts: Mapping[str, Any]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n").writerow(facts)
    return text.getvalue()


@contextmanager
def reporting(path: Path | None, done: int, total: int | None, progress: bool | None) -> Iterator[Reporter]:
    """Open the log and the bar.

    Raises:
        QdqError: the log cannot be written.
    """
    if path is not None:
        _cut(path, done)
    try:
        log = None if path is None else path.open("a", encoding="utf-8", newline="\n")
        if log is not None and _is_csv(path) and not log.tell():
            log.write(",".join(COLUMNS) + "\n")
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
    kept = [line for line in lines if _step_of(_event(line, path)) <= done]
    if kept and _is_csv(path):
        kept.insert(0, ",".join(COLUMNS) + "\n")
    with replacing(path) as file:
        file.writelines(line.encode() for line in kept)


def _step_of(event: Mapping[str, Any] | None) -> float:
    try:
        return float((event or {})["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return math.inf


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a log; half a line at its end is left out, as an interrupted training leaves one.

    Raises:
        QdqError: the file cannot be read.
    """
    lines = read_text(path, LOG).splitlines(keepends=True)
    return [event for event in (_event(line, path) for line in lines) if event is not None]


def _event(line: str, path: Path) -> dict[str, Any] | None:
    """What a line tells; None for the head and for half a line."""
    if _is_csv(path):
        cells = next(csv.reader([line]), [])
        whole = len(cells) == len(COLUMNS) and line.endswith("\n") and cells != list(COLUMNS)
        return {name: _cell(cell) for name, cell in zip(COLUMNS, cells, strict=True) if cell} if whole else None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
