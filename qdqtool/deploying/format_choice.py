# SPDX-License-Identifier: Apache-2.0
"""The number format of each operator for `--format mixed`: those in which the network is fastest, by forecast.

An engine in each format is predicted beside one in FP16. Operators that read the same pair decide together. Nothing is
built or run: what the outputs lose is for the search (`measuring/float_search.py`), which leaves in float what costs
too much.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from qdqtool.decisions import Decisions
from qdqtool.deploying.board_ratios import fast_devices
from qdqtool.display import counted
from qdqtool.engine.layer_work import LayerWork
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.forecasting.model_layers import layers_in
from qdqtool.formats import MIXED, NumberFormat, number_format
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.options import PlanOptions
from qdqtool.match.plan import Plan
from qdqtool.match.restrict_plan import activation_sites
from qdqtool.measuring.attention_choice import tentative
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.quantizing.place import fit, place
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.scales import Scale, ScaleTable

FLOAT = ""
_ALIKE = 0.03  # share of a time by which builds of one network differ, and forecasts do not tell formats apart
_BYTES_ALIKE = 0.02
_CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class _Cost:
    """Beside FP16: the share of the time, the mean over devices, and the share of the bytes."""

    time: float
    moved: float

    def said(self, title: str) -> str:
        """Both in words."""
        return f"{title} {self.time:.2f} of FP16's time and {self.moved:.2f} of its bytes"


@dataclass(frozen=True)
class FormatChoice:
    """The format of each operator, and a sentence on the whole network.

    Attributes:
        formats: first output of an operator that some format takes, of an attention that of its second product -> name
            of its format, "" for float, and the reason.
        note: what the forecast says of the network in these formats, and in each alone.
    """

    formats: dict[str, tuple[str, str]]
    note: str


def choose_formats(model: Model, options: PlanOptions, rows: Sequence[NumberFormat]) -> FormatChoice:
    """The formats in which a network should take the least time on the devices that have all of them.

    Compared are FP16, each format alone, INT8 for convolutions with FP8 for products, the fastest format of each
    operator, and that for weights alone where it is the fastest. Times within `_ALIKE` are alike: the fewest bytes
    decide then. A network of several formats is taken if it moves no more than the best of one format. Where sizes are
    not known, or no device, convolutions are INT8 and products FP8.

    Args:
        model: in FP32, ready for pairs; it is not changed.
        options: where the pairs are; their format is not read.
        rows: the formats to choose from.
    """
    options = tentative(options)
    asked = {row.name: replace(options, format=row.name) for row in rows}
    plans = {name: plan_pairs(model, one) for name, one in asked.items()}
    planned = {name: _planned(plan) for name, plan in plans.items()}
    units = _units(model.view, plans.values())
    fitting = [[row for row in rows if not planned[row.name].isdisjoint(unit)] for unit in units]
    usual = [_usual(model.view, unit, fit) for unit, fit in zip(units, fitting, strict=True)]

    def formats(names: Sequence[str], reasons: Sequence[str]) -> dict[str, tuple[str, str]]:
        chosen = zip(units, names, reasons, strict=True)
        return {key: (name, reason) for unit, name, reason in chosen for key in unit}

    times = [one for _, one in fast_devices(options.trt_version, *rows)]
    engines = {FLOAT: layers_in(model, options.trt_version, options.target, rest="fp16")}
    engines |= {row.name: _layers(model, plans[row.name], asked[row.name]) for row in rows}
    known = {name: list(layers) for name, layers in engines.items() if layers is not None}
    if not times or len(known) < len(engines):
        reason = "the forecast knows no sizes, or no device"
        return FormatChoice(formats(usual, [reason] * len(units)), f"{reason}: INT8 for convolutions, FP8 for products")
    costs = _Costs(known, times)
    names = [{node for key in unit for node in _names(model.view, plans.values(), key)} for unit in units]
    each = [{row.name: costs.of(row.name, nodes) for row in fit} for nodes, fit in zip(names, fitting, strict=True)]
    reasons = [", ".join(one.said(number_format(name).title) for name, one in cost.items()) for cost in each]
    fastest = [_fastest(cost, name) for cost, name in zip(each, usual, strict=True)]
    alone = {tuple(row.name if row in fit else FLOAT for fit in fitting): row.name for row in reversed(rows)}
    alone[(FLOAT,) * len(units)] = FLOAT
    weights = [name if name and "activation" not in number_format(name).roles else FLOAT for name in fastest]
    beside = [tuple(own or other for own, other in zip(weights, one, strict=True)) for one in alone]
    tried: dict[tuple[str, ...], _Cost] = {}
    for one in dict.fromkeys((tuple(usual), tuple(fastest), *alone, *beside)):
        if one in alone:
            layers = known[alone[one]]
        else:
            decisions, mixed = Decisions(formats=formats(one, reasons)), replace(options, format=MIXED)
            layers = list(_layers(model, plan_pairs(model, mixed, decisions=decisions), mixed) or ())
        tried[one] = costs.whole(layers)
    single = _best({one: tried[one] for one in alone})
    chosen = _best({one: cost for one, cost in tried.items() if one == single or cost.moved <= tried[single].moved})
    said = [tried[chosen].said("mixed"), *(costs.whole(known[row.name]).said(row.title) for row in rows)]
    note = f"forecast for {counted(len(times), 'device')}: {', '.join(said)}"
    return FormatChoice(formats(chosen, [f"by forecast {reason}" for reason in reasons]), note)


def _best(tried: Mapping[tuple[str, ...], _Cost]) -> tuple[str, ...]:
    """The fastest network; of those alike the one that moves the fewest bytes, and of those alike in both, FP16."""
    best = min(cost.time for cost in tried.values())
    alike = [one for one, cost in tried.items() if cost.time <= best * (1 + _ALIKE)]
    return min(alike, key=lambda one: (round(tried[one].moved / _BYTES_ALIKE), any(one), tried[one].time))


def _fastest(costs: dict[str, _Cost], usual: str) -> str:
    """The format in which an operator takes the least time, the usual one of those alike; "" where FP16 does."""
    best = min(cost.time for cost in costs.values())
    alike = [name for name, cost in costs.items() if cost.time <= best * (1 + _ALIKE)]
    return FLOAT if best >= 1 else usual if usual in alike else alike[0]


def _layers(model: Model, plan: Plan, options: PlanOptions) -> tuple[LayerWork, ...] | None:
    """The layers of the engine of a plan; whatever the scales are, its layers are the same."""
    planned = PlannedModel.of(model.copy())
    one = Scale(np.ones((), np.float32), None, "estimated")
    table = ScaleTable(dict.fromkeys((point.tensor for point in plan.activations), one))
    placed = fit(place(planned, plan, table, options), options, half=True)
    return layers_in(placed.model, options.trt_version, options.target, rest="fp16")


def _planned(plan: Plan) -> set[str]:
    """First outputs of the operators that a plan quantizes, and keys of its attentions."""
    return {read.node for point in plan.weights for read in point.reads} | {
        one.key for one in plan.attentions if one.int8
    }


def _names(view: GraphView, plans: Iterable[Plan], key: str) -> set[str]:
    """The names of the nodes that an operator or an attention is."""
    attention = next((one for plan in plans for one in plan.attentions if one.key == key), None)
    return {node.name for node in attention.nodes} if attention is not None else {view.producers[key].name}


def _units(view: GraphView, plans: Iterable[Plan]) -> list[list[str]]:
    """Operators and attentions that read a tensor through one pair, or share a scale or a weight, in file order."""
    owner: dict[str, str] = {}  # what is shared -> the first that uses it
    above: dict[str, str] = {}

    def top(key: str) -> str:
        while above[key] != key:
            key = above[key]
        return key

    def join(key: str, shared: Iterable[str]) -> None:
        above.setdefault(key, key)
        for name in shared:
            above[top(key)] = top(owner.setdefault(name, key))

    for plan in plans:
        shared = {point.tensor: point.shared_scale for point in plan.activations}
        for point in plan.weights:
            for read in point.reads:
                sites = activation_sites(view, view.producers[read.node], shared) & shared.keys()
                join(read.node, (point.tensor, *sites, *(shared[site] for site in sites)))
        for one in plan.attentions:
            if one.int8:
                join(one.key, [name for name in one.points if name in shared])
    found: dict[str, list[str]] = {}
    for node in view.nodes:
        if node.key in above:
            found.setdefault(top(node.key), []).append(node.key)
    return list(found.values())


class _Costs:
    """Times and bytes of predicted engines, counted for the layers of the FP16 engine that hold the same nodes."""

    def __init__(self, engines: dict[str, list[LayerWork]], times: Sequence[LayerTimes]) -> None:
        self._devices = times
        self._half = {name: place for place, layer in enumerate(engines[FLOAT]) for name in layer.nodes}
        self._engines = engines
        self._times = {name: [one.of_each(layers) for one in times] for name, layers in engines.items()}
        self._owners = {name: self._owners_of(layers) for name, layers in engines.items()}

    def of(self, name: str, nodes: Collection[str]) -> _Cost:
        """Of some nodes, and of what runs in one FP16 layer with them."""
        wanted = {self._half[node] for node in nodes if node in self._half}
        mine, half = self._shares(name, wanted), self._shares(FLOAT, wanted)
        ratios = [
            math.fsum(own[place] * share for place, share in mine.items())
            / (math.fsum(other[place] * share for place, share in half.items()) or 1.0)
            for own, other in zip(self._times[name], self._times[FLOAT], strict=True)
        ]
        moved, before = (
            math.fsum(self._engines[engine][place].moved * share for place, share in shares.items())
            for engine, shares in ((name, mine), (FLOAT, half))
        )
        return _Cost(math.fsum(ratios) / len(ratios), moved / (before or 1.0))

    def whole(self, layers: Iterable[LayerWork]) -> _Cost:
        """Of an engine."""
        layers, half = list(layers), self._engines[FLOAT]
        ratios = [
            one.total(layers) / math.fsum(each) for one, each in zip(self._devices, self._times[FLOAT], strict=True)
        ]
        return _Cost(math.fsum(ratios) / len(ratios), sum(one.moved for one in layers) / sum(one.moved for one in half))

    def _shares(self, name: str, wanted: AbstractSet[int]) -> dict[int, float]:
        """Layer -> the share of it that counts for some FP16 layers."""
        owners = enumerate(self._owners[name])
        return {place: len(own & wanted) / len(own) for place, own in owners if own & wanted}

    def _owners_of(self, layers: Sequence[LayerWork]) -> list[frozenset[int]]:
        """The FP16 layers whose nodes run in each layer; a conversion is of those that read what it makes."""
        own = [frozenset(self._half[node] for node in layer.nodes if node in self._half) for layer in layers]
        readers: dict[str, set[int]] = {}
        for owners, layer in zip(own, layers, strict=True):
            for key in layer.read:
                readers.setdefault(key, set()).update(owners)
        return [
            owners or frozenset(place for key in layer.written for place in readers.get(key, ()))
            for owners, layer in zip(own, layers, strict=True)
        ]


def _usual(view: GraphView, unit: Collection[str], rows: Sequence[NumberFormat]) -> str:
    """INT8 for convolutions; for products FP8, which loses less there (docs/formats.md); "" where neither fits."""
    active = [row.name for row in rows if "activation" in row.roles]
    convolves = any(view.producers[key].op in _CONVOLUTIONS for key in unit)
    return (active[0] if convolves else active[-1]) if active else FLOAT
