# SPDX-License-Identifier: Apache-2.0
"""What a Q/DQ graph is rewritten to because a compiler builds it cheaper: the same function, and the way back.

Each rewrite is asked for by rules of the target (rules/rtx.toml). `insert` applies them in order; `peel`, and forecasts
by other rules, undo them from the last to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from qdqtool.display import counted
from qdqtool.graph.edit import traced_rule
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.common_scale import COMMON_SCALE, LARGEST_SUM, placed_factors
from qdqtool.match.late_bias import LATE_BIAS, placed_biases
from qdqtool.passes.common_scale import place_common_scales, restore_scales
from qdqtool.passes.late_bias import place_late_biases, restore_biases
from qdqtool.passes.stacked_concat import STACKED, placed_stacks, restore_concats, stack_concats
from qdqtool.precision.value_ranges import ValueRange, ValueRanges
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
            "TensorRT for RTX then writes FP16; the codes of the weights are the same"
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


def rewritten_ranges(view: GraphView, ranges: ValueRanges) -> ValueRanges:
    """The ranges of a rewritten Q/DQ graph, from those of the graph before: data need not run again for them.

    What a rewrite puts behind has the values of before under their names. Before a bias, they are shifted; what a
    common scale multiplies is bounded by the scale itself.
    """
    found, derived = dict(ranges.tensors), set[str]()
    for node in reversed(view.nodes):
        rule, made = traced_rule(node), found.get(node.key)
        if made is None or rule not in (COMMON_SCALE, LATE_BIAS, STACKED):
            continue
        if node.op == "Add" and rule != STACKED:
            bias = view.array(node.inputs[1])
            if bias is not None:
                low, high = made.low - float(bias.max(initial=0)), made.high - float(bias.min(initial=0))
                shifted = replace(made, low=low, high=high, mean=None, smallest=None)
                derived |= _spread(view, node, shifted, found)
        elif node.op == "Mul" and rule == COMMON_SCALE:
            bound = ValueRange(-LARGEST_SUM, LARGEST_SUM, certain=True, elements=made.elements)
            derived |= _spread(view, node, bound, found)
        elif node.op == "Reshape" and rule == STACKED:
            _spread(view, node, made, found)
            for name in view.producers[node.inputs[0]].inputs:
                source = found.get(view.producers[name].inputs[0]) if name in view.producers else None
                found.update({name: source} if source is not None else {})
    return replace(ranges, tensors=found, derived=frozenset(derived))


def _spread(view: GraphView, node: Node, values: ValueRange, found: dict[str, ValueRange]) -> set[str]:
    """Give what a node reads a range, and what moves there from its maker on; their names."""
    names = [node.inputs[0]]
    while (maker := view.producers.get(names[-1])) is not None and maker.op in ("Transpose", "Reshape"):
        names.append(maker.inputs[0])
    found.update(dict.fromkeys(names, values))
    return set(names)
