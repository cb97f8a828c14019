# SPDX-License-Identifier: Apache-2.0
"""The operators behind the last products that make scores and coordinates: in FP32 where that costs little.

FP16 has 2,048 numbers between 0.5 and 1 and steps of 0.5 from 512 on. Scores near 1 become equal, so that an NMS takes
another box, and the corners of small boxes move. What is decided here is for these digits alone, not for any overflow.
"""

from __future__ import annotations

from collections.abc import Collection

from qdqtool.graph.order import topological
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, Node
from qdqtool.precision.amp_rules import AmpRules
from qdqtool.precision.cast_cut import extra_traffic
from qdqtool.precision.float_graph import FloatGraph
from qdqtool.precision.reasons import FloatReason, Requirements

_TEXT = "computes scores or coordinates after the last matrix products, which need more digits than FP16 and BF16 have"


def output_tail(needs: Requirements, required: Collection[str]) -> dict[str, FloatReason]:
    """Key -> reason, for what shall be in FP32 so that outputs keep their digits.

    It is what no product and no QuantizeLinear reads, not even across other operators, from the first operator on that
    computes (list `infer`); what only moves values in front of that stays half, but where it saves a Cast. Operators
    that hand values to each other are taken together: if they move at most `limits.tail` of what the whole model moves,
    and if that takes at most `limits.tail_casts` Casts more. Where nothing but scores is computed (`[[score]]`), one
    must come close to 1.
    """
    graph, rules = needs.graph, needs.rules
    if any(tensor.half_reader for tensor in graph.tensors):
        return {}
    traffic = extra_traffic(graph, rules)
    most = rules.limits["tail"] * sum(traffic.values())
    taken, casts = set(required), graph.casts(required)
    for part in _parts(graph, _computed_behind_products(graph, rules)):
        part = _with_movers(graph, part, taken, rules)
        more = taken.union(part)
        needed = graph.casts(more)
        moved = sum(traffic[key] for key in part if key not in required)
        if _wants_digits(needs, part) and moved <= most and needed <= casts + rules.limits["tail_casts"]:
            taken, casts = more, needed
    tail = [node for key, node in graph.nodes.items() if key in taken and key not in required]
    return {node.key: FloatReason("tail", f"{node.op} {_TEXT}") for node in tail}


def _wants_digits(needs: Requirements, part: list[str]) -> bool:
    """Whether operators compute coordinates, or scores so close to 1 that many become equal."""
    computing = [needs.graph.nodes[key] for key in part if needs.rules.list_of(needs.graph.nodes[key].op) == "infer"]
    if any(node.op not in needs.rules.scores for node in computing):
        return True
    seen = (needs.range_of(node.key) for node in computing)
    return any(values is not None and values.high >= needs.rules.limits["sure"] for values in seen)


def _is_bias(graph: FloatGraph, node: Node, rules: AmpRules) -> bool:
    """Whether an Add of a constant stands directly behind a product, of which it is a part."""
    makers = [graph.view.producers.get(name) for name in node.inputs if not graph.view.is_constant(name)]
    return node.op == "Add" and [maker and rules.list_of(maker.op) for maker in makers] == ["allow"]


def _with_movers(graph: FloatGraph, part: list[str], taken: Collection[str], rules: AmpRules) -> list[str]:
    """A part and what only moves values in front of it, such as a Split, as far as that saves a Cast."""
    part, least = list(part), graph.casts({*taken, *part})
    for key in part:  # grows while it is walked
        makers = (graph.view.producers.get(name) for name in graph.nodes[key].inputs)
        for maker in makers:
            if maker is None or maker.key not in graph.nodes or maker.key in part or maker.key in taken:
                continue
            needed = graph.casts({*taken, *part, maker.key})
            if rules.list_of(maker.op) == "clear" and needed < least:
                part.append(maker.key)
                least = needed
    return part


def _computed_behind_products(graph: FloatGraph, rules: AmpRules) -> list[Node]:
    """The operators behind all products, from the first that computes on, in the order of the data."""
    order = topological(graph.view.every)
    ahead = set(graph.view.captured)  # tensors from which a product can be reached, or that a body reads
    for node in reversed(order):
        ends = rules.list_of(node.op) == "allow" or node.op in (QUANTIZE, DEQUANTIZE)
        if ends or not ahead.isdisjoint(node.outputs):
            ahead.update(node.inputs)
    computed: set[str] = set()
    found = []
    for node in order:
        named = rules.list_of(node.op)
        if node.key not in graph.nodes or named in ("allow", None) or not ahead.isdisjoint(node.outputs):
            continue
        if (named == "infer" and not _is_bias(graph, node, rules)) or not computed.isdisjoint(node.inputs):
            computed.update(node.outputs)
            found.append(node)
    return found


def _parts(graph: FloatGraph, nodes: list[Node]) -> list[list[str]]:
    """The keys of operators that hand values to one another, part by part."""
    parts: dict[str, list[str]] = {}
    for node in nodes:
        makers = (graph.view.producers.get(name) for name in node.inputs)
        before = [parts[maker.key] for maker in makers if maker is not None and maker.key in parts]
        joined = {id(part): part for part in before}.values()
        part = [*(key for one in joined for key in one), node.key]
        parts.update(dict.fromkeys(part, part))
    return list({id(part): part for part in parts.values()}.values())
