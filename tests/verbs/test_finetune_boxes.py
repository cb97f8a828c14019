# SPDX-License-Identifier: Apache-2.0
"""A detector trained on labeled boxes by one command: targets, loss and Q/DQ come from the model and the labels."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.main import main
from qdqtool.errors import QdqError
from qdqtool.training.options import RunOptions
from qdqtool.verbs.finetune import FinetuneOptions, finetune

DETECTOR = Path(__file__).parents[2] / "models" / "bccd_detector.onnx"
SIZE = (224, 160)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with one disc each, as a blood cell, and their boxes."""
    folder = tmp_path_factory.mktemp("boxes")
    rng = np.random.default_rng(0)
    images, boxes = np.full((6, 3, 160, 224), 0.8, np.float32), []
    down, across = np.mgrid[:160, :224]
    for image in images:
        radius, x, y = rng.uniform(15, 25), rng.uniform(40, 180), rng.uniform(40, 120)
        image[:, (across - x) ** 2 + (down - y) ** 2 < radius**2] = np.array([[0.7], [0.4], [0.5]])
        boxes.append([x - radius, y - radius, x + radius, y + radius])
    np.savez(folder / "images.npz", images=images)
    np.savez(folder / "boxes.npz", boxes=np.array(boxes, np.float32), labels=np.ones(6, np.int64), image=np.arange(6))
    np.savez(folder / "high.npz", boxes=boxes, labels=np.full(6, 3), image=np.arange(6))
    np.savez(folder / "none.npz", boxes=np.zeros((0, 4)), labels=np.zeros(0, np.int64), image=np.zeros(0, np.int64))
    return folder


@pytest.mark.slow
def test_one_command_trains_a_detector_and_resumes_to_the_same_bytes(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", str(DETECTOR), "--data", str(scenes / "images.npz"), "--labels", str(scenes / "boxes.npz")]
    words += ["--steps", "4", "--batch", "2", "--evaluate-every", "2", "--relative-lr", "0.02", "--json"]
    words += ["--checkpoint", str(tmp_path / "c.npz"), "--keep-checkpoint", "-o"]
    assert main([*words, str(tmp_path / "a.onnx")]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["after"] < found["before"]
    assert "trained by YOLOX's loss (IoU, object and class entropies) with targets by SimOTA" in err
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(tmp_path / "a.onnx").graph.node)
    assert main([*words, str(tmp_path / "b.onnx"), "--resume"]) == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "message"), [("high.npz", "has a box of class 3, the model has 3 classes"), ("none.npz", "hold no box")]
)
def test_boxes_that_do_not_fit_are_refused(scenes: Path, tmp_path: Path, labels: str, message: str) -> None:
    options = FinetuneOptions(run=RunOptions(steps=1, progress=False), labels=scenes / labels)
    with pytest.raises(QdqError, match=message):
        finetune(DETECTOR, scenes / "images.npz", options, output=tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_one_command_trains_the_bundled_transformer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy", reason="SciPy matches queries to boxes")
    monkeypatch.syspath_prepend(str(DETECTOR.parent))
    scenes = importlib.import_module("shape_scenes").draw(7, 8)
    np.savez(tmp_path / "images.npz", images=scenes["images"])
    np.savez(tmp_path / "l.npz", boxes=scenes["boxes"], labels=scenes["labels"], image=scenes["scene"])
    words = ["finetune", str(DETECTOR.with_name("shapes_detr.onnx")), "--data", str(tmp_path / "images.npz")]
    words += ["--labels", str(tmp_path / "l.npz"), "--steps", "6", "--batch", "4", "--relative-lr", "0.02"]
    assert main([*words, "--evaluate-every", "3", "--json", "-o", str(tmp_path / "t.onnx")]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["after"] < found["before"]
    assert "trained by Deformable DETR's loss (focal loss, L1, GIoU) with targets by Hungarian matching" in err
