# SPDX-License-Identifier: Apache-2.0
"""What equalizing and smoothing would win, predicted from a few samples and tried on those that were not counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_classes import count_classes, find_classes
from qdqtool.conditioning.class_factors import ClassChoice, choose_class_factors
from qdqtool.conditioning.condition_context import ConditionContext, look
from qdqtool.conditioning.equalization_sets import EqualizationSet, inverse_of
from qdqtool.conditioning.equalize_step import ClassState
from qdqtool.conditioning.judge import HeldOut, Variant, counted_scales, output_losses, scale_of
from qdqtool.conditioning.prediction import ErrorPrediction, predict
from qdqtool.conditioning.smooth_step import MulDecision, decide_smooth, divisions_of
from qdqtool.data.loader import Batch, DataLoader
from qdqtool.data.single_samples import SingleSamples
from qdqtool.engine.macs import multiply_adds
from qdqtool.graph.model import Model
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.weight_store import WeightStore
from qdqtool.graph.weighted import weight_dims, weight_index
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.condition.equalize import equalize
from qdqtool.passes.condition.smooth import divide
from qdqtool.scales import Scale

Float32 = npt.NDArray[np.float32]

# Multiply-adds of a sample, and what each weight is rounded with: a network of more makes `insert` wait as long as
# `condition` takes. Up to here that is one or two seconds.
MOST_WORK, _ROUNDINGS = 1_000_000_000, 32
_WORTH = 2.0  # dB of the operator that loses most, from which conditioning is worth a word


def advice(model: Model, loader: DataLoader, plan: PlanOptions) -> tuple[ErrorPrediction, ErrorPrediction] | None:
    """What equalizing and smoothing would win, predicted without an edit: without them, with them.

    None where that is too little to be worth a word, or the outputs of what was not counted do not gain.
    """
    context = look(model, plan)
    samples = SingleSamples(loader, loader.inputs)
    first = next(iter(samples))
    if work_of(context, first) > MOST_WORK:
        return None
    held = HeldOut(samples)
    classes = find_classes(context, first)
    state = ClassState(context, classes, count_classes(context, classes, held))
    trial = _Trial.of(state)
    if trial is None:
        return None
    before = predict([(one.family, np.ones(one.classes.size, np.float32)) for one in state.counted.families])
    after = predict(trial.divided)
    if before is None or after is None or after.worst - before.worst < _WORTH:
        return None
    return (before, after) if trial.gains(held.samples) else None


def work_of(context: ConditionContext, first: Batch) -> int:
    """Multiply-adds of the products that have INT8 weights, and roundings of these weights."""
    view = context.view
    shapes = shapes_of(view, {name: array.shape for name, array in first.items()})
    found = 0
    for node in (view.producers[read.node] for point in context.plan.weights for read in point.reads):
        index = weight_index(view, node)
        dims = None if index is None else weight_dims(view, node.inputs[index])
        read = None if index is None else shapes.get(view.root(node.inputs[1 - index]))
        given = shapes.get(node.outputs[0])
        if index is None or dims is None:
            continue
        found += _ROUNDINGS * math.prod(dims)
        if read is not None and given is not None:
            one, other = (dims, _sizes(read)) if index == 0 else (_sizes(read), dims)
            found += multiply_adds(node, one, other, _sizes(given))
    return found


def _sizes(shape: Shape) -> tuple[int, ...]:
    """A shape, with 1 for an axis of unknown size."""
    return tuple(size or 1 for size in shape)


@dataclass(frozen=True, eq=False)
class _Trial:
    """What would be done: classes divided in the weights, and Mul nodes after the tensors of the other families."""

    state: ClassState
    choice: ClassChoice
    muls: Sequence[MulDecision]
    divided: Sequence[tuple[EqualizationSet, Float32]]

    @classmethod
    def of(cls, state: ClassState) -> _Trial | None:
        """What is predicted to win; None where nothing is."""
        families = state.counted.families
        choice = choose_class_factors(families, state.classes.factors.atoms.size, "float")
        own = [choice.factors[one.classes].astype(np.float32) for one in families]
        untouched = {id(one.family) for one, factors in zip(families, own, strict=True) if (factors == 1).all()}
        verdicts, _ = decide_smooth(state, "float")
        muls = [one for one in verdicts if one.divided and id(one.family) in untouched]
        made = {id(one.family): one.factors for one in muls}
        divided = [(one.family, made.get(id(one.family), factors)) for one, factors in zip(families, own, strict=True)]
        return cls(state, choice, muls, divided) if any((factors != 1).any() for _, factors in divided) else None

    def gains(self, samples: Sequence[Batch]) -> bool:
        """Whether the outputs in INT8 lose less with it."""
        context, counted = self.state.context, self.state.counted
        before = counted_scales(counted.families, np.ones_like(self.choice.factors), counted.amax)
        forms: list[Variant] = [lambda: (context.model.copy(WeightStore()), before), self._edited]
        losses = output_losses(context, forms, samples)
        return losses is None or losses[1] < losses[0]

    def _edited(self) -> tuple[Model, dict[str, Scale]]:
        """A copy of the model with it, and its scales."""
        context, counted = self.state.context, self.state.counted
        after = counted_scales(counted.families, self.choice.factors, counted.amax)
        edited = context.model.copy(WeightStore())
        equalize(edited, self.state.classes.factors, self.choice.factors)
        divisions = [division for one in self.muls for division in divisions_of(context, one)]
        inverse = inverse_of(self.state.classes.routes, divisions)
        added = divide(edited, divisions, inverse)
        for one in self.muls:
            scale = scale_of(one.family, one.factors.astype(np.float64))
            after.update({added[span.tensor]: scale for span in one.family.spans if span.tensor in added})
        return edited, after
