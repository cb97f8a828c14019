# SPDX-License-Identifier: Apache-2.0
"""What the verbs print: names of a hostile model neither break lines nor reach the terminal as they are."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import onnx
import pytest

from qdqtool.cli.output import print_json, print_lines, warn, wrapped
from qdqtool.command_lines import command
from tests.cli.command import run
from tests.graphs import model_of

HOSTILE = "t\x1b[31m\nqdqtool: error: forged\x9b2J\u202e"
LOUD = argparse.Namespace(quiet=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = model_of("g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w> { c = Conv(x, w) y = Relu(c) }")
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{name}{HOSTILE}" for name in names]
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.name += HOSTILE
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_lines_and_warnings_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([HOSTILE, "plain"], LOUD)
    warn(HOSTILE * 10_000, LOUD)
    said = capsys.readouterr()
    assert said.out.splitlines() == ["t\\x1b[31m\\nqdqtool: error: forged\\x9b2J\\u202e", "plain"]
    assert said.err.count("\n") == 1 and said.err[:-1].isprintable() and len(said.err) < 3000


def test_a_warning_comes_behind_the_lines_that_were_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `> log 2>&1` warnings stood above all lines of stdout, which was buffered."""
    log = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(log, "utf-8"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(log, "utf-8", write_through=True))
    print_lines(["first"], LOUD)
    warn("second", LOUD)
    assert log.getvalue() == b"first\nqdqtool: warning: second\n"


def test_a_warning_is_written_where_stdout_has_no_reader(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Gone())
        warn("said", LOUD)
    assert capsys.readouterr().err == "qdqtool: warning: said\n"


def test_json_holds_the_name_and_nothing_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({HOSTILE: "half \udcff"})
    text = capsys.readouterr().out
    assert all(line.isprintable() for line in text.split("\n")) and json.loads(text) == {
        "schema": 1,
        HOSTILE: "half \udcff",
    }


def test_json_is_json_where_the_terminal_has_but_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    print_json({"é": 1})
    sys.stdout.flush()
    assert json.loads(raw.getvalue()) == {"schema": 1, "é": 1}


@pytest.mark.parametrize("words", [("lint",), ("lint", "--json"), ("insert", "--dry-run")])
def test_no_verb_shows_a_name_as_it_is(model: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    said = run(capsys, words[0], model, *words[1:])
    assert "forged" in said.out
    assert all(line.isprintable() for line in (said.out + said.err).split("\n"))
    assert not any(line.startswith("qdqtool: error") for line in (said.out + said.err).split("\n"))


LONG = (
    "the scales are estimated, and estimates of activations after a Sigmoid or a Softmax are wide, "
    "so that the accuracy may be low; "
    "run qdqtool insert model.onnx --data images/ --preprocess yolov8 -o model.qdq.onnx; or give --allow-estimated"
)


def test_a_warning_is_wrapped_in_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warn(LONG, LOUD)
    assert capsys.readouterr().err == f"qdqtool: warning: {LONG}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    warn(LONG, LOUD)
    lines = capsys.readouterr().err.splitlines()
    assert all(len(line) <= 100 for line in lines) and len(lines) == 4
    assert "    qdqtool insert model.onnx --data images/ --preprocess yolov8 -o model.qdq.onnx" in lines


def test_a_long_command_is_not_broken() -> None:
    line = "qdqtool insert " + "x" * 120 + ".onnx"
    assert f"    {line}" in wrapped(f"qdqtool: warning: too few; run {line}")


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "q.onnx", "--data", "images/", "--preprocess", "keras,resize=crop"),
        ("lint", "q.onnx", "--keep-float", "a;b,(c)", "--limit", "3"),
        ("insert", "it's, (odd); name.onnx", "-o", "q.onnx"),
    ],
)
def test_a_command_is_whole_on_its_line_whatever_its_words_hold(words: tuple[str, ...]) -> None:
    line = command(words[0], *words[1:])
    lines = wrapped(f"qdqtool: warning: much is lost; measure first: {line}; then {line}, or give --labels")
    assert lines.count(f"    {line}") == 2 and lines[-1] == "  or give --labels"
