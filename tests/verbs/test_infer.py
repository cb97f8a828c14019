# SPDX-License-Identifier: Apache-2.0
"""A model and images to pictures and detections.json: what stands in them, for folders and arrays; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.data.loader import DataOptions
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import DecodeOptions, Selection
from qdqtool.evaluation.detections import Detections
from qdqtool.verbs.infer import infer
from qdqtool.verbs.infer_options import InferOptions
from tests.detector_model import BOXES, write_detector, write_images

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
Image = pytest.importorskip("PIL.Image", reason="Pillow reads and draws the images")

YOLOX = DataOptions(preprocess="yolox")


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "detections.json").read_text())
    return found


def test_boxes_of_each_image_in_its_own_pixels(tmp_path: Path) -> None:
    model = write_detector(tmp_path / "m.onnx")
    data = write_images(tmp_path / "data", 255, 0, 128)
    result = infer(model, data, tmp_path / "out", InferOptions(names="cat,dog"), YOLOX)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "b.png", "c.png", "detections.json"]
    found = document(tmp_path / "out")
    assert found == result.to_json()
    first, dark, grey = found["images"]
    assert first["detections"] == [
        {"box": [2 * v for v in box], "score": score, "class": label, "name": ("cat", "dog")[label]}
        for label, score, box in BOXES
    ]
    assert (first["file"], first["picture"], first["width"], first["height"]) == ("a.png", "a.png", 128, 128)
    assert dark["detections"] == []
    assert [one["score"] for one in grey["detections"]] == [round(0.9 * 128 / 255, 4), round(0.6 * 128 / 255, 4)]
    assert result.boxes == 4
    assert found["decoder"].startswith("yolox: output [1, 84, 7], 2 classes")
    assert Image.open(tmp_path / "out" / "a.png").size == (384, 384)


def test_the_score_and_the_decoder_asked_for_hold(tmp_path: Path) -> None:
    model, data = write_detector(tmp_path / "m.onnx"), write_images(tmp_path / "data", 255)
    reading = DecodeOptions("yolox,decoded=no", None, Selection(score=0.7))
    result = infer(model, data, tmp_path / "out", InferOptions(reading), YOLOX)
    assert result.boxes == 1
    with pytest.raises(QdqError, match="--decoder nanodet: "):
        infer(model, data, tmp_path / "other", InferOptions(DecodeOptions("nanodet")), YOLOX)
    assert not (tmp_path / "other").exists()


def test_batches_change_nothing(tmp_path: Path) -> None:
    model, data = write_detector(tmp_path / "m.onnx"), write_images(tmp_path / "data", 255, 90, 255, 200, 160)
    one = infer(model, data, tmp_path / "one", None, YOLOX)
    two = infer(model, data, tmp_path / "two", None, DataOptions(batch=2, preprocess="yolox"))
    assert one.to_json()["images"] == two.to_json()["images"]
    for path in (tmp_path / "one").iterdir():
        if path.suffix == ".png":
            assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_what_a_fixed_batch_leaves_out_is_reported(tmp_path: Path) -> None:
    model, data = write_detector(tmp_path / "m.onnx", batch=2), write_images(tmp_path / "data", 255, 90, 255)
    result = infer(model, data, tmp_path / "out", None, YOLOX)
    assert len(result.images) == 2
    assert "batch of 2" in result.notes[0]
    assert document(tmp_path / "out")["notes"] == list(result.notes)


def test_arrays_are_shown_as_images(tmp_path: Path) -> None:
    model = write_detector(tmp_path / "m.onnx")
    images = np.zeros((2, 3, 64, 64), np.float32)
    images[0], images[1, 0, :32] = 255.0, 255.0
    np.savez(tmp_path / "d.npz", images=images)
    result = infer(
        model, tmp_path / "d.npz", tmp_path / "out", InferOptions(DecodeOptions(selection=Selection(score=0.01)))
    )
    assert [one.picture for one in result.images] == ["sample_00000.png", "sample_00001.png"]
    assert isinstance(result.images[0].found, Detections)
    np.testing.assert_allclose(result.images[0].found.boxes, [box for _, _, box in BOXES], atol=1e-3)
    picture = np.asarray(Image.open(tmp_path / "out" / "sample_00001.png"))
    assert picture.shape == (320, 320, 3)
    assert picture[5, 300].tolist() == [255, 0, 0]
    assert picture[315, 5].tolist() == [0, 0, 0]


def test_a_classifier_gets_its_best_classes_below(tmp_path: Path, models: Path) -> None:
    result = infer(
        models / "tiny_classifier.onnx", models / "digits8_test.npz", tmp_path / "out", None, DataOptions(limit=3)
    )
    assert result.boxes is None
    assert result.decoder.startswith("classifier: logits, 10 classes")
    found = document(tmp_path / "out")["images"]
    assert [len(one["classes"]) for one in found] == [5, 5, 5]
    assert set(found[0]["classes"][0]) == {"class", "name", "probability"}
    assert all(one["classes"][0]["probability"] >= one["classes"][1]["probability"] for one in found)
    picture = Image.open(tmp_path / "out" / found[0]["picture"])
    assert picture.size[1] > picture.size[0] == 320


def test_a_script_decodes(tmp_path: Path, models: Path) -> None:
    (tmp_path / "digits.py").write_text(
        "import numpy as np\n"
        "def boxes(outputs, geometries):\n"
        "    best = outputs['scores'].reshape(len(geometries), -1).max(1)\n"
        "    return [([[8, 8, 40, 40]], [s], [3]) for s in best]\n"
    )
    reading = DecodeOptions(postprocess=f"{tmp_path / 'digits.py'}:boxes")
    result = infer(
        models / "digits_detector.onnx",
        models / "digits_calib.npz",
        tmp_path / "out",
        InferOptions(reading),
        DataOptions(limit=2),
    )
    assert result.decoder == "boxes of digits.py; score above 0.3"
    assert [one.found.labels.tolist() for one in result.images] == [[3], [3]]


def test_folders_that_cannot_be_used_are_refused_before_anything_runs(tmp_path: Path) -> None:
    model, data = write_detector(tmp_path / "m.onnx"), write_images(tmp_path / "data", 255)
    before = (data / "a.png").read_bytes()
    for folder in (data, tmp_path, tmp_path / "no" / "such"):
        with pytest.raises(QdqError):
            infer(model, data, folder, None, YOLOX)
    with pytest.raises(QdqError, match="holds the input"):
        infer(model, data, data, InferOptions(force=True), YOLOX)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    with pytest.raises(QdqError, match="is not empty"):
        infer(model, data, tmp_path / "out", None, YOLOX)
    infer(model, data, tmp_path / "out", InferOptions(force=True), YOLOX)
    assert (tmp_path / "out" / "mine.txt").read_text() == "kept"
    assert (data / "a.png").read_bytes() == before


def test_a_broken_image_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    model, data = write_detector(tmp_path / "m.onnx"), write_images(tmp_path / "data", 255, 255)
    (data / "aa.jpg").write_bytes(b"no image")
    with pytest.raises(QdqError, match=r"aa\.jpg"):
        infer(model, data, tmp_path / "out", None, YOLOX)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "m.onnx"]


def test_inputs_that_are_no_images(tmp_path: Path, text_model: Any) -> None:
    model = text_model(
        "f (float[N,5] x) => (float[N,2,3] y) <float[5,6] w, int64[3] s = {-1, 2, 3}>"
        "{ a = MatMul(x, w) y = Reshape(a, s) }"
    )
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 5), np.float32))
    with pytest.raises(QdqError, match="takes no images"):
        infer(model, tmp_path / "d.npz", tmp_path / "out")
    classifier = text_model("f (float[N,5] x) => (float[N,6] y) <float[5,6] w> { y = MatMul(x, w) }")
    with pytest.raises(QdqError, match="holds arrays of 2 dimensions, no images"):
        infer(classifier, tmp_path / "d.npz", tmp_path / "out")
