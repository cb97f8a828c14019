# SPDX-License-Identifier: Apache-2.0
"""`qdqtool infer`: what it prints, its JSON, its exit codes, and that inputs stay as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import contents, refused, run
from tests.detector_model import write_detector, write_images

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
pytest.importorskip("PIL.Image", reason="Pillow reads and draws the images")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_detector(tmp_path / "m.onnx")
    write_images(tmp_path / "data", 255, 128)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_was_written_and_how_it_was_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    said = run(capsys, "infer", "m.onnx", "--data", "data", "--preprocess", "yolox", "-o", "out")
    assert said.code == 0, said.err
    assert said.out.splitlines() == [
        "wrote out: 2 pictures and detections.json, 4 boxes",
        "yolox: output [1, 84, 7], 2 classes, strides 8, 16, 32; score above 0.3, NMS at IoU 0.65",
    ]
    assert said.err == ""
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"out", "out/a.png", "out/b.png", "out/detections.json"}


def test_json_is_the_file_and_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("infer", "m.onnx", "--data", "data", "--preprocess", "yolox", "--names", "cat,dog", "-o", "out", "--json")
    said = run(capsys, *words)
    found = json.loads(said.out)
    assert list(found) == ["schema", "folder", "decoder", "images", "notes"]
    assert found.pop("folder") == "out"
    assert found == json.loads((folder / "out" / "detections.json").read_text())
    assert {one["name"] for one in found["images"][0]["detections"]} == {"cat", "dog"}


def test_thresholds_limit_and_quiet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("infer", "m.onnx", "--data", "data", "--preprocess", "yolox")
    said = run(capsys, *words, "--score", "0.7", "--iou", "0.2", "--limit", "1", "-o", "a")
    assert said.out.splitlines()[0] == "wrote a: 1 picture and detections.json, 1 box"
    assert said.out.splitlines()[1].endswith("score above 0.7, NMS at IoU 0.2")
    assert run(capsys, *words, "-q", "-o", "b") == run(capsys, *words, "-q", "-o", "c")
    assert run(capsys, *words, "-q", "-o", "b", "--force").out == ""


def test_what_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("infer", "m.onnx", "--data", "data", "--preprocess", "yolox")
    before = contents(folder)
    refused(run(capsys, *words, "-o", "data"), "data", "holds the input")
    refused(run(capsys, *words, "-o", "."), "holds the input")
    refused(run(capsys, *words, "-o", "out", "--decoder", "yolo9"), "'yolo9' ", "choose auto")
    refused(run(capsys, *words, "-o", "out", "--score", "2"), "score", "threshold")
    refused(run(capsys, *words, "-o", "out", "--postprocess", "absent.py"), "absent.py", "does not exist")
    refused(run(capsys, "infer", "m.onnx", "--data", "data", "-o", "out"), "give --preprocess")
    refused(run(capsys, *words), "-o/--output")
    both = run(capsys, *words, "-o", "out", "--decoder", "yolox", "--postprocess", "x.py")
    refused(both, "not allowed with")
    assert contents(folder) == before


def test_no_decoder_fits_a_head_of_its_own(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("infer", models / "digits_detector.onnx", "--data", models / "digits_calib.npz", "-o", tmp_path / "out")
    refused(
        run(capsys, *words),
        "scores [1, 10, 12, 12], boxes [1, 4, 12, 12]",
        "docs/decoders.md",
    )
    assert not (tmp_path / "out").exists()


def test_what_a_batch_leaves_out_is_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_detector(folder / "two.onnx", batch=2)
    write_images(folder / "three", 255, 255, 255)
    said = run(capsys, "infer", "two.onnx", "--data", "three", "--preprocess", "yolox", "-o", "out")
    assert re.match("qdqtool: warning: three: .* last 1 samples .* 2, ", said.err)


def test_more_names_than_classes_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("infer", "m.onnx", "--data", "data", "--preprocess", "yolox", "-o", "out", "--names")
    refused(run(capsys, *words, "coco"), "--names: ", " 80 classes, ", " 2 classes")
    assert not Path("out").exists()
