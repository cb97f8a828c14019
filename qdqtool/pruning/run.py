# SPDX-License-Identifier: Apache-2.0
"""From a model to a pruned model that was checked against the masked original, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx

from qdqtool.data.single_samples import first_samples, row_count
from qdqtool.errors import QdqError
from qdqtool.forecasting.devices import Device
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.graph.model import Model
from qdqtool.graph.parameters import count_parameters
from qdqtool.graph.view import GraphView
from qdqtool.pruning.activation_scores import activation_scores
from qdqtool.pruning.channel_groups import ChannelMap, find_groups
from qdqtool.pruning.check import Differences, checked_difference
from qdqtool.pruning.choice import Criterion, choose, choose_evenly, filter_scores
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.gates import gated_copy, taylor_scores
from qdqtool.pruning.group_losses import EndLosses, loss_scores
from qdqtool.pruning.held_out import HeldOutput, best_way, judge_pruned
from qdqtool.pruning.kept_channels import note_kept
from qdqtool.pruning.latency import LatencyForecast
from qdqtool.pruning.mean_correction import CorrectedModel, correct_means
from qdqtool.pruning.probe import Feed, ProbeRun, TensorFacts, look, seeded_input
from qdqtool.pruning.reconstruction import reconstruct
from qdqtool.pruning.remove import remove_channels
from qdqtool.pruning.scores import Float64
from qdqtool.trtversion import TrtVersion

SharedOut = Literal["", "losses", "evenly", "gradients"]
_OTHER_FREE = 96  # what a free axis of the second seeded input is long
_COMPARED = 16  # samples that choices are compared on, at least


@dataclass(frozen=True)
class PrunedGroup:
    """What became of a group of channels.

    Attributes:
        name: of the first operator that makes them.
        kept, total: channels, each counted once however many weights it has.
        operators: who makes or reads them, as `name: role`, in the order of the graph.
        parameters: of all constants that they lie on, before and after all that goes.
        multiply_adds: of the operators that make or read them, likewise. Those of a constant and an operator count in
            each group that has a part in them.
    """

    name: str
    kept: int
    total: int
    operators: tuple[str, ...]
    parameters: tuple[int, int] = (0, 0)
    multiply_adds: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        ends = {"parameters": self.parameters, "macs": self.multiply_adds}
        numbers = {key: dict(zip(("before", "after"), pair, strict=True)) for key, pair in ends.items()}
        return {
            "name": self.name,
            "kept": self.kept,
            "total": self.total,
            "operators": list(self.operators),
            **numbers,
        }


@dataclass(frozen=True)
class ForecastTarget:
    """Whose forecast a latency is.

    Attributes:
        device: its figures are taken.
        version: of TensorRT, whose fusions are predicted; None for the newest that is known.
        half: whether what is not INT8 by Q/DQ runs in FP16; else a model without Q/DQ counts as INT8.
    """

    device: Device
    version: TrtVersion | None = None
    half: bool = False


@dataclass(frozen=True)
class PredictedTimes:
    """Predicted microseconds, and for whom, in words."""

    source: str
    before: float
    after: float

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"source": self.source, "before_us": self.before, "after_us": self.after}


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruned model and its numbers.

    Attributes:
        model: the pruned model; the original where nothing goes.
        groups: in the order of the graph.
        pinned: operator -> why channels that it makes must stay.
        channels, prunable: that weighted operators make; how many of them could go.
        parameters: values of all constants, before and after.
        multiply_adds: of the operators that make channels, before and after.
        difference: from the masked original; None in a dry run.
        samples: how many inputs that was measured on.
        seeded: whether they were made, not given.
        corrected: operators whose bias makes up for the mean of what they read no longer.
        reconstructed: operators whose weights were fitted to make what the original made.
        judged: outputs on samples that were held out, as cut, with corrected biases, with weights fitted anew.
        forecast: before and after, where a latency was asked for.
        shared_out: how a share of the multiply-adds was shared out, where choices were compared: by "losses" of groups,
            "evenly", or by "gradients" alone; else "".
    """

    model: onnx.ModelProto
    groups: tuple[PrunedGroup, ...]
    pinned: dict[str, str]
    channels: int
    prunable: int
    parameters: tuple[int, int]
    multiply_adds: tuple[int, int]
    difference: Differences | None = None
    samples: int = 0
    seeded: bool = False
    corrected: tuple[str, ...] = ()
    reconstructed: tuple[str, ...] = ()
    judged: tuple[HeldOutput, ...] = ()
    forecast: PredictedTimes | None = None
    shared_out: SharedOut = ""


@dataclass(frozen=True, eq=False)
class PruneData:
    """Data of one pruning, beside those that the check runs on.

    Attributes:
        used: for scores, and for the means that biases make up for.
        held: samples that neither is taken from, on which corrected biases are judged; may be empty.
        taylor: gradients of a gated copy, sample by sample; see `gates.gated_copy`.
        correct: whether biases and weights make up for what goes.
        ends: what groups lose, for a share of the multiply-adds or of a forecast; None to go by scores alone.
    """

    used: Iterable[Feed]
    held: Sequence[Feed] = ()
    taylor: Callable[[Model, Sequence[str]], Iterable[Mapping[str, Float64]]] | None = None
    correct: bool = True
    ends: Callable[[Model, TensorFacts], EndLosses] | None = None


def prune_model(
    run: ProbeRun,
    criterion: Criterion,
    exclude: Sequence[str],
    data: PruneData | None = None,
    target: ForecastTarget | None = None,
    *,
    dry: bool = False,
) -> Pruned:
    """Remove channels from a model.

    Raises:
        QdqError: onnxruntime cannot run the model; see `choose`; the pruned model is not the masked original.
    """
    view = run.model.view
    facts = look(replace(run, feeds=_probes(run.model.graph, run.feeds)))
    channels = find_groups(view, facts, exclude)
    forecast = None
    if target is not None:
        forecast = LatencyForecast(channels, LayerTimes(target.device), target.version, half=target.half)
    measured = _measured(channels, criterion, run, data)
    losses = _losses(channels, criterion, measured, facts, run, data)
    chosen = choose(channels, criterion, losses or measured, forecast, one_unit=losses is not None)
    choices: dict[SharedOut, Cut] = {"losses": Cut(channels, chosen.tolist())}
    if losses is not None and criterion.macs is not None:
        choices |= _other_choices(channels, criterion, measured)
    several = len(choices) > 1
    made = [] if dry and not several else [_made(cut, facts, run, data) for cut in choices.values()]
    place = _nearest(made, facts, run, data) if several else 0
    shared_out, cut = list(choices.items())[place]
    times = () if forecast is None else tuple(forecast.microseconds(one) for one in (Cut(channels, ()), cut))
    done = Pruned(
        run.model.proto,
        _told(cut),
        dict(channels.pinned),
        channels.channels,
        channels.prunable,
        (count_parameters(view), _parameters_after(view, cut)),
        (Cut(channels, ()).multiply_adds(), cut.multiply_adds()),
        forecast=None if forecast is None else PredictedTimes(forecast.source, *times),
        shared_out=shared_out if several else "",
    )
    return done if dry else _finished(done, made[place], facts, run)


def _other_choices(
    channels: ChannelMap, criterion: Criterion, measured: Mapping[str, Float64] | None
) -> dict[SharedOut, Cut]:
    """What is held against the choice by measured losses: the same share of each group, and gradients alone."""
    even, found = choose_evenly(channels, criterion, measured), dict[SharedOut, Cut]()
    if even is not None:
        found["evenly"] = Cut(channels, even.tolist())
    if criterion.importance == "taylor":
        found["gradients"] = Cut(channels, choose(channels, criterion, measured).tolist())
    return found


def _nearest(made: Sequence[_MadeModel], facts: TensorFacts, run: ProbeRun, data: PruneData | None) -> int:
    """Which of several pruned models comes nearest to the original on samples, held-out ones first."""
    if data is None or data.ends is None:
        return 0
    held = sum(max(row_count(feed), 1) for feed in data.held)
    more = first_samples(data.used, _COMPARED - held) if held < _COMPARED else []
    return nearest_model(run, [one.pruned for one in made], [*data.held, *more], data.ends(run.model, facts))


def _measured(
    channels: ChannelMap, criterion: Criterion, run: ProbeRun, data: PruneData | None
) -> dict[str, Float64] | None:
    """What channels are worth by data; None where filters say it."""
    if criterion.importance == "l2":
        return None
    if data is None or data.taylor is None:
        raise QdqError(f"--importance {criterion.importance}", "is measured on data", "give --data")
    if criterion.importance == "activation":
        how = criterion.normalizer, criterion.equalization
        return activation_scores(channels, run, data.used, how, centered=data.correct)
    gated, gates = gated_copy(run.model, channels)
    return taylor_scores(channels, gates, data.taylor(gated, [gate.name for gate in gates]))


def _losses(
    channels: ChannelMap,
    criterion: Criterion,
    measured: Mapping[str, Float64] | None,
    facts: TensorFacts,
    run: ProbeRun,
    data: PruneData | None,
) -> dict[str, Float64] | None:
    """Scores in the unit of what the outputs lose; None where no budget is shared out between groups, or no data."""
    share = criterion.latency if criterion.macs is None else criterion.macs
    several = any(len(group.classes) > 1 for group in channels.groups)
    if data is None or data.ends is None or share is None or share >= 1 or not several:
        return None
    ends = data.ends(run.model, facts)
    if not ends.tensors:
        return None
    scores = measured or filter_scores(channels, criterion)
    return loss_scores(channels, scores, run, data.used, ends, centered=data.correct)


def _made(cut: Cut, facts: TensorFacts, run: ProbeRun, data: PruneData | None) -> _MadeModel:
    """The edit of a copy, corrected where that helps on what is held out."""
    if not cut.gone.any():
        return _MadeModel(run.model, run.model, cut)
    bare = _MadeModel(run.model, remove_channels(run.model, cut), cut)
    if data is None:
        return bare
    if not data.correct:
        return replace(bare, judged=judge_pruned(run, [bare.pruned] * 3, data.held))
    return _corrected(bare, facts, run, data)


def _finished(done: Pruned, made: _MadeModel, facts: TensorFacts, run: ProbeRun) -> Pruned:
    """A pruned model with its check, with notes and figures."""
    checked = replace(run, feeds=list(run.feeds) or [seeded_input(made.source.graph)])
    seeded = not run.feeds
    if not made.cut.gone.any():
        return replace(done, difference=Differences(0.0, 0.0, ""), samples=len(checked.feeds), seeded=seeded)
    difference = checked_difference(made.source, made.pruned, made.cut, facts, checked)
    note_kept(made.pruned.proto, made.cut)
    after = done.parameters[0], count_parameters(made.pruned.view)
    return replace(
        done,
        model=made.pruned.proto,
        parameters=after,
        difference=difference,
        samples=len(checked.feeds),
        seeded=seeded,
        corrected=made.corrected,
        reconstructed=made.reconstructed,
        judged=made.judged,
    )


@dataclass(frozen=True, eq=False)
class _MadeModel:
    """A pruned model, and the unpruned one with the same weights that it is checked against."""

    source: Model
    pruned: Model
    cut: Cut
    corrected: tuple[str, ...] = ()
    reconstructed: tuple[str, ...] = ()
    judged: tuple[HeldOutput, ...] = ()


def _corrected(bare: _MadeModel, facts: TensorFacts, run: ProbeRun, data: PruneData) -> _MadeModel:
    """As it was cut, with corrected biases, or with weights fitted anew: whichever does best on what is held out."""

    def made(edited: CorrectedModel) -> _MadeModel:
        channels = find_groups(edited.model.view, facts, bare.cut.channels.excluded)
        same = Cut(channels, np.flatnonzero(bare.cut.gone).tolist())  # classes are numbered as before
        return _MadeModel(edited.model, remove_channels(edited.model, same), same)

    means = correct_means(bare.cut, run, data.used)
    ways = [bare, replace(made(means), corrected=means.operators)]
    if data.held:
        both = ways[1].source, ways[1].pruned
        fitted = reconstruct(both, bare.cut, run, data.used)
        others = tuple(name for name in means.operators if name not in fitted.operators)
        ways.append(replace(made(fitted), corrected=others, reconstructed=fitted.operators))
    judged = judge_pruned(run, [way.pruned for way in ways], data.held)
    return replace(ways[best_way(judged)], judged=judged)


def _probes(graph: onnx.GraphProto, feeds: Sequence[Feed]) -> list[Feed]:
    """An input, and one whose free axes are of another length where the graph has any."""
    first: Feed = feeds[0] if feeds else seeded_input(graph)
    try:
        other = seeded_input(graph, _OTHER_FREE, 2)
    except QdqError:
        return [first]
    free = any(other[name].shape != array.shape for name, array in first.items() if name in other)
    return [first, other] if free else [first]


def _told(cut: Cut) -> tuple[PrunedGroup, ...]:
    """Every group with its numbers."""
    whole, left = Cut(cut.channels, ()).operator_macs(), cut.operator_macs()
    groups = []
    for group in cut.channels.groups:
        total = len(group.classes)
        operators = dict.fromkeys(f"{axis.use.node.name}: {axis.role}" for axis in group.axes)
        constants = {axis.use.node.inputs[axis.use.index]: axis for axis in group.axes}
        before = sum(math.prod(cut.channels.view.shape(name) or ()) for name in constants)
        after = sum(math.prod(cut.weight_shape(axis)) for axis in constants.values())
        keys = {axis.use.node.key for axis in group.axes} & whole.keys()
        macs = sum(whole[key] for key in keys), sum(left[key] for key in keys)
        kept = total - int(cut.gone[group.classes].sum())
        groups.append(PrunedGroup(group.name, kept, total, tuple(operators), (before, after), macs))
    return tuple(groups)


def _parameters_after(view: GraphView, cut: Cut) -> int:
    """What `count_parameters` will be, by the weights' axes alone."""
    total, seen = count_parameters(view), set[str]()
    for axis in cut.channels.axes:
        name = axis.use.node.inputs[axis.use.index]
        if name not in seen:
            seen.add(name)
            total += math.prod(cut.weight_shape(axis)) - math.prod(view.shape(name) or ())
    return total


def nearest_model(run: ProbeRun, pruned: Sequence[Model], samples: Sequence[Feed], ends: EndLosses) -> int:
    """The place of the model that loses least at the ends; of equals the first one.

    What groups lose one by one does not add up where much goes, and few samples measure it badly: so the choice by it
    is held against plain ones, after weights are fitted. Kinds of ends do not compare: each counts by its share of what
    all the models lose of it together.

    Raises:
        QdqError: onnxruntime cannot run one of them.
    """
    executors = [run.executor(model, ends.tensors) for model in (run.model, *pruned)]
    losses = np.zeros((len(pruned), 1))
    for feed in samples:
        whole, *others = (executor.run(feed) for executor in executors)
        losses = losses + np.stack([ends.measure(whole, found) for found in others])
    together = losses.sum(axis=0)
    shares = np.divide(losses, together, out=np.zeros_like(losses), where=together > 0)
    return int(np.argmin(shares.sum(axis=1)))
