# SPDX-License-Identifier: Apache-2.0
"""Makes sure that an edit leaves the pairs where they were: the same points, those with a node behind right there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from qdqtool.conditioning.condition_context import ConditionContext, look
from qdqtool.graph.model import Model
from qdqtool.passes.condition.shift import Shift, shift_channels
from qdqtool.passes.condition.smooth import Division, divide

LEAST_SKIP = 1.0  # decibels for which the skip of a residual block may be read in float


class TensorEdit(Protocol):
    """What is done to one tensor."""

    @property
    def tensor(self) -> str:
        """Its name."""


EditT = TypeVar("EditT", bound=TensorEdit)


@dataclass(frozen=True)
class NodeBehind(Generic[EditT]):
    """A kind of node that a step puts after tensors.

    Attributes:
        name: what messages call it, with its article.
        put: puts one that changes no value after each tensor of a model, edited in place; gives back what each gives
            out -> the tensor.
    """

    name: str
    put: Callable[[Model, Sequence[EditT]], Mapping[str, str]]

    def tried(self, context: ConditionContext, wanted: Sequence[EditT]) -> tuple[Model, Mapping[str, str]]:
        """A copy of a model with such nodes, and what `put` gives back."""
        copy = context.model.copy()
        return copy, self.put(copy, wanted)


def kept_edits(
    context: ConditionContext,
    wanted: Sequence[EditT],
    gains: Mapping[str, float],
    behind: NodeBehind[EditT],
) -> tuple[list[EditT], dict[str, str]]:
    """The edits whose node after the tensor leaves the plan as it is, and why the others are left out.

    The nodes are tried on a copy of the graph: every point must then stand on the same tensor or after its node. One
    price is taken where a node wins much: after the Add of a residual block, the skip is read in float from then on,
    since the Add no longer ends in INT8.
    """
    kept = list(wanted)
    left: dict[str, str] = {}
    while kept:
        moved, skips = _moved(context, kept, behind)
        if not moved:
            moved = {name for name in skips if gains[name] < LEAST_SKIP}
        if not moved:
            break
        left.update(dict.fromkeys(sorted(moved), f"{behind.name} after it would move Q/DQ pairs"))
        kept = [one for one in kept if one.tensor not in moved]
    return kept, left


def _moved(context: ConditionContext, wanted: Sequence[EditT], behind: NodeBehind[EditT]) -> tuple[set[str], set[str]]:
    """The tensors whose node moves pairs (all, where that is unknown), and those whose node only loses INT8 skips."""
    edited, sources = behind.tried(context, wanted)
    done = set(sources.values())
    after = look(edited, context.options).plan
    was = {(point.tensor, read) for point in context.plan.activations for read in point.reads}
    now = {(sources.get(point.tensor, point.tensor), read) for point in after.activations for read in point.reads}
    outputs = {node.key: group.output for group in context.plan.groups for node in group.nodes}
    producers = {read.node for _, read in was ^ now}  # who no longer reads INT8: what it makes got the node
    blamed = ({*producers, *(outputs[key] for key in producers if key in outputs)}) & done
    if {name for name, _ in was} == {name for name, _ in now} and now < was and blamed:
        return set(), blamed
    if was == now:
        return set(), set()
    return blamed or ({name for name, _ in was ^ now} & done) or done, set()


def _unit_muls(model: Model, divisions: Sequence[Division]) -> dict[str, str]:
    ones = [replace(one, factors=np.ones(one.factors.size, np.float32)) for one in divisions]
    return {made: name for name, made in divide(model, ones, {}).items()}


def _zero_adds(model: Model, shifts: Sequence[Shift]) -> dict[str, str]:
    zeros = [replace(one, values=np.zeros_like(one.values)) for one in shifts]
    made = shift_channels(model, zeros, {})
    return {name: one.tensor for name, one in zip(made, shifts, strict=True) if name}


MUL: Final = NodeBehind("a Mul", _unit_muls)
ADD: Final = NodeBehind("an Add", _zero_adds)
