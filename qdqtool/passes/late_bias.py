# SPDX-License-Identifier: Apache-2.0
"""Moves the biases of INT8 convolutions after the Transpose of their sums, and back. Which ones: `match/late_bias.py`.

What is behind keeps its names: the Add makes the tensor that the Transpose made. The sums get a name of their own.
"""

from __future__ import annotations

from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView
from qdqtool.match.late_bias import LATE_BIAS, late_biases, placed_biases
from qdqtool.rulebook import RuleBook

_BIAS = 2  # number of a convolution's input


def place_late_biases(view: GraphView, rules: RuleBook) -> int:
    """Let the target add biases where it does so for less; edits the graph, whose float function stays."""
    found, editor = late_biases(view, rules), Editor(view)
    for one in found:
        last = one.moves[-1]
        made, sums = last.key, editor.unique_name(f"{last.key}_sums")
        editor.cut_inputs(one.product, _BIAS)
        editor.rename_output(last, 0, sums)
        editor.add_node("Add", [sums, one.bias], made, beside=last, after=True, trace=(("rule", LATE_BIAS),))
    editor.commit()
    return len(found)


def restore_biases(view: GraphView) -> int:
    """Give every convolution the bias back that `place_late_biases` moved; edits the graph."""
    found, editor = placed_biases(view), Editor(view)
    for one in found:
        assert one.add is not None
        editor.remove_node(one.add)
        editor.set_input(one.product, _BIAS, one.bias)
        editor.rename_output(one.moves[-1], 0, one.add.key)
    if found:
        editor.commit()
    return len(found)
