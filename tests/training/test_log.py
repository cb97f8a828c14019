# SPDX-License-Identifier: Apache-2.0
"""The log: a line for each thing, and after a resume none twice."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from qdqtool.errors import QdqError
from qdqtool.progress import Bar
from qdqtool.training.log import COLUMNS, Reporter, read_events, reporting


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_step_and_event(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with reporting(path, 0, 2, False) as reporter:
        reporter.step({"step": 1, "loss": 0.5, "parts": {"a": float("nan")}})
        assert len(lines(path)) == 1  # told at once
        reporter.event({"event": "measure", "step": 1, "measure": float("inf")})
    assert lines(path) == [
        {"event": "step", "step": 1, "loss": 0.5, "parts": {"a": None}},
        {"event": "measure", "step": 1, "measure": None},
    ]


def test_a_new_run_begins_a_new_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n')
    with reporting(path, 0, None, False):
        pass
    assert path.read_text() == ""


def test_steps_that_will_be_taken_again_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    with reporting(path, 2, None, False) as reporter:
        reporter.step({"step": 3, "loss": 1.0})
    assert [line["step"] for line in lines(path)] == [1, 2, 3]
    assert "loss" in lines(path)[2]


def test_a_log_by_the_name_csv_is_a_table_that_a_resume_cuts(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with reporting(path, 0, 3, False) as reporter:
        reporter.event({"event": "measure", "step": 0, "measure": 1.5})
        for step in (1, 2, 3):
            reporter.step({"step": step, "loss": 0.5, "parts": {"a": 1.0}, "norm": float("nan")})
        reporter.event({"event": "halved", "step": 3, "reason": 'a "gradient", not a number', "halvings": 1})
    head, *rows = path.read_text().splitlines()
    assert head.split(",") == list(COLUMNS)
    assert [row.split(",")[:4] for row in rows[:2]] == [["measure", "0", "", "1.5"], ["step", "1", "0.5", ""]]
    assert read_events(path)[-1]["reason"] == 'a "gradient", not a number'
    path.write_text(path.read_text() + "step,1")
    with reporting(path, 2, 3, False) as reporter:
        reporter.step({"step": 3, "loss": 0.25})
    assert path.read_text().splitlines()[0] == head
    losses = [(event["step"], event.get("loss")) for event in read_events(path)]
    assert losses == [(0, None), (1, 0.5), (2, 0.5), (3, 0.25)]


def test_no_log_no_bar() -> None:
    with reporting(None, 0, None, False) as reporter:
        reporter.step({"step": 1, "loss": 1.0})
        reporter.event({"step": 1})


def test_the_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    with reporting(None, 0, 2, None) as reporter:
        reporter.step({"step": 1, "loss": 1.0})
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with reporting(None, 0, 2, None) as reporter:
        reporter.step({"step": 1, "loss": 1.0})
    assert "finetune" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="cannot be written"), reporting(tmp_path / "no" / "log", 0, None, False):
        pass


def test_a_full_disk_is_told_by_the_name_of_the_log(tmp_path: Path) -> None:
    class Full(io.StringIO):
        name = "x.jsonl"

        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(QdqError, match=r"x.jsonl: .*\(No space left on device\); .*--log"):
        Reporter(Full(), Bar(print, print)).event({"event": "measure"})
