# SPDX-License-Identifier: Apache-2.0
"""Writes Concats along a new axis, with a Reshape after it, and back. Which ones: `match/stacked_concat.py`.

What is behind keeps its names: the Reshape makes the tensor that the Concat made.
"""

from __future__ import annotations

import numpy as np

from qdqtool.graph.edit import Editor, count_uses, release, traced
from qdqtool.graph.view import GraphView, Use, attribute
from qdqtool.match.stacked_concat import STACKED, placed_stacks, stackable_concats
from qdqtool.rulebook import RuleBook

_NEW_AXIS = -2  # of what an Unsqueeze makes
_AXIS = "axis"  # the key of the trace that has the axis from before


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
