# SPDX-License-Identifier: Apache-2.0
"""`qdqtool improve` on the command line: what it prints, its exit codes, its JSON."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.deploying.improvements import Measured
from qdqtool.errors import QdqError
from qdqtool.evaluation.metrics import ResampledFigure
from qdqtool.verbs.target_model import TargetModel
from qdqtool.workflows.improve_judge import CrossFigures, CrossJudge
from tests.cli.command import refused, run
from tests.graphs import SMALL_NET, model_of
from tests.ort_session import session_of


def let_all_lose(monkeypatch: pytest.MonkeyPatch, lost: float, before: Callable[[], object] = bool) -> None:
    """Let every model lose so much, for sure."""

    def figures(self: CrossJudge, models: Sequence[TargetModel]) -> CrossFigures:
        before()
        reference = self.reference.whole.figure
        figure = ResampledFigure(reference.metric, reference.value - lost, reference.drawn - lost)
        one = Measured(models[0].name, figure)
        return CrossFigures(one, (one, one))

    monkeypatch.setattr(CrossJudge, "figures", figures)


def try_only(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """One stage instead of all."""
    monkeypatch.setattr(importlib.import_module("qdqtool.workflows.improve"), "stages_of", lambda *_: (stage,))


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    onnx.save(model_of(SMALL_NET), tmp_path / "m.onnx")
    np.save(tmp_path / "d.npy", np.random.default_rng(0).normal(size=(16, 4, 8, 8)).astype(np.float32))
    words = ("--data", tmp_path / "d.npy", "--method", "max", "-o", tmp_path / "q.onnx", "-q")
    assert run(capsys, "insert", tmp_path / "m.onnx", *words).code == 0
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("value", "code"), [(0.01, 0), (0.2, 1)])
def test_the_exit_code_says_whether_it_is_enough(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: float, code: int
) -> None:
    let_all_lose(monkeypatch, value)
    try_only(monkeypatch, "condition")
    words = ("--data", folder / "d.npy", "--max-loss", "0.1", "-o", folder / "o.onnx")
    said = run(capsys, "improve", folder / "q.onnx", *words)
    assert said.code == code and f"wrote {folder / 'o.onnx'}" in said.out
    assert ("--max-loss 0.1 is not met" in said.err) == bool(code)


@pytest.mark.slow
def test_each_attempt_is_told_as_soon_as_it_is_judged(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written to a log for eight minutes."""
    said: list[str] = []

    let_all_lose(monkeypatch, 0.2, lambda: said.append(capsys.readouterr().err))
    try_only(monkeypatch, "method")
    words = ("--data", folder / "d.npy", "--max-loss", "0.1", "-o", folder / "o.onnx")
    last = run(capsys, "improve", folder / "q.onnx", *words)
    row = r"qdqtool: tried: as given: loss 0\.2000 \(0\.2000 to 0\.2000\), cost .* layers\n"
    assert said[0] == "" and re.fullmatch(row, said[1]), "no seconds: the same input gives the same log"
    assert [one.split(": ")[2] for one in said[1:4]] == ["as given", "method auto", "method mse"]
    assert "tried: " not in run(capsys, "improve", folder / "q.onnx", *words, "-q").err and last.code == 1


@pytest.mark.slow
def test_a_terminal_is_told_the_seconds_too(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_all_lose(monkeypatch, 0.0)
    try_only(monkeypatch, "method")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    words = ("--data", folder / "d.npy", "--max-loss", "0.1", "-o", folder / "o.onnx", "--color", "never")
    assert re.search(r"tried: as given: .*\d+ s\n", run(capsys, "improve", folder / "q.onnx", *words).err)


def test_an_attempt_that_fails_is_told_without_the_folder_of_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That folder is another one in each run, so that no two logs were the same."""

    def failing(candidate: Any, job: Any, place: Path, **rest: Any) -> Any:
        raise QdqError(place / "m.onnx", "is not for this", "try another")

    monkeypatch.setattr(importlib.import_module("qdqtool.workflows.improve"), "carry_out", failing)
    let_all_lose(monkeypatch, 0.2)
    words = ("--data", folder / "d.npy", "--max-loss", "0.1", "-o", folder / "o.onnx")
    told = run(capsys, "improve", folder / "q.onnx", *words).err.splitlines()
    assert told[1].startswith("qdqtool: tried: method auto: ") and f"(method auto, 0{os.sep}m.onnx: " in told[1]


def test_a_model_that_guesses_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = np.load(folder / "d.npy")
    scores = session_of(onnx.load(folder / "m.onnx")).run(None, {"x": data})[0].reshape(len(data), -1)
    many = np.tile(data, (4, 1, 1, 1)) + np.arange(64).reshape(-1, 1, 1, 1).astype(np.float32) * 1e-5
    np.savez(folder / "l.npz", x=many, y=np.tile(scores.argmin(1), 4))
    words = ("--data", folder / "l.npz", "--max-loss", "0.1", "-o", folder / "o.onnx")
    said = run(capsys, "improve", folder / "q.onnx", *words)
    assert "qdqtool: warning: FP32 has a top-1 of 0.0000 on " in said.err
    assert "\nwarning: FP32 has a top-1 of 0.0000 on " in said.out


def test_json_says_what_was_tried(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_all_lose(monkeypatch, 0.0)
    words = ("--data", folder / "d.npy", "--max-loss", "0.3", "-o", folder / "o.onnx", "--json")
    found = json.loads(run(capsys, "improve", folder / "q.onnx", *words).out)
    assert found["met"] is True and [one["name"] for one in found["tried"]] == ["as given"]


def test_bad_words_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ("improve", folder / "q.onnx", "--data", folder / "d.npy", "-o", folder / "o.onnx")
    refused(run(capsys, *start), "--max-loss", "required")
    refused(run(capsys, *start, "--max-loss", "7"), "--max-loss 7", "is not between 0 and 1")
    refused(run(capsys, "improve", folder / "m.onnx", *start[2:], "--max-loss", "0.1"), "has no Q/DQ to improve")
    assert not (folder / "o.onnx").exists()
