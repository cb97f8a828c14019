# SPDX-License-Identifier: Apache-2.0
"""`--target rtx` on the command line: what takes it, what refuses it in one line with exit 2, what is always said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

import qdqtool
from qdqtool.cli.main import main
from qdqtool.precision.rest import RTX_NOTE
from qdqtool.rtxversion import RTX_HONESTY
from qdqtool.verbs.ptq_options import PtqOptions
from tests.graphs import SMALL_NET, model_of

REFUSED = {
    "ptq": ["ptq", "net.onnx", "--trt-version", "8502", "--data", "x.npz"],
    "peel": ["peel", "net.onnx", "--trt-version", "8502"],
    "simulate": ["simulate", "net.onnx", "--data", "x.npz"],
    "graft": ["graft", "net.onnx", "--cache", "net.cache"],
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model_of(SMALL_NET), "net.onnx")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        code = main(list(words))
    except SystemExit as end:
        code = int(str(end.code))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("verb", REFUSED)
def test_verbs_of_caches_refuse_it_in_one_line_and_write_nothing(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, error = run(capsys, *REFUSED[verb], "--target", "rtx")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert re.search("RTX .*no calibration cache.*insert --target rtx", error)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize("verb", ["insert", "lint"])
def test_a_tensorrt_version_beside_it_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run(capsys, verb, "net.onnx", "--target", "rtx", "--trt-version", "8502")
    assert code == 2 and re.match("qdqtool: error: --trt-version: .* RTX ", error)
    assert error.count("\n") == 1


def test_insert_writes_a_model_without_a_cache_and_says_what_is_not_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, error = run(capsys, "insert", "net.onnx", "--target", "rtx", "-o", "q.onnx")
    assert code == 0 and f"qdqtool: note: {RTX_HONESTY}\n" in error
    assert error.count(RTX_HONESTY) == 1
    assert "peel" not in out and RTX_NOTE in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "q.onnx"]
    assert run(capsys, "lint", "q.onnx", "--target", "rtx", "--ignore", "Q023,Q053", "--level", "warning")[0] == 0


def test_insert_for_other_targets_says_nothing_of_rtx(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, error = run(capsys, "insert", "net.onnx", "-o", "q.onnx")
    assert "RTX" not in error


def test_plan_and_lint_tell_the_target_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "insert", "net.onnx", "--target", "rtx", "--dry-run", "--json")
    assert code == 0 and json.loads(out)["points"]
    assert json.loads(run(capsys, "lint", "net.onnx", "--target", "rtx", "--json")[1])["target"] == "rtx"


def test_the_functions_refuse_it_as_the_words_do() -> None:
    for call in (
        lambda: qdqtool.ptq("net.onnx", [], PtqOptions("8.5.2", target="rtx")),
        lambda: qdqtool.peel("net.onnx", qdqtool.PeelOptions("8.5.2", target="rtx")),
        lambda: qdqtool.lint("net.onnx", qdqtool.LintOptions("rtx", "8.5.2")),
    ):
        with pytest.raises(qdqtool.QdqError, match="TensorRT for RTX"):
            call()
