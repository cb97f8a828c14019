# SPDX-License-Identifier: Apache-2.0
"""Detections held against labeled boxes: COCO's figures by pycocotools, VOC's here. No model runs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.average_precision import ClassMatches, Curve, average_precisions
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.ground_truth import ANY_CLASS, Truth, classes_in
from qdqtool.evaluation.metrics import Float64, Int64, MeasuredModel

VOC_IOU = 0.5
LARGEST = 100  # detections of a class and image that COCO looks at
_Row = tuple[int, int, list[float], float, int]  # image, class, x y width height, area, crowd
_AREAS = [[0.0, 1e10]]  # COCO's "all"
_UNCOUNTED = -1.0  # an area outside "all": pycocotools then ignores the box, as it does those of the wrong size


def coco(found: Sequence[Detections], truths: Sequence[Truth]) -> MeasuredModel:
    """Average precision over IoU 0.5 to 0.95 (`map`) and at 0.5 (`ap50`), by pycocotools.

    The figures are those of COCOeval.accumulate; resampled ones follow it from the same matches (average_precision.py).

    Raises:
        QdqError: no box to find.
        MissingPackageError: pycocotools is not installed.
    """
    classes = _classes(truths)
    evaluator = _judge(found, truths, classes)
    with contextlib.redirect_stdout(io.StringIO()):  # it reports its progress there
        evaluator.evaluate()
        evaluator.accumulate()
    # [IoU, recall, class, 1 area, 1 limit]; every class here has boxes, so that none is COCO's -1 for "absent"
    precision = evaluator.eval["precision"][..., 0, 0].mean(1)
    recalls = np.asarray(evaluator.params.recThrs)
    matches = [
        _from_pycocotools(
            evaluator.evalImgs[k * len(found) : (k + 1) * len(found)], label, len(evaluator.params.iouThrs)
        )
        for k, label in enumerate(classes)
    ]

    def resampled(weights: Int64) -> Float64:
        each = np.stack([average_precisions(one, weights, "coco", recalls) for one in matches], 1)  # [b, k, t]
        return _with_mean(np.stack([each.mean(2), each[:, :, 0]], 1))

    per_class = np.stack([precision.mean(0), precision[0]])
    return MeasuredModel(
        ("map", "ap50"),
        _with_mean(per_class),
        tuple(classes),
        len(found),
        resampled,
        _counts(found, truths),
        _images_of(matches),
    )


def voc(found: Sequence[Detections], truths: Sequence[Truth]) -> MeasuredModel:
    """Average precision at IoU 0.5 as PASCAL VOC counts it: area below the curve (2010 on), and at 11 recalls (2007).

    Each detection, best first, looks at the box of its class that it overlaps most: it is a hit where the IoU reaches
    0.5 and nobody took the box, ignored where that box is difficult, else a miss. Boxes are spans of continuous
    coordinates here; the development kit counts pixels, so that it adds one to each side.

    Raises:
        QdqError: no box to find.
    """
    classes = _classes(truths)
    matches = [_voc_matches(found, truths, label) for label in classes]
    curves: tuple[Curve, ...] = ("integrated", "sampled")

    def resampled(weights: Int64) -> Float64:
        none = np.empty(0)
        each = [[average_precisions(one, weights, curve, none)[:, 0] for one in matches] for curve in curves]
        return _with_mean(np.array(each).transpose(2, 0, 1))

    values = resampled(np.ones((1, len(found)), np.int64))[0]
    names = ("voc_ap", "voc_ap11")
    facts = _counts(found, truths)
    return MeasuredModel(names, values, tuple(classes), len(found), resampled, facts, _images_of(matches))


def overlaps(boxes: npt.NDArray[Any], others: npt.NDArray[Any], crowd: npt.NDArray[np.bool_]) -> Float64:
    """Intersection over union, float64[d, g]; over the first box's own area where the other is a crowd."""
    a, b = np.asarray(boxes, np.float64)[:, None], np.asarray(others, np.float64)[None]
    side = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    both = side.prod(-1)
    own, other = ((x[..., 2:] - x[..., :2]).clip(0).prod(-1) for x in (a, b))
    return np.asarray(both / np.maximum(np.where(crowd, own, own + other - both), 1e-12))


def _classes(truths: Sequence[Truth]) -> list[int]:
    classes = classes_in(truths)
    if not classes:
        raise QdqError("labels", f"hold no box to find in {len(truths)} images", "give images with objects in them")
    return classes


def _with_mean(each: Float64) -> Float64:
    """[..., k] to [..., 1 + k]: the mean over the classes that have a figure stands first."""
    known = ~np.isnan(each)
    total = np.where(known, each, 0).sum(-1, keepdims=True)
    count = known.sum(-1, keepdims=True)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return np.concatenate([mean, each], -1)


def _counts(found: Sequence[Detections], truths: Sequence[Truth]) -> dict[str, int]:
    return {"boxes": sum(int(one.counted.sum()) for one in truths), "detections": sum(map(len, found))}


def _images_of(matches: Sequence[ClassMatches]) -> tuple[int, ...]:
    return tuple(int(np.count_nonzero(one.positives)) for one in matches)


# ------------------------------------------------------------------------------------------------------------- COCO


def _judge(found: Sequence[Detections], truths: Sequence[Truth], classes: Sequence[int]) -> Any:
    """The COCOeval of pycocotools over all images (ids from 1 in the order given) and the classes that have boxes."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        todo = 'pip install "qdqtool[eval]", or --metric voc, which needs nothing'
        raise MissingPackageError("pycocotools", "is not installed, and COCO's metrics need it", todo) from None
    images = [{"id": index + 1} for index in range(len(truths))]
    categories = [{"id": label} for label in classes]
    sides = []
    for boxes in (_truth_annotations(truths, classes), _found_annotations(found, classes)):
        side = COCO()
        side.dataset = {"images": images, "categories": categories, "annotations": boxes}
        with contextlib.redirect_stdout(io.StringIO()):
            side.createIndex()
        sides.append(side)
    evaluator = COCOeval(*sides, "bbox")
    evaluator.params.areaRng, evaluator.params.areaRngLbl, evaluator.params.maxDets = _AREAS, ["all"], [LARGEST]
    return evaluator


def _truth_annotations(truths: Sequence[Truth], classes: Sequence[int]) -> list[dict[str, Any]]:
    rows: list[_Row] = []
    for index, truth in enumerate(truths):
        for box, label, crowd, difficult in zip(
            _spans(truth.boxes), truth.labels.tolist(), truth.crowd.tolist(), truth.difficult.tolist(), strict=True
        ):
            area = _UNCOUNTED if difficult else box[2] * box[3]
            asked = classes if label == ANY_CLASS else (label,)
            rows.extend((index + 1, category, box, area, int(crowd)) for category in asked)
    return _annotations(rows)


def _found_annotations(found: Sequence[Detections], classes: Sequence[int]) -> list[dict[str, Any]]:
    wanted = frozenset(classes)
    rows: list[_Row] = []
    scores: list[float] = []
    for index, one in enumerate(found):
        for box, label, score in zip(_spans(one.boxes), one.labels.tolist(), one.scores.tolist(), strict=True):
            if label in wanted:
                rows.append((index + 1, label, box, box[2] * box[3], 0))
                scores.append(score)
    return [{**row, "score": score} for row, score in zip(_annotations(rows), scores, strict=True)]


def _annotations(rows: Sequence[_Row]) -> list[dict[str, Any]]:
    names = ("image_id", "category_id", "bbox", "area", "iscrowd")
    return [{"id": number, **dict(zip(names, row, strict=True))} for number, row in enumerate(rows, 1)]  # 0 is "none"


def _spans(boxes: npt.NDArray[Any]) -> list[list[float]]:
    """Corners to x, y, width, height."""
    corners = np.asarray(boxes, np.float64)
    spans: list[list[float]] = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
    return spans


def _from_pycocotools(images: Sequence[dict[str, Any] | None], label: int, thresholds: int) -> ClassMatches:
    """One class as COCOeval matched it: an entry per image, None where it neither has nor shows any."""
    held = [(index, one) for index, one in enumerate(images) if one is not None]
    positives = np.zeros(len(images), np.int64)
    for index, one in held:
        positives[index] = np.count_nonzero(np.asarray(one["gtIgnore"]) == 0)
    scores = np.concatenate([np.asarray(one["dtScores"], np.float64) for _, one in held])
    order = np.argsort(-scores, kind="mergesort")
    image = np.concatenate([np.full(len(one["dtScores"]), index, np.int64) for index, one in held])[order]
    empty = np.zeros((thresholds, 0), bool)
    matched, ignored = (
        np.concatenate([empty, *(np.asarray(one[key], bool) for _, one in held)], 1)[:, order]
        for key in ("dtMatches", "dtIgnore")
    )
    return ClassMatches(label, image, matched, ignored, positives)


# -------------------------------------------------------------------------------------------------------------- VOC


def _voc_matches(found: Sequence[Detections], truths: Sequence[Truth], label: int) -> ClassMatches:
    images, scores, hits, ignores = [], [], [], []
    positives = np.zeros(len(truths), np.int64)
    for index, (one, truth) in enumerate(zip(found, truths, strict=True)):
        asked = (truth.labels == label) | (truth.labels == ANY_CLASS)
        positives[index] = int((asked & truth.counted).sum())
        mine = np.flatnonzero(one.labels == label)
        mine = mine[np.argsort(-one.scores[mine], kind="stable")]
        hit, ignored = _voc_image(one.boxes[mine], truth, asked)
        images.append(np.full(len(mine), index, np.int64))
        scores.append(one.scores[mine].astype(np.float64))
        hits.append(hit)
        ignores.append(ignored)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    hit, ignored = (np.concatenate(parts)[order][None] for parts in (hits, ignores))
    return ClassMatches(label, np.concatenate(images)[order], hit, ignored, positives)


def _voc_image(
    boxes: npt.NDArray[Any], truth: Truth, asked: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which detections of an image, best first, are hits, and which do not count."""
    hit, ignored = np.zeros(len(boxes), bool), np.zeros(len(boxes), bool)
    if not asked.any() or not len(boxes):
        return hit, ignored
    crowd = truth.crowd[asked]
    overlap = overlaps(boxes, truth.boxes[asked], crowd)
    in_crowd = np.asarray((overlap[:, crowd] >= VOC_IOU).any(1))
    overlap[:, crowd] = -1.0  # a region takes only what no single object takes
    counted, taken = truth.counted[asked], np.zeros(len(crowd), bool)
    for rank, best in enumerate(overlap.argmax(1).tolist()):
        if overlap[rank, best] < VOC_IOU:
            ignored[rank] = in_crowd[rank]
        elif not counted[best]:
            ignored[rank] = True
        elif not taken[best]:
            hit[rank] = taken[best] = True
    return hit, ignored
