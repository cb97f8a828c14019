# SPDX-License-Identifier: Apache-2.0
"""The step `equalize`: whole classes of channels get factors, where the outputs in INT8 gain on samples held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_classes import ChannelClasses, ClassFamily, Counted, count_classes, find_classes
from qdqtool.conditioning.class_factors import ClassChoice, choose_class_factors, linked_groups, weaken
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.conditioning.edits import Edit
from qdqtool.conditioning.judge import HeldOut, counted_scales, output_losses
from qdqtool.conditioning.predict import Rounding
from qdqtool.conditioning.workspace import Workspace
from qdqtool.graph.model import Model
from qdqtool.graph.weight_store import WeightStore
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.passes.condition.equalize import equalize
from qdqtool.runtime.memory import release_freed_memory
from qdqtool.scales import Scale

Float64 = npt.NDArray[np.float64]

# Powers that a choice is tried with, too: the noise of all readers, which is predicted, is not that of the outputs.
SHARES = (0.75, 0.5, 0.25)


@dataclass(frozen=True, eq=False)
class ClassState:
    """A model as it is now: its plan, its classes, and what was counted of them."""

    context: ConditionContext
    classes: ChannelClasses
    counted: Counted


def count_state(work: Workspace, held: HeldOut | None = None) -> ClassState:
    """Look at the model and count; where `held` is given, without what that holds out."""
    context = work.look()
    classes = find_classes(context, next(iter(work.samples)))
    release_freed_memory(cycles=True)
    counted = count_classes(context, classes, work.samples if held is None else held)
    release_freed_memory(cycles=True)
    return ClassState(context, classes, counted)


def run_equalize(work: Workspace, state: ClassState, held: HeldOut, factors: Rounding) -> Float64:
    """Divide classes in the weights of a model where the outputs gain on what `held` holds, which is not counted.

    Returns the factors by atom, all 1 where nothing was done.
    """
    made = np.ones(state.classes.factors.atoms.size)

    def attempt(kind: Rounding) -> Sequence[Edit]:
        choice = _choice(state, held, kind)
        if choice is None:
            return ()
        for model in work.models:
            equalize(model, state.classes.factors, choice.factors)
            list_as_inputs(model.proto)
        made[:] = choice.factors
        return _edits(state, choice)

    return made if work.keeping_function("equalize", factors, attempt) else np.ones_like(made)


def _choice(state: ClassState, held: HeldOut, kind: Rounding) -> ClassChoice | None:
    """The factors with which the outputs lose less; None where nothing is divided, or they lose no less.

    All classes are tried together. Where that wins nothing, those are tried without whose channels some tensor that is
    read in INT8 holds in a way that is not counted, as attention's output holds those of the values by heads: what
    dividing costs there is not predicted.
    """
    families, size = state.counted.families, state.classes.factors.atoms.size
    uncounted = state.classes.uncounted(point.tensor for point in state.context.plan.activations)
    groups = linked_groups(families)
    counted = [group for group in groups if not _holds(group, uncounted)]
    fewer = [one for group in counted for one in group]
    for tried in (families, fewer) if len(counted) < len(groups) else (families,):
        choice = choose_class_factors(tried, size, kind)
        if choice.gains and (found := _least(state, tried, choice, held)) is not None:
            return found
    return None


def _holds(group: Sequence[ClassFamily], classes: frozenset[int]) -> bool:
    """Whether some tensor of a group has a channel of one of these classes."""
    return any(not classes.isdisjoint(one.classes[one.free].tolist()) for one in group)


def _least(
    state: ClassState, families: Sequence[ClassFamily], choice: ClassChoice, held: HeldOut
) -> ClassChoice | None:
    """The strength of a choice with which the outputs lose least on the samples held out; None where none wins."""
    weaker = [weaken(families, choice, share) for share in SHARES]
    choices = [choice, *(one for one in weaker if one.gains)]
    every = (np.ones_like(choice.factors), *(one.factors for one in choices))
    variants = [partial(_variant, state, factors) for factors in every]
    losses = output_losses(state.context, variants, held.samples)
    if losses is None:
        return choice
    best = int(np.argmin(losses))
    return choices[best - 1] if best else None


def _variant(state: ClassState, factors: Float64) -> tuple[Model, dict[str, Scale]]:
    """A copy of the model, its classes divided, and its scales."""
    made, counted = state.context.model.copy(WeightStore()), state.counted
    if (factors != 1).any():
        equalize(made, state.classes.factors, factors)
    return made, counted_scales(counted.families, factors, counted.amax)


def _edits(state: ClassState, choice: ClassChoice) -> list[Edit]:
    """One for each tensor that is read in INT8 and was divided."""
    edits = []
    for name, labels in state.classes.labels.items():
        own = choice.factors[labels]
        if (own != 1).any():
            reason = (
                f"its channels, divided by factors up to {own.max() / own.min():.3g} times apart, are equalized in the "
                f"weights before and after all tensors that share them"
            )
            decibel = max(choice.gains.get(label, 0.0) for label in labels.tolist())
            edits.append(Edit("equalize", name, decibel, reason))
    return edits
