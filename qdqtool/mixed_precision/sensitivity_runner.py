# SPDX-License-Identifier: Apache-2.0
"""What operators lose in INT8: each by itself, and at the outputs of the network with any of them in float.

Local loss ranks badly, for a network forgives much of it and multiplies the rest: what counts is the outputs.
Nothing is decided here (`float_search.py` does).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from qdqtool.decisions import Decisions
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.propagate_scales import borrowed_scales
from qdqtool.match.restrict_plan import activation_sites, share_scales
from qdqtool.mixed_precision.output_loss import OutputReference
from qdqtool.mixed_precision.roofline import OperatorWork, work_of
from qdqtool.passes.insert import insert_pairs
from qdqtool.scales import Scale
from qdqtool.selection.candidate_losses import Trial, shadow_pass
from qdqtool.selection.choose import ChoiceSource

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
    """

    source: ChoiceSource
    options: PlanOptions
    decisions: Decisions
    scales: Mapping[str, Scale]
    all_zero: frozenset[str] = frozenset()


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


class SensitivityRunner:
    """The model on few samples, and its outputs with any operators in float.

    Attributes:
        view: the plain model.
        plan: where the pairs stand with every operator in INT8 that may be.
        operators: first outputs of those, sorted.
        runs: how often a model with pairs was run, `OUTPUT_SAMPLES` samples each time.
    """

    def __init__(self, quantized: Quantized) -> None:
        """Run the float model.

        Raises:
            QdqError: the model has no float32 output; what `OrtActivations` refuses.
        """
        self._quantized = quantized
        source = quantized.source
        self._proto, self._folder = source.proto, source.folder
        self.view = GraphView(source.proto.graph, source.folder)
        self.plan = make_plan(self.view, quantized.options, decisions=quantized.decisions, all_zero=quantized.all_zero)
        self._scales = share_scales(self.plan, quantized.scales, quantized.all_zero)
        self._float = set(self.plan.float_nodes)
        few = source.samples[:OUTPUT_SAMPLES]
        self._yardstick = OutputReference.of(source.proto, source.folder, few, source.provider, source.where)
        self.operators = sorted({read.node for point in self.plan.weights for read in point.reads})
        self.runs = 0
        self._losses: dict[frozenset[str], float | None] = {}

    def local(self) -> list[OperatorLoss]:
        """Every INT8 operator, those that lose most first."""
        source = self._quantized.source
        errors = shadow_pass(source.proto, source.folder, source.samples, self._trials(), source.provider, source.where)
        work = self._work(self.operators)
        total = sum(one.macs for one in work.values()) or 1
        findings = []
        for key in self.operators:
            node, one = self.view.producers[key], errors.get(key)
            lost = float(one.error[0] / one.signal) if one is not None and one.is_valid else 0.0
            findings.append(OperatorLoss(key, node.name, node.op, lost, work[key], work[key].macs / total))
        return sorted(findings, key=lambda one: (-one.local, self.view.level_of(one.node), one.node))

    def grids(self) -> dict[str, tuple[int, ...]]:
        """Of each INT8 operator, and of each head, the sizes of its output: `OperatorWork.grid`."""
        keys = {*self.operators, *(head.key for head in self.plan.heads)}
        return {key: work.grid for key, work in self._work(sorted(keys)).items()}

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
            self._losses[key] = self._run(key)
        return self._losses[key]

    def base_loss(self) -> float:
        """At the outputs, with every operator in INT8 that may be; each point has its scale here."""
        loss = self.loss()
        if loss is None:
            raise ValueError("the scales of a Quantized cover every point of its plan")
        return loss

    def _run(self, floats: frozenset[str]) -> float | None:
        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        view = GraphView(proto.graph, self._folder)
        what, scales = self._quantized, self._scales
        options, stay = what.options, self._float | floats
        plan = make_plan(view, options, floats=stay, decisions=what.decisions, all_zero=what.all_zero)
        wanted = [point.tensor for point in plan.activations]
        if any(name not in scales for name in wanted):
            rules = options.rule_book()
            scales = {**scales, **borrowed_scales(view, rules, scales, wanted)}
            if floats and any(name not in scales for name in wanted):
                return None
        insert_pairs(view, plan, scales)
        self.runs += 1
        return self._yardstick.loss(proto, self._folder)

    def _work(self, keys: list[str]) -> dict[str, OperatorWork]:
        source = self._quantized.source
        return work_of(source.proto, source.folder, source.samples[0], keys, source.provider, source.where)

    def _trials(self) -> list[Trial]:
        points = {point.tensor for point in self.plan.activations}
        axes = {read.node: point.axis for point in self.plan.weights for read in point.reads}
        trials = []
        for key in self.operators:
            sites = activation_sites(self.view, self.view.producers[key], points)
            bits = [self._scales[name].bits for name in sorted(sites) if name in self._scales]
            if bits:
                trials.append(Trial(key, (np.float32(max(bits)),), axes[key]))
        return trials
