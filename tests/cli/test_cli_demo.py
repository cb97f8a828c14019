# SPDX-License-Identifier: Apache-2.0
"""`qdqtool demo`: it runs in a new folder only, and each of its commands runs again as printed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.cli import demo
from tests.cli.command import run

Capsys = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_it_runs_every_step_and_reports_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    words = [sys.executable, "-m", "qdqtool", "demo", "--json", "-o", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["folder"] == str(folder) and found["files"] == sorted(path.name for path in folder.iterdir())
    assert {"model.qdq.onnx", "report.html", "gpu.cache", "grafted.qdq.onnx"} <= set(found["files"])
    assert len(found["commands"]) == len(demo.STEPS) and "wrote model.qdq.onnx" in done.stderr
    checked = [sys.executable, "-m", "qdqtool", "cache", "check", "gpu.cache", "grafted.qdq.onnx"]
    assert subprocess.run(checked, cwd=folder, capture_output=True).returncode == 0


@pytest.mark.slow
def test_it_ends_with_the_first_command_that_fails(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "STEPS", (("A.", "lint missing.onnx"), ("B.", "peel model.onnx")))
    said = run(capsys, "demo", "-o", tmp_path / "out")
    assert said.code == 2 and shlex.split(said.out.splitlines()[-1])[1:] == ["qdqtool", "lint", "missing.onnx"]


def test_a_folder_with_files_is_left_alone(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"mine")
    said = run(capsys, "demo", "-o", tmp_path)
    assert said.code == 2 and "not an empty folder" in said.err
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]
