# SPDX-License-Identifier: Apache-2.0
"""`qdqtool deploy` on the command line: what it prints, its exit codes, its JSON."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from tests.cli.command import CommandOutput, log_of, refused, run
from tests.graphs import SMALL_NET, model_of
from tests.ort_session import session_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(model_of(SMALL_NET, opset=11), tmp_path / "m.onnx")
    np.save(tmp_path / "d.npy", np.random.default_rng(0).normal(size=(16, 4, 8, 8)).astype(np.float32))
    return tmp_path


@pytest.mark.slow
def test_it_says_what_was_kept_and_what_comes_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--data", folder / "d.npy", "--for", "8.6.1", "--effort", "fast", "-o", folder / "out")
    said = run(capsys, "deploy", folder / "m.onnx", *words)
    assert said.code == 0 and all(line.startswith("qdqtool: tried: ") for line in said.err.splitlines())
    assert f"wrote {folder / 'out'}: README.md, bench.sh, candidates.txt, deploy.json" in said.out
    assert said.out.endswith(f"next: sh {folder / 'out' / 'm.int8.trtexec.sh'}\n")


@pytest.mark.slow
def test_a_model_that_guesses_is_told_before_anything_is_tried(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An INT8 model was kept with a loss of 0.0000 of a top-1 of 0.0000, calibrated on wrong pixels."""
    data = np.load(folder / "d.npy")
    best = onnx_scores(folder / "m.onnx", data).argmin(1)
    np.savez(
        folder / "d.npz", x=np.tile(data, (4, 1, 1, 1)) + np.arange(64).reshape(-1, 1, 1, 1) * 1e-5, y=np.tile(best, 4)
    )
    words = ("--data", folder / "d.npz", "--for", "8.6.1", "--effort", "fast", "-o", folder / "out")
    said = run(capsys, "deploy", folder / "m.onnx", *words)
    line, *tried = said.err.splitlines()
    assert len(tried) == 4 and all(one.startswith("qdqtool: tried: ") for one in tried)
    assert said.code == 0 and line.startswith("qdqtool: warning: FP32 has a top-1 of 0.0000 on 16 samples, where ")
    assert "kept fp16: FP32 itself " in said.out, "scales of wrong pixels are worth nothing"
    told = line.removeprefix("qdqtool: ")
    assert told.split(" on ")[0] in said.out and "--preprocess or --labels" not in said.out
    assert "warning: FP32 has a top-1 of 0.0000" in (folder / "out" / "candidates.txt").read_text("utf-8")
    assert json.loads((folder / "out" / "deploy.json").read_text("utf-8"))["reference_warning"].startswith("FP32 has")


def onnx_scores(model: Path, data: np.ndarray) -> np.ndarray:
    """The scores of a classifier."""
    session = session_of(onnx.load(model))
    return np.concatenate([session.run(None, {"x": one[None]})[0].reshape(1, -1) for one in data])


def test_json_is_what_the_file_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--data", folder / "d.npy", "--for", "7.1.3", "--effort", "fast", "-o", folder / "out", "--json")
    said = run(capsys, "deploy", folder / "m.onnx", *words)
    assert json.loads(said.out) == json.loads((folder / "out" / "deploy.json").read_text("utf-8"))


def test_a_loss_that_is_not_met_ends_with_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdqtool.workflows.judge import Judge, Judges, Judgment

    right = Judges.to_report

    def to_report(self: Judges, data: Any) -> Judge:
        judge = right(self, data)
        worse = replace(judge.reference, value=judge.reference.value - 0.2, drawn=judge.reference.drawn - 0.2)
        monkeypatch.setattr(judge, "judgment", lambda model: Judgment(worse))
        return judge

    monkeypatch.setattr(Judges, "to_report", to_report)
    words = (
        "--data",
        folder / "d.npy",
        "--for",
        "7.1.3",
        "--effort",
        "fast",
        "--max-loss",
        "0.1",
        "-o",
        folder / "out",
    )
    said = run(capsys, "deploy", folder / "m.onnx", *words)
    assert said.code == 1 and (folder / "out").is_dir()
    assert all(part in said.err for part in ("--max-loss 0.1 ", "top-1 agreement", " loss 0.2000"))


def deploy_fast(capsys: pytest.CaptureFixture[str], folder: Path, *words: object) -> CommandOutput:
    start = ("deploy", folder / "m.onnx", "--data", folder / "d.npy", "--for", "8.6.1", "--effort", "fast", "--force")
    return run(capsys, *start, "-o", folder / "out", *words)


@pytest.mark.slow
def test_a_log_has_a_line_for_each_candidate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was written to a log for minutes, between the target and the table."""
    said = deploy_fast(capsys, folder)
    row = r"qdqtool: tried: way \d of 4: (\S+): loss (\d\.\d{4}) \((.+)\), change (\d\.\d{4}), cost (.+ layers)"
    told = [re.fullmatch(row, line) for line in said.err.splitlines()]
    assert [one[1] for one in told if one] == ["insert-auto", "insert-entropy", "fp16", "as-is"] and all(told)
    table = said.out[said.out.index("\ncandidate ") :]
    assert all(
        figure in line for one, line in zip(told, table.splitlines()[2:], strict=False) for figure in one.groups()
    )
    assert deploy_fast(capsys, folder).err == said.err, "the same input gives the same log"
    assert "tried: " in deploy_fast(capsys, folder, "--json").err and not deploy_fast(capsys, folder, "-q").err


def test_a_terminal_has_no_line_for_each_candidate(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "tried: " not in deploy_fast(capsys, folder).err


@pytest.mark.slow
def test_lines_of_both_streams_come_in_order_in_one_log(folder: Path) -> None:
    words = ["deploy", "m.onnx", "--data", "d.npy", "--for", "8.6.1", "--effort", "fast", "-o", "out"]
    lines = log_of(folder, *words)
    first, *_, last = (number for number, line in enumerate(lines) if line.startswith("qdqtool: tried: "))
    assert first == 1 and lines[0].startswith("INT8 on any GPU, TensorRT 8.6.1: ") and last == 4
    assert lines[5].startswith("kept ") and lines[-1].startswith("next: ")


def test_a_candidate_that_fails_is_told_without_the_folder_of_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That folder is another one in each run, so that no two logs and no two deploy.json were the same."""
    module = importlib.import_module("qdqtool.workflows.deploy")
    carry_out = module.carry_out

    def failing(candidate: Any, job: Any, place: Path, *rest: Any) -> Any:
        if candidate.name == "insert-auto":
            raise QdqError(place / "m.onnx", "is not for this", "try another")
        return carry_out(candidate, job, place, *rest)

    monkeypatch.setattr(module, "carry_out", failing)
    line = f"insert-auto{os.sep}m.onnx: is not for this; try another"
    assert deploy_fast(capsys, folder).err.startswith(f"qdqtool: tried: way 1 of 4: insert-auto: failed ({line})\n")
    assert json.loads((folder / "out" / "deploy.json").read_text("utf-8"))["candidates"][0]["failed"] == line


def test_bad_words_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ("deploy", folder / "m.onnx", "--data", folder / "d.npy")
    refused(run(capsys, *start, "--for", "rtx9090", "-o", folder / "o"), "rtx9090", "mean rtx5090")
    refused(run(capsys, *start, "--for", "orin-nano", "--dla", "-o", folder / "o"), "--dla", "has no DLA")
    refused(run(capsys, *start, "--for", "8.6.1", "-o", folder / "m.onnx"), "is a file")
    refused(run(capsys, *start, "--for", "8.6.1"), "-o/--output")
    refused(run(capsys, *start, "--for", "5.1.6", "-o", folder / "o"), "m.onnx", "has opset 11", "reads up to 9")
    assert sorted(p.name for p in folder.iterdir()) == ["d.npy", "m.onnx"]


@pytest.mark.parametrize("step", ["carry_out", "cost_of_candidate"])
def test_where_no_candidate_can_be_made_the_error_is_the_only_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def failing(*_: object) -> None:
        raise QdqError("m.onnx", "is not for this", "try another")

    monkeypatch.setattr(importlib.import_module("qdqtool.workflows.deploy"), step, failing)
    refused(deploy_fast(capsys, folder), "m.onnx: is not for this; try another")


@pytest.mark.parametrize("name", ["m\udcff.onnx", "m\n.onnx"])
def test_a_name_that_the_recipe_cannot_hold_is_refused_first(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shutil.copy(folder / "m.onnx", folder / name)
    words = ("--data", folder / "d.npy", "--for", "8.6.1", "-o", folder / "other")
    refused(run(capsys, "deploy", folder / name, *words), "control character", "rename it")
    assert not (folder / "other").exists()
