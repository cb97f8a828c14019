# SPDX-License-Identifier: Apache-2.0
"""`qdqtool compare --draw`: what it prints beside the figures, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import contents, refused, run
from tests.detector_model import BOXES, write_detector, write_images

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
pytest.importorskip("PIL.Image", reason="Pillow reads and draws the images")

WORDS = ("compare", "a.onnx", "b.onnx", "--data", "data", "--preprocess", "yolox")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_detector(tmp_path / "a.onnx")
    write_detector(tmp_path / "b.onnx", BOXES[:1])
    write_images(tmp_path / "data", 255, 0, 128)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_counts_stand_below_the_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    said = run(capsys, *WORDS, "--draw", "out", "--score", "0.25")
    assert said.code == 0, said.err
    assert said.out.splitlines()[-2:] == [
        "wrote out: 2 pictures and differences.json; of 4 boxes in 3 images 2 are lost and 0 spurious",
        "yolox: output [1, 84, 7], 2 classes, strides 8, 16, 32; score above 0.25, NMS at IoU 0.65",
    ]
    assert said.out.startswith("b.onnx against a.onnx: ")
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["001_a.png", "002_c.png", "differences.json"]


def test_json_has_the_pictures_only_where_they_are_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "drawn" not in json.loads(run(capsys, *WORDS, "--json").out)
    found = json.loads(run(capsys, *WORDS, "--json", "--draw", "out", "--limit", "1", "--names", "cat,dog").out)
    assert found["drawn"] == {
        "files": ["out/001_a.png", "out/differences.json"],
        "decoder": found["drawn"]["decoder"],
        "images": 1,
        "boxes": 2,
        "lost": 1,
        "spurious": 0,
    }
    assert found["schema"] == 1


def test_what_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    refused(run(capsys, *WORDS, "--names", "coco"), "--names: ", "; add --draw OUT")
    refused(run(capsys, *WORDS, "--score", "0.5"), "--score: ", "; add --draw")
    refused(run(capsys, *WORDS, "--force"), "--force: ", "; add --draw")
    refused(run(capsys, *WORDS, "--draw", "data"), "data", "holds the input")
    refused(run(capsys, *WORDS, "--draw", "out", "--decoder", "ssd"), "--decoder ssd: ", "outputs")
    refused(run(capsys, *WORDS, "--draw", "out", "--tensors", "nan"), "--tensors nan: ", "share no tensor's name")
    assert contents(folder) == before
