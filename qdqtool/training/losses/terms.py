# SPDX-License-Identifier: Apache-2.0
"""The formulas: each takes values of a graph and gives the scalar that is minimized, unweighted.

Where a prediction s is exactly at a kink (0, as a quantized output often is), the gradient is that of the true
function or the middle of its slopes; so |x| and Clip stand where textbooks have Relu and Where.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqtool.errors import QdqError
from qdqtool.training.losses.nodes import LossValue

_FLOOR = 1e-6  # mean square below which a teacher's tensor counts as silent: an error there is not blown up further


def normalized_error(s: LossValue, t: LossValue) -> LossValue:
    """sum((s - t)^2) / (sum(t^2) + eps), eps = 1e-6 per element: the error's power over the teacher's."""
    difference = s - t
    power = s.nodes.op("ReduceSumSquare", t, keepdims=0)  # one pass; no gradient is asked of it
    return (difference * difference).sum() / (power + _FLOOR * t.size)


def mean_square(s: LossValue, t: LossValue) -> LossValue:
    """mean((s - t)^2): MSE on labels, L2 in distillation."""
    difference = s - t
    return (difference * difference).mean()


def mean_absolute(s: LossValue, t: LossValue) -> LossValue:
    """mean(|s - t|)."""
    return s.nodes.op("Abs", s - t).mean()


def smooth_l1(s: LossValue, t: LossValue, beta: float = 1.0, mask: LossValue | None = None) -> LossValue:
    """d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = s - t.

    With c = d clipped to [-beta, beta] both branches are c * (d - c / 2) / beta.

    Args:
        s: predictions; with a mask of shape [..., 4] as a rule.
        t: targets of the same shape.
        beta: where the square ends.
        mask: of the shape of s without its last axis, not negative: which anchors count and how much. The sum is
            divided by the mask's own, 1 at least (SSD: the number of positive anchors). Without one: the mean.
    """
    nodes = s.nodes
    d = s - t
    clipped = nodes.op("Clip", d, -beta, beta)
    each = clipped * (d - clipped * 0.5) * (1.0 / beta)
    if mask is None:
        return each.mean()
    return (each * mask.unsqueeze(-1)).sum() / nodes.op("Max", mask.sum(), 1.0)


def softplus(x: LossValue) -> LossValue:
    """log(1 + exp(x)) without overflow: (x + |x|) / 2 + log(1 + exp(-|x|)); its gradient at 0 is 1/2, as it should."""
    magnitude = x.nodes.op("Abs", x)
    tail = x.nodes.op("Log", x.nodes.op("Exp", -magnitude) + 1.0)
    return (x + magnitude) * 0.5 + tail


def _counting(y: LossValue) -> tuple[LossValue, LossValue]:
    """Targets with what is ignored (below 0) put to 0, and 1 where they count."""
    nodes = y.nodes
    counts = nodes.op("GreaterOrEqual", y, 0.0).as_float()
    return nodes.op("Max", y, 0.0), counts


def binary_cross_entropy(x: LossValue, y: LossValue, smoothing: float = 0.0) -> LossValue:
    """mean(softplus(x) - x * y) over the targets that are not negative; x are logits, y lie in [0, 1].

    With smoothing s the targets are (1 - s) y + s / 2.
    """
    x = x.nodes.logits(x, "Sigmoid", "binary cross-entropy")
    y, counts = _counting(y)
    if smoothing:
        y = y * (1.0 - smoothing) + 0.5 * smoothing
    return ((softplus(x) - x * y) * counts).sum() / x.nodes.op("Max", counts.sum(), 1.0)


def sigmoid_focal(x: LossValue, y: LossValue, gamma: float = 2.0, alpha: float = 0.25) -> LossValue:
    """Focal loss (Lin 2017) of logits with one sigmoid per class, as RetinaNet takes it.

    sum(a * (1 - p)^gamma * bce) / max(1, sum(y)), where p is the probability of what is true and a is alpha for
    objects, 1 - alpha for background. Targets are 0 or 1; what is negative is ignored.
    """
    nodes = x.nodes
    x = nodes.logits(x, "Sigmoid", "the focal loss")
    y, counts = _counting(y)
    each = (softplus(x) - x * y) * counts * (y * (2 * alpha - 1) + (1 - alpha))
    if gamma:
        wrong = nodes.op("Sigmoid", x) * (1.0 - 2.0 * y) + y  # 1 - p
        each = each * nodes.op("Pow", wrong, gamma)
    return each.sum() / nodes.op("Max", y.sum(), 1.0)


def one_hot(labels: LossValue, classes: int, axis: int) -> LossValue:
    """1 at the class of each label along a new axis; all 0 for a negative label, which is thereby ignored."""
    nodes = labels.nodes
    shape = [1] * (labels.rank + 1)
    shape[axis] = classes
    numbers = nodes.constant(np.arange(classes, dtype=np.int64).reshape(shape))
    return nodes.op("Equal", labels.unsqueeze(axis), numbers).as_float()


def cross_entropy(x: LossValue, labels: LossValue, axis: int, smoothing: float = 0.0) -> LossValue:
    """mean(-log softmax(x)[label]) over the labels that are not negative; x are logits with classes on `axis`.

    With smoothing s the target is 1 - s at the label plus s / classes everywhere (Szegedy 2016), as in Keras and
    PyTorch.
    """
    nodes = x.nodes
    x = nodes.logits(x, "Softmax", "cross-entropy", axis)
    hot = one_hot(labels, x.shape[axis], axis)
    targets = hot
    if smoothing:
        counts = hot.sum_over(axis).unsqueeze(axis)
        targets = hot * (1.0 - smoothing) + counts * (smoothing / x.shape[axis])
    chosen = (nodes.op("LogSoftmax", x, axis=axis) * targets).sum()
    return -(chosen / nodes.op("Max", hot.sum(), 1.0))


def softmax_focal(x: LossValue, labels: LossValue, axis: int, gamma: float = 2.0, alpha: float = 0.25) -> LossValue:
    """Focal loss of SSD's form: sum(-a * (1 - p)^gamma * log p) / max(1, anchors of a class above 0).

    Class 0 is background, with a = 1 - alpha; labels below 0 are ignored.
    """
    nodes = x.nodes
    x = nodes.logits(x, "Softmax", "the focal loss", axis)
    hot = one_hot(labels, x.shape[axis], axis)
    log_p = (nodes.op("LogSoftmax", x, axis=axis) * hot).sum_over(axis)  # 0 where ignored, so that it adds nothing
    objects = nodes.op("Greater", labels, 0).as_float()
    each = -(log_p * (objects * (2 * alpha - 1) + (1 - alpha)))
    if gamma:
        wrong = nodes.op("Relu", 1.0 - nodes.op("Exp", log_p))  # a probability may round to more than 1
        each = each * nodes.op("Pow", wrong, gamma)
    return each.sum() / nodes.op("Max", objects.sum(), 1.0)


def dice(x: LossValue, labels: LossValue, axis: int) -> LossValue:
    """Dice loss (Milletari 2016) of logits with classes on `axis`: 1 - mean over the classes of their overlap.

    The overlap of a class is (2 sum(p y) + 1) / (sum(p) + sum(y) + 1) over all places whose label is not negative, p
    its Softmax; the 1 makes a class that is neither there nor found count as right.
    """
    nodes = x.nodes
    x = nodes.logits(x, "Softmax", "the Dice loss", axis)
    hot = one_hot(labels, x.shape[axis], axis)
    counts = hot.sum_over(axis).unsqueeze(axis)
    return _missed_overlap(nodes.op("Softmax", x, axis=axis) * counts, hot, axis)


def sigmoid_dice(x: LossValue, y: LossValue, axis: int) -> LossValue:
    """The same of logits with one sigmoid per class; targets are 0 to 1 of its shape, what is negative is ignored."""
    x = x.nodes.logits(x, "Sigmoid", "the Dice loss")
    y, counts = _counting(y)
    return _missed_overlap(x.nodes.op("Sigmoid", x) * counts, y, axis)


def _missed_overlap(p: LossValue, y: LossValue, axis: int) -> LossValue:
    both, total = p * y, p + y
    for other in reversed([one for one in range(p.rank) if one != axis]):
        both, total = both.sum_over(other), total.sum_over(other)
    return 1.0 - ((both * 2.0 + 1.0) / (total + 1.0)).mean()


def divergence(s: LossValue, t: LossValue, axis: int, temperature: float = 1.0) -> LossValue:
    """T^2 * mean over positions of sum(p * (log p - log q)), p = softmax(t / T), q = softmax(s / T) (Hinton 2015).

    T^2 keeps the gradient's size whatever T is. Both are logits.
    """
    s.nodes.note_probabilities(s, "the divergence")
    each = categorical_divergence(s * (1.0 / temperature), t * (1.0 / temperature), axis)
    return each.sum() * (temperature**2 * s.shape[axis] / s.size)


def bernoulli_divergence(s: LossValue, t: LossValue) -> LossValue:
    """KL(sigmoid(t) || sigmoid(s)) of every logit, of the shape of s."""
    p = t.nodes.op("Sigmoid", t)
    return softplus(s) - softplus(t) - p * (s - t)


def categorical_divergence(s: LossValue, t: LossValue, axis: int) -> LossValue:
    """KL(softmax(t) || softmax(s)) along the classes, its summands; of the shape of s."""
    nodes = s.nodes
    log_q, log_p = nodes.op("LogSoftmax", s, axis=axis), nodes.op("LogSoftmax", t, axis=axis)
    return nodes.op("Exp", log_p) * (log_p - log_q)


def cosine(s: LossValue, t: LossValue, axis: int) -> LossValue:
    """The mean over positions of 1 - <s, t> / (|s| |t|) along the channels."""
    lengths = _length(s, axis) * _length(t, axis)
    return 1.0 - ((s * t).sum_over(axis) / lengths).mean()


def _length(x: LossValue, axis: int) -> LossValue:
    """The length along an axis, 1e-3 at least, so that the gradient at a zero vector stays of a useful size."""
    return x.nodes.op("Sqrt", (x * x).sum_over(axis) + _FLOOR)


def axis_of(s: LossValue, numbers: Mapping[str, float], where: object) -> int:
    """The axis of classes or channels: as given, else axis 1 of [N, C] and of pictures, the last of [N, anchors, C].

    Raises:
        QdqError: the tensor has no such axis.
    """
    axis = int(numbers.get("axis", 2 if s.rank == 3 else 1))
    if not -s.rank <= axis < s.rank or s.rank < 2:
        raise QdqError(where, f"{s.name} of shape {list(s.shape)} has no axis {axis}", "give another axis after =")
    return axis % s.rank
