# SPDX-License-Identifier: Apache-2.0
"""Two detectors side by side: the worst images first, counts of what was lost and made up, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.loader import DataOptions
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import DecodeOptions, Selection
from qdqtool.verbs.compare_pictures import DrawOptions, draw_differences
from qdqtool.verbs.infer_options import InferOptions
from tests.detector_model import BOXES, write_detector, write_images

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
Image = pytest.importorskip("PIL.Image", reason="Pillow reads and draws the images")

YOLOX = DataOptions(preprocess="yolox")
OTHER = (BOXES[0], (1, 0.5, (8.0, 40.0, 24.0, 60.0)))  # the first box, and one that the reference has not


def pair(folder: Path) -> tuple[Path, Path]:
    return write_detector(folder / "fp32.onnx"), write_detector(folder / "int8.onnx", OTHER)


def test_worst_first_with_counts(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 0, 170, 255)
    drawn = draw_differences(pair(tmp_path), data, tmp_path / "out", None, YOLOX)
    assert [path.name for path in drawn.files] == ["001_c.png", "002_b.png", "differences.json"]
    assert all(path.is_file() for path in drawn.files)
    # at 170 of 255 the scores are 0.6, 0.4 and 0.6, 0.33; in the dark there are none
    assert (drawn.images, drawn.boxes, drawn.lost, drawn.spurious) == (3, 4, 2, 2)
    found = json.loads(drawn.files[-1].read_text())
    assert (found["reference"], found["candidate"]) == ("fp32", "int8")
    assert [one["file"] for one in found["images"]] == ["c.png", "b.png", "a.png"]
    assert found["images"][0] == {
        "file": "c.png",
        "reference": 2,
        "candidate": 2,
        "lost": 1,
        "spurious": 1,
        "weight": pytest.approx(0.6 + 0.5, abs=1e-3),
    }
    assert found["images"][2]["weight"] == 0
    assert Image.open(drawn.files[0]).width == 2 * 384 + 4


def test_at_most_so_many_pictures_but_every_image_counts(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 255, 200, 230)
    drawn = draw_differences(pair(tmp_path), data, tmp_path / "out", DrawOptions(pictures=1), YOLOX)
    assert [path.name for path in drawn.files] == ["001_a.png", "differences.json"]
    assert (drawn.images, drawn.lost) == (3, 3)


def test_a_model_beside_itself_differs_in_nothing(tmp_path: Path) -> None:
    model, data = write_detector(tmp_path / "m.onnx"), write_images(tmp_path / "data", 255)
    drawn = draw_differences((model, model), data, tmp_path / "out", None, YOLOX)
    assert (drawn.boxes, drawn.lost, drawn.spurious) == (2, 0, 0)
    assert [path.name for path in drawn.files] == ["differences.json"]


def test_arrays_and_the_reading_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", images=np.full((2, 3, 64, 64), 255, np.float32))
    options = DrawOptions(InferOptions(DecodeOptions(selection=Selection(score=0.55))), titles=("A", "B"))
    drawn = draw_differences(pair(tmp_path), tmp_path / "d.npz", tmp_path / "out", options)
    assert (drawn.lost, drawn.spurious) == (2, 0)
    assert drawn.files[0].name == "001_sample_00000.png"
    assert "score above 0.55" in drawn.decoder
    assert json.loads(drawn.files[-1].read_text())["reference"] == "A"


def test_classifiers_and_folders_in_use_are_refused(tmp_path: Path, models: Path) -> None:
    classifier = models / "tiny_classifier.onnx"
    with pytest.raises(QdqError, match=r"--draw: .*classifier"):
        draw_differences((classifier, classifier), models / "digits8_test.npz", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    data = write_images(tmp_path / "data", 255)
    with pytest.raises(QdqError, match="holds the input"):
        draw_differences(pair(tmp_path), data, data, None, YOLOX)
