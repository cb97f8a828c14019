# SPDX-License-Identifier: Apache-2.0
"""A detector of a few nodes: YOLOX's output, fixed boxes whose object score is the image's brightness. No tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 64
CELLS = 64 + 16 + 4
CLASSES = 2
# class, score, and box in pixels of the input
BOXES = ((0, 0.9, (8.0, 8.0, 24.0, 24.0)), (1, 0.6, (32.0, 32.0, 56.0, 60.0)))


def head_of(boxes: tuple[tuple[int, float, tuple[float, float, float, float]], ...]) -> np.ndarray:
    """YOLOX's raw rows (1, CELLS, 5 + CLASSES), the boxes in cells of stride 8."""
    head = np.zeros((1, CELLS, 5 + CLASSES), np.float32)
    for label, score, (x1, y1, x2, y2) in boxes:
        x, y = (x1 + x2) / 16, (y1 + y2) / 16
        row = head[0, int(y) * 8 + int(x)]
        row[:4] = x - int(x), y - int(y), np.log((x2 - x1) / 8), np.log((y2 - y1) / 8)
        row[4], row[5 + label] = 1.0, score
    return head


def write_detector(path: Path, boxes: tuple = BOXES, batch: int | str = "n") -> Path:  # type: ignore[type-arg]
    """Images (batch, 3, 64, 64) in 0..255 -> output: head * mean(image) / 255 in the object column."""
    mask = np.zeros((1, 1, 5 + CLASSES), np.float32)
    mask[..., 4] = 1.0
    head = head_of(boxes)
    tensors = {
        "head": head * (1 - mask),
        "object": head * mask,
        "unit": np.float32(1 / 255),
        "last": np.array([2, 3]),
        "end": np.array([2]),
    }
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["mean3"]),
        helper.make_node("ReduceMean", ["mean3"], ["mean1"], axes=[1], keepdims=1),
        helper.make_node("Squeeze", ["mean1", "last"], ["mean"]),
        helper.make_node("Mul", ["mean", "unit"], ["light1"]),
        helper.make_node("Unsqueeze", ["light1", "end"], ["light"]),
        helper.make_node("Mul", ["object", "light"], ["lit"]),
        helper.make_node("Add", ["lit", "head"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, CELLS, 5 + CLASSES])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(path))
    return path


def write_images(folder: Path, *levels: int, size: tuple[int, int] = (128, 128)) -> Path:
    """Plain images a.png, b.png, ... of those grey levels."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for index, level in enumerate(levels):
        Image.new("RGB", size, (level,) * 3).save(folder / f"{'abcdefgh'[index]}.png")
    return folder
