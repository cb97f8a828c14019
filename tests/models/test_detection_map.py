# SPDX-License-Identifier: Apache-2.0
"""The script that scores detectors: decode, NMS and average precision against cases worked by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

DETECTOR, CLASSIFIER = "digits_detector.onnx", "tiny_classifier.onnx"


@pytest.fixture(scope="module")
def scoring(models: Path) -> Iterator[ModuleType]:
    """models/detection_map.py, imported as a script's neighbors import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(models))
        yield importlib.import_module("detection_map")
        sys.modules.pop("detection_map", None)


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def boxes_of(scoring: ModuleType, rows: list[tuple[float, float, float, float]], **columns: list[float]) -> object:
    """Boxes with class 0, scene 0 and falling scores unless given."""
    count = len(rows)
    return scoring.Boxes(
        np.array(rows, np.float32).reshape(-1, 4),
        np.array(columns.get("label", [0] * count), np.int64),
        np.array(columns.get("scene", [0] * count), np.int64),
        np.array(columns.get("score", np.linspace(0.9, 0.5, count)), np.float32),
    )


FIRST, SECOND, NOWHERE = (0, 0, 10, 10), (20, 20, 30, 30), (50, 50, 60, 60)


def test_iou_of_boxes_drawn_on_paper(scoring: ModuleType) -> None:
    a = np.array([FIRST, SECOND], np.float32)
    b = np.array([FIRST, (5, 0, 15, 10), (0, 0, 10, 5)], np.float32)
    np.testing.assert_allclose(scoring.iou(a, b), np.array([[1, 50 / 150, 50 / 100], [0, 0, 0]]), rtol=1e-6)


def test_decode_of_one_cell(scoring: ModuleType) -> None:
    raw = np.zeros((1, 4, 12, 12), np.float32)
    raw[0, :, 2, 5] = [0.25, -0.5, np.log(2), np.log(3)]
    # center x = (5 + 0.5 + 0.25) * 8 = 46, y = (2 + 0.5 - 0.5) * 8 = 16; width 16, height 24
    np.testing.assert_allclose(scoring.decode(raw)[0, 2, 5], [38, 4, 54, 28], rtol=1e-6)
    np.testing.assert_allclose(scoring.decode(raw)[0, 0, 11], [88, 0, 96, 8], rtol=1e-6)


def test_perfect_detections_score_one_at_every_threshold(scoring: ModuleType) -> None:
    truth = boxes_of(scoring, [FIRST, SECOND, FIRST], label=[0, 3, 3], scene=[0, 0, 1])
    assert [scoring.mean_average_precision(truth, truth, t) for t in scoring.THRESHOLDS] == [1.0] * 10


def test_shifted_boxes_lose_the_strict_thresholds_only(scoring: ModuleType) -> None:
    truth = boxes_of(scoring, [FIRST, SECOND])
    shifted = boxes_of(scoring, [(2, 0, 12, 10), (22, 20, 32, 30)])  # IoU 80 / 120
    by_threshold = [scoring.mean_average_precision(shifted, truth, t) for t in scoring.THRESHOLDS]
    assert by_threshold == [1.0] * 4 + [0.0] * 6


def test_average_precision_worked_by_hand(scoring: ModuleType) -> None:
    """Hit, miss, hit: recall 1/2 at precision 1, recall 1 at 2/3; 51 of 101 recalls read 1, the others 2/3."""
    found = boxes_of(scoring, [FIRST, NOWHERE, SECOND], score=[0.9, 0.8, 0.7])
    truth = boxes_of(scoring, [FIRST, SECOND])
    assert scoring.average_precision(found, truth, 0.5) == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_the_order_is_by_score_not_by_row(scoring: ModuleType) -> None:
    truth = boxes_of(scoring, [FIRST])
    miss_first = boxes_of(scoring, [FIRST, NOWHERE], score=[0.3, 0.8])
    hit_first = boxes_of(scoring, [NOWHERE, FIRST], score=[0.3, 0.8])
    assert scoring.average_precision(miss_first, truth, 0.5) == pytest.approx(1 / 2)
    assert scoring.average_precision(hit_first, truth, 0.5) == 1.0


def test_a_true_box_is_taken_once(scoring: ModuleType) -> None:
    """Two detections of the first digit and none of the second: half the recalls are never reached."""
    found = boxes_of(scoring, [FIRST, FIRST])
    truth = boxes_of(scoring, [FIRST, SECOND])
    assert scoring.average_precision(found, truth, 0.5) == pytest.approx(51 / 101)


def test_a_box_in_another_scene_or_of_another_class_is_no_hit(scoring: ModuleType) -> None:
    truth = boxes_of(scoring, [FIRST])
    assert scoring.mean_average_precision(boxes_of(scoring, [FIRST], scene=[1]), truth, 0.5) == 0
    assert scoring.mean_average_precision(boxes_of(scoring, [FIRST], label=[1]), truth, 0.5) == 0


def test_nothing_found_scores_nothing(scoring: ModuleType) -> None:
    assert scoring.mean_average_precision(boxes_of(scoring, []), boxes_of(scoring, [FIRST]), 0.5) == 0


def test_nms_drops_the_weaker_of_two_covering_boxes_of_one_class_and_scene(scoring: ModuleType) -> None:
    scores = np.zeros((2, 10, 12, 12), np.float32)
    raw = np.zeros((2, 4, 12, 12), np.float32)
    raw[:, 2:] = np.log(3)  # 24x24 boxes: neighbors, 8 pixels apart, overlap by 16 * 24 / (32 * 24) = 0.5
    raw[:, 0, 5, 6] = -0.25  # 6 pixels apart: IoU 18 / 30
    scores[0, 1, 5, [5, 6]] = 0.9, 0.8
    scores[0, 2, 5, 6] = 0.7
    scores[1, 1, 5, 6] = 0.6
    scores[1, 1, 0, 0] = scoring.LOWEST_SCORE / 2
    kept = scoring.detect(scores, raw)
    np.testing.assert_allclose(kept.score, [0.9, 0.7, 0.6])
    assert (kept.label.tolist(), kept.scene.tolist()) == ([1, 2, 1], [0, 0, 1])
    raw[:, 0, 5, 6] = 0.25  # 10 pixels apart: IoU 14 / 34
    np.testing.assert_allclose(scoring.detect(scores, raw).score, [0.9, 0.8, 0.7, 0.6])


@pytest.mark.slow
def test_a_spoilt_model_scores_lower(models: Path, scoring: ModuleType, tmp_path: Path) -> None:
    """Box weights rounded to a quarter: the figures that INT8 is judged by do move."""
    model = onnx.load(models / DETECTOR)
    for tensor in model.graph.initializer:
        if tensor.name == "box_head.conv.weight":
            values = np.round(onnx.numpy_helper.to_array(tensor) * 4) / 4
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    (tmp_path / "spoilt.onnx").write_bytes(model.SerializeToString())
    data = arrays(models / "digits_test.npz")
    rows = data["scene"] < 40
    few = {"images": data["images"][:40], **{name: data[name][rows] for name in ("boxes", "labels", "scene")}}
    good, bad = (scoring.evaluate(path, few) for path in (models / DETECTOR, tmp_path / "spoilt.onnx"))
    assert bad["ap50_95"] < good["ap50_95"] - 0.02


def test_the_command_prints_a_line_per_model(
    models: Path, scoring: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[object, object]] = []

    def figures(path: object, data: object) -> dict[str, float]:
        asked.append((path, data))
        return {"ap50": 0.5, "ap50_95": 0.25, "detections": 7.0}

    monkeypatch.setattr(scoring, "evaluate", figures)
    monkeypatch.setattr(sys, "argv", ["detection_map.py", str(models / DETECTOR), str(models / CLASSIFIER)])
    scoring.main()
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "AP50", "AP50:95", "boxes"]
    assert [line.split() for line in lines] == [
        [str(models / name), "0.5000", "0.2500", "7"] for name in (DETECTOR, CLASSIFIER)
    ]
    assert asked == [(models / name, models / "digits_test.npz") for name in (DETECTOR, CLASSIFIER)]


def test_the_command_names_a_file_that_is_not_there(
    scoring: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["detection_map.py", "absent.onnx"])
    with pytest.raises(SystemExit) as stop:
        scoring.main()
    assert stop.value.code == 2
    assert "absent.onnx: no such file" in capsys.readouterr().err
