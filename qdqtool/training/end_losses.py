# SPDX-License-Identifier: Apache-2.0
"""How far the ends of a network lie from a teacher's, in NumPy: the terms of `distill_targets`, without a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.model import Model
from qdqtool.training.losses.distill_targets import DistillTarget, Shapes, find_kinds

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


class DistillLosses:
    """One loss for each kind of end, and for each float output that no head leads to.

    Attributes:
        kinds: what the network ends in.
        outputs: the other outputs.
    """

    def __init__(self, model: Model, shapes: Shapes, floats: frozenset[str]) -> None:
        """Find the ends."""
        self.kinds, covered = find_kinds(model.view, floats & shapes.keys(), shapes)
        ends = {end.tensor for kind in self.kinds for end in kind.ends}
        names = [value.name for value in model.graph.output if value.name in floats]
        self.outputs = tuple(name for name in names if name not in covered | ends)

    @property
    def tensors(self) -> tuple[str, ...]:
        """What must be computed."""
        ends = [end for kind in self.kinds for end in kind.ends]
        beside = [name for end in ends for name in end.beside]
        return tuple(dict.fromkeys([*(end.tensor for end in ends), *beside, *self.outputs]))

    def measure(self, whole: Mapping[str, Array], found: Mapping[str, Array]) -> Float64:
        """The losses of one batch."""
        values = [sum(_end_loss(end, whole, found) for end in kind.ends) for kind in self.kinds]
        values += [float(np.square(_wide(found[name]) - _wide(whole[name])).sum()) for name in self.outputs]
        return np.array(values)


def _end_loss(end: DistillTarget, whole: Mapping[str, Array], found: Mapping[str, Array]) -> float:
    t, s = _wide(whole[end.tensor]), _wide(found[end.tensor])
    if end.form == "sigmoid":
        each = np.logaddexp(0, s) - np.logaddexp(0, t) - _sigmoid(t) * (s - t)
    elif end.form == "softmax":
        log_t, log_s = _log_softmax(t, end.axis), _log_softmax(s, end.axis)
        each = np.exp(log_t) * (log_t - log_s)
    else:
        each = np.square(s - t)
    for logits in end.beside:
        each = each * _sigmoid(_wide(whole[logits])).max(axis=end.axis, keepdims=True)
    return float(each.sum())


def _wide(array: Array) -> Float64:
    return np.asarray(array, np.float64)


def _sigmoid(x: Float64) -> Float64:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _log_softmax(x: Float64, axis: int) -> Float64:
    moved = x - x.max(axis=axis, keepdims=True)
    return np.asarray(moved - np.log(np.exp(moved).sum(axis=axis, keepdims=True)))
