# SPDX-License-Identifier: Apache-2.0
"""Where an error is born, and not where it arrives: per fused group, noise at its output against that at its inputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qdqtool.display import finite_only
from qdqtool.graph.order import read_names
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.groups import Group
from qdqtool.measures import Measure, decibel

# Noise to signal, 40 dB, that 8 bits leave of a tensor that fills its range: a drop from 90 dB to 50 dB hurts nobody.
CALM = 1e-4


@dataclass(frozen=True)
class ErrorSite:
    """A fused group, or another operator, between tensors that both models have.

    Attributes:
        operator: the name of its first node.
        kind: its operators, in the order of the values.
        inputs: the tensors that it reads.
        output: the tensor that it makes.
    """

    operator: str
    kind: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class ErrorSource:
    """What one site adds to the error.

    Attributes:
        site: where.
        sqnr_in: of the worst of its inputs, in dB.
        sqnr_read: of the worst of its inputs as they are read, after their Q/DQ, in dB.
        sqnr_out: of its output, in dB.
        drop: from the one to the other, in dB, with both counted from `CALM` down.
    """

    site: ErrorSite
    sqnr_in: float
    sqnr_read: float
    sqnr_out: float
    drop: float

    def to_json(self) -> dict[str, Any]:
        """The source as JSON has it: null for what is not a finite number."""
        by_stage = {"sqnr_in_db": self.sqnr_in, "sqnr_read_db": self.sqnr_read, "sqnr_out_db": self.sqnr_out}
        figures = {**by_stage, "drop_db": self.drop}
        finite = finite_only(figures)
        one = self.site
        return {"operator": one.operator, "kind": one.kind, "inputs": list(one.inputs), "output": one.output, **finite}


def find_sites(view: GraphView, groups: Iterable[Group], known: Collection[str]) -> list[ErrorSite]:
    """The sites between the known tensors, in graph order.

    Tensors inside a fused group are passed over where the group's output is known: nothing is rounded there.
    """
    start_of: dict[str, Node] = {}
    inside: set[str] = set()
    for group in groups:
        if group.output in known:
            start_of[group.output] = group.start
            inside.update(name for node in group.nodes for name in node.outputs if name != group.output)
    ends = frozenset(name for name in known if name not in inside).union(view.inputs)
    sites = []
    for node in view.nodes:
        for output in node.outputs:
            if output in ends:
                inputs, between = _back(view, node, ends)
                first = start_of.get(output, between[-1] if len(between) > 1 else node)
                kind = " ".join(one.op for one in reversed(between))
                sites.append(ErrorSite(first.name, kind, tuple(inputs), output))
    return sites


def _back(view: GraphView, node: Node, ends: Collection[str]) -> tuple[list[str], list[Node]]:
    """The known tensors that a node's values come from, and the nodes on the way, from last to first."""
    inputs: dict[str, None] = {}
    between = {id(node): node}
    stack = [node]
    while stack:
        one = stack.pop()
        for name in read_names(one):
            name = view.root(name)
            producer = view.producers.get(name)
            if not name or view.is_constant(name):
                continue
            if name in ends:
                inputs[name] = None
            elif producer is not None and id(producer) not in between:
                between[id(producer)] = producer
                stack.append(producer)
    return list(inputs), sorted(between.values(), key=lambda one: (-one.level, one.key))


def rank(sites: Iterable[ErrorSite], measures: Mapping[str, Measure], read: Mapping[str, Measure]) -> list[ErrorSource]:
    """The sites where SQNR drops, largest drop first; equal ones in graph order."""
    sources = []
    for site in sites:
        before = max((measures[name].noise for name in site.inputs if name in measures), default=0.0)
        as_read = [read.get(name, measures.get(name)) for name in site.inputs]
        behind = max((one.noise for one in as_read if one is not None), default=0.0)
        after = measures[site.output].noise
        if after > before:  # so `before` is finite
            drop = 10 * math.log10((after + CALM) / (before + CALM)) if math.isfinite(after) else math.inf
            sources.append(ErrorSource(site, decibel(before), decibel(behind), decibel(after), drop))
    return sorted(sources, key=lambda one: -one.drop)
