# SPDX-License-Identifier: Apache-2.0
"""Mean average precision of the small DETR on scenes of shapes: read its outputs, AP as COCO counts it.

python models/shape_detections.py MODEL.onnx [MODEL2.onnx ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from detection_map import THRESHOLDS, Boxes, mean_average_precision
from shape_scenes import SIDE, TEST, draw

LOWEST_SCORE = 0.05
BATCH = 50


def run(model: str | Path | bytes, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The outputs "logits" and "boxes" over all images, computed as the graph is written: Q/DQ as they stand."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.intra_op_num_threads = 1
    source = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    parts = [
        session.run(["logits", "boxes"], {"images": images[start : start + BATCH]})
        for start in range(0, len(images), BATCH)
    ]
    return np.concatenate([one[0] for one in parts]), np.concatenate([one[1] for one in parts])


def detections(logits: np.ndarray, boxes: np.ndarray) -> Boxes:
    """Every class of every query that scores, its box by corners in pixels. No NMS: a query answers for one shape."""
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    corners = np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1) * SIDE
    scene, row, label = np.nonzero(scores > LOWEST_SCORE)
    return Boxes(corners[scene, row], label, scene, scores[scene, row, label].astype(np.float32))


def figures(found: Boxes, scenes: dict[str, np.ndarray]) -> dict[str, float]:
    """AP at IoU 0.5 and its mean over 0.5 to 0.95, both means over the classes."""
    truth = Boxes(scenes["boxes"], scenes["labels"], scenes["scene"], np.ones(len(scenes["labels"]), np.float32))
    by_threshold = [mean_average_precision(found, truth, float(iou)) for iou in THRESHOLDS]
    return {"ap50": by_threshold[0], "ap50_95": float(np.mean(by_threshold))}


def score(model: str | Path | bytes, seed: int = TEST[0], count: int = TEST[1]) -> dict[str, float]:
    """The figures of a model on scenes of a seed."""
    scenes = draw(seed, count)
    return figures(detections(*run(model, scenes["images"])), scenes)


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description="mAP of the small DETR on held-out scenes")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    chosen = parser.parse_args()
    print(f"{'model':<44}{'AP50':>9}{'AP50:95':>9}")
    for path in chosen.models:
        found = score(path)
        print(f"{path!s:<44}{found['ap50']:>9.4f}{found['ap50_95']:>9.4f}")


if __name__ == "__main__":
    main()
