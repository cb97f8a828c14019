# SPDX-License-Identifier: Apache-2.0
"""All steps on one model: relu6, equalize and smooth, clip, correct. Each decides on the model as it is by then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.calibration.engine import CalibrationOptions, calibrate_scales
from qdqtool.conditioning.bias_correction import find_additions
from qdqtool.conditioning.channel_map import Routes, find_routes
from qdqtool.conditioning.check import Outputs, compare, moved_most
from qdqtool.conditioning.condition_context import ConditionContext, look
from qdqtool.conditioning.edits import CHANGING, METADATA, STEPS, Conditioned, Edit
from qdqtool.conditioning.equalization_sets import (
    EqualizationDecision,
    EqualizationSet,
    choose_division,
    divisions_of,
    find_families,
    inverse_of,
)
from qdqtool.conditioning.losses import measure_losses
from qdqtool.conditioning.placement import kept_divisions
from qdqtool.conditioning.predict import Rounding
from qdqtool.conditioning.prediction import ErrorPrediction, predict
from qdqtool.conditioning.relu6_stats import measure_cuts
from qdqtool.conditioning.samples import Singles, count_channels
from qdqtool.conditioning.weight_clipping import LEAST_CLIP, find_limits
from qdqtool.data.loader import Batch, DataLoader
from qdqtool.decisions import Decisions
from qdqtool.errors import QdqError
from qdqtool.graph.edit import get_metadata, set_metadata
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.propagate_scales import borrowed_scales
from qdqtool.measures import OutputChange
from qdqtool.passes.condition.clip import clip_weights
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.passes.condition.correct import correct_biases
from qdqtool.passes.condition.equalize import Division, divide
from qdqtool.passes.relu6 import STEP as RELU6
from qdqtool.passes.relu6 import cut_at_six, find_relus
from qdqtool.scales import ScaleTable

ScalesFor = Callable[[ConditionContext, Iterable[Batch]], ScaleTable]
Keep = Callable[[onnx.ModelProto, ScaleTable], Mapping[str, str]]
_LOWEST_OPSET = 7  # Mul and Add broadcast from here on


@dataclass(frozen=True)
class ConditionSettings:
    """How a model is conditioned.

    Attributes:
        steps: some of `STEPS` and `ASKED`.
        plan: where the pairs will stand: target, version, float heads.
        method: how the scales come about that the correction reckons with.
        provider: what onnxruntime runs on while it calibrates.
        factors: what divisions are rounded to: float32, or powers of two, which keep the float function to the bit.
        scales_for: finds those scales in place of `method`: (the model as it is then, samples) -> a table that has
            every point of the plan.
        keep: chooses what stays in float, which no bias is corrected for: (the model as it is by then, opset 13 or
            later, and its scales) -> first output of each operator, and why.
    """

    steps: Sequence[str] = STEPS
    plan: PlanOptions = field(default_factory=PlanOptions)
    method: str = "mse"
    provider: str = "cpu"
    factors: Rounding = "float"
    scales_for: ScalesFor | None = None
    keep: Keep | None = None


def condition_model(
    proto: onnx.ModelProto, folder: Path | None, loader: DataLoader, settings: ConditionSettings
) -> Conditioned:
    """Edit the weights of a plain model so that it quantizes better.

    Equalizing and smoothing must keep the float function: where an output moves by more than 1e-5 of its range,
    channels are divided by powers of two, then by one of the two alone, then not, which the result's notes say.

    Args:
        proto: the model, edited in place; of opset 7 or later, which stays.
        folder: where its external data lie; a weight that is edited moves into the model.
        loader: what is fed; walked three to six times.
        settings: steps, plan and method.

    Raises:
        QdqError: Q/DQ in the model, an older opset, and what planning, calibrating and running refuse. What `proto`
            holds then is of no use.
    """
    return _Run(proto, folder, loader, settings).run()


def advice(
    proto: onnx.ModelProto, folder: Path | None, loader: DataLoader, plan: PlanOptions
) -> tuple[ErrorPrediction, ErrorPrediction] | None:
    """What equalizing and smoothing would win, predicted without an edit: without them, with them.

    Args:
        proto: a plain model; it is not changed, and must be of opset 13 or later.
        folder: where its external data lie.
        loader: walked once.
        plan: where the pairs will stand.

    Returns:
        None where nothing would be divided.
    """
    context = look(proto, folder, plan)
    _, verdicts = _decided(context, Singles(loader), STEPS, "float")
    if not any(verdict.divided for verdict in verdicts):
        return None
    before, after = predict(_undivided(verdicts)), predict(_divided(verdicts, None))
    return None if before is None or after is None else (before, after)


class _Run:
    """One model on its way: as it will be written, and as it is decided about (lifted, where its opset is old)."""

    def __init__(
        self, proto: onnx.ModelProto, folder: Path | None, loader: DataLoader, settings: ConditionSettings
    ) -> None:
        _refuse(proto, folder)
        self.proto, self.folder, self.settings = proto, folder, settings
        self.samples = Singles(loader)
        self.exact = self.base = Outputs(proto, folder)  # `base`: what dividing must keep
        self.lifted = proto
        if (opset_of(proto) or 0) < 13:
            self.lifted = onnx.ModelProto()
            self.lifted.CopyFrom(proto)
            normalize(self.lifted, folder)
        self.edits: list[Edit] = []
        self.left: dict[str, str] = {}
        self.notes: list[str] = []
        self.method = ""

    def run(self) -> Conditioned:
        """Every step asked for."""
        before = after = None
        kept: dict[str, OutputChange] = {}
        steps = self.settings.steps
        if RELU6 in steps:
            self._cut()
        if set(steps) & {"equalize", "smooth", "clip"}:
            verdicts, divisions, kept = self._divide_and_keep()
            before, after = predict(_undivided(verdicts)), predict(_divided(verdicts, divisions))
            if "clip" in steps:
                self._clip(_divided(verdicts, divisions))
        if "correct" in steps:
            self._correct()
        moved = self._moved() if any(edit.step in CHANGING for edit in self.edits) else kept
        done = Conditioned(
            tuple(self.edits),
            self.left,
            before,
            after,
            kept,
            moved,
            self.samples.seen,
            self.method,
            tuple(self.notes),
        )
        if done.edits:
            set_metadata(self.proto, METADATA, done.metadata(get_metadata(self.proto, METADATA)))
        return done

    def _moved(self) -> dict[str, OutputChange]:
        """How far the outputs moved by all edits; one that a selection cuts to another length is only noted."""
        reshaped: dict[str, str] = {}
        (moved,) = compare(self.exact, [Outputs(self.proto, self.folder)], self.samples, reshaped)
        self.notes += [f"the output {name} {why}: its movement is not reported" for name, why in reshaped.items()]
        return moved

    def _divide_and_keep(self) -> tuple[list[EqualizationDecision], list[Division], dict[str, OutputChange]]:
        """Divide, and look whether the float function stayed; where it did not, divide by less, or with fewer steps."""
        first = ""
        attempts = _attempts(self.settings)
        for factors, steps in attempts:
            context, left = self._look(), dict(self.left)
            verdicts, divisions = self._decide_divisions(context, factors, steps)
            if not divisions and first and steps:  # another of the steps may do more
                self.left = left
                continue
            plain = [_copy_of(proto) for proto in self._protos()] if divisions else []
            edits = self._divide(context, divisions, verdicts) if divisions else []
            kept, why = self._kept() if divisions else ({}, "")
            if not why:
                break
            for proto, copy in zip(self._protos(), plain, strict=True):
                proto.CopyFrom(copy)
            self.left, first = left, first or why
        self.edits += edits
        if first:
            lost = [step for step in attempts[0][1] if step not in steps]
            instead = f"{' and '.join(lost)} left out" if lost else "they are divided by powers of two, which win less"
            self.notes.append(f"dividing channels changed the float function ({first}): {instead}")
        return verdicts, divisions, kept

    def _kept(self) -> tuple[dict[str, OutputChange], str]:
        """How far the outputs moved by dividing, and what to say where that is too far."""
        try:
            (kept,) = compare(self.base, [Outputs(self.proto, self.folder)], self.samples)
        except QdqError as error:  # an output of another shape
            return {}, f"the output {error.where} {error.reason}"
        return kept, moved_most(kept)

    def _protos(self) -> list[onnx.ModelProto]:
        return [self.proto] if self.lifted is self.proto else [self.proto, self.lifted]

    def _look(self) -> ConditionContext:
        return look(self.lifted, self.folder, self.settings.plan)

    def _cut(self) -> None:
        """All Relu to Clip(0, 6): nothing is predicted; the share of each tensor that is cut off is reported."""
        relus = find_relus(self.proto, self.folder)
        self.left.update(relus.left)
        cuts = measure_cuts(self.proto, self.folder, relus.inside, self.samples)
        for proto in self._protos() if relus.inside else ():
            cut_at_six(proto, self.folder, relus.inside)
        self.edits += [Edit(RELU6, name, 0.0, cuts[name].summary()) for name in relus.inside]
        if relus.inside:
            self.base = Outputs(self.proto, self.folder)

    def _decide_divisions(
        self, context: ConditionContext, factors: Rounding, steps: Sequence[str]
    ) -> tuple[list[EqualizationDecision], list[Division]]:
        routes, verdicts = _decided(context, self.samples, steps, factors)
        self.routes = routes
        self.left.update(routes.left)
        equalize = "equalize" in steps
        wanted = [one for verdict in verdicts for one in divisions_of(context, verdict, equalize=equalize)]
        divisions, left = kept_divisions(context, wanted, _gains(verdicts), self.settings.plan)
        self.left.update(left)
        return verdicts, divisions

    def _divide(
        self, context: ConditionContext, divisions: list[Division], verdicts: list[EqualizationDecision]
    ) -> list[Edit]:
        inverse, gains = inverse_of(self.routes, divisions), _gains(verdicts)
        for proto in self._protos():
            done = divide(GraphView(proto.graph, self.folder), divisions, inverse)
            list_as_inputs(proto)
        return [_edit_of(one, gains[one.tensor], done.muls.get(one.tensor, "")) for one in divisions]

    def _clip(self, choices: Sequence[tuple[EqualizationSet, npt.NDArray[np.float32]]]) -> None:
        found = find_limits(choices, LEAST_CLIP)
        for proto in self._protos() if found else ():
            clip_weights(GraphView(proto.graph, self.folder), {key: shares for key, (shares, _) in found.items()})
            list_as_inputs(proto)
        for key, (_, decibel) in found.items():
            self.edits.append(Edit("clip", key, decibel, "its largest weights cost the others more than they bring"))

    def _correct(self) -> None:
        context = self._look()
        points = [point.tensor for point in context.plan.activations]
        if not points:
            return
        table = self._scales(context, points)
        self.method = table.provenance.method or "given"
        requantized = table.decisions.requantize_points  # `auto` gave some consumers a scale of their own
        kept = self.settings.keep(self.lifted, table) if self.settings.keep is not None else {}
        if requantized or kept or table.all_zero:
            decisions = Decisions(requantized, kept)
            context = look(self.lifted, self.folder, self.settings.plan, decisions, table.all_zero)
            table = self._with_moved_points(context, table)
        losses = measure_losses(context, table, self.samples)
        additions, left = find_additions(context, losses)
        self.left.update(left)
        values = {one.key: one.values for one in additions}
        fresh: list[str] = []
        for proto in self._protos() if additions else ():
            fresh = correct_biases(GraphView(proto.graph, self.folder), values)
            list_as_inputs(proto)
        for one in additions:
            added = "bias" if one.key in fresh else ""
            self.edits.append(Edit("correct", one.key, one.decibel, "the mean of its quantization error", added))

    def _with_moved_points(self, context: ConditionContext, table: ScaleTable) -> ScaleTable:
        """What stays in float moves points across pools and Pads to tensors that were not calibrated."""
        plan = self.settings.plan
        wanted = [point.tensor for point in context.plan.activations]
        rules = plan.rule_book()
        found = borrowed_scales(context.view, rules, table.scales, wanted)
        return replace(table, scales={**table.scales, **found}) if found else table

    def _scales(self, context: ConditionContext, points: list[str]) -> ScaleTable:
        """The scales that the correction reckons with."""
        how = self.settings
        if how.scales_for is not None:
            return how.scales_for(context, self.samples)
        options = CalibrationOptions(how.method, provider=how.provider, progress=False)
        wanted = None if how.method == "auto" else points  # it also looks at what it could cut off
        return calibrate_scales(self.lifted, self.folder, self.samples, options, wanted, points, how.plan)


def _attempts(settings: ConditionSettings) -> list[tuple[Rounding, tuple[str, ...]]]:
    """Factors and steps to divide with, the best first: as asked, by powers of two, without one of the steps, not."""
    steps = tuple(step for step in settings.steps if step in ("equalize", "smooth"))
    attempts = [(settings.factors, steps), ("power-of-two", steps), *(("power-of-two", (step,)) for step in steps)]
    return list(dict.fromkeys([*attempts, ("power-of-two", ())]))


def _gains(verdicts: Sequence[EqualizationDecision]) -> dict[str, float]:
    """Tensor -> decibels that dividing it is predicted to win."""
    return {span.tensor: one.choice.gain for one in verdicts for span in one.family.spans}


def _copy_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _refuse(proto: onnx.ModelProto, folder: Path | None) -> None:
    view = GraphView(proto.graph, folder)
    where = proto.graph.name or "the model"
    if view.pairs:
        raise QdqError(where, "carries Q/DQ already", "condition the plain model (qdqtool peel gives it), then insert")
    opset = opset_of(proto)
    if opset is not None and opset < _LOWEST_OPSET:
        raise QdqError(where, f"is of opset {opset}, conditioning starts at {_LOWEST_OPSET}", "export it anew")


def _decided(
    context: ConditionContext, samples: Iterable[Batch], steps: Sequence[str], factors: Rounding
) -> tuple[Routes, list[EqualizationDecision]]:
    first = next(iter(samples))
    routes = find_routes(context.view, context.proto, context.folder, context.ways, first)
    spectra = count_channels(context, routes.spans, samples)
    families = find_families(context, routes, spectra)
    equalize, smooth = "equalize" in steps, "smooth" in steps
    return routes, [choose_division(one, equalize=equalize, smooth=smooth, rounding=factors) for one in families]


def _undivided(verdicts: Sequence[EqualizationDecision]) -> list[tuple[EqualizationSet, npt.NDArray[np.float32]]]:
    return [(one.family, np.ones(one.family.table.amax.size, np.float32)) for one in verdicts]


def _divided(
    verdicts: Sequence[EqualizationDecision], divisions: Sequence[Division] | None
) -> list[tuple[EqualizationSet, npt.NDArray[np.float32]]]:
    """Each family with the factors that were carried out; those that were decided where `divisions` is None."""
    made = None if divisions is None else {one.tensor: one.factors for one in divisions}
    found = []
    for verdict in verdicts:
        factors = np.ones(verdict.family.table.amax.size, np.float32)
        for span, rows in verdict.family.rows():
            if verdict.divided and made is None:
                factors[rows] = verdict.choice.factors[rows]
            elif made is not None and span.tensor in made:
                factors[rows] = made[span.tensor]
        found.append((verdict.family, factors))
    return found


def _edit_of(one: Division, decibel: float, mul: str) -> Edit:
    spread = float(one.factors.max() / one.factors.min())
    if one.producers:
        reason = f"its channels, up to {spread:.3g} times apart, are equalized in the weights before and behind it"
        return Edit("equalize", one.tensor, decibel, reason)
    reason = f"its channels, up to {spread:.3g} times apart, are equalized by a Mul; the weights behind it compensate"
    return Edit("smooth", one.tensor, decibel, reason, mul)
