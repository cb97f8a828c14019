# SPDX-License-Identifier: Apache-2.0
"""`qdqtool report`: its words, what it prints, the command that the page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import refused, run, write_net


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    write_net(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "insert", "m.onnx", "-o", "q.onnx", "-q").code == 0
    return tmp_path


def test_it_writes_and_says_what(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "report", "q.onnx", "--model", "m.onnx", "--no-parser", "-o", "r.html")
    assert said.code == 0
    assert "wrote r.html: 0." in said.out and "Findings of lint" in said.out


def test_the_default_name_stands_beside_the_model(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "report", "q.onnx", "--no-parser", "-q").out == ""
    assert (net / "q.report.html").is_file()


def test_json_names_the_sections(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "report", "q.onnx", "--no-parser", "--json").out)
    assert found["schema"] == 1 and found["sections"][0] == "Verdict"
    assert found["bytes"] == (net / found["report"]).stat().st_size


def test_the_page_shows_the_command_without_its_output(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "report", "q.onnx", "--no-parser", "-o", "a.html")
    run(capsys, "report", "q.onnx", "--no-parser", "--output=b.html")
    first = (net / "a.html").read_bytes()
    assert b"<dd>qdqtool report q.onnx --no-parser" in first
    assert first == (net / "b.html").read_bytes(), "where the file goes changes nothing in it"


def test_refusals_are_one_line(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(run(capsys, "report", "q.onnx", "--labels", "l.json"), "--labels: ", "--data")
    refused(run(capsys, "report", "q.onnx", "-o", "q.onnx"), "q.onnx")
    refused(run(capsys, "report", "missing.onnx"), "missing.onnx")


@pytest.mark.parametrize("name", ["/", ".", "", ".."])
def test_a_model_that_is_no_file_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(run(capsys, "report", name))


def test_a_name_that_is_no_utf8_is_shown_escaped(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (net / "m.onnx").rename(net / "m\udcff.onnx")
    assert run(capsys, "report", "m\udcff.onnx", "--no-parser").code == 0
    assert b"m\\udcff.onnx" in (net / "m\udcff.report.html").read_bytes()
