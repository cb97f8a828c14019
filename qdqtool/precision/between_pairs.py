# SPDX-License-Identifier: Apache-2.0
"""Operators that read INT8 and give INT8 without a product: sums, pooling and resizing between pairs.

Rounded to half in front of a QuantizeLinear they tip INT8 codes, and every code that is another moves all behind it:
the figures of a network tremble by more than FP16 costs. In FP32 they give the codes that they give with the rest in
FP32, without a Cast.

TensorRT for RTX 1.7.1 shows what that costs: a tensor behind a DequantizeLinear that a product reads, too, is
written and read as INT8, whoever else reads it. Any other is written as the type in which it is read, so twice as wide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from qdqtool.graph.order import connected, topological
from qdqtool.graph.view import DEQUANTIZE, GraphView, Node
from qdqtool.match.flow import value_names
from qdqtool.precision.amp_rules import AmpRules, amp_rules
from qdqtool.precision.cast_cut import HALF_SAVES, extra_traffic
from qdqtool.precision.float_graph import FloatGraph
from qdqtool.precision.int8_paths import TensorReaders, are_int8, only_moves
from qdqtool.rule_files import operator_set


def between_pairs(view: GraphView, layers: Collection[str]) -> frozenset[str]:
    """First outputs of the operators that read only DequantizeLinears, and that only QuantizeLinears read.

    Operators that hand values to each other count together. What only moves values may read INT8 layers: a
    QuantizeLinear behind a MaxPool stands in front of it in the engine. What computes behind them is half, since it
    would have FP32 to read (squeeze blocks: 4 to 8 % more bytes).

    Args:
        view: the graph.
        layers: keys of the operators of INT8 layers (`int8_layers`), which are not among those that are found.
    """
    reads = TensorReaders(view)
    found = [node for node in topological(view.every) if node.key not in layers and _may_be_between(node)]
    known = {node.key for node in found}
    every = known.union(layers)
    while True:
        before = len(every)
        for node in found:
            if not are_int8(view, _values_read(node), every if only_moves(node) else known):
                known.discard(node.key)
                every.discard(node.key)
        for node in reversed(found):
            if not (reads.end_in(node, every) and reads.are_any(node)):
                known.discard(node.key)
                every.discard(node.key)
        if len(every) == before:
            return frozenset(known)


def cheap_between_pairs(graph: FloatGraph, layers: Collection[str], rules: AmpRules) -> frozenset[str]:
    """Those of `between_pairs` that shall be in FP32: all where that costs little, else what costs nothing.

    One code that is tipped moves as much behind it as a hundred do, so nothing is paid for some of them.
    """
    parts = list(_parts(graph, between_pairs(graph.view, layers), rules))
    most = rules.limits["between"] * sum(extra_traffic(graph, rules).values())
    spent = most if sum(cost for cost, _ in parts) <= most else 0
    return frozenset(key for cost, keys in parts if cost <= spent for key in keys)


def _parts(graph: FloatGraph, keys: Collection[str], rules: AmpRules) -> Iterator[tuple[int, list[str]]]:
    """What hangs together, by tensors that are handed on or that two read: what it costs in FP32, and its keys."""
    costs, links = dict.fromkeys(keys, 0), list[list[str]]()
    for tensor in graph.tensors:
        ends = [key for key in (tensor.maker, *tensor.readers) if key in costs]
        if not ends:
            continue
        maker = graph.view.producers.get(tensor.name)
        paired = maker is not None and maker.op == DEQUANTIZE
        products = any(rules.list_of(graph.nodes[key].op) == "allow" for key in tensor.readers)
        if paired and products:
            continue
        if paired or len(ends) > 1:
            costs[ends[0]] += HALF_SAVES * (1 + len(tensor.readers)) * (tensor.elements or int(rules.cost["unknown"]))
        links.append(ends)
    for part in connected(costs, links):
        yield sum(costs[key] for key in part), part


def _may_be_between(node: Node) -> bool:
    """Whether an operator computes or moves values and is no product, and something is read that may be INT8."""
    if node.op == "Cast" or node.op in operator_set("sizes"):
        return False
    return amp_rules().list_of(node.op) in ("infer", "clear") and bool(_values_read(node))


def _values_read(node: Node) -> list[str]:
    """The inputs that hold values, not shapes or indices."""
    first = only_moves(node) or node.op in operator_set("resampling")
    return value_names(node) if first else [name for name in node.inputs if name]
