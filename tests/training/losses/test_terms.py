# SPDX-License-Identifier: Apache-2.0
"""Every formula against NumPy in float64, and against numbers that PyTorch 2.13 gave for the same arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.errors import QdqError
from qdqtool.training.losses import terms
from qdqtool.training.losses.nodes import LossValue, Nodes
from tests.training.losses.loss_graphs import bare, shapes_of, term_value, value_and_gradient

Floats = npt.NDArray[np.float64]

RANDOM = np.random.default_rng(8)
S, T = RANDOM.standard_normal((2, 6, 4)), RANDOM.standard_normal((2, 6, 4))
S[0, 0, 0], S[1, 5, 3] = 0.0, 0.0  # where a quantized output often is
ZERO_ONE = (RANDOM.random((2, 6, 4)) > 0.7).astype(float)
CLASSES = RANDOM.integers(0, 4, (2, 6))
CLASSES[0, 0], CLASSES[1, 3] = 0, -1
MASK = (RANDOM.random((2, 6)) > 0.5).astype(float)
# Logits for which exp overflows in float32, on either side.
FAR = np.array([[-200.0, 200.0, -90.0, 90.0]])


def log_softmax(x: Floats, axis: int) -> Floats:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def bce_each(x: Floats, y: Floats) -> Floats:
    return np.logaddexp(0, x) - x * y


def chosen(x: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """Log-probability of each label; classes on the last axis."""
    return np.take_along_axis(log_softmax(x, -1), np.maximum(labels, 0)[..., None], -1)[..., 0]


def test_normalized_error() -> None:
    wanted = ((S - T) ** 2).sum() / ((T**2).sum() + 1e-6 * T.size)
    assert term_value(terms.normalized_error, s=S, t=T) == pytest.approx(wanted, rel=1e-6)


def test_a_silent_teacher_does_not_blow_the_error_up() -> None:
    assert term_value(terms.normalized_error, s=np.full((1, 4), 1e-3), t=np.zeros((1, 4))) == pytest.approx(1, rel=1e-4)


def test_mean_square_and_mean_absolute() -> None:
    assert term_value(terms.mean_square, s=S, t=T) == pytest.approx(((S - T) ** 2).mean(), rel=1e-6)
    assert term_value(terms.mean_absolute, s=S, t=T) == pytest.approx(np.abs(S - T).mean(), rel=1e-6)


@pytest.mark.parametrize("beta", [1.0, 0.11])
def test_smooth_l1(beta: float) -> None:
    d = np.abs(S - T)
    each = np.where(d < beta, d * d / (2 * beta), d - beta / 2)
    formula = functools.partial(terms.smooth_l1, beta=beta)
    assert term_value(formula, s=S, t=T) == pytest.approx(each.mean(), rel=1e-6)
    masked = term_value(lambda s, t, m: formula(s, t, mask=m), s=S, t=T, mask=MASK)
    assert masked == pytest.approx((each * MASK[..., None]).sum() / MASK.sum(), rel=1e-6)


def test_no_anchor_that_counts_is_no_division_by_zero() -> None:
    assert term_value(lambda s, t, m: terms.smooth_l1(s, t, mask=m), s=S, t=T, mask=MASK * 0) == 0
    assert term_value(terms.binary_cross_entropy, s=S, y=ZERO_ONE * 0 - 1) == 0
    assert term_value(lambda s, y: terms.cross_entropy(s, y, 2), s=S, y=CLASSES * 0 - 1) == 0


def test_binary_cross_entropy_leaves_negative_targets_out() -> None:
    y = ZERO_ONE.copy()
    assert term_value(terms.binary_cross_entropy, s=S, y=y) == pytest.approx(bce_each(S, y).mean(), rel=1e-6)
    y[0] = -1
    assert term_value(terms.binary_cross_entropy, s=S, y=y) == pytest.approx(bce_each(S, y)[1].mean(), rel=1e-6)


def test_binary_cross_entropy_takes_soft_targets() -> None:
    wanted = bce_each(S, ZERO_ONE * 0.8 + 0.1).mean()
    assert term_value(terms.binary_cross_entropy, s=S, y=ZERO_ONE * 0.8 + 0.1) == pytest.approx(wanted, rel=1e-6)


def test_large_logits_do_not_overflow() -> None:
    y = np.array([[1.0, 0.0, 0.0, 1.0]])
    assert term_value(terms.binary_cross_entropy, s=FAR, y=y) == pytest.approx(bce_each(FAR, y).mean(), rel=1e-6)
    labels = np.array([0])
    assert term_value(lambda s, y: terms.cross_entropy(s, y, 1), s=FAR, y=labels) == pytest.approx(400, rel=1e-6)
    assert np.isfinite(term_value(terms.sigmoid_focal, s=FAR, y=y))


@pytest.mark.parametrize(("gamma", "alpha"), [(2.0, 0.25), (0.0, 0.4), (1.5, 0.5)])
def test_sigmoid_focal(gamma: float, alpha: float) -> None:
    y = ZERO_ONE.copy()
    y[1, 2] = -1
    p = 1 / (1 + np.exp(-S))
    wrong = np.where(y == 1, 1 - p, p)
    each = np.where(y == 1, alpha, 1 - alpha) * wrong**gamma * bce_each(S, np.maximum(y, 0)) * (y >= 0)
    formula = functools.partial(terms.sigmoid_focal, gamma=gamma, alpha=alpha)
    assert term_value(formula, s=S, y=y) == pytest.approx(each.sum() / (y == 1).sum(), rel=1e-6)


@pytest.mark.parametrize("axis", [1, 2])
def test_cross_entropy_on_either_axis(axis: int) -> None:
    s = S if axis == 2 else S.transpose(0, 2, 1)
    counts = CLASSES >= 0
    wanted = -(chosen(S, CLASSES) * counts).sum() / counts.sum()
    found = term_value(lambda s, y: terms.cross_entropy(s, y, axis), s=s, y=CLASSES)
    assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("gamma", "alpha"), [(2.0, 0.25), (0.0, 0.4), (1.5, 0.5)])
def test_softmax_focal(gamma: float, alpha: float) -> None:
    log_p = chosen(S, CLASSES)
    weight = np.where(CLASSES > 0, alpha, 1 - alpha) * (CLASSES >= 0)
    wanted = -(weight * (1 - np.exp(log_p)) ** gamma * log_p).sum() / (CLASSES > 0).sum()
    formula = functools.partial(terms.softmax_focal, axis=2, gamma=gamma, alpha=alpha)
    assert term_value(formula, s=S, y=CLASSES) == pytest.approx(wanted, rel=1e-6)


def test_a_perfect_prediction_has_no_focal_loss() -> None:
    sure = np.array([[50.0, -50.0]])
    found = term_value(lambda s, y: terms.softmax_focal(s, y, 1, gamma=1.5), s=sure, y=np.array([0]))
    assert found == 0


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_divergence(temperature: float) -> None:
    log_q, log_p = log_softmax(S / temperature, 2), log_softmax(T / temperature, 2)
    wanted = temperature**2 * (np.exp(log_p) * (log_p - log_q)).sum(axis=2).mean()
    found = term_value(lambda s, t: terms.divergence(s, t, 2, temperature), s=S, t=T)
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_cosine(axis: int) -> None:
    lengths = np.linalg.norm(S, axis=axis) * np.linalg.norm(T, axis=axis)
    wanted = (1 - (S * T).sum(axis=axis) / lengths).mean()
    assert term_value(lambda s, t: terms.cosine(s, t, axis), s=S, t=T) == pytest.approx(wanted, abs=1e-5)


def test_the_cosine_of_nothing_is_finite() -> None:
    assert term_value(lambda s, t: terms.cosine(s, t, 1), s=np.zeros((1, 3)), t=np.ones((1, 3))) == pytest.approx(1)


# PyTorch 2.13 on the same arrays: value and gradient by the first; a logit is exactly 0, a target is left out.
A = np.array([[0.0, 0.5, -1.0], [2.0, -0.25, 0.75]])
B = np.array([[0.5, -0.5, 1.0], [0.0, 0.25, -2.0]])
Y = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
TORCH = [
    (terms.normalized_error, B, 3.067412, [-0.179775, 0.35955, -0.7191, 0.7191, -0.179775, 0.988763]),
    (terms.smooth_l1, B, 1.0, [-0.0833333, 0.166667, -0.166667, 0.166667, -0.0833333, 0.166667]),
    (terms.binary_cross_entropy, Y, 1.151393, [-0.1, 0.124492, 0.0, 0.176159, -0.112435, 0.135836]),
    (terms.sigmoid_focal, Y, 1.011256, [-0.0372858, 0.197307, 0.0, 0.403768, -0.0507804, 0.243669]),
    (terms.cross_entropy, [2, 0], 1.217402, [0.165749, 0.273275, -0.439024, -0.14078, 0.0378615, 0.102918]),
    (terms.softmax_focal, [2, 0], 0.4252156, [0.101239, 0.166914, -0.268153, -0.0449908, 0.0120999, 0.0328909]),
    (terms.dice, [2, 0], 0.3500721, [0.00488818, 0.0295573, -0.0344455, -0.0447583, 0.0148128, 0.0299454]),
    (terms.sigmoid_dice, Y, 0.3999981, [-0.0347163, 0.0156885, 0.0, 0.00612398, -0.0371875, 0.0257592]),
    (terms.divergence, B, 0.8255539, [0.0, 0.243375, -0.243375, 0.120261, -0.301906, 0.181645]),
    (terms.cosine, B, 1.63667, [-0.182574, 0.0, 0.0, -0.0779392, -0.0190951, 0.201473]),
]


@pytest.mark.parametrize(("formula", "other", "value", "gradient"), TORCH, ids=[row[0].__name__ for row in TORCH])
def test_values_and_gradients_are_those_of_pytorch(
    formula: Callable[..., LossValue], other: Any, value: float, gradient: list[float]
) -> None:
    how = {"axis": 1} if "axis" in inspect.signature(formula).parameters else {}
    how |= {"temperature": 4.0} if formula is terms.divergence else {}
    found, by_first = value_and_gradient(functools.partial(formula, **how), A, np.array(other))
    assert found == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(by_first.reshape(-1), gradient, atol=2e-6)


SMOOTHED = [
    (terms.binary_cross_entropy, Y, 1.11639252, [-0.09, 0.114492, 0.0, 0.166159, -0.102435, 0.125836]),
    (terms.cross_entropy, [2, 0], 1.23406827, [0.149083, 0.256608, -0.405691, -0.107446, 0.0211949, 0.0862516]),
]


@pytest.mark.parametrize(("formula", "other", "value", "gradient"), SMOOTHED, ids=["bce", "ce"])
def test_label_smoothing_is_that_of_pytorch(
    formula: Callable[..., LossValue], other: Any, value: float, gradient: list[float]
) -> None:
    how: dict[str, Any] = {"smoothing": 0.1} | ({"axis": 1} if formula is terms.cross_entropy else {})
    found, by_first = value_and_gradient(functools.partial(formula, **how), A, np.array(other))
    assert found == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(by_first.reshape(-1), gradient, atol=2e-6)


def test_smoothing_leaves_out_what_has_no_label() -> None:
    smoothed = functools.partial(terms.cross_entropy, axis=1, smoothing=0.1)
    whole, _ = value_and_gradient(smoothed, A[:1], np.array([2]))
    found, by_first = value_and_gradient(smoothed, A, np.array([2, -1]))
    assert found == pytest.approx(whole) and not by_first[1].any()


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_the_opset_makes_no_difference(opset: int) -> None:
    found = term_value(lambda s, y: terms.softmax_focal(s, y, 2), opset, s=S, y=CLASSES)
    assert found == term_value(lambda s, y: terms.softmax_focal(s, y, 2), s=S, y=CLASSES)
    assert term_value(terms.sigmoid_focal, opset, s=S, y=ZERO_ONE) == term_value(terms.sigmoid_focal, s=S, y=ZERO_ONE)
    assert term_value(terms.smooth_l1, opset, s=S, t=T) == term_value(terms.smooth_l1, s=S, t=T)


@pytest.mark.parametrize(("rank", "axis"), [(2, 1), (3, 2), (4, 1), (5, 1)])
def test_where_classes_lie_unless_told(rank: int, axis: int) -> None:
    proto = bare(x=np.zeros((2,) * rank))
    x = Nodes(proto, shapes_of(proto)).tensor("x", "test")
    assert terms.axis_of(x, {}, "test") == axis
    assert terms.axis_of(x, {"axis": -1}, "test") == rank - 1
    with pytest.raises(QdqError, match=rf"has no axis {rank}"):
        terms.axis_of(x, {"axis": rank}, "test")
