# SPDX-License-Identifier: Apache-2.0
"""`qdqtool completion` and `qdqtool help VERB`: scripts that shells take, help in either order of words."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.cli.main import GROUPS, VERBS
from tests.cli.command import refused, run

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_knows_verbs_and_options(capsys: Capsys, shell: str) -> None:
    pytest.importorskip("shtab")
    said = run(capsys, "completion", shell)
    assert said.code == 0
    assert all(verb in said.out for verb in VERBS)
    assert "float-heads" in said.out and "emit" in said.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_takes_the_script(capsys: Capsys, shell: str, tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(run(capsys, "completion", shell).out)
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_a_verb_and_its_options(capsys: Capsys, tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (tmp_path / "script").write_text(run(capsys, "completion", "bash").out)
    ask = "source ./script; COMP_WORDS=(qdqtool {words}); COMP_CWORD={last}; _shtab_qdqtool; echo ${{COMPREPLY[@]}}"
    for words, last, wanted in (("ins", 1, "insert"), ("insert --float", 2, "--float-heads")):
        line = ask.format(words=words, last=last)
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
        assert wanted in done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("insert mod", "model.onnx"),
        ("insert model.onnx --data da", "data.npz"),
        ("insert model.onnx -o mod", "model.onnx"),
        ("forecast model.onnx --for orin-n", "orin-nx"),
        ("deploy model.onnx --for rtx40", "rtx4090"),
        ("insert model.onnx --preprocess yolov", "yolov8"),
    ],
)
def test_bash_completes_files_boards_and_presets(capsys: Capsys, tmp_path: Path, words: str, wanted: str) -> None:
    pytest.importorskip("shtab")
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (tmp_path / "script").write_text(script := run(capsys, "completion", "bash").out)
    assert "complete -o bashdefault -o default -F" in script
    for name in ("model.onnx", "data.npz"):
        (tmp_path / name).touch()
    line = f"source ./script; COMP_WORDS=(qdqtool {words}); COMP_CWORD={len(words.split())}; _shtab_qdqtool"
    done = subprocess.run(["bash", "-c", line + "; echo ${COMPREPLY[@]}"], capture_output=True, text=True, cwd=tmp_path)
    assert wanted in done.stdout.split(), done.stderr


def test_without_shtab_the_line_for_pip_is_said(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    refused(run(capsys, "completion", "bash"), 'pip install "qdqtool[completion]"', code=3)


def test_another_shell_is_refused(capsys: Capsys) -> None:
    refused(run(capsys, "completion", "ksh"), "invalid choice: 'ksh'")


def test_help_of_a_verb_in_either_order(capsys: Capsys) -> None:
    assert run(capsys, "help", "peel").out == run(capsys, "peel", "--help").out
    refused(run(capsys, "help", "peal"), "mean peel")


def test_the_overview_has_the_groups_in_order(capsys: Capsys) -> None:
    said = run(capsys, "-h").out
    places = [said.index(f"\n{title}\n") for title in GROUPS]
    assert places == sorted(places)
    assert [title.partition(":")[0] for title in GROUPS] == ["make", "judge", "improve", "inspect"]
