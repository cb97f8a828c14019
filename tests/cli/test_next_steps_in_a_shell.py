# SPDX-License-Identifier: Apache-2.0
"""What verbs print as the next command is run by a shell as it is printed, and so on to the end of each chain.

What is not ours (trtexec, polygraphy) is a script that wants its files to exist, and writes the engine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
pytestmark = [
    pytest.mark.slow,  # half a second for each process
    pytest.mark.skipif(os.name == "nt", reason="the lines are for a POSIX shell"),
]

PROJECT = Path(__file__).resolve().parents[2]
MODEL, DATA, FEW = "'my model.onnx'", "'some data.npz'", "--data 'some data.npz' --limit 8"
BUILDER = """#!/bin/sh
for word in "$@"; do
  case "$word" in
    --onnx=*|--calib=*) test -f "${word#*=}" || { echo "no file ${word#*=}" >&2; exit 9; } ;;
    --saveEngine=*) echo engine > "${word#*=}" ;;
    *.onnx|*.cache|*.py) test -f "$word" || { echo "no file $word" >&2; exit 9; } ;;
  esac
done
"""
# A line that prints a command to run, and the command in it.
_STEP = re.compile(
    r"(?:(?:^next|try|means|repaired|asked for|again|such as DeepStream): |^ {4})"
    r"((?:qdqtool|trtexec|polygraphy|sh) .*)$",
    re.M,
)


@pytest.fixture
def folder(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled detector under a name with a blank, and programs to run."""
    shutil.copy(models / "digits_detector.onnx", tmp_path / "my model.onnx")
    shutil.copy(models / "digits_calib.npz", tmp_path / "some data.npz")
    programs = tmp_path / "bin"
    programs.mkdir()
    ours = f'#!/bin/sh\nexec {sys.executable} -m qdqtool "$@"\n'
    for name, text in {"qdqtool": ours, "trtexec": BUILDER, "polygraphy": BUILDER}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    return tmp_path


def run(folder: Path, line: str) -> list[str]:
    """Run a line; the commands that it printed to be run next."""
    done = subprocess.run(["sh", "-c", line], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return _STEP.findall(done.stdout + done.stderr)


def follow(folder: Path, line: str) -> list[str]:
    """Run a line and all that follows from it; everything that was run, in order."""
    done, waiting = list[str](), [line]
    while waiting:
        step = waiting.pop(0)
        if step not in done:
            done.append(step)
            waiting += run(folder, step)
        assert len(done) < 12, done
    return done[1:]


def programs(steps: list[str]) -> list[str]:
    """The verb of each of our commands, the program of another one."""
    return [words[1] if words[0] == "qdqtool" else words[0] for words in map(str.split, steps)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"qdqtool insert {MODEL} {FEW} --trt-version 8502", ["trtexec", "peel", "trtexec"]),
        (f"qdqtool insert {MODEL} {FEW} --target dla", ["peel", "trtexec"]),
        (f"qdqtool insert {MODEL} {FEW}", ["trtexec"]),
        (f"qdqtool insert {MODEL} --trt-version 10.3", ["trtexec", "peel", "trtexec"]),
        (f"qdqtool ptq {MODEL} {FEW} --target gpu --trt-version 8502 --emit trtexec", ["sh"]),
        (f"qdqtool ptq {MODEL} {FEW} --target gpu --trt-version 8201", ["ptq", "polygraphy"]),
        (f"qdqtool ptq {MODEL} {FEW} --target dla --trt-version jp5.1 --method max", ["trtexec"]),
        (f"qdqtool calibrate {MODEL} {FEW}", ["insert", "trtexec"]),
        (f"qdqtool calibrate {MODEL} {FEW} --shard 1/1 -o 'a state'", ["calibrate"]),
        (f"qdqtool amp {MODEL} {FEW}", ["trtexec"]),
        (f"qdqtool condition {MODEL} {FEW}", ["insert", "trtexec"]),
        (f"qdqtool sensitivity {MODEL} {FEW}", []),
        (f"qdqtool deploy {MODEL} --data {DATA} --for 8.6.1 --effort fast -o 'a folder'", ["sh"]),
    ],
)
def test_every_step_that_is_printed_runs(folder: Path, line: str, expected: list[str]) -> None:
    before = {name: (folder / name).read_bytes() for name in ("my model.onnx", "some data.npz")}
    assert programs(follow(folder, line)) == expected
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_pruned_trained_and_quantized(folder: Path) -> None:
    (train,) = run(folder, f"qdqtool prune {MODEL} {FEW} --ratio 0.25")
    assert programs([train]) == ["finetune"]
    assert programs(follow(folder, f"{train} --steps 2")) == ["insert", "trtexec"]


def test_an_old_cache(folder: Path) -> None:
    run(folder, f"qdqtool ptq {MODEL} {FEW} --target gpu --trt-version 7103 --cache 'old one'")
    assert programs(follow(folder, f"qdqtool graft {MODEL} --cache 'old one' --trt-version 10.3")) == ["trtexec"]


def test_lint_explains_and_repairs(folder: Path) -> None:
    import onnx

    model = onnx.load(folder / "my model.onnx")
    model.graph.node[0].name = ""
    onnx.save(model, folder / "my model.onnx")
    steps = follow(folder, f"qdqtool lint {MODEL} --no-parser --select Q018")
    assert "lint" in programs(steps) and any("--fix" in step for step in steps)


def test_a_loss_that_is_too_large_names_what_to_try(folder: Path) -> None:
    """Exit code 1 and a command that evens out channels first, with the user's own options."""
    words = f"qdqtool insert {MODEL} {FEW} --max-output-loss 0.0000001"
    done = subprocess.run(
        ["sh", "-c", f"{words} --method max"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (step,) = _STEP.findall(done.stderr)
    assert step.startswith(f"{words} --condition auto".replace('"', "'"))
    again = subprocess.run(["sh", "-c", step], cwd=folder, capture_output=True, text=True, check=False)
    assert again.returncode in (0, 1), again.stderr
