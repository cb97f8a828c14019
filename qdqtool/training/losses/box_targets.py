# SPDX-License-Identifier: Apache-2.0
"""Which places of a detector's head answer for which labeled box, in NumPy: SimOTA, TAL, priors, queries.

The model in float (the teacher) tells what a place predicts, not the weights of the step: the targets of a sample stay
the same through the training, so that losses of two steps compare (label assignment distillation, Nguyen 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.errors import MissingPackageError
from qdqtool.evaluation.detection_ap import overlaps
from qdqtool.evaluation.nms import Float64

Int64 = npt.NDArray[np.int64]

_RADIUS = 1.5  # strides between a box's center and a place that may answer for it
_CANDIDATES = 10  # places whose IoU says how many answer for a box (SimOTA), or that may answer for it (TAL)
_IOU_WEIGHT = 3.0  # of the cost of SimOTA
_OUTSIDE = 1e6
_LEAST = 1e-8
IGNORED = -2  # the box of a prior that is neither background nor an answer
_L1_COST, _GIOU_COST = 5.0, 2.0  # DETR
_NEGATIVES = 3  # background places for each one that answers for a box, the worst first (Liu et al. 2016, SSD)


@dataclass(frozen=True, eq=False)
class Assigned:
    """What each of N places answers for.

    Attributes:
        box: int64[N], the number of the labeled box; -1 for background, `IGNORED` where it does not count.
        quality: float64[N], how well it does: what the score is to say; 0 for background.
    """

    box: Int64
    quality: Float64


def simota(
    boxes: Float64, scores: Float64, truth: Float64, labels: Int64, centers: Float64, steps: Float64
) -> Assigned:
    """SimOTA (Ge et al. 2021, YOLOX): each box takes as many of the cheapest places as its ten best IoU add up to.

    cost = BCE(sqrt(object * class), class of the box) - 3 log IoU, only for places within 1.5 strides of its center.

    Args:
        boxes: [N, 4], the predicted corners.
        scores: [N, C], object * class.
        truth: [G, 4], the labeled corners.
        labels: [G], their classes.
        centers: [N, 2], the places in pixels.
        steps: [N, 1], their strides.
    """
    middle = (truth[:, :2] + truth[:, 2:]) / 2
    near = np.asarray((np.abs(centers[:, None] - middle[None]) < _RADIUS * steps[:, None]).all(-1), bool)
    (rows,) = np.nonzero(near.any(1))
    found = Assigned(np.full(len(boxes), -1, np.int64), np.zeros(len(boxes)))
    if not rows.size:
        return found
    iou = _iou(boxes[rows], truth)
    p = np.sqrt(np.clip(scores[rows], 0, 1))
    log_p, log_not = np.log(np.maximum(p, _LEAST)), np.log(np.maximum(1 - p, _LEAST))
    confused = -(log_p[:, labels] + log_not.sum(1, keepdims=True) - log_not[:, labels])
    cost = confused - _IOU_WEIGHT * np.log(iou + _LEAST) + _OUTSIDE * ~near[rows]
    best = -np.sort(-iou, 0)[:_CANDIDATES]
    taken = np.zeros(cost.shape, bool)
    for one, count in enumerate(np.maximum(best.sum(0).astype(np.int64), 1)):
        taken[np.argsort(cost[:, one], kind="stable")[:count], one] = True
    taken &= near[rows]
    owner = np.where(taken, cost, np.inf).argmin(1)
    answers = taken.any(1)
    found.box[rows[answers]] = owner[answers]
    found.quality[rows[answers]] = iou[answers, owner[answers]]
    return found


def task_aligned(boxes: Float64, scores: Float64, truth: Float64, labels: Int64, centers: Float64) -> Assigned:
    """TAL (Feng et al. 2021, TOOD) as YOLOv8 has it: the ten places in a box with the largest score^0.5 * IoU^6.

    The quality is that number, scaled so that the largest of each box is its best IoU.
    """
    inside = ((centers[:, None] > truth[None, :, :2]) & (centers[:, None] < truth[None, :, 2:])).all(-1)
    iou = _iou(boxes, truth) * inside
    aligned = np.sqrt(np.clip(scores[:, labels], 0, 1)) * iou**6
    taken = np.zeros(aligned.shape, bool)
    for one in range(len(truth)):
        taken[np.argsort(-aligned[:, one], kind="stable")[:_CANDIDATES], one] = True
    taken &= inside
    owner = np.where(taken, iou, -1.0).argmax(1)
    taken &= owner[:, None] == np.arange(len(truth))
    answers = taken.any(1)
    most, widest = (np.where(taken, one, 0.0).max(0, initial=0.0) for one in (aligned, iou))
    scaled = aligned * (widest / (most + 1e-9))
    rows = np.arange(len(boxes))
    return Assigned(np.where(answers, owner, -1), np.where(answers, scaled[rows, owner], 0.0))


def matched_priors(priors: Float64, truth: Float64, least: float, doubt: float | None = None) -> Assigned:
    """SSD's matching: a prior answers for the box that it overlaps most, from some IoU on; each box has its best prior.

    Args:
        priors: [N, 4], corners in pixels.
        truth: [G, 4], the labeled corners.
        least: the smallest IoU.
        doubt: from which IoU on to the smallest a prior is neither background nor an answer, its box `IGNORED`, as in
            RetinaNet (Lin et al. 2017); None for none.
    """
    iou = _iou(priors, truth)
    most = iou.max(1, initial=0.0)
    owner = np.where(most >= least, iou.argmax(1), -1)
    if doubt is not None:
        owner[(most >= doubt) & (most < least)] = IGNORED
    owner[iou.argmax(0)] = np.arange(len(truth))
    return Assigned(owner, (owner >= 0).astype(np.float64))


def hungarian(boxes: Float64, confusion: Float64, truth: Float64, size: tuple[int, int]) -> Assigned:
    """DETR's matching (Carion et al. 2020): each labeled box has one query, so that the sum of costs is the smallest.

    cost = 5 L1 - 2 GIoU + confusion; L1 of centers and sides as fractions of the input.

    Args:
        boxes: [N, 4], the predicted corners.
        confusion: [N, G], the cost of the class that each query would have to say.
        truth: [G, 4], the labeled corners.
        size: of the input.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise MissingPackageError("SciPy", "is not installed", "pip install 'qdqtool[detr]'") from error
    fractions = [_middle_and_sides(one / np.array(size * 2)) for one in (boxes, truth)]
    apart = np.abs(fractions[0][:, None] - fractions[1]).sum(-1)
    low, high = (limit(boxes[:, None], truth[None]) for limit in (np.minimum, np.maximum))
    both = np.clip(low[..., 2:] - high[..., :2], 0, None).prod(-1)
    union = (boxes[:, 2:] - boxes[:, :2]).prod(-1)[:, None] + (truth[:, 2:] - truth[:, :2]).prod(-1) - both
    hull = (high[..., 2:] - low[..., :2]).prod(-1)
    cost = _L1_COST * apart - _GIOU_COST * (both / union + union / hull - 1) + confusion
    queries, owners = linear_sum_assignment(cost)
    found = Assigned(np.full(len(boxes), -1, np.int64), np.zeros(len(boxes)))
    found.box[queries], found.quality[queries] = owners, 1.0
    return found


def focal_confusion(scores: Float64, labels: Int64) -> Float64:
    """[N, G], what a focal loss (2, 0.25) would grow by if a query had to say a class, twice (Zhu et al. 2021)."""
    p = np.clip(scores[:, labels], _LEAST, 1 - _LEAST)
    grown: Float64 = 2 * (0.75 * p**2 * np.log(1 - p) - 0.25 * (1 - p) ** 2 * np.log(p))
    return grown


def _middle_and_sides(boxes: Float64) -> Float64:
    return np.concatenate(((boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]), 1)


def mined(background: Float64, positive: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The background places that count: three for each positive one of the image, the least sure of the teacher's."""
    doubt = np.where(positive, -np.inf, -background)
    count = min(_NEGATIVES * max(int(positive.sum()), 1), int((~positive).sum()))
    chosen = np.zeros(len(positive), bool)
    chosen[np.argsort(-doubt, kind="stable")[:count]] = True
    return chosen


def _iou(boxes: Float64, truth: Float64) -> Float64:
    return overlaps(boxes, truth, np.zeros(len(truth), bool))
