# SPDX-License-Identifier: Apache-2.0
"""What operators lose in INT8: each by itself, and at the outputs of the network with any of them in float.

Local loss ranks badly, for a network forgives much of it and multiplies the rest: what counts is the outputs.
Nothing is decided here (`float_search.py` does).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.decisions import Decisions
from qdqtool.engine.layer_work import product_of
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_dims, weight_index
from qdqtool.match.plan import Plan, PlanOptions, Point, Read
from qdqtool.match.planner import planner_of
from qdqtool.match.propagate_scales import borrowed_scales
from qdqtool.match.restrict_plan import activation_sites, share_scales
from qdqtool.measuring.operator_shadows import Trial
from qdqtool.measuring.output_loss import OutputReference
from qdqtool.measuring.scale_choice import ChoiceSource
from qdqtool.measuring.shadow_losses import budget_of, samples_within, shadow_pass
from qdqtool.measuring.staged_model import Placement, RoundedTensor, StagedModel, macs_of
from qdqtool.passes.insert import weight_scale
from qdqtool.quantizing.plan import settle
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.scales import Scale

# Samples of an end to end run: enough to rank by, since each one holds thousands of outputs.
OUTPUT_SAMPLES = 4


@dataclass(frozen=True)
class Quantized:
    """A model, where its pairs stand, and their scales.

    Attributes:
        source: the plain model and the samples.
        options: where the points are.
        decisions: the requantize points; what stays in float is what is searched for.
        scales: of every point.
        all_zero: tensors that held nothing but zeros and have no scale; see `make_plan`.
        local: what operators lose by themselves, as far as it was measured: `Provenance.operator_losses`.
        reference: the outputs of the float model for the first `OUTPUT_SAMPLES` samples, where they were taken.
    """

    source: ChoiceSource
    options: PlanOptions
    decisions: Decisions
    scales: Mapping[str, Scale]
    all_zero: frozenset[str] = frozenset()
    local: Mapping[str, tuple[Any, float]] = field(default_factory=dict)
    reference: OutputReference | None = None


@dataclass(frozen=True)
class QuantizedForm:
    """Where pairs stand and their scales: beside the float model and the samples, all that the loss depends on.

    Attributes:
        places: of every point the tensor, the axis of its scales, its number format and the places that read its pair.
        scales: tensor of every activation point -> bytes of its float32 scale.
    """

    places: frozenset[tuple[str, int | None, str, tuple[Read, ...]]]
    scales: Mapping[str, bytes]

    @classmethod
    def of(cls, plan: Plan, scales: Mapping[str, Scale]) -> QuantizedForm:
        """That of a plan and the scales of its activation points."""
        places = frozenset((point.tensor, point.axis, point.format.name, point.reads) for point in plan.points)
        return cls(places, {name: scale.bits.tobytes() for name, scale in scales.items()})


@dataclass(frozen=True)
class OperatorLoss:
    """One weighted operator.

    Attributes:
        node: its first output.
        name: what to call it.
        op: what it is.
        local: share of its signal that is lost at its own output.
        work: what it does.
        share: of the multiply-adds of all weighted operators.
        without: loss at the outputs with all in INT8 but this one; None where it was not run.
        only: loss at the outputs with this one alone in INT8; None likewise.
    """

    node: str
    name: str
    op: str
    local: float
    work: OperatorWork
    share: float
    without: float | None = None
    only: float | None = None

    def cells(self) -> tuple[str, str, str]:
        """`local`, `without` and `only` as a table shows them."""
        without, only = (f"{value:.4g}" if value is not None else "-" for value in (self.without, self.only))
        return f"{self.local:.3g}", without, only

    def line(self) -> str:
        """What it loses, in a line of progress: what a table says of it."""
        local, without, only = self.cells()
        return f"{self.name or self.node}: own loss {local}, in float {without}, only INT8 {only}"


class SensitivityRunner:
    """The model on few samples, and its outputs with any operators in float.

    Attributes:
        view: the plain model.
        plan: where the pairs stand with every operator in INT8 that may be.
        operators: first outputs of those, sorted.
        reference: the outputs of the float model.
        runs: how many forms of the model with pairs were run, `OUTPUT_SAMPLES` samples each time.
    """

    def __init__(self, quantized: Quantized) -> None:
        """Make the model ready; the float one runs where its outputs were not given."""
        self._quantized = quantized
        source = quantized.source
        self.view = source.model.view
        options, decisions = quantized.options, quantized.decisions
        self._planner = planner_of(self.view, options, decisions=decisions, all_zero=quantized.all_zero)
        self._rules = options.rule_book()
        self.plan = self._planner.plan()
        self._scales = share_scales(self.plan, quantized.scales, quantized.all_zero)
        self._float = set(self.plan.float_nodes)
        self.reference = quantized.reference or reference_of(source)
        self.operators = sorted({read.node for point in self.plan.weights for read in point.reads})
        self.runs = 0
        self._losses: dict[frozenset[str], float | None] = {}
        self._placements: dict[frozenset[str], Placement | None] = {}
        self._weights: dict[tuple[str, int | None], Scale] = {}

    def local(self) -> list[OperatorLoss]:
        """Every INT8 operator, those that lose most first."""
        lost = self._local_losses()
        total = self.macs
        findings = []
        for key in self.operators:
            node, work = self.view.producers[key], self._work[key]
            findings.append(OperatorLoss(key, node.name, node.op, lost.get(key, 0.0), work, work.macs / total))
        return sorted(findings, key=lambda one: (-one.local, self.view.level_of(one.node), one.node))

    @property
    def macs(self) -> int:
        """Multiply-adds of all INT8 operators for one sample; 1 where there are none."""
        return sum(self._work[key].macs for key in self.operators) or 1

    @property
    def spent(self) -> int:
        """Multiply-adds of the forms that were run so far."""
        return sum(runs * macs for runs, macs in zip(self._staged.runs, self._stage_macs, strict=True))

    def cost(self, floats: Collection[str]) -> int:
        """Multiply-adds that the loss with some operators in float will cost; nothing where it is known."""
        return 0 if frozenset(floats) in self._losses else self.cost_of_run(floats)

    def cost_of_run(self, floats: Collection[str]) -> int:
        """Multiply-adds of the stages that must run for the model with some operators in float; 0 where none can."""
        placement = self._placement(frozenset(floats))
        if placement is None:
            return 0
        return len(self.reference.samples) * sum(self._stage_macs[self._staged.first_to_run(placement) :])

    def least_cost(self, floats: Collection[str]) -> int:
        """No more than `cost` where it can run, without a plan: the stages from the first on that runs one of these."""
        if frozenset(floats) in self._losses:
            return 0
        first = min(map(self._staged.stage_of, floats), default=0)
        return len(self.reference.samples) * sum(self._stage_macs[first:])

    def grids(self) -> dict[str, tuple[int, ...]]:
        """Of each INT8 operator, and of each head, the sizes of its output: `OperatorWork.grid`."""
        return {key: work.grid for key, work in self._work.items()}

    def ends(self, finding: OperatorLoss) -> OperatorLoss:
        """The finding with both runs end to end."""
        others = set(self.operators) - {finding.node}
        return replace(finding, without=self.loss({finding.node}), only=self.loss(others))

    def loss(self, floats: Collection[str] = ()) -> float | None:
        """At the outputs, with some operators in float beside those that are so anyway.

        None where a pair would then stand on a tensor that was not calibrated. Each set is run once.
        """
        key = frozenset(floats)
        if key not in self._losses:
            self._losses[key] = self._run(key, keep=not key)
        return self._losses[key]

    def keep(self, floats: Collection[str]) -> None:
        """Begin what follows where it differs from this form, which is run for that."""
        self._run(frozenset(floats), keep=True)

    def base_loss(self) -> float:
        """At the outputs, with every operator in INT8 that may be; each point has its scale here."""
        loss = self.loss()
        if loss is None:
            raise ValueError("the scales of a Quantized cover every point of its plan")
        return loss

    def _run(self, floats: frozenset[str], *, keep: bool) -> float | None:
        placement = self._placement(floats)
        if placement is None:
            return None
        self.runs += 1
        return self.reference.loss_of(self._staged.run(placement, keep=keep))

    def form(self, floats: Collection[str]) -> QuantizedForm | None:
        """Pairs and scales of the model with some operators in float; None where a point has no scale."""
        found = self._plan(frozenset(floats))
        return None if found is None else QuantizedForm.of(*found)

    def _plan(self, floats: frozenset[str]) -> tuple[Plan, Mapping[str, Scale]] | None:
        """The plan with some operators in float, and the scales of its activation points; None where one has none."""
        scales = self._scales
        stay = self._float | floats
        plan = self._planner.plan(stay)
        wanted = [point.tensor for point in plan.activations]
        if any(name not in scales for name in wanted):
            scales = {**scales, **borrowed_scales(self.view, self._rules, scales, wanted)}
            if floats and any(name not in scales for name in wanted):
                return None
        return settle(self.view, plan, self._rules, scales)

    def _placement(self, floats: frozenset[str]) -> Placement | None:
        """Where the model with some operators in float reads rounded tensors; None where a point has no scale."""
        if floats not in self._placements:
            found = self._plan(floats)
            self._placements[floats] = None if found is None else self._places(*found)
        return self._placements[floats]

    def _places(self, plan: Plan, chosen: Mapping[str, Scale]) -> dict[tuple[str, int], RoundedTensor]:
        places = {}
        for point in plan.points:
            scale = chosen[point.tensor] if point.role == "activation" else self._weight_scale(point)
            rounded = RoundedTensor(point.tensor, scale.bits.tobytes(), scale.axis, scale.format, point.block)
            places.update({(read.node, read.index): rounded for read in point.reads})
        return places

    def _weight_scale(self, point: Point) -> Scale:
        key = point.tensor, point.axis
        if key not in self._weights:
            self._weights[key] = weight_scale(self.view, point, self._scales)
        return self._weights[key]

    @property
    def is_relative(self) -> bool:
        """Whether what an operator loses by itself says nothing of what the outputs lose by it."""
        return any(point.format.is_relative or point.block for point in self.plan.points)

    @cached_property
    def _staged(self) -> StagedModel:
        source = self._quantized.source
        return StagedModel(source.model, self.reference.outputs, self.reference.samples, self.operators)

    @cached_property
    def _work(self) -> dict[str, OperatorWork]:
        """Of each INT8 operator and each head."""
        source = self._quantized.source
        keys = sorted({*self.operators, *(head.key for head in self.plan.heads)})
        return work_of(source.model, source.samples[0], keys)

    @cached_property
    def _stage_macs(self) -> list[int]:
        return macs_of(self._staged, ((key, self._work[key].macs) for key in self.operators))

    def _local_losses(self) -> dict[str, float]:
        """What was measured with the very scale of an operator's input, and what a shadow pass finds of the others.

        Nothing where every operator loses about the same: then only the outputs tell them apart.
        """
        if self.is_relative:
            return {}
        source, trials = self._quantized.source, self._trials()
        known = {one.node: self._quantized.local.get(one.node) for one in trials}
        found = {one.node: two[1] for one in trials if (two := known[one.node]) and two[0] == one.scales[0]}
        others = [one for one in trials if one.node not in found]
        if others:
            budget = budget_of(others, source.counted)
            samples = samples_within(budget, others, source.samples)
            errors = shadow_pass(source.model, samples, others, budget)
            found.update({key: float(one.error[0] / one.signal) for key, one in errors.items() if one.is_valid})
        return found

    def _trials(self) -> list[Trial]:
        points = {point.tensor for point in self.plan.activations}
        axes = {read.node: point.axis for point in self.plan.weights for read in point.reads}
        trials = []
        for key in self.operators:
            sites = activation_sites(self.view, self.view.producers[key], points)
            bits = [self._scales[name].bits for name in sorted(sites) if name in self._scales]
            if bits:
                work = self._work[key]
                trials.append(Trial(key, (np.float32(max(bits)),), axes[key], macs=work.macs, read=work.read))
        return trials


def reference_of(source: ChoiceSource) -> OutputReference:
    """The outputs of the float model for the first `OUTPUT_SAMPLES` samples."""
    return OutputReference.of(source.model, source.samples[:OUTPUT_SAMPLES], source.outputs)


@dataclass(frozen=True)
class OperatorWork:
    """What one weighted operator does for one batch.

    Attributes:
        macs: multiply-adds.
        read: elements of its input.
        grid: sizes of its output without the batch and the channels: height and width of a convolution's.
    """

    macs: int
    read: int
    grid: tuple[int, ...] = ()


def work_of(model: ObservableModel, sample: Batch, operators: Collection[str]) -> dict[str, OperatorWork]:
    """What weighted operators do for one batch: from the shapes that inference finds, or else from those of a run."""
    view = model.view
    nodes = [view.producers[key] for key in operators]
    wanted = {name for node in nodes for name in (node.outputs[0], _input(view, node)) if name}
    inferred = known_shapes(view)
    shapes = {name: tuple(dim for dim in inferred.get(name, (None,)) if dim) for name in wanted}
    unknown = sorted(name for name, shape in shapes.items() if len(shape) != len(inferred.get(name, (None,))))
    if unknown:
        run = OrtActivations.of(model, model.chosen(unknown), few_runs=True).run(sample)
        shapes |= {name: array.shape for name, array in run}
    return {node.key: _work(view, node, shapes) for node in nodes}


def _input(view: GraphView, node: Node) -> str:
    index = weight_index(view, node)
    return "" if index is None else view.root(node.inputs[1 - index])


def _work(view: GraphView, node: Node, shapes: dict[str, tuple[int, ...]]) -> OperatorWork:
    index = weight_index(view, node)
    dims = weight_dims(view, node.inputs[index if index is not None else 1])
    data, output = shapes.get(_input(view, node), (0,)), shapes.get(node.outputs[0], ())
    first, second = (dims, data) if index == 0 else (data, dims)
    grid = output[2:] if node.op in ("Conv", "ConvTranspose") else output[1:-1]
    return OperatorWork(product_of(view, node, first, second, output).macs, math.prod(data), grid)
