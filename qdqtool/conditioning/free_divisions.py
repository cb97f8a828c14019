# SPDX-License-Identifier: Apache-2.0
"""Divisions of one tensor that the weights before it take in, so that they cost no Mul.

A division by a Mul changes one tensor alone. Where no other tensor that is read in INT8 holds the classes of its
channels (`channel_classes.py`), dividing the classes in the weights does the same. `equalize` decides by all tensors of
a class together and at one strength for the whole model, so that more can be left to win.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.equalization_sets import inverse_of
from qdqtool.conditioning.equalize_step import ClassState
from qdqtool.graph.channels.atoms import PINNED
from qdqtool.graph.model import Model
from qdqtool.passes.condition.equalize import equalize
from qdqtool.passes.condition.smooth import Division, divide

Int64 = npt.NDArray[np.int64]


def split_free(state: ClassState, divisions: Iterable[Division]) -> tuple[list[Division], list[Division]]:
    """The divisions that weights take in, and those that need a Mul."""
    labels = state.classes.labels
    holders = Counter(label for own in labels.values() for label in np.unique(own[own > PINNED]).tolist())
    uncounted = state.classes.uncounted(point.tensor for point in state.context.plan.activations)
    free: list[Division] = []
    paid: list[Division] = []
    for one in divisions:
        own = labels[one.tensor]
        divided = own[one.factors != 1].tolist()
        alone = all(label > PINNED and holders[label] == 1 and label not in uncounted for label in divided)
        (free if alone and _is_one_factor_a_class(own, one.factors) else paid).append(one)
    return free, paid


def _is_one_factor_a_class(own: Int64, factors: npt.NDArray[np.float32]) -> bool:
    of_class = dict(zip(own.tolist(), factors.tolist(), strict=True))
    return all(of_class[label] == factor for label, factor in zip(own.tolist(), factors.tolist(), strict=True))


def carry_out(model: Model, state: ClassState, free: Sequence[Division], paid: Sequence[Division]) -> dict[str, str]:
    """Carry divisions out on a model: those in the weights, then those by a Mul."""
    if free:
        factors = np.ones(state.classes.factors.atoms.size)
        for one in free:
            factors[state.classes.labels[one.tensor]] = one.factors
        equalize(model, state.classes.factors, factors)
    if not paid:
        return {}
    return divide(model, paid, inverse_of(state.classes.routes, paid))
