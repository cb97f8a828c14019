# SPDX-License-Identifier: Apache-2.0
"""Which operators beside those that must be in FP32 are better so, too: where that saves more than it costs.

A minimum cut between FP32 (the source's side) and half (the sink's). An operator that may be either costs its traffic
in FP32; a Cast costs reading and writing the tensor, and a kernel, or nothing behind a DequantizeLinear, before a
QuantizeLinear and behind what an INT8 layer computes, which the compiler joins it with. A tensor that several read in
one type is cast once:

    maker -> (tensor, down) -> reader      cut once where the maker is FP32 and some reader is not
    reader -> (tensor, up) -> maker        cut once where the maker is half and some reader is not
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qdqtool.graph.order import connected
from qdqtool.precision.amp_rules import AmpRules
from qdqtool.precision.float_graph import FloatGraph, FloatTensor, casts_of
from qdqtool.precision.min_cut import INFINITE, FlowNetwork
from qdqtool.precision.reasons import CASTS, INT8, FloatReason

_HALF, _FLOAT = 2, 4  # bytes
_MOST = 3  # causes that a sentence names
HALF_SAVES = _FLOAT - _HALF  # of each value


@dataclass(frozen=True)
class CastPlan:
    """A choice of types.

    Attributes:
        float32: keys of the nodes in FP32.
        casts: how many Casts it needs.
        plain_casts: how many the plain rule needs: FP32 where it must be, half everywhere else.
    """

    float32: frozenset[str]
    casts: int
    plain_casts: int


def plan_casts(
    graph: FloatGraph,
    required: Collection[str],
    rules: AmpRules,
    units: Collection[tuple[str, ...]] = (),
    half: Collection[str] = (),
) -> CastPlan:
    """The better of two choices: the plain rule, or what a minimum cut adds to it where that takes fewer casts.

    Products (list `allow`) are in FP32 only where they must be.
    """
    plain = frozenset(required)
    plain_casts = graph.casts(plain)
    grown = _cut(graph, plain, rules, units, half) if plain else plain
    casts = graph.casts(grown)
    better = casts < plain_casts and _cost(graph, grown, rules) < _cost(graph, plain, rules)
    return (
        CastPlan(grown, casts, plain_casts) if better and grown >= plain else CastPlan(plain, plain_casts, plain_casts)
    )


def _cut(
    graph: FloatGraph,
    required: frozenset[str],
    rules: AmpRules,
    units: Collection[tuple[str, ...]],
    half: Collection[str],
) -> frozenset[str]:
    network = FlowNetwork()
    for key, node in graph.nodes.items():
        if key in required:
            network.from_source(key, INFINITE)
        elif rules.list_of(node.op) == "allow" or key in half:
            network.to_sink(key, INFINITE)
    for unit in units:
        free = [key for key in unit if key not in required]
        for one, other in itertools.pairwise(free):
            network.add(one, other, INFINITE)
            network.add(other, one, INFINITE)
    for key, extra in extra_traffic(graph, rules).items():
        if key not in required:
            network.to_sink(key, extra)
    for number, tensor in enumerate(graph.tensors):
        _add_tensor(network, number, tensor, _cast_cost(tensor, rules))
    side = network.source_side()
    return frozenset(key for key in graph.nodes if key in side)


def _add_tensor(network: FlowNetwork, number: int, tensor: FloatTensor, cost: int) -> None:
    """The edges of one tensor; its maker and its readers stand for a terminal where they have no choice."""
    down, up = (number, "down"), (number, "up")
    if tensor.maker is not None:
        network.add(tensor.maker, down, cost)
    elif not tensor.half_maker:
        network.from_source(down, cost)
    for reader in tensor.readers:
        network.add(down, reader, INFINITE)
    if tensor.half_reader:
        network.to_sink(down, INFINITE)
    if tensor.maker is None and not tensor.half_maker:
        return
    for reader in tensor.readers:
        network.add(reader, up, INFINITE)
    if tensor.fixed:
        network.from_source(up, INFINITE)
    if tensor.maker is not None:
        network.add(up, tensor.maker, cost)
    else:
        network.to_sink(up, cost)


def _cast_cost(tensor: FloatTensor, rules: AmpRules) -> int:
    if tensor.paired:
        return 0
    return int(rules.cost["launch"]) + (_HALF + _FLOAT) * (tensor.elements or int(rules.cost["unknown"]))


def extra_traffic(graph: FloatGraph, rules: AmpRules) -> dict[str, int]:
    """What each operator moves more in FP32 than in half, in bytes; at least 1, so that none is in FP32 for nothing."""
    found = dict.fromkeys(graph.nodes, 1)
    for tensor in graph.tensors:
        more = HALF_SAVES * (tensor.elements or int(rules.cost["unknown"]))
        for key in (*tensor.readers, *([tensor.maker] if tensor.maker is not None else [])):
            found[key] += more
    return found


def _cost(graph: FloatGraph, float32: frozenset[str], rules: AmpRules) -> int:
    traffic = extra_traffic(graph, rules)
    cast = sum(sum(casts_of(tensor, float32)) * _cast_cost(tensor, rules) for tensor in graph.tensors)
    return cast + sum(traffic[key] for key in float32)


def reasons_beside(
    graph: FloatGraph, added: Collection[str], required: Mapping[str, FloatReason]
) -> dict[str, FloatReason]:
    """The first cause of each operator that is in FP32 for fewer Casts: an operator whose values do not fit, an end."""
    known = set(added)
    touched = [(tensor, [key for key in _ends(tensor) if key in known]) for tensor in graph.tensors]
    parts = connected(added, (keys for _, keys in touched))
    part_of = {key: place for place, part in enumerate(parts) for key in part}
    causes: list[dict[str, None]] = [{} for _ in parts]
    for tensor, keys in touched:
        if keys:
            causes[part_of[keys[0]]].update(dict.fromkeys(_causes(graph, tensor, required)))
    return {key: FloatReason(CASTS, _sentence(list(causes[part_of[key]]))) for key in added}


def _ends(tensor: FloatTensor) -> list[str]:
    """What makes and reads a tensor."""
    return [key for key in (tensor.maker, *tensor.readers) if key is not None]


def _causes(graph: FloatGraph, tensor: FloatTensor, required: Mapping[str, FloatReason]) -> list[str]:
    """What at a tensor is FP32 in any case."""
    found = []
    if tensor.name in graph.view.outputs and tensor.fixed:
        found.append(f"the output {tensor.name}")
    if tensor.name in graph.view.inputs and not tensor.half_maker:
        found.append(f"the input {tensor.name}")
    for key in _ends(tensor):
        reason = required.get(key)
        if reason is not None and reason.rule != INT8:  # a Cast beside an INT8 layer costs nothing
            found.append(f"{graph.nodes[key].name} ({reason.text})")
    return found


def _sentence(causes: list[str]) -> str:
    if not causes:
        return "two Casts around it would cost more than running it in FP32"
    more = f" and {len(causes) - _MOST} more" if causes[_MOST:] else ""
    return f"Casts to half would cost more than they save, next to FP32 operators: {', '.join(causes[:_MOST])}{more}"
