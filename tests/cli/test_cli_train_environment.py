# SPDX-License-Identifier: Apache-2.0
"""The verbs that read data, as commands where onnxruntime-training is the onnxruntime (`make train`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.autodiff.installed import has_gradient_kernels
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from qdqtool.scales import ScaleTable

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(not has_gradient_kernels(), reason="needs onnxruntime-training: make train"),
]


def command(*words: object) -> str:
    """What `qdqtool WORDS...` prints in a process of its own; it has to end well, with no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def pairs_of(path: Path) -> tuple[int, int]:
    ops = [node.op_type for node in onnx.load(path).graph.node]
    return ops.count(QUANTIZE), ops.count(DEQUANTIZE)


@pytest.fixture(scope="module")
def detector(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The detector, data for it, and its Q/DQ model."""
    model, data = models / "digits_detector.onnx", models / "digits_calib.npz"
    placed = tmp_path_factory.mktemp("train") / "q.onnx"
    command("insert", model, "--data", data, "--limit", 8, "-o", placed)
    return model, data, placed


def test_the_doctor_finds_nothing_wrong() -> None:
    reported = json.loads(command("doctor", "--json"))
    runtime = next(item for item in reported["items"] if item["name"].startswith("onnxruntime"))
    assert reported["ok"] and runtime["state"] == "ok" and "builds gradients" in runtime["text"]


def test_insert_places_pairs(detector: tuple[Path, Path, Path]) -> None:
    model, _, placed = detector
    onnx.checker.check_model(onnx.load(placed))
    quantized, back = pairs_of(placed)
    assert quantized == back > 20
    convolutions = sum(node.op_type == "Conv" for node in onnx.load(model).graph.node)
    assert sum(node.op_type == "Conv" for node in onnx.load(placed).graph.node) == convolutions


def test_calibrate_scales_what_was_seen(detector: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, data, _ = detector
    command("calibrate", model, "--data", data, "--limit", 8, "--method", "max", "-o", tmp_path / "s.json")
    table = ScaleTable.from_json((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert table.provenance.samples == 8 and len(table) > 20
    with np.load(data) as stored:
        largest = np.abs(stored["images"][:8]).max()
    assert table["images"].bits == np.float32(largest / np.float32(127))


def test_ptq_and_compare(detector: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, data, placed = detector
    asked = ("--data", data, "--limit", 4)
    command("ptq", model, *asked, "--target", "gpu", "--trt-version", "8502", "--cache", tmp_path / "c.cache")
    assert (tmp_path / "c.cache").read_bytes().startswith(b"TRT-8502-EntropyCalibration2\nimages: ")
    reported: dict[str, Any] = json.loads(command("compare", model, placed, *asked, "--json"))
    assert reported["schema"] == 1


def test_evaluate_judges(models: Path) -> None:
    reported = json.loads(
        command("evaluate", models / "tiny_classifier.onnx", "--data", models / "digits8_test.npz", "--json")
    )
    assert reported["figures"]["top1"]["value"] > 0.9


def test_finetune_by_ort_training(detector: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, data, placed = detector
    trained = tmp_path / "t.onnx"
    asked = ("--data", data, "--limit", 8, "--steps", 4, "--backend", "ort-training")
    said = command("finetune", placed, *asked, "-o", trained)
    assert "gradients by ort-training" in said and "4 of 4 steps" in said
    assert pairs_of(trained) == pairs_of(placed)
    assert trained.read_bytes() != placed.read_bytes()
