# SPDX-License-Identifier: Apache-2.0
"""Concats that the target builds for less along a new axis: which ones, written so with a Reshape after it, and back.

The attention of a deformable DETR samples each feature map (GridSample) and joins the samples along the axis of their
points. In FP16 TensorRT for RTX makes each GridSample a kernel of its own then; joined along a new axis in front of it,
with a Reshape after the Concat, they are part of the kernels around them. The values and their order are the same.
What is behind keeps its names: the Reshape makes the tensor that the Concat made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qdqtool.graph.edit import Editor, count_uses, release, traced, traced_rule
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, Node, Use, attribute
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rulebook import RuleBook

_NEW_AXIS = -2  # of what an Unsqueeze makes
_AXIS = "axis"  # the key of the trace that has the axis from before
STACKED = "stacked-concat"  # what the trace on a Reshape says that is after such a Concat


def stack_concats(view: GraphView, rules: RuleBook) -> int:
    """Let the target join tensors along a new axis where it does so for less; edits the graph, whose values stay."""
    found = stackable_concats(view, rules)
    if not found:
        return 0
    editor = Editor(view)
    axes = editor.add_initializer(editor.unique_name("new_axis"), np.array([_NEW_AXIS], np.int64))
    shapes: dict[int, str] = {}
    for node, rank in found:
        made, axis = node.key, attribute(node, "axis", 0)
        if rank not in shapes:  # as many sides as the samples have, the last two joined
            sides = np.array([*[0] * (rank - 1), -1], np.int64)
            shapes[rank] = editor.add_initializer(editor.unique_name("joined_shape"), sides)
        for index, name in enumerate(node.inputs):
            expanded = editor.unique_name(f"{name}_expanded")
            editor.add_node("Unsqueeze", [name, axes], expanded, beside=node, after=False)
            editor.reroute(Use(node, index), expanded)
        stacked = editor.unique_name(f"{made}_stacked")
        editor.set_attribute(node, "axis", _NEW_AXIS)
        editor.rename_output(node, 0, stacked)
        trace = (("rule", STACKED), (_AXIS, str(axis)))
        editor.add_node("Reshape", [stacked, shapes[rank]], made, beside=node, after=True, trace=trace)
    editor.commit()
    return len(found)


def restore_concats(view: GraphView) -> int:
    """Give every Concat the axis back that it had before `stack_concats`; edits the graph, with pairs or without."""
    found, editor, uses = list(placed_stacks(view)), Editor(view), count_uses(view)
    for one in found:
        for index, node in enumerate(one.expansions):
            editor.reroute(Use(one.concat, index), node.inputs[0])
            editor.remove_node(node)
            release(editor, uses, node.inputs[1])
        editor.remove_node(one.reshape)
        release(editor, uses, one.reshape.inputs[1])
        editor.set_attribute(one.concat, "axis", int(traced(one.reshape, _AXIS)))
        editor.rename_output(one.concat, 0, one.reshape.key)
    if found:
        editor.commit()
    return len(found)


@dataclass(frozen=True)
class PlacedStack:
    """A Concat along a new axis.

    Attributes:
        concat: it.
        expansions: the Unsqueeze of each of its inputs.
        reshape: what makes of it what the Concat made before.
    """

    concat: Node
    expansions: tuple[Node, ...]
    reshape: Node


def stackable_concats(view: GraphView, rules: RuleBook) -> list[tuple[Node, int]]:
    """The Concats that the target builds for less along a new axis, in file order, with the rank of what they join.

    They join tensors of one length along the last axis, which nothing else reads.
    """
    if not rules.stacked_concats:
        return []
    made = {node.key for node, _ in RuleIndex(rules.stacked_concats, rules).nodes(view)}
    joints = [node for node in view.nodes if node.op == "Concat" and made.issuperset(node.inputs)]
    ranks = [_rank_of(view, node) for node in joints]
    return [(node, rank) for node, rank in zip(joints, ranks, strict=True) if rank]


def _rank_of(view: GraphView, node: Node) -> int:
    """The rank of the tensors that a Concat may join along a new axis; 0 where it may not.

    Their other sides are alike in any Concat, whether they are known or not.
    """
    shapes = [known_shapes(view).get(name) or () for name in node.inputs]
    rank, ends = len(shapes[0]), {(len(shape), *shape[-1:]) for shape in shapes}
    alone = all(len(view.consumers(name)) == 1 and not view.is_output(name) for name in node.inputs)
    alike = len(shapes) > 1 and len(ends) == 1 and shapes[0][-1:] not in ((), (None,))
    return rank if rank > 1 and alike and alone and attribute(node, "axis", 0) in (-1, rank - 1) else 0


def placed_stacks(view: GraphView) -> Iterator[PlacedStack]:
    """What `stack_concats` did to a graph; not where the graph around it was changed since."""
    for reshape in view.nodes:
        concat = view.producers.get(reshape.inputs[0]) if traced_rule(reshape) == STACKED else None
        if concat is not None and concat.op == "Concat":
            expansions = [view.producers.get(name) for name in concat.inputs]
            if all(one is not None and one.op == "Unsqueeze" for one in expansions):
                yield PlacedStack(concat, tuple(one for one in expansions if one is not None), reshape)
