# SPDX-License-Identifier: Apache-2.0
"""What deploy tells Gst-nvinfer of a model's outputs, and that the folder has the file of class names."""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import DeployOptions, deploy
from qdqtool.cli.main import main
from qdqtool.emit.job import Tensor
from qdqtool.evaluation.decode.head import HeadDecoder, RecognizedHead
from qdqtool.evaluation.decode_options import Selection
from qdqtool.evaluation.tasks import BoxAgreement, ChosenTask, ClassAgreement, OutputSignal
from qdqtool.workflows.deploy_network import network_of
from tests.emit.jobs import FLOAT
from tests.graphs import SMALL_NET, model_of


def task(family: str, classes: int | None = None) -> BoxAgreement:
    head = RecognizedHead("a head", 0.5, lambda outputs, size: (np.zeros((0, 4)), np.zeros((0, 1))), classes)
    return BoxAgreement(HeadDecoder(family, head, Selection()))


def outputs(*shape: int) -> tuple[Tensor, ...]:
    return (Tensor("y", FLOAT, shape),)


def test_rows_of_an_end_to_end_detector_are_known() -> None:
    found = network_of(task("nms"), "a,b", outputs(1, 300, 6), "labels.txt")
    assert (found.kind, found.rows, found.suppressed, found.names, found.labels) == (
        "detector",
        True,
        True,
        ("a", "b"),
        "labels.txt",
    )


def test_dense_rows_are_such_rows_and_are_suppressed_by_gst_nvinfer() -> None:
    found = network_of(task("rows"), "coco", outputs(1, 8400, 6), "labels.txt")
    assert (found.rows, found.suppressed, len(found.names)) == (True, False, 80)


@pytest.mark.parametrize(
    ("family", "shapes"),
    [("nms", outputs(1, 300, 7)), ("nms", outputs(1, 9, 6) * 2), ("yolov5", outputs(1, 2100, 6))],
)
def test_other_outputs_are_no_such_rows(family: str, shapes: tuple[Tensor, ...]) -> None:
    """A YOLOv5 of one class has six columns, too: centers, sides, object, class."""
    found = network_of(task(family, 1), "a", shapes, "labels.txt")
    assert found.kind == "detector" and not found.rows and found.iou == 0.5


def test_coco_has_as_many_names_as_the_model_has_classes() -> None:
    assert len(network_of(task("nanodet", 80), "coco", outputs(1, 10), "l").names) == 80
    assert len(network_of(task("ssd", 90), "coco", outputs(1, 10), "l").names) == 90


def test_the_family_is_the_decoders() -> None:
    assert ChosenTask(task("nanodet")).family == "nanodet" and ChosenTask(OutputSignal()).family == ""


def test_no_names_no_file() -> None:
    for judged in (task("nanodet", 80), ClassAgreement(), OutputSignal()):
        assert network_of(judged, None, outputs(1, 10), "labels.txt").labels == ""
    assert network_of(OutputSignal(), "a,b", outputs(1, 10), "l").kind == "other"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["8.6.1", "xavier-nx:jp4.6.1"])
def test_the_folder_has_the_names_and_the_configuration_reads_them(place: str, tmp_path: Path) -> None:
    """With a cache that peel made, too."""
    onnx.save(model_of(SMALL_NET.replace("float[N", "float[1"), opset=11), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(24, 4, 8, 8)).astype(np.float32))
    names = ",".join(f"class {n}" for n in range(5))
    options = DeployOptions(place, effort="fast", progress=False, names=names, dla=place != "8.6.1")
    done = deploy(tmp_path / "net.onnx", tmp_path / "data.npy", tmp_path / "out", options)
    text = (tmp_path / "out" / "net.int8.deepstream.txt").read_text("utf-8")
    assert "labels.txt" in done.files and "labelfile-path=labels.txt" in text
    assert text.count("network-type=") == 1 and "class 4" in (tmp_path / "out" / "labels.txt").read_text("utf-8")


@pytest.mark.slow
def test_on_a_jetson_the_line_that_makes_a_cache_of_what_was_kept_runs_as_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gst-nvinfer builds no Q/DQ model by itself. INT8 of so small a network is no faster: FP16 is left out."""
    module = import_module("qdqtool.workflows.deploy")
    every = module.candidates_for
    monkeypatch.setattr(module, "candidates_for", lambda *words: [one for one in every(*words) if not one.is_float])
    onnx.save(model_of(SMALL_NET.replace("float[N", "float[1"), opset=11), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(24, 4, 8, 8)).astype(np.float32))
    options = DeployOptions("orin-nx:jp6.1", effort="fast", progress=False, names="a,b,c,d,e")
    done = deploy(tmp_path / "net.onnx", tmp_path / "data.npy", tmp_path / "the out", options)
    assert "run net.int8.trtexec.sh" in (tmp_path / "the out" / "net.int8.deepstream.txt").read_text("utf-8").lower()
    (note,) = (note for note in done.notes if note.startswith("Gst-nvinfer builds INT8 from a cache alone"))
    (beside,) = (
        note for note in done.notes if note.startswith("a cache peeled from it, which has more layers in INT8: ")
    )
    assert "loss " in beside and "samples)" in beside
    words = shlex.split(note[note.index("qdqtool peel") :])
    assert main(words[1:]) == 0, capsys.readouterr().err
    text = (tmp_path / "the out" / "net.int8.nvinfer.deepstream.txt").read_text("utf-8")
    assert "int8-calib-file=net.int8.nvinfer.cache\n" in text
    assert "# net.int8.nvinfer.labels.txt has" in text
    again = deploy(tmp_path / "net.onnx", tmp_path / "data.npy", tmp_path / "card", replace(options, place="10.3"))
    assert not any("cache alone" in note for note in again.notes), "no board, no DeepStream"


def test_a_detector_whose_images_are_stretched_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When that is reported: tests/evaluation/test_known_preprocess.py."""
    module = import_module("qdqtool.workflows.deploy")
    monkeypatch.setattr(module, "resize_note", lambda given, family, data: (f"{family} in {data} by {given}",))
    monkeypatch.setattr(ChosenTask, "family", "yolov8")
    onnx.save(model_of(SMALL_NET.replace("float[N", "float[1"), opset=11), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(24, 4, 8, 8)).astype(np.float32))
    options = DeployOptions("8.6.1", effort="fast", progress=False)
    done = deploy(tmp_path / "net.onnx", tmp_path / "data.npy", tmp_path / "out", options)
    assert any(note.startswith("yolov8 in ") and note.endswith("by None") for note in done.notes)
