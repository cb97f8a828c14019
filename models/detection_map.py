# SPDX-License-Identifier: Apache-2.0
"""Mean average precision of digit detectors on the held-out scenes: decode, NMS, AP as COCO counts it, in numpy.

python models/detection_map.py MODEL.onnx [MODEL2.onnx ...] [--data models/digits_test.npz]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

STRIDE = 8  # a cell of the score map covers 8x8 pixels
LOWEST_SCORE = 0.05
NMS_IOU = 0.5
THRESHOLDS = np.arange(50, 100, 5) / 100  # the IoUs that AP50:95 averages over
RECALLS = np.linspace(0, 1, 101)  # where COCO reads the precision


class Boxes(NamedTuple):
    """M boxes [M, 4] (x1, y1, x2, y2 in pixels) with the class and the scene of each; `score` is 1 for the truth."""

    box: np.ndarray
    label: np.ndarray
    scene: np.ndarray
    score: np.ndarray


def evaluate(path: str | Path, data: str | Path | Mapping[str, np.ndarray]) -> dict[str, float]:
    """Run a model over the scenes and score its detections.

    Args:
        path: an ONNX model: images [N, 1, 96, 96] -> scores [N, 10, 12, 12] in (0, 1), boxes [N, 4, 12, 12] raw.
        data: images [N, 96, 96] uint8, boxes [M, 4], labels [M] and scene [M] (which image), or their `.npz`.

    Returns:
        ap50, ap50_95 (0 to 1, mean over the classes that occur) and how many detections were scored.
    """
    if not isinstance(data, Mapping):
        with np.load(data, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
    found = detect(*run(path, data["images"][:, None].astype(np.float32) / np.float32(255)))
    truth = Boxes(data["boxes"], data["labels"], data["scene"], np.ones(len(data["labels"]), np.float32))
    by_threshold = [mean_average_precision(found, truth, float(iou)) for iou in THRESHOLDS]
    return {"ap50": by_threshold[0], "ap50_95": float(np.mean(by_threshold)), "detections": float(len(found.label))}


def run(path: str | Path, images: np.ndarray, batch: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """The outputs "scores" and "boxes" over all images, computed as the graph is written.

    onnxruntime's defaults would quantize the biases of a Q/DQ model and so measure another model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    chunks = [
        session.run(["scores", "boxes"], {"images": images[start : start + batch]})
        for start in range(0, len(images), batch)
    ]
    return np.concatenate([c[0] for c in chunks]), np.concatenate([c[1] for c in chunks])


def decode(boxes: np.ndarray) -> np.ndarray:
    """Raw boxes [N, 4, H, W] (shift of the center in cells, log of the size in cells) to [N, H, W, 4] corners."""
    rows, columns = np.mgrid[0 : boxes.shape[2], 0 : boxes.shape[3]]
    center = np.stack([columns + 0.5 + boxes[:, 0], rows + 0.5 + boxes[:, 1]], axis=-1)
    half = np.exp(np.moveaxis(boxes[:, 2:], 1, -1)) / 2
    return np.concatenate([center - half, center + half], axis=-1) * STRIDE


def detect(scores: np.ndarray, boxes: np.ndarray) -> Boxes:
    """All boxes that score, less those that a better one of the same class and scene covers."""
    corners = decode(boxes)
    scene, label, row, column = np.nonzero(scores > LOWEST_SCORE)
    all_found = Boxes(corners[scene, row, column], label, scene, scores[scene, label, row, column])
    return _rows(all_found, _suppress(all_found))


def _suppress(found: Boxes) -> np.ndarray:
    """The rows that greedy NMS keeps, best score first."""
    order = np.argsort(-found.score, kind="stable")
    kept = []
    while len(order):
        best, rest = order[0], order[1:]
        kept.append(best)
        same = (found.scene[rest] == found.scene[best]) & (found.label[rest] == found.label[best])
        covered = same & (iou(found.box[best][None], found.box[rest])[0] > NMS_IOU)
        order = rest[~covered]
    return np.array(kept, np.int64)


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of every box of a [A, 4] with every box of b [B, 4]: [A, B]."""
    size = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    both = np.clip(size, 0, None).prod(-1)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(-1) for x in (a, b))
    return np.asarray(both / np.maximum(area_a[:, None] + area_b[None] - both, 1e-9))


def mean_average_precision(found: Boxes, truth: Boxes, threshold: float) -> float:
    """The mean over the classes in `truth` of each one's average precision."""
    return float(
        np.mean(
            [
                average_precision(_rows(found, found.label == label), _rows(truth, truth.label == label), threshold)
                for label in np.unique(truth.label)
            ]
        )
    )


def average_precision(found: Boxes, truth: Boxes, threshold: float) -> float:
    """AP of one class: precision, made falling, read at 101 recalls (COCO)."""
    hit = _match(found, truth, threshold)
    hits = np.cumsum(hit)
    precision = hits / np.arange(1, len(hit) + 1)
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    first = np.searchsorted(hits / len(truth.label), RECALLS, side="left")
    return float(np.where(first < len(hit), np.append(falling, 0)[first], 0).mean())


def _match(found: Boxes, truth: Boxes, threshold: float) -> np.ndarray:
    """True for each detection, best first, that takes a true box of its scene that no better one took."""
    taken = np.zeros(len(truth.label), bool)
    hit = np.zeros(len(found.label), bool)
    for rank, row in enumerate(np.argsort(-found.score, kind="stable")):
        free = np.flatnonzero((truth.scene == found.scene[row]) & ~taken)
        overlap = iou(found.box[row][None], truth.box[free])[0]
        if len(free) and overlap.max() >= threshold:
            taken[free[overlap.argmax()]] = hit[rank] = True
    return hit


def _rows(boxes: Boxes, rows: np.ndarray) -> Boxes:
    return Boxes(*(column[rows] for column in boxes))


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description="mAP of digit detectors on held-out scenes")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parent / "digits_test.npz")
    chosen = parser.parse_args()
    for path in (*chosen.models, chosen.data):
        if not path.is_file():
            parser.error(f"{path}: no such file")
    print(f"{'model':<44}{'AP50':>9}{'AP50:95':>9}{'boxes':>7}")
    for path in chosen.models:
        figures = evaluate(path, chosen.data)
        print(f"{path!s:<44}{figures['ap50']:>9.4f}{figures['ap50_95']:>9.4f}{figures['detections']:>7.0f}")


if __name__ == "__main__":
    main()
