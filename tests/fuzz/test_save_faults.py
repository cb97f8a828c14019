# SPDX-License-Identifier: Apache-2.0
"""What the part `saving` reports when it is interrupted or its time is over, with attacks that are written by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import save_faults
from tests.fuzz.fork_server import Ended, FuzzRun, FuzzTask, Limits
from tests.fuzz.fuzz_commands import COMMANDS
from tests.fuzz.fuzz_report import Report
from tests.fuzz.verdict import Fault

SAVING = [command.name for command in COMMANDS if command.saves]


def attack(monkeypatch: pytest.MonkeyPatch, folder: Path, runs: int, ended_by: type[BaseException] | None) -> None:
    """Let each command be attacked twice; after `runs` of all runs, raise."""
    counted = itertools.count()

    def attacked(subject: str, *_: object) -> Iterator[tuple[Ended, list[Fault]]]:
        for _number in range(2):
            if next(counted) == runs and ended_by:
                raise ended_by
            (folder / "run").mkdir(exist_ok=True)
            yield (
                Ended(FuzzTask(f"{subject}:error-0", lambda _: FuzzRun([])), folder, 2, False, 0.1, 50.0),
                [Fault("torn", "x")],
            )

    monkeypatch.setattr(save_faults, "_subject", lambda command, *_: command.name)
    monkeypatch.setattr(save_faults, "_attacked", attacked)


def test_all_commands_are_attacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attack(monkeypatch, tmp_path, 0, None)
    report = save_faults.save_faults([], tmp_path, Limits(), None, Report())
    assert sorted(report.codes) == sorted(SAVING)
    assert report.runs == 2 * len(SAVING) == report.faulty


def test_an_interrupt_leaves_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attack(monkeypatch, tmp_path, 3, KeyboardInterrupt)
    report = save_faults.save_faults([], tmp_path, Limits(), None, Report())
    assert report.runs == report.faulty == 3
    reported = capsys.readouterr().err
    assert "interrupted; what was found so far:" in reported
    assert f"not attacked to the end: {', '.join(SAVING[1:])}" in reported


def test_the_time_that_is_given_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(save_faults.time, "monotonic", lambda: float(next(clock)))
    attack(monkeypatch, tmp_path, 0, None)
    report = save_faults.save_faults([], tmp_path, Limits(), "insert", Report(), seconds=1.5)
    assert report.runs == 1
    reported = capsys.readouterr().err
    assert "1.5 s are over" in reported and "not attacked to the end: insert, " in reported
