# SPDX-License-Identifier: Apache-2.0
"""`--method auto`: of the candidates of each tensor the one whose consumers lose least, tensors of one scale together.

What each consumer loses is from the shadow pass and, where a consumer has no weight, from the histogram. All that
decides is a sum in an order of its own, so neither the order of the data nor the batch changes a scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.amax.candidates import Candidate, candidates, distinct
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.methods import predicted_mse, scale_from_amax
from qdqtool.data.loader import Batch
from qdqtool.decisions import Decisions
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import summed_over, weight_dims, weight_index
from qdqtool.match.flow import commuting, joins
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.restrict_plan import activation_sites, sites_behind
from qdqtool.match.rule_index import RuleIndex
from qdqtool.measuring.operator_shadows import LayerError, Trial
from qdqtool.measuring.output_loss import FloatOutputs
from qdqtool.measuring.shadow_losses import budget_of, samples_within, shadow_pass
from qdqtool.rulebook import RuleBook
from qdqtool.runtime.activations import ObservableModel

Float64 = npt.NDArray[np.float64]
# A scale is split where that takes away more than this share of what its consumers lose, requantization counted in.
CUT_GAIN = 0.25
# An operator that loses all of its signal has lost it: more error on top is no worse.
_LOST = 1.0


@dataclass(frozen=True)
class ChoiceSource:
    """Model, samples and histograms that scales are chosen from.

    Attributes:
        model: a plain one.
        samples: what the shadow pass runs, in an order that does not depend on where they come from.
        histograms: of all data, for every tensor that may be a point.
        counted: how many samples the histograms hold.
        outputs: takes what the float model gives for the first samples, from the pass that runs them.
        judged: what the loss of a written model is measured on: `samples`, and more where they are cheap.
    """

    model: ObservableModel
    samples: Sequence[Batch]
    histograms: Mapping[str, Histogram]
    counted: int = 0
    outputs: FloatOutputs | None = None
    judged: Sequence[Batch] = ()


@dataclass(frozen=True)
class ScaleChoice:
    """Which clipping value each point takes.

    Attributes:
        taken: tensor -> what proposes its clipping value.
        tried: tensor -> every candidate with the loss of all consumers of its scale: what `taken` is the least of.
        losses: first output of a weighted operator -> the part of its signal that is lost with what was chosen.
        requantize_points: tensors that got a pair of their own, so that a shared scale could be split.
        samples: how many the shadow pass ran.
        local: first output of an operator -> scale of its input, and the share of its signal that it loses with that.
    """

    taken: Mapping[str, Candidate]
    tried: Mapping[str, tuple[tuple[Candidate, float], ...]]
    losses: Mapping[str, float]
    requantize_points: tuple[str, ...]
    samples: int
    local: Mapping[str, tuple[np.float32, float]]


def choose(source: ChoiceSource, options: PlanOptions | None = None, *, cut: bool = True) -> ScaleChoice:
    """Choose for every point of a model.

    Raises:
        QdqError: what `make_plan` and `shadow_pass` refuse.
    """
    options = options or PlanOptions()
    view = source.model.view
    rules = options.rule_book()
    cuts = [name for name in possible_requantize_points(view, rules) if name in source.histograms] if cut else []
    classes = _PointClasses(view, source, options, cuts)
    movers = frozenset(node.key for node in commuting(view, rules).nodes())
    costs = _costs(view, source, classes, movers)
    kept = classes.merge(costs.total)
    return _chosen(classes, costs, kept)


@dataclass(frozen=True)
class _Costs:
    """Per class what its consumers lose with each candidate of the class, the same per weighted operator; samples run.

    `local` has of each operator with an INT8 weight the class, the scales and the share of the signal lost with each.
    """

    total: dict[str, Float64]
    operators: dict[str, tuple[str, Float64]]
    samples: int
    local: dict[str, tuple[str, tuple[np.float32, ...], Float64]]


class _PointClasses:
    """Points that share a scale, with every possible cut made; and which of them share one in the uncut plan."""

    def __init__(self, view: GraphView, source: ChoiceSource, options: PlanOptions, cuts: Sequence[str]) -> None:
        self._known = known = source.histograms
        while True:
            self.plan = make_plan(view, options, decisions=Decisions(tuple(cuts)))
            alive = (
                (first, [name for name in names if name in known and known[name].amax > 0])
                for first, names in self.plan.shared_scales().items()
            )
            self.members = {first: names for first, names in alive if names}
            self.of = {name: first for first, names in self.members.items() for name in names}
            self.edges = self._edges(view, [name for name in cuts if name in self.of])
            if len(self.edges) == len(cuts):
                break
            cuts = [name for name, _, _ in self.edges]  # behind the others nothing is INT8, or the scale is one
        self.grid = self._grids(known)

    def _edges(self, view: GraphView, cuts: list[str]) -> list[tuple[str, str, str]]:
        """(tensor, class its values come from, its own class) of each cut between two classes."""
        points = {point.tensor for point in self.plan.activations}
        edges = []
        for name in cuts:
            producer = view.producer(name)
            sites = set() if producer is None else sites_behind(view, producer.inputs[0], points)
            before = {self.of.get(site) for site in sites}
            first = before.pop() if len(before) == 1 else None
            if first is not None and first != self.of[name]:
                edges.append((name, first, self.of[name]))
        return edges

    def _grids(self, known: Mapping[str, Histogram]) -> dict[str, tuple[Candidate, ...]]:
        roots = _NameSets(self.members)
        for _, before, after in self.edges:
            roots.join(before, after)
        grids: dict[str, tuple[Candidate, ...]] = {}
        for group in roots.all():
            proposed = candidates(_merged(known[name] for first in group for name in self.members[first]))
            parts = [self.members[first] for first in group] if len(group) > 1 else []
            names = [name for first in group for name in self.members[first]]
            for part in [*parts, *([name] for name in names if len(names) > 1)]:
                proposed += candidates(_merged(known[name] for name in part))
            grids.update(dict.fromkeys(group, tuple(distinct(proposed))))
        return grids

    def merge(self, total: Mapping[str, Float64]) -> _NameSets:
        """Undo the cuts that do not pay, the least useful first; what remains apart is cut."""
        sets = _NameSets(self.members)
        cost = {first: total[first] for first in self.members}
        while True:
            gains = []
            for name, before, after in self.edges:
                a, b = sets.root(before), sets.root(after)
                if a != b:  # of several ways between two sets each is reported; all close together
                    gains.append((self._gain(name, cost[a], cost[b], sets.members(b)), name, a, b))
            if not gains or min(gains)[0] >= CUT_GAIN:
                return sets
            _, _, a, b = min(gains)
            joined = cost[a] + cost[b]
            sets.join(a, b)
            cost[sets.root(a)] = joined

    def _gain(self, name: str, before: Float64, after: Float64, consumers: Sequence[str]) -> float:
        """Share of the loss with one scale that two scales take away, the second rounding of the tensor counted in.

        That adds to what the consumers behind the cut lose in proportion to the squared error it makes of their input.
        """
        grid = self.grid[consumers[0]]
        together = float((before + after).min())
        first, second = grid[int(before.argmin())].amax, grid[int(after.argmin())].amax
        parts = [self._known[one] for consumer in consumers for one in self.members[consumer]]
        noise = sum(part.count * predicted_mse(part, second) for part in parts)
        more = self._known[name].count * predicted_mse(self._known[name], first)
        apart = float(before.min()) + float(after.min()) * (1.0 + (more / noise if noise > 0 else 0.0))
        return (together - apart) / together if together > 0 else 0.0


def _costs(view: GraphView, source: ChoiceSource, classes: _PointClasses, movers: frozenset[str]) -> _Costs:
    """Ask every consumer of every class."""
    trials, asked = _trials(view, source, classes)
    budget = budget_of(trials, source.counted)
    samples = samples_within(budget, trials, source.samples)
    errors = shadow_pass(source.model, samples, trials, budget, source.outputs)
    total = {first: np.zeros(len(grid)) for first, grid in classes.grid.items()}
    operators = {}
    for key, first in asked.items():
        loss = _loss(errors[key]) if key in errors else None
        if loss is not None:
            total[first] += loss
            operators[key] = (first, loss)
    for point in classes.plan.activations:
        if point.tensor not in classes.of:
            continue
        first = classes.of[point.tensor]
        for read in point.reads:
            if read.node not in movers and read.node not in operators:
                node = view.producers[read.node]
                total[first] += _rounding(source.histograms, point.tensor, node, classes.grid[first])
    for first, cost in total.items():
        if not cost.any():  # no error can be used: the tensors themselves
            for name in classes.members[first]:
                cost += _rounding(source.histograms, name, None, classes.grid[first])
    local = {one.node: (asked[one.node], one.scales, _share_lost(one, errors)) for one in trials if one.int8}
    return _Costs(total, operators, len(samples), local)


def _share_lost(trial: Trial, errors: Mapping[str, LayerError]) -> Float64:
    """With each scale; 0 where there was nothing to lose, or no shadow is possible: another pass would find no more."""
    found = errors.get(trial.node)
    return found.error / found.signal if found is not None and found.is_valid else np.zeros(len(trial.scales))


def _trials(view: GraphView, source: ChoiceSource, classes: _PointClasses) -> tuple[list[Trial], dict[str, str]]:
    """One for each weighted operator that reads points, and the class it reads."""
    axes = {read.node: point.axis for point in classes.plan.weights for read in point.reads}
    points = {point.tensor for point in classes.plan.activations}
    read = {read.node for point in classes.plan.activations for read in point.reads}
    trials, asked = [], {}
    for node in sorted(view.nodes, key=lambda node: (node.level, node.key)):
        if weight_index(view, node) is None or not (node.key in axes or node.key in read):
            continue
        first = next(
            (classes.of[site] for site in sorted(activation_sites(view, node, points)) if site in classes.of), None
        )
        if first is not None:
            scales = tuple(scale_from_amax(one.amax) for one in classes.grid[first])
            work = _macs(view, source, node), _read(view, source, node)
            trials.append(Trial(node.key, scales, axes.get(node.key), node.key in axes, *work))
            asked[node.key] = first
    return trials, asked


def _read(view: GraphView, source: ChoiceSource, node: Node) -> int:
    """Values that a weighted operator reads for one sample; 0 where nobody counted them."""
    index = weight_index(view, node)
    hist = None if index is None else source.histograms.get(view.root(node.inputs[1 - index]))
    return 0 if hist is None or not source.counted else hist.count // source.counted


def _macs(view: GraphView, source: ChoiceSource, node: Node) -> int:
    """Multiply-adds of an operator for one sample, from how many values it reads; 0 where nobody counted those."""
    index = weight_index(view, node)
    dims = None if index is None else weight_dims(view, node.inputs[index])
    each = _read(view, source, node)
    if not each or not dims:
        return 0
    if node.op == "Conv":
        groups, strides = attribute(node, "group", 1), attribute(node, "strides", None)
        skipped = math.prod(strides) if isinstance(strides, (list, tuple)) else 1
        return int(each * math.prod(dims) // (dims[1] * (groups if isinstance(groups, int) else 1) * skipped))
    return each * math.prod(dims) // (dims[0] if node.op == "ConvTranspose" else summed_over(node, index, dims))


def _loss(errors: LayerError) -> Float64 | None:
    """Error over signal at the operator's output; what is constant per channel counts twice, for it adds up."""
    if not errors.is_valid:
        return None
    return np.minimum((errors.error + errors.shift) / errors.signal, _LOST)


def _rounding(
    histograms: Mapping[str, Histogram], tensor: str, node: Node | None, grid: Sequence[Candidate]
) -> Float64:
    """The error of a tensor over the signal of what a sum makes of it, or over its own."""
    hist = histograms[tensor]
    output = node.outputs[0] if node is not None and node.op in ("Add", "Sub", "Sum") else tensor
    signal = _variance(histograms.get(output, hist)) or _variance(hist)
    if not signal > 0:
        return np.zeros(len(grid))
    return np.minimum(np.array([predicted_mse(hist, one.amax) for one in grid]) / signal, _LOST)


def _variance(hist: Histogram) -> float:
    """Of all finite values, taken in the middle of their bins."""
    many, first, second = max(hist.finite, 1), 0.0, 0.0
    for side, sign in ((0, 1.0), (1, -1.0)):
        filled = np.flatnonzero(hist.counts[side])
        counts = hist.counts[side][filled].astype(np.float64)
        middle = (filled + 0.5) * math.ldexp(1.0, hist.exponents[side] - 12)
        first += sign * float(counts @ middle)
        second += float(counts @ middle**2)
    return max(second / many - (first / many) ** 2, 0.0)


def _chosen(classes: _PointClasses, costs: _Costs, kept: _NameSets) -> ScaleChoice:
    taken: dict[str, Candidate] = {}
    tried: dict[str, tuple[tuple[Candidate, float], ...]] = {}
    best: dict[str, int] = {}
    for group in kept.all():
        cost = sum((costs.total[first] for first in group), np.zeros(len(classes.grid[group[0]])))
        at = int(cost.argmin())
        pairs = tuple(zip(classes.grid[group[0]], (float(value) for value in cost), strict=True))
        for first in group:
            best[first] = at
            taken.update(dict.fromkeys(classes.members[first], pairs[at][0]))
            tried.update(dict.fromkeys(classes.members[first], pairs))
    cuts = tuple(name for name, before, after in classes.edges if kept.root(before) != kept.root(after))
    losses = {key: float(loss[best[first]]) for key, (first, loss) in costs.operators.items()}
    local = {key: (scales[best[one]], float(lost[best[one]])) for key, (one, scales, lost) in costs.local.items()}
    return ScaleChoice(taken, tried, losses, cuts, costs.samples, local)


def _merged(parts: Iterable[Histogram]) -> Histogram:
    """What all have counted; of one that one itself, which may have been searched."""
    first, *others = parts
    whole = first.copy() if others else first
    for part in others:
        whole.merge(part)
    return whole


class _NameSets:
    """Disjoint sets of names, each known by its first in the order they were given."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._order = {name: place for place, name in enumerate(names)}
        self._root = {name: name for name in names}

    def root(self, name: str) -> str:
        while self._root[name] != name:
            name = self._root[name]
        return name

    def join(self, one: str, other: str) -> None:
        first, second = sorted((self.root(one), self.root(other)), key=self._order.__getitem__)
        self._root[second] = first

    def members(self, root: str) -> list[str]:
        return [name for name in self._order if self.root(name) == root]

    def all(self) -> list[list[str]]:
        groups: dict[str, list[str]] = {}
        for name in self._order:
            groups.setdefault(self.root(name), []).append(name)
        return list(groups.values())


def possible_requantize_points(view: GraphView, rules: RuleBook) -> list[str]:
    """Tensors that Concats alone read and that an operator made which moves values, but joins none; by level and name.

    The pair stands before such an operator anyway, so one after it adds a requantization and takes nothing away.
    Tensors that a Concat joins share a scale. Where one of them was itself taken out of an earlier Concat (a channel
    shuffle passes half of its channels on, block after block), whole stages end up with one scale. A pair on the tensor
    that is passed on gives either side its own: DequantizeLinear with one scale, QuantizeLinear with the other, which
    is what TensorRT does at a Concat whose inputs differ (`rules/gpu.toml`, concat).
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
