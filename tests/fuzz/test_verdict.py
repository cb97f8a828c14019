# SPDX-License-Identifier: Apache-2.0
"""What counts as a fault of a run, on runs that are written by hand."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fuzz.fork_server import Ended, FuzzRun, FuzzTask
from tests.fuzz.mutants import write_job
from tests.fuzz.verdict import Fault, faults_of

TRACEBACK = """Traceback (most recent call last):
  File "/home/u/qdqtool/cli/main.py", line 72, in main
    code = _dispatch(argv)
  File "/home/u/qdqtool/graph/view.py", line 343, in _folded
    return evaluate(node)
  File "/usr/lib/python3.11/tokenize.py", line 530, in _tokenize
    raise TokenError("EOF in multi-line statement", (lnum, 0))
tokenize.TokenError: ('EOF in multi-line statement', (1, 0))
qdqtool: this is a bug in qdqtool: please report the lines above and what `qdqtool doctor` says
"""
STACK = """Fatal Python error: CPU time limit exceeded

Current thread 0x00007f (most recent call first):
  File "/home/u/onnx/shape_inference.py", line 46 in infer_shapes
  File "/home/u/qdqtool/graph/types.py", line 53 in infer_types
  File "/home/u/qdqtool/cli/main.py", line 72 in main
"""
REFUSED = "qdqtool: error: m.onnx: is no model; give another\n"


def ended(folder: Path, code: int, err: str = "", out: str = "", cpu: float = 0.1) -> Ended:
    """A run that had m.onnx as its input, with what was written into run/ since."""
    (folder / "out.txt").write_text(out)
    (folder / "err.txt").write_text(err)
    return Ended(FuzzTask("lint:1", lambda _: FuzzRun([])), folder, code, False, cpu, 50.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("run", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "m.onnx").write_bytes(b"model")
    write_job(tmp_path, ["lint", "m.onnx"], "bytes")
    return tmp_path


@pytest.mark.parametrize(("code", "err"), [(0, ""), (1, "qdqtool: warning: w\n"), (2, REFUSED), (3, REFUSED)])
def test_a_run_that_behaves_has_none(folder: Path, code: int, err: str) -> None:
    assert faults_of(ended(folder, code, err)) == []


def test_a_bug_is_named_by_its_exception_and_the_innermost_frame_of_the_project(folder: Path) -> None:
    found = faults_of(ended(folder, 70, TRACEBACK))
    assert found == [Fault("bug", "tokenize.TokenError in qdqtool/graph/view.py:343 _folded")]


@pytest.mark.parametrize(
    ("code", "cpu", "fault"),
    [
        (-signal.SIGXCPU, 20.0, Fault("hang", "CPU time, in qdqtool/graph/types.py:53 infer_types")),
        (-signal.SIGSEGV, 0.1, Fault("signal", "SIGSEGV, in qdqtool/graph/types.py:53 infer_types")),
        (5, 0.1, Fault("code", "exit code 5")),
    ],
)
def test_no_end_and_no_meaning(folder: Path, code: int, cpu: float, fault: Fault) -> None:
    assert faults_of(ended(folder, code, STACK, cpu=cpu)) == [fault]


@pytest.mark.parametrize(
    ("out", "err", "what"),
    [
        ("\x1b[31m", REFUSED, "control characters on stdout"),
        ("", "qdqtool: error: m\x07.onnx: is no model; x\n", "control characters on stderr"),
        ("", REFUSED.replace("give", "x" * 5000), "a line of more than 2200 characters on stderr"),
        ("", f"/a/b.py:3: RuntimeWarning: overflow\n{REFUSED}", "a warning of Python's on stderr"),
        ("", REFUSED * 2, "no single error line"),
    ],
)
def test_messages_that_nobody_should_get(folder: Path, out: str, err: str, what: str) -> None:
    assert faults_of(ended(folder, 2, err, out)) == [Fault("message", what)]


def test_colors_that_were_asked_for_are_no_fault(folder: Path) -> None:
    painted = "\x1b[1;31mqdqtool: error:\x1b[0m m.onnx: is no model; x\n"
    assert faults_of(ended(folder, 2, painted))
    (folder / "job.json").unlink()
    write_job(folder, ["lint", "m.onnx", "--color", "always"], "bytes")
    assert faults_of(ended(folder, 2, painted)) == []
    assert faults_of(ended(folder, 2, painted.replace("no model", "\x1b]0;title\x07")))


def test_files_that_are_changed_left_or_torn(folder: Path) -> None:
    run = folder / "run"
    (run / "m.onnx").write_bytes(b"other")
    (run / ".qdqtool-12.tmp").write_bytes(b"x")
    (run / "out.json").write_text("{")
    assert faults_of(ended(folder, 2, REFUSED)) == [
        Fault("changed", "*.onnx"),
        Fault("left", "exit code 2, but wrote *.json"),
        Fault("left", "temporary file"),
        Fault("torn", "*.json"),
    ]


def test_a_set_that_is_whole_is_none(folder: Path) -> None:
    (folder / "run" / "out.json").write_text("{}\n")
    assert faults_of(ended(folder, 0)) == []
