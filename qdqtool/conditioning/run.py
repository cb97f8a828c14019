# SPDX-License-Identifier: Apache-2.0
"""All steps on one model, in the order of `ORDER`. Each decides on the model as it is by then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from qdqtool.amax.method_table import parse_method
from qdqtool.calibration.engine import CalibrationOptions, WantedScales, calibrate_scales
from qdqtool.conditioning.bias_correction import find_additions
from qdqtool.conditioning.check import Outputs, compare
from qdqtool.conditioning.condition_context import ConditionContext, look
from qdqtool.conditioning.edits import CHANGING, METADATA, STEPS, Conditioned, Edit
from qdqtool.conditioning.equalization_sets import EqualizationSet
from qdqtool.conditioning.equalize_step import ClassState, count_state, run_equalize
from qdqtool.conditioning.judge import HeldOut
from qdqtool.conditioning.losses import measure_losses
from qdqtool.conditioning.predict import Rounding
from qdqtool.conditioning.prediction import ErrorPrediction, predict
from qdqtool.conditioning.relu6_stats import measure_cuts
from qdqtool.conditioning.shift_step import run_shift
from qdqtool.conditioning.smooth_step import Muls, Smoothed, run_smooth
from qdqtool.conditioning.weight_clipping import LEAST_CLIP, find_limits
from qdqtool.conditioning.weight_smoothing import smooth_for_weights
from qdqtool.conditioning.workspace import Workspace
from qdqtool.data.loader import Batch, DataLoader
from qdqtool.data.single_samples import SingleSamples
from qdqtool.decisions import Decisions
from qdqtool.errors import QdqError
from qdqtool.formats import number_format
from qdqtool.graph.edit import get_metadata, set_metadata
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.model import Model
from qdqtool.graph.types import opset_of
from qdqtool.match.plan import PlanOptions
from qdqtool.match.propagate_scales import borrowed_scales
from qdqtool.measures import OutputChange
from qdqtool.passes.condition.clip import clip_weights
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.passes.condition.correct import correct_biases
from qdqtool.passes.condition.smooth import Division
from qdqtool.passes.relu6 import STEP as RELU6
from qdqtool.passes.relu6 import cut_at_six, find_relus
from qdqtool.progress import counting
from qdqtool.scales import ScaleTable

ScalesFor = Callable[[ConditionContext, Iterable[Batch]], ScaleTable]
Keep = Callable[[Model, ScaleTable], Mapping[str, str]]
_LOWEST_OPSET = 7  # Mul and Add broadcast from here on


@dataclass(frozen=True)
class ConditionSettings:
    """How a model is conditioned.

    Attributes:
        steps: some of `STEPS` and `ASKED`.
        plan: where the pairs will stand: target, version, float heads.
        method: how the scales come about that the correction reckons with.
        provider: execution provider of onnxruntime while it calibrates.
        factors: what divisions are rounded to: float32, or powers of two, which keep the float function to the bit.
        muls: which Mul nodes `smooth` and which Add nodes `shift` adds: those with which INT8 moves fewer bytes than
            FP16, or all that win.
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
    muls: Muls = "fitting"
    scales_for: ScalesFor | None = None
    keep: Keep | None = None


def condition_model(model: Model, loader: DataLoader, settings: ConditionSettings) -> Conditioned:
    """Edit the weights of a plain model, in place, so that it quantizes better.

    Equalizing, smoothing and shifting must keep the float function: where an output moves by more than 1e-5 of its
    range, the step divides by powers of two, then not at all, which the result's notes say.

    Raises:
        QdqError: Q/DQ in the model, an older opset, and what planning, calibrating and running refuse. What `model`
            holds then is of no use.
    """
    return _Run(model, loader, settings).run()


class _Run:
    """One model on its way: as it will be written, and as it is decided about (lifted, where its opset is old)."""

    def __init__(self, model: Model, loader: DataLoader, settings: ConditionSettings) -> None:
        inlined = inline_products(model)
        where = model.graph.name or "the model"
        if model.view.pairs:
            raise QdqError(
                where, "carries Q/DQ already", "condition the plain model (qdqtool peel gives it), then insert"
            )
        opset = opset_of(model.proto)
        if opset is not None and opset < _LOWEST_OPSET:
            raise QdqError(where, f"is of opset {opset}, conditioning starts at {_LOWEST_OPSET}", "export it again")
        self.settings = settings
        self.work = Workspace(model, SingleSamples(loader, loader.inputs), settings.plan)
        if inlined:
            self.work.notes.append(f"inlined local functions with products: {', '.join(inlined)}")
        self.method = ""

    def run(self) -> Conditioned:
        """Every step asked for."""
        before = after = None
        work, steps = self.work, self.settings.steps
        dividing = bool(set(steps) & {"equalize", "smooth", "shift", "clip"})
        with counting("part", (RELU6 in steps) + dividing + ("correct" in steps) + 1) as count:
            if RELU6 in steps:
                self._cut()
                count.advance()
            if dividing:
                before, after = self._divide()
                count.advance()
            if "correct" in steps:
                self._correct()
                count.advance()
            moved = self._moved() if any(edit.step in CHANGING for edit in work.edits) else work.kept
        done = Conditioned(
            tuple(work.edits),
            work.left,
            before,
            after,
            work.kept,
            moved,
            work.samples.seen,
            self.method,
            tuple(work.notes),
        )
        if done.edits:
            set_metadata(work.model.proto, METADATA, done.metadata(get_metadata(work.model.proto, METADATA)))
        return done

    def _moved(self) -> dict[str, OutputChange]:
        """How far the outputs moved by all edits; one that a selection cuts to another length is only noted."""
        work = self.work
        reshaped: dict[str, str] = {}
        (moved,) = compare(work.exact, [Outputs(work.model)], work.samples, reshaped)
        work.notes += [f"the output {name} {why}: its change is not reported" for name, why in reshaped.items()]
        return moved

    def _divide(self) -> tuple[ErrorPrediction | None, ErrorPrediction | None]:
        """Equalize, smooth, shift, clip, each on what the model holds by then; what was predicted without and with.

        Samples that judge what dividing does to the outputs are not counted: few samples flatter factors made of them.
        """
        work, steps, factors = self.work, self.settings.steps, self.settings.factors
        if number_format(self.settings.plan.format).blocks:
            if "smooth" in steps:
                smooth_for_weights(work, factors)
            return None, None
        held = HeldOut(work.samples)
        smoothing = "smooth" in steps
        judging = bool({"equalize", "smooth", "shift"} & set(steps))
        first = state = count_state(work, held if judging else None)
        classes = np.ones(first.classes.factors.atoms.size)
        if "equalize" in steps:
            classes = run_equalize(work, first, held, factors)
            if (classes != 1).any() or not smoothing:
                state = count_state(work, held if smoothing else None)
        smoothed = Smoothed(state)
        if smoothing:
            smoothed = run_smooth(work, state, held.samples, factors, self.settings.muls)
        after = _divided(first, smoothed.divisions, classes)
        if "shift" in steps and run_shift(work, held, self.settings.muls):
            smoothed = Smoothed(count_state(work))
            after = _divided(smoothed.state, [])
        if "clip" in steps:
            self._clip(_divided(smoothed.state, smoothed.divisions))
        edited = {edit.site for edit in work.edits}
        work.left = {name: why for name, why in work.left.items() if name not in edited}
        return predict(_divided(first, [])), predict(after)

    def _cut(self) -> None:
        """All Relu to Clip(0, 6): nothing is predicted; the share of each tensor that is cut off is reported."""
        work = self.work
        relus = find_relus(work.model)
        work.left.update(relus.left)
        cuts = measure_cuts(work.model, relus.inside, work.samples)
        for model in work.models if relus.inside else ():
            cut_at_six(model, relus.inside)
        work.edits += [Edit(RELU6, name, 0.0, cuts[name].summary()) for name in relus.inside]
        if relus.inside:
            work.base = Outputs(work.model)

    def _clip(self, choices: Sequence[tuple[EqualizationSet, npt.NDArray[np.float32]]]) -> None:
        found = find_limits(choices, LEAST_CLIP)
        for model in self.work.models if found else ():
            clip_weights(model, {key: shares for key, (shares, _) in found.items()})
            list_as_inputs(model.proto)
        for key, (_, decibel) in found.items():
            self.work.edits.append(
                Edit(
                    "clip",
                    key,
                    decibel,
                    "its largest weights cost the other weights more precision than they are worth",
                )
            )

    def _correct(self) -> None:
        context = self.work.look()
        points = [point.tensor for point in context.plan.activations]
        if not points:
            return
        table = self._scales(context, points)
        self.method = table.provenance.method or "given"
        requantized = table.decisions.requantize_points  # `auto` gave some readers a scale of their own
        kept = self.settings.keep(self.work.lifted, table) if self.settings.keep is not None else {}
        if requantized or kept or table.all_zero:
            decisions = Decisions(requantized, kept)
            context = look(self.work.lifted, self.settings.plan, decisions, table.all_zero)
            # What stays in float moves points across pools and Pads to tensors that were not calibrated.
            wanted = [point.tensor for point in context.plan.activations]
            moved = borrowed_scales(context.view, self.settings.plan.rule_book(), table.scales, wanted)
            table = replace(table, scales={**table.scales, **moved})
        losses = measure_losses(context, table, self.work.samples)
        additions, left = find_additions(context, losses)
        self.work.left.update(left)
        values = {one.key: one.values for one in additions}
        fresh: list[str] = []
        for model in self.work.models if additions else ():
            fresh = correct_biases(model, values)
            list_as_inputs(model.proto)
        for one in additions:
            added = "bias" if one.key in fresh else ""
            self.work.edits.append(Edit("correct", one.key, one.decibel, "the mean of its quantization error", added))

    def _scales(self, context: ConditionContext, points: list[str]) -> ScaleTable:
        """The scales that the correction reckons with."""
        how = self.settings
        if how.scales_for is not None:
            return how.scales_for(context, self.work.samples)
        options = CalibrationOptions(how.method, provider=how.provider, progress=False)
        by_consumers = parse_method(how.method).row.by_consumers  # which may cut off tensors that are no points
        observed = None if by_consumers else points
        wanted = WantedScales(observed, points, how.plan)
        return calibrate_scales(self.work.lifted, self.work.samples, options, wanted)


def _divided(
    state: ClassState, divisions: Sequence[Division], classes: npt.NDArray[np.float64] | None = None
) -> list[tuple[EqualizationSet, npt.NDArray[np.float32]]]:
    """Each family with the factors of Mul nodes, and of classes where these are not in what was counted."""
    made = {one.tensor: one.factors for one in divisions}
    found = []
    for one in state.counted.families:
        factors = np.ones(one.classes.size) if classes is None else classes[one.classes]
        for span, rows in one.family.rows():
            factors[rows] = factors[rows] * made.get(span.tensor, np.float32(1))
        found.append((one.family, factors.astype(np.float32)))
    return found
