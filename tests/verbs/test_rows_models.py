# SPDX-License-Identifier: Apache-2.0
"""A detector with DeepStream-Yolo's rows: evaluate, infer and deploy see its boxes; names are checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool import DataOptions, DeployOptions, EvaluateOptions, InferOptions, QdqError, deploy, evaluate, infer
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.tasks import BoxAgreement, TaskOptions
from qdqtool.graph.io import open_model
from qdqtool.workflows.judge import Judge
from tests.detector_model import BOXES, write_detector
from tests.rows_model import write_rows_detector

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
pytest.importorskip("pycocotools", reason="boxes are compared by it")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """rows.onnx, picked.onnx, raw.onnx and bright images."""
    write_rows_detector(tmp_path / "rows.onnx", 1)
    write_rows_detector(tmp_path / "picked.onnx", 1, pick=10)
    write_detector(tmp_path / "raw.onnx", batch=1)
    images = np.random.default_rng(3).uniform(230, 255, (24, 3, 64, 64)).astype(np.float32)
    np.save(tmp_path / "d.npy", images)
    return tmp_path


@pytest.mark.parametrize(("name", "family"), [("rows", "rows"), ("picked", "nms"), ("raw", "yolox")])
def test_every_form_gives_the_same_boxes(here: Path, name: str, family: str) -> None:
    data = DataOptions(limit=2)
    done = infer(here / f"{name}.onnx", here / "d.npy", here / "out", InferOptions(progress=False), data)
    assert done.decoder.startswith(f"{family}: ")
    first = done.images[0].found
    assert isinstance(first, Detections)
    found = sorted((int(label), box.round().tolist()) for box, label in zip(first.boxes, first.labels, strict=True))
    assert found == sorted((label, list(box)) for label, _, box in BOXES)


def test_rows_agree_with_themselves(here: Path) -> None:
    options = EvaluateOptions(baseline=here / "rows.onnx", progress=False)
    found = evaluate(here / "rows.onnx", here / "d.npy", options=options)
    assert "rows: rows/all [1, 84, 6]" in found.means and found.figures["agreement"][0].value == 1.0


def test_more_names_than_classes_are_refused_by_what_chooses(here: Path) -> None:
    """The outputs would be read wrong, or the names are of another model."""
    judge = Judge(open_model(here / "rows.onnx"), (here / "d.npy", DataOptions()), TaskOptions(), print)
    assert isinstance(judge.chosen.task, BoxAgreement) and judge.chosen.family == "rows"
    options = DeployOptions("orin-nx:jp6.1", effort="fast", progress=False, names="a,b,c")
    with pytest.raises(QdqError, match=r"3 classes, .* 2 classes"):
        deploy(here / "raw.onnx", here / "d.npy", here / "deployed", options)


def test_deploy_writes_the_parser_and_the_nms(here: Path) -> None:
    options = DeployOptions("orin-nx:jp6.1", effort="fast", progress=False, names="a,b")
    deploy(here / "rows.onnx", here / "d.npy", here / "deployed", options)
    (file,) = (here / "deployed").glob("rows.*.deepstream.txt")
    text = file.read_text("utf-8")
    for line in ("network-type=0", "num-detected-classes=2", "cluster-mode=2", "nms-iou-threshold=0.45"):
        assert f"{line}\n" in text
    assert "parse-bbox-func-name=NvDsInferParseYolo\n" in text and "labelfile-path=labels.txt\n" in text
