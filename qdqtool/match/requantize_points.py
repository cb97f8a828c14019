# SPDX-License-Identifier: Apache-2.0
"""Where one shared scale may be split in two: tensors at which INT8 values may be requantized. Not whether it pays.

Tensors that a Concat joins share a scale, and where one of them was itself taken out of an earlier Concat (a channel
shuffle passes half of its channels on, block after block), whole stages end up with one scale. A pair on the tensor
that is passed on gives either side its own: DequantizeLinear with one scale, QuantizeLinear with the other, which is
what TensorRT does at a Concat whose inputs differ (`rules/gpu.toml`, concat).
"""

from __future__ import annotations

from qdqtool.graph.view import GraphView
from qdqtool.match.flow import joins
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rulebook import RuleBook


def possible_requantize_points(view: GraphView, rules: RuleBook) -> list[str]:
    """Tensors that Concats alone read and that an operator made which moves values, but joins none; by level and name.

    The pair stands before such an operator anyway, so one after it adds a requantization and takes nothing away.
    """
    found = []
    for node, rule in RuleIndex(rules.commutes, rules).nodes(view):
        if rule.side != "before" or joins(node):
            continue
        for name in filter(None, node.outputs):
            consumers = view.consumers(name)
            if consumers and not view.is_output(name) and all(joins(use.node) for use in consumers):
                found.append(name)
    return sorted(found, key=lambda name: (view.level_of(name), name))
