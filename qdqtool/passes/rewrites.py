# SPDX-License-Identifier: Apache-2.0
"""What a Q/DQ graph is rewritten to because a compiler builds it cheaper: the same function, and the way back.

Each rewrite is asked for by rules of the target (rules/rtx.toml). `insert` applies them in order; `peel`, and forecasts
by other rules, undo them from the last to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from qdqtool.display import counted
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.common_scale import placed_factors
from qdqtool.match.late_bias import placed_biases
from qdqtool.passes.common_scale import place_common_scales, restore_scales
from qdqtool.passes.late_bias import place_late_biases, restore_biases
from qdqtool.passes.stacked_concat import placed_stacks, restore_concats, stack_concats
from qdqtool.rulebook import RuleBook


@dataclass(frozen=True)
class Rewrite:
    """An edit that keeps the function of a Q/DQ graph, and its inverse.

    Attributes:
        rules: the rules of a target that ask for it; empty if none does.
        placed: where a graph has it.
        apply: edits the graph where the rules ask for it; how many places.
        undo: edits the graph back, typed or not; how many places.
        note: the sentence on a number of places.
        half_only: whether it pays only if what is not INT8 is FP16.
        changes_pairs: whether it changes scales of pairs, so that it is undone before pairs are read.
    """

    rules: Callable[[RuleBook], Sequence[object]]
    placed: Callable[[GraphView], Iterable[object]]
    apply: Callable[[GraphView, RuleBook], int]
    undo: Callable[[GraphView], int]
    note: Callable[[int], str]
    half_only: bool
    changes_pairs: bool = False


REWRITES = (
    Rewrite(
        lambda rules: rules.late_biases,
        placed_biases,
        place_late_biases,
        restore_biases,
        lambda count: (
            f"the bias of {counted(count, 'convolution')} is added after a Transpose, where TensorRT for RTX fuses "
            "what follows: fewer layers, the same values"
        ),
        half_only=False,
    ),
    Rewrite(
        lambda rules: rules.common_scales,
        placed_factors,
        place_common_scales,
        restore_scales,
        lambda count: (
            f"one scale each for {counted(count, 'weight')}, factors of the channels after the products: "
            "TensorRT for RTX then writes FP16; the INT8 weights are the same"
        ),
        half_only=True,
        changes_pairs=True,
    ),
    Rewrite(
        lambda rules: rules.stacked_concats,
        placed_stacks,
        stack_concats,
        restore_concats,
        lambda count: (
            f"{counted(count, 'Concat')} of samples along a new axis, with a Reshape after it: "
            "TensorRT for RTX makes fewer kernels of them; the same values"
        ),
        half_only=True,
    ),
)


def apply_rewrites(model: Model, rules: RuleBook, *, half: bool) -> list[str]:
    """Rewrite a Q/DQ graph for the target of the rules; a sentence for each kind of rewrite that found places.

    Args:
        model: its main graph is edited.
        rules: of the target.
        half: whether what is not INT8 is FP16.
    """
    notes = []
    for rewrite in REWRITES:
        if rewrite.rules(rules) and (half or not rewrite.half_only):
            count = rewrite.apply(model.view, rules)
            notes += [rewrite.note(count)] if count else []
    return notes


def undo_rewrites(model: Model, *, changing_pairs: bool | None = None) -> None:
    """Undo the rewrites of a main graph, which is edited.

    Args:
        model: typed or not.
        changing_pairs: undo those alone that change pairs, or those alone that do not; None for all.
    """
    for rewrite in reversed(REWRITES):
        if changing_pairs in (None, rewrite.changes_pairs):
            rewrite.undo(model.view)


def without_rewrites(model: Model) -> Model:
    """The model before it was rewritten, for forecasts by the rules of another target; itself if it was not."""
    if not any(any(True for _ in rewrite.placed(model.view)) for rewrite in REWRITES):
        return model
    plain = model.copy()
    undo_rewrites(plain)
    return plain
