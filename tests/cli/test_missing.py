# SPDX-License-Identifier: Apache-2.0
"""Missing packages named all at once, and TAO's options answered."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qdqtool.cli.foreign_words import _ANSWERS, tao_answer
from qdqtool.cli.missing import with_all
from qdqtool.errors import MissingPackageError
from tests.cli.command import refused, run, write_net

FIRST = MissingPackageError("onnxruntime", "is not installed", "pip install it")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make modules missing."""
    find = importlib.util.find_spec

    def gone(*names: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else find(name))

    return gone


@pytest.mark.parametrize(
    ("argv", "names", "extras"),
    [
        (
            ["evaluate", "m.onnx", "--data", "images", "--labels", "l"],
            "onnxruntime, Pillow, pycocotools",
            "cpu,images,eval",
        ),
        (
            ["evaluate", "m.onnx", "--data", "images", "--labels", "l", "--metric", "top1"],
            "onnxruntime, Pillow",
            "cpu,images",
        ),
        (["evaluate", "m.onnx", "--data", "d.npz", "--baseline", "b"], "onnxruntime, pycocotools", "cpu,eval"),
        (["insert", "m.onnx", "--data", "images"], "onnxruntime, Pillow", "cpu,images"),
        (
            ["deploy", "m.onnx", "--data", "images", "--labels", "images"],
            "onnxruntime, Pillow, pycocotools",
            "cpu,images,eval",
        ),
        (["deploy", "m.onnx", "--data", "images", "--labels", "c.npy"], "onnxruntime, Pillow", "cpu,images"),
        (["infer", "m.onnx", "--data", "x", "-o", "out"], "onnxruntime, Pillow", "cpu,images"),
    ],
)
def test_all_that_a_command_lacks(
    argv: Sequence[str], names: str, extras: str, without: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "a.xml"):
        (tmp_path / "images" / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    without("onnxruntime", "PIL", "pycocotools")
    line = f'{argv[0]}: needs {names}, which are not installed; pip install "qdqtool[{extras}]"'
    assert with_all(FIRST, argv).line() == line
    assert with_all(FIRST, argv).exit_code == 3


def test_one_that_is_missing_is_told_as_it_was(without: Any) -> None:
    without("onnxruntime")
    assert with_all(FIRST, ["insert", "m.onnx", "--data", "d.npz"]) is FIRST
    without()
    assert with_all(FIRST, ["evaluate", "m.onnx", "--data", "d.npz", "--labels", "l"]) is FIRST


@pytest.mark.parametrize("word", sorted(_ANSWERS))
def test_options_of_tao_are_answered(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "ptq", write_net(tmp_path), "--data", "d", "--target", "gpu", "--trt-version", "8502", word, "x")
    refused(said, f"ptq: unknown argument {word}, which is TAO's: {_ANSWERS[word]}")


@pytest.mark.parametrize(
    ("word", "known"), [("--cal-cache-file=c.bin", True), ("--data_type=int8", True), ("--cache", False), ("-e", False)]
)
def test_spellings(word: str, known: bool) -> None:
    assert bool(tao_answer(word)) is known
