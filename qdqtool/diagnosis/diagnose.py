# SPDX-License-Identifier: Apache-2.0
"""`diagnose`: a Q/DQ model and data to the causes of its loss, by expected gain. Suspicions come from `suspects.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from qdqtool.amax.histogram import Histogram
from qdqtool.conditioning.edits import require_reference
from qdqtool.data.loader import Batch, Data, DataLoader, DataOptions, inputs_of, open_loader
from qdqtool.diagnosis.cause import LEAST_GAIN, Cause, LossCauses
from qdqtool.diagnosis.evidence import EveryOther, Evidence, without_pairs_of
from qdqtool.diagnosis.suspects import FAULTS, MOST, TRAITS, step_against_all
from qdqtool.display import counted
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.model import Model
from qdqtool.graph.view import DEQUANTIZE
from qdqtool.linting.lint_context import LintContext
from qdqtool.measuring.auto_scales import pick_samples
from qdqtool.measuring.output_loss import OutputReference
from qdqtool.observers.collect import count_batches
from qdqtool.observers.observer_state import mergeable_of
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.rounded import as_run
from qdqtool.precision.widen import as_fp32
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.runtime.stage_models import filed
from qdqtool.trtversion import TrtVersion

# Traits of the network are looked for where so much is lost beside its faults: INT8 models that lose less at their
# outputs lose 8 % of their figure at most (measuring/output_loss.py).
TRAIT_LOSS = 0.1
_REST = 0.25  # of a gain: what fewer places leave of it where they are the cause
_SAMPLES = 32  # that losses are measured on: those of a classifier on eight others differ by 0.08


@dataclass(frozen=True)
class DiagnosisOptions(ExecutionOptions):
    """How a model is diagnosed.

    Attributes:
        target, trt_version: whose rules hold.
        data_options: how data are read.
    """

    target: str = "gpu"
    trt_version: TrtVersion | None = None
    data_options: DataOptions | None = None


def diagnose(
    model: Model,
    data: Data | DataLoader,
    options: DiagnosisOptions | None = None,
    *,
    source: Model | None = None,
) -> LossCauses:
    """Name why a Q/DQ model loses accuracy, each cause with its evidence, remedy and gain.

    The loss is that at the outputs against the float model. The gain of a cause is what one change, in a copy of the
    model, takes off that loss. Ranges come from every second batch, and losses are measured on samples of the others.

    Args:
        model: with Q/DQ, as `open_model` gives it; not changed.
        data: samples as the application feeds them; see `open_loader`.
        options: see `DiagnosisOptions`.
        source: the FP32 model it was made from; None for the model without its pairs.

    Raises:
        QdqError: a model without pairs, pairs that cannot be taken out, data that do not fit or that can be iterated
            only once; what onnxruntime refuses.
        MissingPackageError: onnxruntime (or Pillow, for images) is not installed.
    """
    return causes_of(*look(model, data, options or DiagnosisOptions(), source))


def causes_of(found: Evidence, notes: tuple[str, ...] = ()) -> LossCauses:
    """Measure what each suspicion wins, and rank those that win enough."""
    ranked: list[Cause] = []
    base, changes = found.model, list[Callable[[Model], Model]]()
    for makers in (FAULTS, *((one,) for one in TRAITS)):
        loss = found.int8_loss if base is found.model else found.reference.loss(base)
        if makers is not FAULTS and loss < TRAIT_LOSS:
            break
        causes, unlikely = list[Cause](), list[tuple[Cause, Callable[[Model], Model]]]()
        for suspect in (one for make in makers for one in make(found)):
            cause = suspect.cause
            if suspect.change is not None:
                before = loss if suspect.after is None else min(loss, found.reference.loss(suspect.after(base)))
                left = found.reference.loss(suspect.change(base))
                gain = before - left
                if not suspect.named and gain < max(LEAST_GAIN, suspect.part * loss):
                    unlikely += [] if suspect.narrower else [(cause, suspect.change)]
                    continue
                if any(found.reference.loss(narrower(base)) - left < _REST * gain for narrower in suspect.narrower):
                    continue
                cause = replace(cause, gain=gain)
                changes.append(suspect.change)
            causes.append(cause)
        while changes:
            base = changes.pop(0)(base)
        if makers is FAULTS and len(unlikely) > 1:
            base, hidden = _hidden_by_each_other(found, base, unlikely)
            causes += hidden
        ranked += sorted(causes, key=lambda one: (not one.refused, one.gain is None, -(one.gain or 0.0)))
    if all(one.gain is not None for one in ranked):
        ranked.sort(key=lambda one: -(one.gain or 0.0))
    return LossCauses(tuple(ranked), found.loss, len(found.reference.samples), notes, found.figure.interval)


def _hidden_by_each_other(
    found: Evidence, base: Model, unlikely: Sequence[tuple[Cause, Callable[[Model], Model]]]
) -> tuple[Model, list[Cause]]:
    """The model without faults each of which loses all by itself, so that none alone wins anything; and the faults."""

    def without(*kept: int) -> Model:
        made = base
        for number, (_, change) in enumerate(unlikely):
            made = made if number in kept else change(made)
        return made

    loss = found.reference.loss(base)
    gain = loss - found.reference.loss(without())
    if loss < TRAIT_LOSS or gain < MOST * loss:
        return base, []
    kept = [number for number in range(len(unlikely)) if found.reference.loss(without(number)) < loss - MOST * gain]
    together = [cause for number, (cause, _) in enumerate(unlikely) if number not in kept]
    gain = loss - found.reference.loss(without(*kept))
    said = f"the gain is of {len(together)} faults together, as each hides what the other ones lose"
    said += "; one command mends them"
    remedy = step_against_all(found, together) if together[1:] else together[0].remedy
    return without(*kept), [
        replace(one, evidence=f"{one.evidence}; {said}", gain=gain, remedy=remedy) for one in together
    ]


def look(
    model: Model, data: Data | DataLoader, options: DiagnosisOptions, source: Model | None
) -> tuple[Evidence, tuple[str, ...]]:
    """Run the data through the float model and the Q/DQ model: what suspicions rest on, and notes on the data."""
    if not model.view.pairs:
        raise QdqError(model.name, "has no Q/DQ to diagnose", "qdqtool insert --data places them")
    stored = 0
    if source is None:
        require_reference(model, "--source (--model of report)")
        stored = sum(one.op_type == DEQUANTIZE and one.input[0] in model.view.initializers for one in model.graph.node)
    context = LintContext(model, options.target, options.trt_version)
    plain = as_fp32(source) if source is not None else without_pairs_of(context.wide)
    options, said = with_known(options, model, data, anew=True)
    loader = open_loader(data, inputs_of(plain.graph), options.data_options)
    if loader.once:
        raise QdqError("--data", "can be iterated only once, and a diagnosis reads them again", "give a file")
    how = CalibrationOptions(method="mse", provider=options.provider, progress=options.progress, inner=False)
    observable = ObservableModel(plain, options.provider, model.name)
    halves: list[Iterable[Batch]] = [EveryOther(loader, first) for first in (0, 1)]
    halves = halves if len(list(islice(loader.tasks(), 2))) > 1 else [loader]
    histograms, largest = dict[str, Histogram](), dict[str, float]()
    for half in reversed(halves):
        state = count_batches(observable, half, how)
        histograms = mergeable_of(state.observation.of_all(state.plan))
        for name, one in histograms.items():
            largest[name] = max(largest.get(name, 0.0), math.inf if one.has_inf else float(one.amax))
    context.largest = largest
    reference = OutputReference.of(observable, filed(pick_samples(halves[-1], loader.inputs, _SAMPLES)))
    loss = reference.figure(as_run(model) if context.has_halves else context.wide)
    int8_loss = reference.loss(context.wide) if context.has_halves else loss.value
    found = Evidence(context, observable, loader, halves[0], reference, loss, int8_loss, histograms)
    if stored:
        tensors = f"{counted(stored, 'tensor')} stored as integers"
        said = (*said, f"{tensors}: what rounding them loses is in no figure; give the FP32 model as --source")
    return found, (*said, *loader.notes)
