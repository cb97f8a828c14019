# SPDX-License-Identifier: Apache-2.0
"""Which scales of a training copy may take another value, and which must stay equal. Not by what they move."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from qdqtool.graph.view import GraphView
from qdqtool.match.flow import Flow
from qdqtool.match.plan import Plan
from qdqtool.rule_files import operator_set
from qdqtool.training.options import Ranges as Ranges
from qdqtool.training.pair_nodes import TrainedPair, own_scales
from qdqtool.training.write_back import Origin, in_file


class Moving:
    """Which scales may move, which are one, which get gradients.

    Attributes:
        shared: scale -> the one that stands for it, where a plan says that several tensors share a scale.
        moving: scales of sites that may take another value, in graph order.
        learned: those that get gradients, as they stand for themselves.
    """

    def __init__(
        self,
        view: GraphView,
        file: GraphView,
        sites: Sequence[TrainedPair],
        weights: Collection[str],
        ranges: Ranges,
        shared_scales: Mapping[str, str],
    ) -> None:
        """Find out."""
        self.sites = sites
        own = {name for name in own_scales(view, sites) if in_file(file, name)}
        self.shared = _shared(sites, shared_scales, own) if ranges != "fixed" else {}
        of_weights = {site.scale for site in sites if site.constant}
        self.moving = dict.fromkeys(
            site.scale
            for site in sites
            if own.issuperset(site.scales)
            and (site.source in weights if site.constant else True)
            and (ranges == "learn" or (ranges == "ema" and site.scale not in of_weights))
        )
        self.learned = {self.shared.get(name, name) for name in self.moving} if ranges == "learn" else set()

    def origins(self, held: Mapping[str, str]) -> dict[str, Origin]:
        """The form's name of each scale that may move -> every place of the file that holds it."""
        places: dict[str, dict[str, None]] = {}
        for site in self.sites:
            if site.scale in self.moving:
                places.setdefault(held[site.scale], {}).update(dict.fromkeys(site.scales))
        return {name: Origin(tuple(names)) for name, names in places.items()}


def shared_scales_of(view: GraphView, plan: Plan) -> dict[str, str]:
    """Activation -> the first of those that it shares a scale with.

    Those are the ones that the plan gives one scale, and those whose values come from one another as they are: with two
    scales, a Pad between two pairs is no INT8 copy any more.
    """
    found = {tensor: members[0] for members in plan.shared_scales().values() for tensor in members}
    copies = {*operator_set("unchanged"), *operator_set("resampling"), "Pad"}
    flow, points = Flow(view, lambda node: node.op in copies), frozenset(found)
    for point in plan.activations:
        producer = view.producer(point.tensor)
        before = [] if producer is None or not flow.moves(producer) else flow.sources(producer)
        for use, across in flow.up(before, lambda name: view.root(name) in points):
            source = view.root(use.node.inputs[use.index])
            if not across and source in points:
                one, other = found[source], found[point.tensor]
                found = {tensor: one if first == other else first for tensor, first in found.items()}
    return found


def _shared(sites: Sequence[TrainedPair], shared_scales: Mapping[str, str], own: Collection[str]) -> dict[str, str]:
    """Scale -> the first of its class, for activations that share one and whose scales are equal now."""
    first: dict[tuple[str, bytes], str] = {}
    shared: dict[str, str] = {}
    for site in sites:
        if (
            not site.constant
            and site.axis is None
            and site.tensor in shared_scales
            and set(own).issuperset(site.scales)
        ):
            stands = first.setdefault((shared_scales[site.tensor], site.value.tobytes()), site.scale)
            if stands != site.scale:
                shared[site.scale] = stands
    return shared
