# SPDX-License-Identifier: Apache-2.0
"""Color in the terminal: which words, and when."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.cli.color import PaintedStream, has_color, mode_of, painted
from tests.cli.command import run

PROJECT = Path(__file__).resolve().parents[2]
RED_ERROR = "\x1b[1;31mqdqtool: error:\x1b[0m "


class ColorTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ([], "auto"),
        (["lint", "m.onnx", "--color", "never"], "never"),
        (["lint", "--color=always", "m.onnx"], "always"),
        (["lint", "--color=always", "--color", "auto"], "auto"),
        (["lint", "--color"], "auto"),
        (["lint", "--color", "pink"], "auto"),
        (["lint", "never", "always"], "auto"),
    ],
)
def test_the_last_option_holds(words: list[str], mode: str) -> None:
    assert mode_of(words) == mode


def test_auto_paints_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_color(ColorTerminal(), "auto") and not has_color(io.StringIO(), "auto")
    monkeypatch.setenv("NO_COLOR", "")
    assert has_color(ColorTerminal(), "auto"), "an empty one is empty"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_color(ColorTerminal(), "auto")
    assert has_color(io.StringIO(), "always"), "what was asked for wins"
    assert not has_color(ColorTerminal(), "never")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not has_color(ColorTerminal(), "auto")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("next: qdqtool peel q.onnx", "\x1b[1;32mnext:\x1b[0m qdqtool peel q.onnx"),
        ("qdqtool: warning: w", "\x1b[33mqdqtool: warning:\x1b[0m w"),
        ("qdqtool: note: n", "\x1b[36mqdqtool: note:\x1b[0m n"),
        ("Q003 loose-end: 1 error", "\x1b[1;31mQ003 loose-end\x1b[0m: 1 error"),
        ("Q023 estimated-scale: 10 warnings", "\x1b[33mQ023 estimated-scale\x1b[0m: 10 warnings"),
        ("Q016 odd-sizes: 6 notes", "Q016 odd-sizes: 6 notes"),
        ("  next: indented", "  next: indented"),
        ("wrote next: x", "wrote next: x"),
    ],
)
def test_the_first_words_of_a_line_are_painted(line: str, shown: str) -> None:
    inner = io.StringIO()
    stream = PaintedStream(inner)
    assert stream.write(f"first\n{line}\nlast") == len(line) + 11
    assert inner.getvalue() == f"first\n{shown}\nlast"


def test_a_line_that_comes_in_pieces_is_painted_where_it_begins() -> None:
    inner = io.StringIO()
    stream = PaintedStream(inner)
    for piece in ("what is ", "", "next: no\n", "next: ", "yes", "\r   \r", "next: no bar"):
        stream.write(piece)
    painted_word = "\x1b[1;32mnext:\x1b[0m"
    assert inner.getvalue() == f"what is next: no\n{painted_word} yes\r   \r{painted_word} no bar"
    assert stream.getvalue() == inner.getvalue(), "the rest is the stream's own"


def test_streams_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(ValueError, match="x"), painted(["--color", "always"]):
        assert isinstance(sys.stdout, PaintedStream) and isinstance(sys.stderr, PaintedStream)
        raise ValueError("x")
    assert (sys.stdout, sys.stderr) == before


def test_errors_and_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "lint", "no.onnx", "--color", "always").err.startswith(RED_ERROR)
    assert run(capsys, "lint", "--color", "always", "--nonsense").err.startswith(RED_ERROR)
    assert run(capsys, "lint", "no.onnx").err.startswith("qdqtool: error: ")
    said = run(capsys, "lint", "no.onnx", "--color", "pink")
    assert said.code == 2 and "choose from" in said.err
    assert run(capsys, "cache", "show", "no.cache", "--color", "always").err.startswith(RED_ERROR)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("words", "colored"), [((), True), (("--color", "never"), False)])
def test_in_a_terminal(tmp_path: Path, models: Path, words: tuple[str, ...], colored: bool) -> None:
    import pty

    shutil.copy(models / "tiny_classifier.onnx", tmp_path)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "qdqtool", "insert", "tiny_classifier.onnx", *words]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TERM": "xterm"}
    done = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 4096):
            said += piece
    except OSError:  # Linux ends so
        pass
    assert done.wait() == 0
    assert (b"\x1b[1;32mnext:\x1b[0m trtexec" in said) == colored
    assert (b"\x1b[33mqdqtool: warning:\x1b[0m 10 scales" in said) == colored
    assert b"next:" in said and b"warning:" in said
