# SPDX-License-Identifier: Apache-2.0
"""A plan cut down to the tensors that given scales cover. What drops out is reported, with what depended on it."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace

from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.match.flow import Flow
from qdqtool.match.plan import Plan, Point, Read, Refusal
from qdqtool.rule_files import operator_set
from qdqtool.scales import Scale


def restrict(view: GraphView, plan: Plan, available: Container[str]) -> Plan:
    """The plan without the activations that have no scale, and without the weights whose operator then reads float.

    Every point keeps its own scale: tensors to which the plan would give one scale do not share it here.
    """
    kept: list[Point] = []
    refusals = list(plan.refusals)
    for point in plan.activations:
        if point.tensor in available:
            kept.append(replace(point, shared_scale=point.tensor))
        else:
            refusals.append(Refusal(point.tensor, "no-scale", "there is no scale for it"))
    here = {point.tensor for point in kept}
    points = {point.tensor for point in plan.activations}
    by_key = {node.key: node for node in view.nodes}
    for point in plan.weights:
        reads = tuple(read for read in point.reads if activation_sites(view, by_key[read.node], points) <= here)
        if reads:
            kept.append(replace(point, reads=reads))
        refusals += [
            Refusal(read.node, "no-scale", "its input has no scale, so it runs in float")
            for read in point.reads
            if read not in reads
        ]
    return _whole_attentions(replace(plan, points=tuple(kept), refusals=tuple(refusals)), points - here)


def _whole_attentions(plan: Plan, lost: Collection[str]) -> Plan:
    """The plan without what is left of attentions that lost a pair: with fewer than all, none is of use."""
    torn = [one for one in plan.attentions if one.int8 and not set(one.points).isdisjoint(lost)]
    if not torn:
        return plan
    whole = {name for one in plan.attentions if one.int8 and one not in torn for name in one.points}
    loose = {name for one in torn for name in one.points} - whole
    rules = {one.rule for one in torn}
    points = tuple(point for point in plan.points if point.tensor not in loose or point.rule not in rules)
    reason = "a pair of the attention has no scale, and without all of them it is not one kernel"
    left = [replace(one, int8=False, reason=reason) if one in torn else one for one in plan.attentions]
    refusals = (*plan.refusals, *(Refusal(one.name, one.rule, reason) for one in torn))
    return replace(plan, points=points, refusals=refusals, attentions=tuple(left))


def leave_all_zero(view: GraphView, plan: Plan, all_zero: Collection[str]) -> Plan:
    """The plan without the points that held nothing but zeros, and without what then runs in float.

    No scale follows from zeros. A tensor that shares its scale with others keeps its point, since they have one.
    """
    shared = plan.shared_scales().values()
    lost = {name for names in shared if all(name in all_zero for name in names) for name in names}
    if not lost:
        return plan
    points = {point.tensor for point in plan.activations}
    floats = {read.node for point in plan.activations if point.tensor in lost for read in point.reads}
    kept: list[Point] = []
    refusals = [Refusal(name, "no-scale", "is all zero on the data") for name in sorted(lost)]
    for point in plan.weights:
        sites = {read: activation_sites(view, view.producers[read.node], points) & lost for read in point.reads}
        reads = tuple(read for read in point.reads if not sites[read])
        if reads:
            kept.append(replace(point, reads=reads))
        floats |= {read.node for read in point.reads if sites[read]}
        refusals += [
            Refusal(read.node, "no-scale", f"reads {min(sites[read])}, which is all zero on the data")
            for read in point.reads
            if sites[read]
        ]
    activations = []
    for point in plan.activations:
        reads = tuple(read for read in point.reads if read.node not in floats)
        if point.tensor in lost:
            continue
        if reads or not point.reads:
            activations.append(replace(point, reads=reads))
        else:
            refusals.append(
                Refusal(point.tensor, "no-scale", "its consumers also read a tensor that is all zero on the data")
            )
    left = replace(plan, points=(*activations, *kept), refusals=(*plan.refusals, *refusals))
    return _whole_attentions(left, points - {point.tensor for point in activations})


def share_scales(plan: Plan, scales: Mapping[str, Scale], all_zero: Collection[str]) -> dict[str, Scale]:
    """The scales, and that of the others for each tensor that held nothing but zeros and shares theirs."""
    found = dict(scales)
    for names in plan.shared_scales().values():
        own = [name for name in names if name in scales]
        for name in names if own else ():
            if name in all_zero and name not in scales:
                largest = max(own, key=lambda one: float(scales[one].bits))
                found[name] = replace(scales[largest], origin="equal", method=f"as {largest}")
    return found


def activation_sites(view: GraphView, node: Node, points: Container[str]) -> set[str]:
    """The points through which the activation of a weighted operator comes, back across what commutes."""
    index = weight_index(view, node)
    return set() if index is None else sites_behind(view, node.inputs[1 - index], points)


def sites_behind(view: GraphView, name: str, points: Container[str]) -> set[str]:
    """The points, or else inputs, that a tensor's values come from, back across whatever made them.

    Between what reads INT8 and its points every operator commutes, so none is asked.
    """
    everything = Flow(view, lambda _: True)
    return set(map(view.root, everything.origins(name, lambda one: view.root(one) in points)))


def add_points(view: GraphView, plan: Plan, tensors: Iterable[str]) -> Plan:
    """The plan with a point on more tensors, each read through its pair by every node."""
    there, sizes = {point.tensor for point in plan.points}, operator_set("sizes")
    more = []
    for tensor in tensors:
        reads = tuple(
            sorted(Read(use.node.key, use.index) for use in view.consumers(tensor) if use.node.op not in sizes)
        )
        if tensor not in there and reads:
            more.append(Point(tensor, "activation", reads, None, "everywhere", "it has a scale", tensor, ""))
    return replace(plan, points=(*plan.points, *more))
