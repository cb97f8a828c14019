# SPDX-License-Identifier: Apache-2.0
"""The shadow pass: what each weighted operator loses with each candidate scale of its input, in one run per sample.

Beside every operator of the float graph a shadow of it computes with int8 weights on the float input quantized with
every candidate, the candidates side by side along the first axis. A few sums leave the graph, no tensor does. What the
sums are good for is decided elsewhere (scale_choice.py), the shadows are made elsewhere (operator_shadows.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index
from qdqtool.measuring.budget import MacBudget
from qdqtool.measuring.operator_shadows import FLOAT_BYTES, LayerError, ShadowSums, Trial, add_shadows
from qdqtool.measuring.output_loss import FloatOutputs
from qdqtool.progress import steps
from qdqtool.runtime.activations import ObservableModel, OrtActivations, optimization_of
from qdqtool.runtime.memory import parts_within, release_freed_memory
from qdqtool.runtime.session import session_options, start_session
from qdqtool.runtime.stage_models import Array, StageModels, Values, all_tensors
from qdqtool.runtime.stages import CutOptions
from qdqtool.simulation.shadow_copy import ShadowCopy

# Shadow weights held at a time; a larger model is run in several parts.
_PART_BYTES = 256 << 20
# Values and shadow weights that a pass over the whole graph may hold; more are run stage by stage.
_HELD_BYTES = 128 << 20
# Weights of a stage's operators from which on memory that stages before it left is given back first.
_LARGE_BYTES = 4 << 20
# Samples that remain where all of them cost more than the budget: with 2 a MobileViT had 6.6 dB where 4 and 8 give 11.
FEW_SAMPLES = 4
# Of the walk over the calibration data, the share that a pass may cost.
WALK_SHARE = 0.2


def budget_of(trials: Sequence[Trial], samples: int) -> MacBudget:
    """The multiply-adds of one pass that go with a calibration of so many samples."""
    return MacBudget.beside_walk(sum(trial.macs for trial in trials), samples, WALK_SHARE)


def samples_within(budget: MacBudget, trials: Sequence[Trial], samples: Sequence[Batch]) -> Sequence[Batch]:
    """All samples, or the first `FEW_SAMPLES` where the twins of all cost more than the budget."""
    return samples if _cost(trials, samples) <= budget.macs else samples[:FEW_SAMPLES]


def thinning_within(budget: MacBudget, trials: Sequence[Trial], samples: Sequence[Batch]) -> int:
    """Of so many positions of an output one is computed."""
    return max(1, math.ceil(_cost(trials, samples) / budget.macs))


def _cost(trials: Sequence[Trial], samples: Sequence[Batch]) -> int:
    return len(samples) * sum(trial.macs * len(trial.scales) for trial in trials)


def shadow_pass(
    model: ObservableModel,
    samples: Sequence[Batch],
    trials: Sequence[Trial],
    budget: MacBudget | None = None,
    outputs: FloatOutputs | None = None,
) -> dict[str, LayerError]:
    """Try scales at the inputs of weighted operators; each sees float inputs whatever is tried elsewhere.

    Sums over samples run in their order, so give them in one that does not depend on where they come from.

    Raises:
        QdqError: what `OrtActivations` refuses.
    """
    view = model.view
    thinning = 1 if budget is None else thinning_within(budget, trials, samples)
    if samples and _held_bytes(view, trials) > _HELD_BYTES:
        nodes = [trial.node for trial in trials]
        parts = StageModels(model, (*nodes, *_names_of(outputs)), frozenset(nodes), CutOptions(hold=False))
        found = _run_stages(parts, samples, trials, thinning, outputs)
        if found is not None:
            return found

    errors: dict[str, LayerError] = {}
    for number, part in enumerate(parts_within(_PART_BYTES, trials, partial(_weight_bytes, view))):
        errors.update(_run_part(model, samples, part, thinning, outputs if number == 0 else None))
    return errors


def _run_part(
    model: ObservableModel,
    samples: Sequence[Batch],
    part: Sequence[Trial],
    thinning: int,
    outputs: FloatOutputs | None,
) -> dict[str, LayerError]:
    """All samples through a copy of the whole graph, with the shadows of some operators."""
    copy = ShadowCopy(model.model.proto, model.stripped[1])
    shadows = add_shadows(copy, model.view, part, thinning)
    wanted = [name for names in shadows.values() for name in names.every()]
    if not wanted:
        return {}
    wanted += [name for name in _names_of(outputs) if name not in wanted]
    copy.keep_needed(wanted)
    shadowed = Model(copy.model, model.model.folder)
    activations = OrtActivations(shadowed, wanted, model.provider, model.where, copy.weights, few_runs=True)
    sums = ShadowSums(shadows)
    for at, sample in enumerate(steps(samples, "sample")):
        made = dict(activations.run(sample))
        sums.add(made)
        if outputs is not None:
            outputs.take(at, made)
    return sums.errors()


def _names_of(outputs: FloatOutputs | None) -> tuple[str, ...]:
    return () if outputs is None else outputs.names


def _held_bytes(view: GraphView, trials: Sequence[Trial]) -> int:
    """About what a pass over the whole graph holds: shadow weights, what operators read and make, and one's scales."""
    beside = max((trial.read * len(trial.scales) for trial in trials), default=0)
    values = 2 * FLOAT_BYTES * (sum(trial.read for trial in trials) + beside)
    return values + sum(_weight_bytes(view, trial) for trial in trials)


def _run_stages(
    parts: StageModels,
    samples: Sequence[Batch],
    trials: Sequence[Trial],
    thinning: int,
    outputs: FloatOutputs | None,
) -> dict[str, LayerError] | None:
    """All samples through one stage after the other, each with a session of its own; None where they cannot be cut.

    Held are what passes from stage to stage, and the values and shadow weights of one stage.
    """
    found: dict[str, LayerError] = {}
    values: list[Values] = [dict(sample) for sample in samples]
    for at in range(len(parts.stages)):
        own = [trial for trial in trials if trial.node in parts.keys[at]]
        sums, values = _run_stage(parts, at, values, own, thinning, outputs)
        if not all_tensors(values):
            return None
        found.update(sums.errors())
    return {trial.node: found[trial.node] for trial in trials if trial.node in found}


def _run_stage(
    parts: StageModels,
    at: int,
    values: Sequence[Values],
    trials: Sequence[Trial],
    thinning: int,
    outputs: FloatOutputs | None,
) -> tuple[ShadowSums, list[Values]]:
    """The sums of the trials of one stage, and what is read behind it, in a file."""
    where, gives = parts.model.where, parts.stages[at].gives
    if sum(_weight_bytes(parts.model.view, trial) for trial in trials) > _LARGE_BYTES:
        release_freed_memory()  # of the stages before
    copy = ShadowCopy(*parts.proto((node.proto for node in parts.stages[at].nodes), values))
    shadows = add_shadows(copy, parts.model.view, trials, thinning, parts.model.rounded)
    made_here = {name for node in parts.stages[at].nodes for name in node.outputs}
    last = [name for name in _names_of(outputs) if name in made_here]
    wanted = list(dict.fromkeys((*gives, *last, *(name for names in shadows.values() for name in names.every()))))
    if not wanted:
        return ShadowSums(shadows), [parts.behind(at, value, {}) for value in values]
    copy.keep_needed(wanted)
    runtime = parts.model.runtime
    options = session_options(runtime, optimization_of(copy.model))
    given = (copy.model, copy.weights, wanted)
    session = start_session(runtime, given, options, parts.model.providers, where, few_runs=True)
    sums = ShadowSums(shadows)

    def take(number: int, got: Mapping[str, Array]) -> None:
        sums.add(got)
        if outputs is not None:
            outputs.take(number, {name: got[name] for name in last})

    return sums, parts.through(at, session, steps(values, "sample"), wanted, take)


def _weight_bytes(view: GraphView, trial: Trial) -> int:
    node = view.producers[trial.node]
    index = weight_index(view, node)
    tensor = None if index is None else view.constant_tensor(node.inputs[index])
    return 0 if tensor is None else 4 * int(np.prod(tensor.dims, dtype=np.int64))
