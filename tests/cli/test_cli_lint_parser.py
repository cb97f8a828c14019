# SPDX-License-Identifier: Apache-2.0
"""`qdqtool lint --parser` through the command line: what it prints, its exit codes, and its absence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtool.tensorrt_rtx import installed
from tests.cli.command import contents, refused, run
from tests.linting.quantized import classifier, conv, pair
from tests.tensorrt_rtx.fake_python import ACCEPTED, giving, library

Capsys = pytest.CaptureFixture[str]
ERROR = {
    "code": "INVALID_NODE",
    "text": "Assertion failed: shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported\x1b",
}
REFUSED: dict[str, Any] = {
    **ACCEPTED,
    "accepted": False,
    "errors": [{**ERROR, "node": "", "operator": "QuantizeLinear", "tensor": "x_dq_q"}],
}
needs_script = pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path / "results"))
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(classifier(f"{pair('x', zero='five')} {conv('c', 'x_dq')} a = Relu(c)"), folder / "m.onnx")
    return folder / "m.onnx"


def test_asked_for_and_not_installed_is_exit_3_with_the_line_for_pip(
    model: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "why_no_wheel", lambda: "")
    before = contents(model.parent)
    said = run(capsys, "lint", model, "--parser")
    refused(said, "RTX: is not installed", 'pip install "qdqtool[rtx]"', code=3)
    assert contents(model.parent) == before


def test_on_a_platform_without_wheels_exit_3_says_why(
    model: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        installed, "why_no_wheel", lambda: "there is no wheel for aarch64 (Jetson and other ARM machines)"
    )
    refused(run(capsys, "lint", model, "--parser"), "cannot be installed", "aarch64", code=3)


@needs_script
@pytest.mark.parametrize(
    ("words", "severity", "code"),
    [
        (["--trt-version", "11.0"], "error", 1),
        (["--parser"], "error", 1),
        (["--parser", "--trt-version", "8.6.1"], "note", 0),
        (["--trt-version", "11.0", "--no-parser"], None, 0),
        ([], None, 0),
    ],
)
def test_json_has_the_verdict_with_its_severity(
    model: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, words: list[str], severity: str | None, code: int
) -> None:
    for place in (installed.__name__, "qdqtool.verbs.lint"):
        monkeypatch.setattr(f"{place}.find_library", lambda: giving(model.parent.parent, REFUSED))
    said = run(capsys, "lint", model, "--select", "Q050", "--json", *words)
    found = [(one["where"], one["severity"]) for one in json.loads(said.out)["findings"]]
    assert (found, said.code) == ([("x", severity)] if severity else [], code)


@needs_script
def test_text_stands_beside_our_code_and_shows_no_escape(
    model: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (installed.__name__, "qdqtool.verbs.lint"):
        monkeypatch.setattr(f"{place}.find_library", lambda: giving(model.parent.parent, REFUSED))
    said = run(capsys, "lint", model, "--trt-version", "11.0", "--select", "Q004,Q050")
    assert said.code == 1 and "\x1b" not in said.out
    assert (
        "Q050 parser-refusal: 1 error\n  x: the parser of TensorRT for RTX 1.7.1.116 refuses QuantizeLinear" in said.out
    )
    assert "(Q004 says the same)" in said.out and "Q004 asymmetric: 1 error" in said.out


@needs_script
@pytest.mark.parametrize("fault", ["os.kill(os.getpid(), signal.SIGSEGV)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_crash_is_one_line_and_exit_2(
    model: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(installed, "find_library", lambda: library(model.parent.parent, fault))
    before = contents(model.parent)
    refused(run(capsys, "lint", model, "--parser"), "m.onnx", "by SIG", " parsed ")
    assert contents(model.parent) == before
