# SPDX-License-Identifier: Apache-2.0
"""Detector outputs made from known boxes, box by box, the inverse of what the decoders do. No tests here."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qdqtool.data.geometry import Geometry
from qdqtool.evaluation.detections import Detections

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Known:
    """A box that a head must give back."""

    label: int
    score: float
    box: tuple[float, float, float, float]

    @property
    def center(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2

    @property
    def sides(self) -> tuple[float, float]:
        return self.box[2] - self.box[0], self.box[3] - self.box[1]


def identity(size: tuple[int, int]) -> Geometry:
    return Geometry(*size, (1.0, 1.0), (0.0, 0.0), size)


def boxes_in(size: tuple[int, int], classes: int, seed: int, sides: tuple[int, int] = (36, 80)) -> list[Known]:
    """Four boxes, one in each quarter of the input, so that none covers another; scores fall."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(4):
        wide, high = rng.uniform(*sides, 2)
        left = (index % 2) * size[0] / 2 + rng.uniform(0, size[0] / 2 - wide)
        top = (index // 2) * size[1] / 2 + rng.uniform(0, size[1] / 2 - high)
        found.append(Known(int(rng.integers(classes)), 0.9 - index / 10, (left, top, left + wide, top + high)))
    return found


def check(found: Detections, known: list[Known], atol: float = 2e-3) -> None:
    """The detections are the known boxes, best first, and nothing else."""
    assert found.labels.tolist() == [one.label for one in known]
    np.testing.assert_allclose(found.scores, [one.score for one in known], atol=1e-4)
    np.testing.assert_allclose(found.boxes, [one.box for one in known], atol=atol)
    assert (found.boxes.dtype, found.scores.dtype, found.labels.dtype) == (np.float32, np.float32, np.int64)


def logit(value: float) -> float:
    return math.log(value / (1 - value))


def bins_for(distance: float, bins: int) -> list[float]:
    """Logits whose softmax has the mean `distance`: two neighboring bins share it."""
    low = min(int(distance), bins - 2)
    part = min(max(distance - low, 1e-9), 1 - 1e-9)
    logits = [-60.0] * bins
    logits[low], logits[low + 1] = math.log(1 - part), math.log(part)
    return logits


def cell_of(one: Known, stride: int) -> tuple[int, int]:
    return int(one.center[0] // stride), int(one.center[1] // stride)


def row_of(one: Known, size: tuple[int, int], strides: tuple[int, ...], stride: int) -> int:
    """The row of a box's cell in maps behind one another."""
    before = sum((size[0] // s) * (size[1] // s) for s in strides[: strides.index(stride)])
    column, line = cell_of(one, stride)
    return before + line * (size[0] // stride) + column


def rows_in(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    return sum((size[0] // s) * (size[1] // s) for s in strides)


def by_turns(known: list[Known], strides: tuple[int, ...]) -> list[tuple[Known, int]]:
    return [(one, strides[index % len(strides)]) for index, one in enumerate(known)]


# --------------------------------------------------------------------------------------------------------- families


def yolox(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    strides = (8, 16, 32)
    output = np.zeros((1, rows_in(size, strides), 5 + classes), np.float32)
    for one, stride in by_turns(known, strides):
        column, line = cell_of(one, stride)
        row = output[0, row_of(one, size, strides, stride)]
        row[:2] = one.center[0] / stride - column, one.center[1] / stride - line
        row[2:4] = [math.log(side / stride) for side in one.sides]
        row[4], row[5 + one.label] = 1.0, one.score
    return {"output": output}


def nanodet(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    outputs: Outputs = {}
    for stride in (8, 16, 32):
        outputs[f"cls_{stride}"] = np.zeros((1, rows_in(size, (stride,)), classes), np.float32)
    for stride in (8, 16, 32):
        outputs[f"dis_{stride}"] = np.zeros((1, rows_in(size, (stride,)), 32), np.float32)
    for one, stride in by_turns(known, (16, 32)):
        column, line = cell_of(one, stride)
        row = row_of(one, size, (stride,), stride)
        x, y = column * stride + (stride - 1) / 2, line * stride + (stride - 1) / 2
        outputs[f"cls_{stride}"][0, row, one.label] = one.score
        outputs[f"dis_{stride}"][0, row] = distances(one, x, y, stride, 8)
    return outputs


def nanodet_plus(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    strides = (8, 16, 32, 64)
    output = np.zeros((1, rows_in(size, strides), classes + 32), np.float32)
    for one, stride in by_turns(known, (8, 16)):
        column, line = cell_of(one, stride)
        row = output[0, row_of(one, size, strides, stride)]
        row[one.label] = one.score
        row[classes:] = distances(one, column * stride, line * stride, stride, 8)
    return {"output": output}


def distances(one: Known, x: float, y: float, stride: float, bins: int) -> list[float]:
    sides = (x - one.box[0], y - one.box[1], one.box[2] - x, one.box[3] - y)
    assert all(0 <= side / stride <= bins - 1 for side in sides)
    return [value for side in sides for value in bins_for(side / stride, bins)]


def fastestdet(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    columns, rows = size[0] // 16, size[1] // 16
    output = np.zeros((1, 5 + classes, rows, columns), np.float32)
    output[0, 1:5] = -5.0
    for one in known:
        column, line = cell_of(one, 16)
        cell = output[0, :, line, column]
        cell[0] = cell[5 + one.label] = one.score
        cell[1] = math.atanh(min(one.center[0] / 16 - column, 1 - 1e-7))
        cell[2] = math.atanh(min(one.center[1] / 16 - line, 1 - 1e-7))
        cell[3:5] = [logit(side / whole) for side, whole in zip(one.sides, size, strict=True)]
    return {"map": output}


def yunet(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    outputs: Outputs = {}
    for part, numbers in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10)):
        for stride in (8, 16, 32):
            outputs[f"{part}_{stride}"] = np.zeros((1, rows_in(size, (stride,)), numbers), np.float32)
    for one, stride in by_turns(known, (8, 16, 32)):
        column, line = cell_of(one, stride)
        row = row_of(one, size, (stride,), stride)
        outputs[f"cls_{stride}"][0, row] = one.score**2 / 0.95
        outputs[f"obj_{stride}"][0, row] = 0.95
        outputs[f"bbox_{stride}"][0, row, :2] = one.center[0] / stride - column, one.center[1] / stride - line
        outputs[f"bbox_{stride}"][0, row, 2:] = [math.log(side / stride) for side in one.sides]
    return outputs


ULTRAFACE = ((8, (10, 16, 24)), (16, (32, 48)), (32, (64, 96)), (64, (128, 192, 256)))


@functools.cache
def square_priors(levels: tuple[tuple[int, tuple[int, ...]], ...], size: tuple[int, int]) -> list[tuple[float, ...]]:
    """Center x, center y, width, height as fractions, cut to 0..1."""
    found = []
    for stride, sides in levels:
        for line in range(math.ceil(size[1] / stride)):
            for column in range(math.ceil(size[0] / stride)):
                for side in sides:
                    prior = ((column + 0.5) * stride / size[0], (line + 0.5) * stride / size[1])
                    prior += (side / size[0], side / size[1])
                    found.append(tuple(min(max(value, 0.0), 1.0) for value in prior))
    return found


def against_priors(
    known: list[Known], size: tuple[int, int], priors: list[tuple[float, ...]]
) -> list[tuple[int, list[float]]]:
    """For each box the row of the nearest prior and SSD's offsets to it."""
    found = []
    for one in known:
        wanted = (one.center[0] / size[0], one.center[1] / size[1], one.sides[0] / size[0], one.sides[1] / size[1])
        row = int(((np.array(priors) - wanted) ** 2).sum(1).argmin())
        x, y, wide, high = priors[row]
        offsets = [(wanted[0] - x) / wide / 0.1, (wanted[1] - y) / high / 0.1]
        found.append((row, [*offsets, math.log(wanted[2] / wide) / 0.2, math.log(wanted[3] / high) / 0.2]))
    return found


def ssd(
    known: list[Known], size: tuple[int, int], classes: int, *, decoded: bool = False, logits: bool = False
) -> Outputs:
    priors = square_priors(ULTRAFACE, size)
    rng = np.random.default_rng(0)
    boxes = rng.normal(size=(1, len(priors), 4)).astype(np.float32)
    scores = np.zeros((1, len(priors), classes + 1), np.float32)
    scores[..., 0] = 1.0
    if decoded:
        boxes[..., 2:] = boxes[..., :2] + np.abs(boxes[..., 2:])
    for one, (row, offsets) in zip(known, against_priors(known, size, priors), strict=True):
        whole = (*size, *size)
        boxes[0, row] = [a / b for a, b in zip(one.box, whole, strict=True)] if decoded else offsets
        scores[0, row, 0], scores[0, row, 1 + one.label] = 1 - one.score, one.score
    return {"scores": np.log(np.maximum(scores, 1e-9)) + 3 if logits else scores, "boxes": boxes}


def retinaface(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    priors = square_priors(((8, (16, 32)), (16, (64, 128)), (32, (256, 512))), size)
    loc = np.random.default_rng(1).normal(size=(1, len(priors), 4)).astype(np.float32)
    conf = np.zeros((1, len(priors), 2), np.float32)
    conf[..., 0] = 1.0
    for one, (row, offsets) in zip(known, against_priors(known, size, priors), strict=True):
        loc[0, row] = offsets
        conf[0, row] = 1 - one.score, one.score
    return {"loc": loc, "conf": conf, "landms": np.zeros((1, len(priors), 10), np.float32)}


V5_ANCHORS = (((10, 13), (16, 30), (33, 23)), ((30, 61), (62, 45), (59, 119)), ((116, 90), (156, 198), (373, 326)))


def yolov5(known: list[Known], size: tuple[int, int], classes: int, *, rank: int = 5) -> Outputs:
    outputs = {}
    for stride in (8, 16, 32):
        outputs[f"p{stride}"] = np.full((1, 3, size[1] // stride, size[0] // stride, 5 + classes), -12.0, np.float32)
    for one, stride in by_turns(known, (16, 32)):
        column, line = cell_of(one, stride)
        anchors = V5_ANCHORS[(8, 16, 32).index(stride)]
        which = next(i for i, (w, h) in enumerate(anchors) if one.sides[0] < 3.9 * w and one.sides[1] < 3.9 * h)
        row = outputs[f"p{stride}"][0, which, line, column]
        row[0] = logit((one.center[0] / stride - column + 0.5) / 2)
        row[1] = logit((one.center[1] / stride - line + 0.5) / 2)
        row[2:4] = [logit(math.sqrt(side / anchor) / 2) for side, anchor in zip(one.sides, anchors[which], strict=True)]
        row[4], row[5 + one.label] = 12.0, logit(one.score)
    if rank == 5:
        return outputs
    joined = {}
    for name, value in outputs.items():
        _, _, rows, columns, numbers = value.shape
        joined[name] = value.transpose(0, 1, 4, 2, 3).reshape(1, 3 * numbers, rows, columns)
    return joined


def yolov5_decoded(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    output = np.zeros((1, 3 * rows_in(size, (8, 16, 32)), 5 + classes), np.float32)
    for index, one in enumerate(known):
        output[0, 7 * index, :4] = *one.center, *one.sides
        output[0, 7 * index, 4], output[0, 7 * index, 5 + one.label] = 1.0, one.score
    return {"output0": output}


def yolov8(known: list[Known], size: tuple[int, int], classes: int, *, split: bool = False) -> Outputs:
    outputs = {}
    for stride in (8, 16, 32):
        outputs[f"m{stride}"] = np.full((1, 64 + classes, size[1] // stride, size[0] // stride), -12.0, np.float32)
    for one, stride in by_turns(known, (8, 16, 32)):
        column, line = cell_of(one, stride)
        cell = outputs[f"m{stride}"][0, :, line, column]
        cell[:64] = distances(one, (column + 0.5) * stride, (line + 0.5) * stride, stride, 16)
        cell[64 + one.label] = logit(one.score)
    if not split:
        return outputs
    boxes = {f"box_{name}": value[:, :64] for name, value in outputs.items()}
    return {**boxes, **{f"cls_{name}": value[:, 64:] for name, value in outputs.items()}}


def yolov8_decoded(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    output = np.zeros((1, 4 + classes, rows_in(size, (8, 16, 32))), np.float32)
    for index, one in enumerate(known):
        output[0, :4, 11 * index] = *one.center, *one.sides
        output[0, 4 + one.label, 11 * index] = one.score
    return {"output0": output}


def detectnet(known: list[Known], size: tuple[int, int], classes: int) -> Outputs:
    columns, rows = size[0] // 16, size[1] // 16
    cover = np.zeros((1, classes, rows, columns), np.float32)
    boxes = np.zeros((1, 4 * classes, rows, columns), np.float32)
    for one in known:
        column, line = cell_of(one, 16)
        x, y = column * 16 + 0.5, line * 16 + 0.5
        cover[0, one.label, line, column] = one.score
        sides = (x - one.box[0], y - one.box[1], one.box[2] - x, one.box[3] - y)
        boxes[0, 4 * one.label : 4 * one.label + 4, line, column] = [side / 35 for side in sides]
    return {"output_bbox/BiasAdd": boxes, "output_cov/Sigmoid": cover}


def efficientdet(known: list[Known], size: tuple[int, int], classes: int, *, form: str = "joined") -> Outputs:
    """`joined`, `nchw` or `nhwc`."""
    rng = np.random.default_rng(2)
    logits, offsets = {}, {}
    for stride in (8, 16, 32, 64, 128):
        shape = (1, size[1] // stride, size[0] // stride, 9)
        logits[stride] = np.full((*shape, classes), -12.0, np.float32)
        offsets[stride] = rng.normal(size=(*shape, 4)).astype(np.float32)
    for index, (one, stride) in enumerate(by_turns(known, (8, 16))):
        column, line = cell_of(one, stride)
        which = (index * 4) % 9
        scale, ratio = 2 ** (which // 3 / 3), ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))[which % 3]
        wide, high = 4 * stride * scale * ratio[0], 4 * stride * scale * ratio[1]
        x, y = (column + 0.5) * stride, (line + 0.5) * stride
        logits[stride][0, line, column, which, one.label] = logit(one.score)
        offsets[stride][0, line, column, which] = (
            (one.center[1] - y) / high,
            (one.center[0] - x) / wide,
            math.log(one.sides[1] / high),
            math.log(one.sides[0] / wide),
        )
    if form == "joined":
        return {
            "classes": np.concatenate([value.reshape(1, -1, classes) for value in logits.values()], 1),
            "regression": np.concatenate([value.reshape(1, -1, 4) for value in offsets.values()], 1),
        }
    flat = {f"class_{s}": v.reshape(*v.shape[:3], -1) for s, v in logits.items()}
    flat |= {f"box_{s}": v.reshape(*v.shape[:3], -1) for s, v in offsets.items()}
    return flat if form == "nhwc" else {name: value.transpose(0, 3, 1, 2) for name, value in flat.items()}


def ready(known: list[Known], size: tuple[int, int], classes: int, *, form: str = "six") -> Outputs:
    """`six`: corners, score, class; `seven`: image, y and x, score, class from 1; `tensorflow`; `tensorrt`."""
    six = np.zeros((1, 20, 6), np.float32)
    for index, one in enumerate(known):
        six[0, index] = *one.box, one.score, one.label
    if form == "six":
        return {"output0": six}
    boxes, scores, labels = six[..., :4], six[..., 4], six[..., 5]
    swapped = boxes[..., [1, 0, 3, 2]]
    if form == "seven":
        return {"detections": np.concatenate((np.zeros_like(boxes[..., :1]), swapped, six[..., 4:] + [0, 1]), -1)}
    if form == "tensorflow":
        return {
            "detection_boxes": swapped / np.array((size[1], size[0]) * 2, np.float32),
            "detection_classes": labels + 1,
            "detection_scores": scores,
            "num_detections": np.array([len(known)], np.float32),
        }
    return {
        "num_dets": np.array([[len(known)]], np.int32),
        "det_boxes": boxes,
        "det_scores": scores,
        "det_classes": labels.astype(np.int32),
    }


Maker = Callable[[list[Known], tuple[int, int], int], Outputs]
