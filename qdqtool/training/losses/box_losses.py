# SPDX-License-Identifier: Apache-2.0
"""Losses of detectors on labeled boxes, one for each head that has one: targets of a batch, and terms on the raw head.

Where an output holds what a Sigmoid or Softmax made, the terms read the logits before it, see `Nodes.logits_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.evaluation.decode.detectnet import NORM
from qdqtool.evaluation.decode.efficientdet import anchors, is_channels_first
from qdqtool.evaluation.decode.grids import STRIDES, all_cells, cells
from qdqtool.evaluation.decode.head import HeadDecoder, HeadLayout, Size, corners
from qdqtool.evaluation.decode.priors import VARIANCES
from qdqtool.evaluation.detections import Array, Float32
from qdqtool.evaluation.nms import Float64
from qdqtool.training.losses import terms
from qdqtool.training.losses.box_targets import (
    IGNORED,
    Assigned,
    Int64,
    focal_confusion,
    hungarian,
    matched_priors,
    mined,
    simota,
    task_aligned,
)
from qdqtool.training.losses.labels import LabelInputs, LabelSpec
from qdqtool.training.losses.nodes import LossValue, Nodes

LABELED_BOXES = "labeled boxes"  # the array of the data: float32 [batch, most, 5], class and corners; class -1 fills up

_MOST_LOG_SIDE = 8.0  # of a side in strides: its exponential and the area stay finite
_SMALL = 1e-7
_BINS = 16  # of a distance, YOLOv8
_ANCHOR_IOU = 0.5, 0.4  # from which on an anchor answers for a box, and below which it is background: RetinaNet
_ANCHOR_BETA = 1 / 9
_NO_OBJECT = 0.1  # what a query without an object counts: DETR
_COVERED, _LEAST_RADIUS = (
    0.4,
    1.0,
)  # DetectNet_v2: share of a box's sides that its ellipse covers, least radius in cells
_COVERAGE_WEIGHT = 0.05  # of a covered cell in the entropy; of the others 1 less that

Weighted = tuple[str, LossValue, float]


class BoxLoss(Protocol):
    """A detector's loss.

    Attributes:
        outputs: those of the model that it reads, of the teacher's for the targets.
        description: the loss, one phrase.
    """

    @property
    def outputs(self) -> tuple[str, ...]:
        """Those of the model that it reads."""
        ...

    @property
    def description(self) -> str:
        """The loss, one phrase."""
        ...

    def targets(self, boxes: Float32, found: Mapping[str, Array]) -> dict[str, Array]:
        """What the terms are fed of a batch: its labeled boxes and the teacher's outputs."""
        ...

    def terms(self, nodes: Nodes, inputs: LabelInputs) -> list[Weighted]:
        """Name, scalar and weight of each term."""
        ...


def box_loss(decoder: HeadDecoder, size: Size) -> BoxLoss:
    """The loss of the head that a decoder recognized, for an input of a size.

    Raises:
        QdqError: there is none for it; those that have one are named.
    """
    make, layout = _LOSSES.get(decoder.family), decoder.head.layout
    if make is None or layout is None:
        whose = "in this form " if make is not None else ""
        reason = f"{decoder.family} {whose}has no loss on boxes; {', '.join(_LOSSES)} have one"
        raise QdqError("--labels", reason, "leave --labels out: the model learns from itself in float; or give --loss")
    return make(decoder, layout, size)


@dataclass(frozen=True, eq=False)
class _HeadLoss:
    """What the losses share: the recognized head of a model with an input of a size."""

    decoder: HeadDecoder
    layout: HeadLayout
    size: Size

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.layout.outputs

    def _assigned(
        self, boxes: Float32, found: Mapping[str, Array], assign: Callable[[Float64, Float64, Float64, Int64], Assigned]
    ) -> tuple[list[Assigned], Float64, Int64]:
        """For each image what its places answer for, their labeled corners [B, N, 4] and classes [B, N] (-1: none)."""
        with np.errstate(all="ignore"):  # boxes without end have no IoU
            predicted, scores = self.decoder.head.candidates(found, self.size)
        every, places = [], predicted.shape[1]
        sides, classes = np.tile([0.0, 0.0, 1.0, 1.0], (len(boxes), places, 1)), np.full((len(boxes), places), -1)
        for image, rows in enumerate(boxes):
            rows = rows[rows[:, 0] >= 0]
            truth, labels = rows[:, 1:].astype(np.float64), rows[:, 0].astype(np.int64)
            one = Assigned(np.full(places, -1), np.zeros(places))
            if len(rows):
                one = assign(predicted[image].astype(np.float64), scores[image].astype(np.float64), truth, labels)
            answers = one.box >= 0
            sides[image, answers], classes[image, answers] = truth[one.box[answers]], labels[one.box[answers]]
            every.append(one)
        return every, sides, classes

    def _label(self, inputs: LabelInputs, name: str, *shape: int, integers: bool = False) -> LossValue:
        kind = TensorProto.INT64 if integers else TensorProto.FLOAT
        return inputs.value(LabelSpec(f"boxes/{name}", shape, kind, "--labels"))


@dataclass(frozen=True, eq=False)
class _YoloxLoss(_HeadLoss):
    """YOLOX: 5 * (1 - IoU^2) and BCE of classes (target: the IoU) of matched places, BCE of objects; by matches."""

    @property
    def description(self) -> str:
        return "YOLOX's loss (IoU, object and class entropies) with targets by SimOTA"

    def targets(self, boxes: Float32, found: Mapping[str, Array]) -> dict[str, Array]:
        grid, stride = all_cells(self.size, STRIDES)
        centers = (grid + 0.5) * stride
        every, sides, classes = self._assigned(
            boxes,
            found,
            lambda predicted, scores, truth, labels: simota(predicted, scores, truth, labels, centers, stride),
        )
        quality = np.stack([one.quality for one in every])
        hot = (classes[..., None] == np.arange(self.decoder.head.classes or 1)) * quality[..., None]
        matched = (classes >= 0)[..., None]
        given = {"corners": sides, "matched": matched, "classes": hot}
        return {f"boxes/{name}": array.astype(np.float32) for name, array in given.items()}

    def terms(self, nodes: Nodes, inputs: LabelInputs) -> list[Weighted]:
        output = nodes.logits_of(self.layout.outputs[0], "Sigmoid")
        batch, places, columns = output.shape
        matched = self._label(inputs, "matched", batch, places, 1)
        wanted = self._label(inputs, "corners", batch, places, 4)
        classes = self._label(inputs, "classes", batch, places, columns - 5)
        middle, sides = _part(output, 0, 2), _part(output, 2, 4)
        if not self.layout.decoded:
            grid, stride = (one[None].astype(np.float32) for one in all_cells(self.size, STRIDES))
            middle, sides = (middle + grid) * stride, nodes.op("Exp", nodes.op("Min", sides, _MOST_LOG_SIDE)) * stride
        both, union, _ = _overlap(_by_corners(middle, sides), wanted)
        iou = both / union
        total = nodes.op("Max", matched.sum(), 1.0)
        score, named = _part(output, 4, 5), _part(output, 5, columns)
        return [
            ("box", ((1.0 - iou * iou) * matched).sum() / total, 5.0),
            ("object", _entropy(score, matched).sum() / total, 1.0),
            ("class", (_entropy(named, classes) * matched).sum() / total, 1.0),
        ]


@dataclass(frozen=True, eq=False)
class _Yolov8Loss(_HeadLoss):
    """YOLOv8: 7.5 * (1 - DIoU), 0.5 * BCE of classes, and of raw maps 1.5 * DFL, by the sum of qualities."""

    @property
    def description(self) -> str:
        bins = "DIoU and class entropy" if self.layout.decoded else "DIoU, class entropy and DFL"
        return f"YOLOv8's loss ({bins}) with targets by TAL"

    def targets(self, boxes: Float32, found: Mapping[str, Array]) -> dict[str, Array]:
        centers, steps = self._places({name: one.shape for name, one in found.items()})
        every, sides, classes = self._assigned(
            boxes,
            found,
            lambda predicted, scores, truth, labels: task_aligned(predicted, scores, truth, labels, centers),
        )
        quality = np.stack([one.quality for one in every])
        hot = (classes[..., None] == np.arange(self.decoder.head.classes or 1)) * quality[..., None]
        given = {"corners": sides, "classes": hot}
        if not self.layout.decoded:
            distances = np.concatenate((centers - sides[..., :2], sides[..., 2:] - centers), -1) / np.tile(steps, 2)
            place = np.clip(distances, 0, _BINS - 1.01)[..., None]
            given["bins"] = np.maximum(1 - np.abs(place - np.arange(_BINS)), 0)
        return {f"boxes/{name}": array.astype(np.float32) for name, array in given.items()}

    def terms(self, nodes: Nodes, inputs: LabelInputs) -> list[Weighted]:
        activation = "Sigmoid" if self.layout.probabilities else ""
        values = {name: nodes.logits_of(name, activation) for name in self.layout.outputs}
        classes = self.decoder.head.classes or 1
        if self.layout.decoded:
            rows = nodes.op("Transpose", values[self.layout.outputs[0]], perm=[0, 2, 1])
            boxes, named = _by_corners(_part(rows, 0, 2), _part(rows, 2, 4)), _part(rows, 4, 4 + classes)
            bins = None
        else:
            flat = [nodes.op("Concat", *(_flat(values[one]) for one in level), axis=1) for level in self.layout.levels]
            rows = nodes.op("Transpose", nodes.op("Concat", *flat, axis=2), perm=[0, 2, 1])
            bins = nodes.op("Reshape", _part(rows, 0, 4 * _BINS), np.array([*rows.shape[:2], 4, _BINS], np.int64))
            named = _part(rows, 4 * _BINS, 4 * _BINS + classes)
            column = np.arange(_BINS, dtype=np.float32).reshape(_BINS, 1)
            distances = nodes.op("MatMul", nodes.op("Softmax", bins, axis=3), column)
            distances = nodes.op("Reshape", distances, np.array([*rows.shape[:2], 4], np.int64))
            centers, steps = self._places({name: one.shape for name, one in values.items()})
            signs = np.array([-1, -1, 1, 1], np.float32)
            boxes = distances * (np.tile(steps, 2)[None] * signs) + np.tile(centers, 2)[None]
        batch, places, _ = boxes.shape
        wanted = self._label(inputs, "corners", batch, places, 4)
        quality = self._label(inputs, "classes", batch, places, classes)
        weight = quality.sum_over(2).unsqueeze(2)
        total = nodes.op("Max", quality.sum(), 1.0)
        found: list[Weighted] = [
            ("box", ((1.0 - _distance_iou(boxes, wanted)) * weight).sum() / total, 7.5),
            ("class", _entropy(named, quality).sum() / total, 0.5),
        ]
        if bins is not None:
            shares = self._label(inputs, "bins", batch, places, 4, _BINS)
            missed = -(nodes.op("LogSoftmax", bins, axis=3) * shares).sum_over(3)
            found.append(("distribution", (missed * weight).sum() / total * 0.25, 1.5))
        return found

    def _places(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Float64, Float64]:
        """Centers in pixels [N, 2] and strides [N, 2] of the places."""
        if self.layout.decoded:
            grid, stride = all_cells(self.size, self.layout.strides)
            return (grid + 0.5) * stride, np.tile(stride, 2)
        centers, steps = [], []
        for level in self.layout.levels:
            rows, columns = shapes[level[0]][2:]
            step = np.array(self.size, np.float64) / (columns, rows)
            centers.append((cells(columns, rows) + 0.5) * step)
            steps.append(np.tile(step, (columns * rows, 1)))
        return np.concatenate(centers), np.concatenate(steps)


@dataclass(frozen=True, eq=False)
class _PriorLoss(_HeadLoss):
    """SSD: smooth L1 of the offsets of matched priors + cross-entropy of these and three negatives each, by matches."""

    @property
    def description(self) -> str:
        return "SSD's loss (smooth L1 of offsets, cross-entropy) with targets by IoU with the priors"

    def targets(self, boxes: Float32, found: Mapping[str, Array]) -> dict[str, Array]:
        priors = self._priors()
        pixels = priors * (self.size * 2)
        edges = corners(pixels[:, :2], pixels[:, 2:])
        _, sides, classes = self._assigned(
            boxes, found, lambda predicted, scores, truth, labels: matched_priors(edges, truth, self.layout.least_iou)
        )
        _, scores = self.decoder.head.candidates(found, self.size)
        positive = classes >= 0
        numbers = np.where(positive, classes + 1, -1)
        for image, every in enumerate(scores):
            numbers[image, mined(1.0 - every.sum(-1, dtype=np.float64), positive[image])] = 0
        fractions = sides / (self.size * 2)
        middle, lengths = (fractions[..., :2] + fractions[..., 2:]) / 2, fractions[..., 2:] - fractions[..., :2]
        offsets = np.concatenate(
            (
                (middle - priors[:, :2]) / (VARIANCES[0] * priors[:, 2:]),
                np.log(np.maximum(lengths, _SMALL) / priors[:, 2:]) / VARIANCES[1],
            ),
            -1,
        )
        given = {"offsets": offsets * positive[..., None], "matched": positive}
        return {
            "boxes/classes": numbers.astype(np.int64),
            **{f"boxes/{name}": array.astype(np.float32) for name, array in given.items()},
        }

    def terms(self, nodes: Nodes, inputs: LabelInputs) -> list[Weighted]:
        boxes = nodes.tensor(self.layout.outputs[0], "--labels")
        scores = nodes.logits_of(self.layout.outputs[1], "Softmax" if self.layout.probabilities else "")
        batch, places, columns = scores.shape
        matched = self._label(inputs, "matched", batch, places)
        wanted = self._label(inputs, "offsets", batch, places, 4)
        numbers = self._label(inputs, "classes", batch, places, integers=True)
        chosen = nodes.op("LogSoftmax", scores, axis=2) * terms.one_hot(numbers, columns, 2)
        offsets = self._encoded(boxes) if self.layout.decoded else boxes
        return [
            ("box", terms.smooth_l1(offsets, wanted, 1.0, matched), 1.0),
            ("class", -(chosen.sum() / nodes.op("Max", matched.sum(), 1.0)), 1.0),
        ]

    def _encoded(self, boxes: LossValue) -> LossValue:
        """Offsets to the priors of boxes that the graph decodes."""
        priors, nodes = self._priors().astype(np.float32), boxes.nodes
        scale = np.array((self.size if self.layout.pixels else (1, 1)), np.float32)
        low, high = _part(boxes, 0, 2) / scale, _part(boxes, 2, 4) / scale
        middle = ((low + high) * 0.5 - priors[None, :, :2]) / (np.float32(VARIANCES[0]) * priors[None, :, 2:])
        sides = nodes.op("Log", nodes.op("Max", high - low, 1e-6) / priors[None, :, 2:]) * (1 / VARIANCES[1])
        return nodes.op("Concat", middle, sides, axis=2)

    def _priors(self) -> Float64:
        if self.layout.priors is None:
            raise QdqError("--labels", f"the priors of {self.layout.outputs[0]} are not known", "give --loss")
        return self.layout.priors


@dataclass(frozen=True, eq=False)
class _AnchorLoss(_HeadLoss):
    """RetinaNet: focal loss of classes + smooth L1 of the offsets of matched anchors, both by matches."""

    @property
    def description(self) -> str:
        return "RetinaNet's loss (focal loss, smooth L1 of offsets) with targets by IoU with the anchors"

    def targets(self, boxes: Float32, found: Mapping[str, Array]) -> dict[str, Array]:
        centers, lengths = anchors(self.size)
        edges = corners(centers, lengths)
        every, sides, classes = self._assigned(
            boxes, found, lambda predicted, scores, truth, labels: matched_priors(edges, truth, *_ANCHOR_IOU)
        )
        ignored = np.stack([one.box == IGNORED for one in every])
        hot = np.where(ignored[..., None], -1, classes[..., None] == np.arange(self.decoder.head.classes or 1))
        middle, wanted = (sides[..., :2] + sides[..., 2:]) / 2, sides[..., 2:] - sides[..., :2]
        offsets = np.concatenate(
            ((middle - centers)[..., ::-1] / lengths[..., ::-1], np.log(wanted[..., ::-1] / lengths[..., ::-1])), -1
        )
        given = {"classes": hot, "matched": classes >= 0, "offsets": offsets * (classes >= 0)[..., None]}
        return {f"boxes/{name}": array.astype(np.float32) for name, array in given.items()}

    def terms(self, nodes: Nodes, inputs: LabelInputs) -> list[Weighted]:
        activation, classes = "Sigmoid" if self.layout.probabilities else "", self.decoder.head.classes or 1
        levels = [
            (nodes.logits_of(one, activation), nodes.tensor(other, "--labels")) for one, other in self.layout.levels
        ]
        scores = _joined([self._rows(one, classes) for one, _ in levels])
        offsets = _joined([self._rows(one, 4) for _, one in levels])
        batch, places, _ = scores.shape
        wanted = self._label(inputs, "offsets", batch, places, 4)
        matched = self._label(inputs, "matched", batch, places)
        return [
            ("box", terms.smooth_l1(offsets, wanted, _ANCHOR_BETA, matched), 1.0),
            ("class", terms.sigmoid_focal(scores, self._label(inputs, "classes", batch, places, classes)), 1.0),
        ]

    def _rows(self, value: LossValue, numbers: int) -> LossValue:
        """A map, channels first or last, as a row for each anchor."""
        if value.rank == 4 and is_channels_first(value.shape, self.size):
            value = value.nodes.op("Transpose", value, perm=[0, 2, 3, 1])
        return value.nodes.op("Reshape", value, np.array([value.shape[0], -1, numbers], np.int64))


@dataclass(frozen=True, eq=False)
class _QueryLoss(_HeadLoss):
    """DETR: cross-entropy with a tenth for no object, 5 * L1 and 2 * (1 - GIoU) of matched queries, by matches.

    With one Sigmoid for each class, Deformable DETR's: 2 * focal loss in the place of the cross-entropy.
    """

    @property
    def description(self) -> str:
        if self.with_no_object:
            return "DETR's loss (cross-entropy, L1, GIoU) with targets by Hungarian matching"
        return "Deformable DETR's loss (focal loss, L1, GIoU) with targets by Hungarian matching"

    @property
    def with_no_object(self) -> bool:
        """Whether a class says that there is no object."""
        return self.decoder.family == "detr"

    def targets(self, boxes: Float32, found: Mapping[str, Array]) -> dict[str, Array]:
        def assign(predicted: Float64, scores: Float64, truth: Float64, labels: Int64) -> Assigned:
            confusion = -scores[:, labels] if self.with_no_object else focal_confusion(scores, labels)
            return hungarian(predicted, confusion, truth, self.size)

        _, sides, classes = self._assigned(boxes, found, assign)
        fractions = sides / (self.size * 2)
        middle, lengths = (fractions[..., :2] + fractions[..., 2:]) / 2, fractions[..., 2:] - fractions[..., :2]
        given = {"corners": sides, "boxes": np.concatenate((middle, lengths), -1), "matched": classes >= 0}
        count = self.decoder.head.classes or 1
        numbers = np.where(classes < 0, count, classes)
        if not self.with_no_object:
            numbers = (numbers[..., None] == np.arange(count)).astype(np.float32)
        return {
            "boxes/classes": numbers,
            **{f"boxes/{name}": array.astype(np.float32) for name, array in given.items()},
        }

    def terms(self, nodes: Nodes, inputs: LabelInputs) -> list[Weighted]:
        activation = "Softmax" if self.with_no_object else "Sigmoid"
        logits = nodes.logits_of(self.layout.outputs[0], activation if self.layout.probabilities else "")
        boxes = nodes.tensor(self.layout.outputs[1], "--labels")
        batch, queries, columns = logits.shape
        matched = self._label(inputs, "matched", batch, queries)
        if self.with_no_object:
            numbers = self._label(inputs, "classes", batch, queries, integers=True)
            chosen = (nodes.op("LogSoftmax", logits, axis=2) * terms.one_hot(numbers, columns, 2)).sum_over(2)
            counts = matched * (1.0 - _NO_OBJECT) + _NO_OBJECT
            named: Weighted = ("class", -((chosen * counts).sum() / counts.sum()), 1.0)
        else:
            hot = self._label(inputs, "classes", batch, queries, columns)
            named = ("class", terms.sigmoid_focal(logits, hot), 2.0)
        total = nodes.op("Max", matched.sum(), 1.0)
        pixels = np.array(self.size, np.float32)
        found = _by_corners(_part(boxes, 0, 2) * pixels, _part(boxes, 2, 4) * pixels)
        both, union, hull = _overlap(found, self._label(inputs, "corners", batch, queries, 4))
        around = _area(hull) + _SMALL
        each = matched.unsqueeze(2)
        missed = nodes.op("Abs", boxes - self._label(inputs, "boxes", batch, queries, 4))
        return [
            named,
            ("box", (missed * each).sum() / total, 5.0),
            ("overlap", ((1.0 - both / union + (around - union) / around) * each).sum() / total, 2.0),
        ]


@dataclass(frozen=True, eq=False)
class _CoverageLoss(_HeadLoss):
    """DetectNet_v2 (TAO): weighted BCE of coverage + 10 * L1 of distances by the inverse area of the ellipse; means.

    NVIDIA/tao_tensorflow1_backend, cv/detectnet_v2 (cost functions, BboxRasterizer), without dead zones and
    with the first weights of the objectives. The smaller box is in front.
    """

    @property
    def description(self) -> str:
        return "DetectNet_v2's loss (coverage entropy, L1 of distances) with targets by the ellipses of the boxes"

    def targets(self, boxes: Float32, found: Mapping[str, Array]) -> dict[str, Array]:
        batch, classes, rows, columns = found[self.layout.outputs[0]].shape
        grid, stride = cells(columns, rows), np.array(self.size, np.float64) / (columns, rows)
        points = grid * stride + 0.5
        coverage = np.zeros((batch, classes, len(grid)), np.float32)
        distances, weight = (np.zeros((batch, classes, 4, len(grid)), np.float32) for _ in range(2))
        for image, every in enumerate(boxes.astype(np.float64)):
            known = every[(every[:, 0] >= 0) & (every[:, 0] < classes)]
            for number, *edges in known[np.argsort(-(known[:, 3:] - known[:, 1:3]).prod(1), kind="stable")]:
                low, high = np.array(edges[:2]), np.array(edges[2:])
                radius = np.maximum(_COVERED * (high - low) / stride / 2, 0.1)
                radius *= max(1.0, _LEAST_RADIUS / radius.min())
                away = (grid + 0.5 - (low + high) / stride / 2) / radius
                place = image, int(number)
                inside = (away**2).sum(1) <= 1
                coverage[place][inside] = 1
                distances[place][:, inside] = np.concatenate((points - low, high - points), 1)[inside].T / NORM
                weight[place][:, inside] = 1 / max(4 * radius.prod(), 1.0)
        shape = batch, -1, rows, columns
        given = {"coverage": coverage, "distances": distances, "weight": weight}
        return {f"boxes/{name}": array.reshape(shape) for name, array in given.items()}

    def terms(self, nodes: Nodes, inputs: LabelInputs) -> list[Weighted]:
        logits = nodes.logits_of(self.layout.outputs[0], "Sigmoid")
        boxes = nodes.tensor(self.layout.outputs[1], "--labels")
        coverage = self._label(inputs, "coverage", *logits.shape)
        weighted = _entropy(logits, coverage) * (1.0 - _COVERAGE_WEIGHT - coverage * (1.0 - 2 * _COVERAGE_WEIGHT))
        missed = nodes.op("Abs", boxes - self._label(inputs, "distances", *boxes.shape))
        weight = self._label(inputs, "weight", *boxes.shape)
        return [
            ("coverage", nodes.op("ReduceMean", weighted, keepdims=0), 1.0),
            ("box", nodes.op("ReduceMean", missed * weight, keepdims=0), 10.0),
        ]


_LOSSES: Mapping[str, Callable[[HeadDecoder, HeadLayout, Size], BoxLoss]] = {
    "yolox": _YoloxLoss,
    "yolov8": _Yolov8Loss,
    "ssd": _PriorLoss,
    "efficientdet": _AnchorLoss,
    "detr": _QueryLoss,
    "rtdetr": _QueryLoss,
    "detectnet_v2": _CoverageLoss,
}


# ------------------------------------------------------------------ formulas


def _part(value: LossValue, start: int, end: int) -> LossValue:
    """Some of the last axis."""
    places = (np.array([place], np.int64) for place in (start, end, value.rank - 1))
    return value.nodes.op("Slice", value, *places)


def _joined(rows: Sequence[LossValue]) -> LossValue:
    return rows[0] if len(rows) == 1 else rows[0].nodes.op("Concat", *rows, axis=1)


def _flat(value: LossValue) -> LossValue:
    """A map as [batch, channels, places]."""
    return value.nodes.op("Reshape", value, np.array([*value.shape[:2], value.shape[2] * value.shape[3]], np.int64))


def _entropy(x: LossValue, y: LossValue) -> LossValue:
    """Binary cross-entropy of every logit."""
    return terms.softplus(x) - x * y


def _by_corners(middle: LossValue, sides: LossValue) -> LossValue:
    half = sides * 0.5
    return middle.nodes.op("Concat", middle - half, middle + half, axis=2)


def _overlap(a: LossValue, b: LossValue) -> tuple[LossValue, LossValue, LossValue]:
    """Place by place [..., 1] the areas of intersection and union, and [..., 2] the sides of the hull."""
    op = a.nodes.op
    (low, high), (first, last) = ((_part(one, 0, 2), _part(one, 2, 4)) for one in (a, b))
    both = _area(op("Relu", op("Min", high, last) - op("Max", low, first)))
    union = _area(op("Relu", high - low)) + _area(last - first) - both + _SMALL
    return both, union, op("Max", high, last) - op("Min", low, first)


def _area(sides: LossValue) -> LossValue:
    return _part(sides, 0, 1) * _part(sides, 1, 2)


def _distance_iou(a: LossValue, b: LossValue) -> LossValue:
    """DIoU (Zheng et al. 2020): IoU less the squared distance of centers over the squared diagonal of the hull."""
    both, union, hull = _overlap(a, b)
    apart = (_part(a, 0, 2) + _part(a, 2, 4) - _part(b, 0, 2) - _part(b, 2, 4)) * 0.5
    far = (apart * apart).sum_over(2) / ((hull * hull).sum_over(2) + _SMALL)
    return both / union - far.unsqueeze(2)
