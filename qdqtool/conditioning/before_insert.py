# SPDX-License-Identifier: Apache-2.0
"""What `insert` does with conditioning: do it first where it is asked for, else say what it is predicted to win."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx

from qdqtool.conditioning.advice import advice
from qdqtool.conditioning.edits import AUTO, parse_steps
from qdqtool.data.loader import open_loader
from qdqtool.errors import QdqError
from qdqtool.formats import number_format
from qdqtool.graph.edit import edits_of
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring.auto_scales import source_of
from qdqtool.measuring.keep_float import Keeping, choose_kept
from qdqtool.passes.peel import is_plain
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.runtime.activations import ObservableModel

if TYPE_CHECKING:
    from qdqtool.conditioning.edits import Conditioned
    from qdqtool.data.loader import DataLoader, DataOptions
    from qdqtool.measuring.search_result import SearchResult
    from qdqtool.observers.options import CalibrationOptions
    from qdqtool.scales import ScaleTable

ADVICE_SAMPLES = 8
_NO_EDIT = "conditioning found no edit that reduces the loss"
_UNIFORM = ("clip",)  # steps for codes that lie at equal distances
_ONE_SCALE = ("equalize", "smooth", "shift", "clip", "correct")  # steps for one scale per tensor or channel
PEEL_FIRST = "peel the model first, as --condition edits models without Q/DQ"


def condition_first(
    opened: Model, loader: DataLoader, steps: str, plan: PlanOptions, how: CalibrationOptions, keeping: Keeping
) -> tuple[list[str], SearchResult | None]:
    """Edit the weights of an opened model before pairs are placed.

    What stays in float is chosen before biases are corrected, and is left out of that: a correction makes up for an
    error of INT8, and where there is none it is one itself.

    Raises:
        QdqError: a model with Q/DQ, an unknown step, and what `condition_model` refuses.
    """
    from qdqtool.conditioning.run import ConditionSettings, condition_model

    if opened.view.pairs:
        raise QdqError(opened.name, "has Q/DQ, and --condition edits plain models", "peel it first")
    found: list[SearchResult] = []
    asked = parse_steps(steps, "--condition")
    row = number_format(plan.format)
    unfit = _ONE_SCALE if row.has_two_levels else _UNIFORM if row.is_relative else ()
    if refused := [step for step in asked if step in unfit]:
        if steps != AUTO:
            reason = "takes codes for evenly spaced, which those of {} are not"
            if row.has_two_levels:
                reason = "reckons with one scale per tensor, and each block of {} has a scale of its own"
            raise QdqError(f"--condition {refused[0]}", reason.format(row.title), "leave it out")
        asked = tuple(step for step in asked if step not in unfit)

    if row.blocks and not plan_pairs(opened, plan).points:
        return [_NO_EDIT], None  # `insert` refuses it, or writes it as it is

    def keep(model: Model, table: ScaleTable) -> dict[str, str]:
        source = source_of(ObservableModel(model, how.provider, how.where), loader)
        found.append(choose_kept(keeping, source, table, plan))
        return found[-1].reasons

    settings = ConditionSettings(asked, plan, how.method, how.provider, keep=keep if keeping else None)
    done = condition_model(opened, loader, settings)
    if row.is_relative:  # predictions are of evenly spaced codes
        done = replace(done, before=None, after=None)
    return [*done.notes, _summary(done, row.title)], found[-1] if found else None


def _summary(done: Conditioned, title: str) -> str:
    """What was done, in a sentence."""
    moved = min((difference.decibel for difference in done.moved.values()), default=0.0)
    if not done.edits:
        return _NO_EDIT
    cut = done.count("relu6")
    text = f"weights edited first (condition): {len(done.edits) - cut} edits"
    if cut:
        text += f", {cut} Relu limited to 6"
    if done.before is not None and done.after is not None:
        before, after = (f"{one.worst:.1f}" for one in (done.before, done.after))
        instead = "as before" if after == before else f"instead of {before}"
        text += f"; worst operator predicted at {after} dB {instead}"
    steps = " and ".join(step for step in ("relu6", "clip", "correct") if done.count(step))
    if not done.moved or not steps:
        return text
    verb = "change" if " and " in steps else "changes"
    return f"{text}; {steps} {verb} the FP32 outputs on purpose (SQNR {moved:.0f} dB or more): judge {title} alone"


def corrected(proto: onnx.ModelProto) -> list[str]:
    """First outputs of the operators whose biases `condition` corrected for INT8."""
    return [edit["site"] for edit in edits_of(proto) if edit["step"] == "correct"]


def shifted_biases(proto: onnx.ModelProto, kept: Collection[str]) -> list[str]:
    """One sentence where operators kept in float have biases that `condition` corrected for INT8.

    The correction stands for an error that they no longer make, so it is one itself.
    """
    shifted = [site for site in corrected(proto) if site in kept]
    if not shifted:
        return []
    names = ", ".join(shifted[:4])
    what = (
        f"the biases of {len(shifted)} operators kept in float ({names}) were corrected for INT8, which is wrong "
        "for float"
    )
    return [f"{what}: run insert --condition on the original model, which does both"]


def advice_for(model: Model, loader: DataLoader, plan: PlanOptions, *, had_pairs: bool = False) -> list[str]:
    """One sentence where conditioning is predicted to win, from the first samples; none where it is not."""
    if loader.origin is None or not is_plain(model.proto) or number_format(plan.format).is_relative:
        return []
    few = open_loader(loader.origin, loader.inputs, _limited(loader.options))
    try:
        found = advice(model, few, plan)
    except QdqError:  # what stands in its way is for `condition` to tell
        return []
    if found is None:
        return []
    before, after = found
    rise = f"from {before.worst:.1f} to {after.worst:.1f} dB"
    text = f"conditioning is predicted to raise the SQNR of the worst operator {rise}"
    means = f"mean {before.mean:.1f} to {after.mean:.1f}; first {ADVICE_SAMPLES} samples"
    return [f"{text} ({means}): {PEEL_FIRST if had_pairs else 'add --condition auto'}"]


def _limited(options: DataOptions) -> DataOptions:
    limit = ADVICE_SAMPLES if options.limit is None else min(options.limit, ADVICE_SAMPLES)
    return replace(options, limit=max(limit, options.batch))
