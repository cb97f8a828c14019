# SPDX-License-Identifier: Apache-2.0
"""The verb `prune`: open, remove channels, hand back the kind that was given. What goes is decided elsewhere."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np
import onnx

from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.data.parts import rows_of_run
from qdqtool.data.single_samples import SingleSamples, first_samples, row_count
from qdqtool.display import Displayed, counted, model_name, table
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.forecasting.devices import load_device
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.io import ModelSource, ModelT, give_back, open_model
from qdqtool.graph.model import Model
from qdqtool.output_paths import check_target, files_of, output_path
from qdqtool.precision.casts import fp32_masters
from qdqtool.progress import barred
from qdqtool.pruning.choice import Criterion, parse_criterion
from qdqtool.pruning.probe import ProbeRun
from qdqtool.pruning.run import ForecastTarget, PruneData, prune_model
from qdqtool.training.channel_gradients import channel_gradients
from qdqtool.training.end_losses import DistillLosses
from qdqtool.verbs.prune_options import PruneOptions
from qdqtool.verbs.typed_file import give_typed

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader
    from qdqtool.precision.assignment import TypeAssignment
    from qdqtool.pruning.held_out import HeldOutput
    from qdqtool.pruning.probe import Feed, TensorFacts
    from qdqtool.pruning.run import Pruned, PrunedGroup
    from qdqtool.pruning.scores import Float64

_BATCHES = 8  # of the data that the check runs on
_JUDGED = 64  # held-out samples that weights and biases are judged on; as many as `finetune` holds out at most
_GRADIENTS = 128  # samples that gradients are taken of
_SHOWN = 20
_SHARED_OUT = {
    "losses": "  groups lose channels by what the outputs lose with them, measured: nearer than the same share of each",
    "evenly": "  groups lose the same share of channels each: nearer to the original than by their measured losses",
    "gradients": "  groups lose channels by gradients alone: nearer to the original than by their measured losses",
}
_MUCH_LOST = 10.0  # dB, a tenth of an output's power: a classifier of CIFAR lost 6 % of its top-1 there
EVERY = 5


@dataclass(frozen=True, repr=False)
class PruneResult(Displayed, Generic[ModelT]):
    """A pruned model, of the kind that was given (a path for a path), and what was removed.

    Attributes:
        model: a path, ModelProto or gs.Graph; the one that was given where only a plan was asked for.
        done: groups, reasons, numbers.
        notes: sentences on how images were preprocessed.
    """

    model: ModelT
    done: Pruned
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """TAO's pruning ratio and the multiply-adds."""
        done = self.done
        return (
            f"{model_name(self.model)}: pruning ratio {_share(done.parameters):.3f} "
            f"(pruned / original parameters), multiply-adds {_share(done.multiply_adds):.3f}"
        )

    def summary(self) -> list[str]:
        """What `qdqtool prune` prints."""
        done = self.done
        cut = [group for group in done.groups if group.kept < group.total]
        groups = f"{len(cut)} of {len(done.groups)} groups lose channels"
        lines = [
            self.headline(),
            f"  {done.prunable} of {done.channels} channels can be removed; {groups}",
            f"  parameters {done.parameters[0]} -> {done.parameters[1]}",
            f"  multiply-adds {done.multiply_adds[0]} -> {done.multiply_adds[1]}",
        ]
        if done.forecast is not None:
            time = done.forecast
            share = time.after / time.before
            lines.append(f"  time {time.before:.0f} -> {time.after:.0f} us, {share:.3f} of it: {time.source}")
        if done.difference is not None:
            batches = counted(done.samples, "batch").replace("batchs", "batches")
            data = "one random input" if done.seeded else batches
            within = f"within {done.difference.outputs:.0e} on {data}"
            lines.append(f"  checked: equals the original with these channels set to 0, {within}")
        return lines + self._told_data()

    def _told_data(self) -> list[str]:
        """What was done with data, and how far outputs lie from the original's where nothing was taken from."""
        done = self.done
        lines = [_SHARED_OUT[done.shared_out]] if done.shared_out else []
        if done.reconstructed:
            lines.append(
                f"  weights of {counted(len(done.reconstructed), 'operator')} are fitted to the remaining channels"
            )
        elif done.corrected:
            lines.append(
                f"  biases of {counted(len(done.corrected), 'operator')} compensate the mean of the removed channels"
            )
        elif done.judged:
            lines.append("  weights and biases stay as they are: correction does no better on held-out samples")
        place = 2 if done.reconstructed else 1 if done.corrected else 0
        losses = (f"  {one.output}: {one.ways[place]:.1f} dB to the original" for one in done.judged)
        return [*lines, *(f"{line} on held-out samples" for line in losses), *_much_lost(done.judged, place)]

    def rows(self) -> list[list[str]]:
        """Each group: kept, total, how many operators it is in, what is left of their parameters and multiply-adds."""
        head = ["group", "kept", "total", "operators", "parameters", "multiply-adds"]
        return [head, *(_cells(one) for one in self.done.groups)]

    def group_lines(self) -> list[str]:
        """The groups that lose channels, as a table, and who keeps channels and why."""
        rows = self.rows()
        lost = [row for row in rows[1:] if row[1] != row[2]]
        more = [f"and {len(lost) - _SHOWN} more (--json)"] if len(lost) > _SHOWN else []
        return [*(table(rows[0], lost[:_SHOWN]) if lost else []), *more]


def _much_lost(judged: Sequence[HeldOutput], place: int) -> list[str]:
    """A line where an output of the model that is written is far from the original's, with what can be done."""
    worst = min(judged, key=lambda one: -np.inf if np.isnan(one.ways[place]) else one.ways[place], default=None)
    if worst is None or worst.ways[place] >= _MUCH_LOST:
        return []
    share = 10 ** (-worst.ways[place] / 10)
    error = f"its error is {share:.0%} of its power" if np.isfinite(share) else "nothing of it is left"
    return [
        f"  much is lost at {worst.output}: {error} on held-out samples; keep more channels, or train with finetune"
    ]


def _cells(group: PrunedGroup) -> list[str]:
    numbers = [f"{before} -> {after}" for before, after in (group.parameters, group.multiply_adds)]
    return [group.name, str(group.kept), str(group.total), str(len(group.operators)), *numbers]


def _share(pair: tuple[int, int]) -> float:
    return pair[1] / pair[0] if pair[0] else 1.0


@overload
def prune(
    model: onnx.ModelProto,
    data: Data | DataLoader | None = ...,
    options: PruneOptions | None = ...,
    output: str | Path | None = ...,
) -> PruneResult[onnx.ModelProto]: ...


@overload
def prune(
    model: str | os.PathLike[str],
    data: Data | DataLoader | None = ...,
    options: PruneOptions | None = ...,
    output: str | Path | None = ...,
) -> PruneResult[Path]: ...


@overload
def prune(
    model: ModelSource,
    data: Data | DataLoader | None = ...,
    options: PruneOptions | None = ...,
    output: str | Path | None = ...,
) -> PruneResult[Any]: ...


def prune(
    model: ModelSource,
    data: Data | DataLoader | None = None,
    options: PruneOptions | None = None,
    output: str | Path | None = None,
) -> PruneResult[Any]:
    """Remove whole channels from a plain or Q/DQ model: the same inputs, outputs and operators, smaller weights.

    Before anything is written the result is run beside the masked original: the outputs are equal within 1e-5 of their
    largest magnitude. Activations' Q/DQ are seen through for that. A model with FP16 or BF16 tensors is pruned and
    checked in FP32 and gets its types back.

    Args:
        model: a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: what the check runs on, and what means are taken over; see `open_loader`. None for an input that is made
            by seed, and no correction.
        options: which channels go.
        output: file to write; for a path the default is `<name>.pruned.onnx` beside it.

    Raises:
        QdqError: see `open_model`, `open_loader`, `PruneOptions.criterion` and `prune_model`. Nothing is written then.
        MissingPackageError: onnxruntime (or Pillow, for images) is not installed.
    """
    options = options or PruneOptions()
    _criterion(options)  # a slip here is reported before a large model is read
    opened = open_model(model)
    require_finite(opened.view)
    target = output_path(opened, output, ".pruned.onnx")
    check_target(target, [*opened.files, *files_of(data)])
    options, said = with_known(options, opened, data)
    masters, types = fp32_masters(opened)
    done = _run(masters, data, options, types, dry=False)
    if types is None or done.parameters[0] == done.parameters[1]:
        given = give_back(done.model if types is None else opened.proto, opened, target)
    else:
        given = give_typed(done.model, opened, target, types)
    return PruneResult(given, done, said)


def plan_pruning(
    model: ModelSource, data: Data | DataLoader | None = None, options: PruneOptions | None = None
) -> PruneResult[Any]:
    """What `prune` would remove; nothing is edited, checked or written. Arguments and faults are those of `prune`."""
    options = options or PruneOptions()
    _criterion(options)
    opened = open_model(model)
    require_finite(opened.view)
    kept = opened.path if opened.path is not None else model
    options, said = with_known(options, opened, data)
    masters, types = fp32_masters(opened)
    return PruneResult(kept, _run(masters, data, options, types, dry=True), said)


def _criterion(options: PruneOptions) -> Criterion:
    """What is removed, checked."""
    return parse_criterion(
        options.threshold,
        options.ratio,
        options.macs,
        options.normalizer,
        options.equalization,
        options.granularity,
        options.min_filters,
        options.latency,
        options.importance,
    )


def _forecast_target(options: PruneOptions) -> ForecastTarget | None:
    """Device and version of the latency forecast; None without a latency.

    Raises:
        QdqError: no such device; a device or a version without a latency.
    """
    if options.latency is not None:
        return ForecastTarget(load_device(options.device), options.trt_version)
    for name, value in (("--for", options.device), ("--trt-version", options.trt_version)):
        if value is not None:
            raise QdqError(name, "names the device of --latency, which is not given", "give --latency")
    return None


def _run(
    opened: Model,
    data: Data | DataLoader | None,
    options: PruneOptions,
    types: TypeAssignment | None,
    *,
    dry: bool,
) -> Pruned:

    criterion, target = _criterion(options), _forecast_target(options)
    if target is not None:
        target = replace(target, half=types is not None)
    feeds, given = _data(opened, data, options)
    run = ProbeRun(opened, feeds, opened.name, options.provider)
    return prune_model(run, criterion, options.exclude, given, target, dry=dry)


def _data(opened: Model, data: Data | DataLoader | None, options: PruneOptions) -> tuple[list[Feed], PruneData | None]:
    """What the check runs on, and data for scores and biases, some of them held out."""
    if data is None:
        return [], None
    inputs = inputs_of(opened.proto.graph)
    loader = open_loader(data, inputs, options.data_options)
    batches: Collection[Feed] | DataLoader = list(loader) if loader.once else loader
    feeds = list(itertools.islice(batches, _BATCHES))
    held = first_samples(HeldOutSamples(batches, inputs, held=True), _JUDGED)
    used = HeldOutSamples(batches, inputs, held=False)

    def taylor(gated: Model, names: Sequence[str]) -> Iterator[Mapping[str, Float64]]:
        samples = SingleSamples(used, inputs)
        shown = Shown(
            samples,
            _GRADIENTS,
            options.progress,
            not_held(loader.samples if rows_of_run(inputs) == 1 else loader.batches),
        )
        return channel_gradients(gated, names, shown, options.backend)

    def ends(model: Model, facts: TensorFacts) -> DistillLosses:
        floats = frozenset(name for name, kind in facts.types.items() if kind.kind == "f")
        return DistillLosses(model, facts.shapes, floats)

    return feeds, PruneData(used, held, taylor, options.correct, ends)


class HeldOutSamples:
    """The samples that are held out, or the others, in batches as they come; walked again by each loop over it.

    Those that `finetune` holds out of the same data (`training.batches.held_out`) are among them, where there are five
    or more: what it measures on was not used for the weights that it begins with.
    """

    def __init__(self, batches: Iterable[Feed], inputs: Sequence[Input], *, held: bool) -> None:
        """Walk nothing yet."""
        self._batches, self._held = batches, held
        self._free = all(one.batched for one in inputs)

    def __iter__(self) -> Iterator[Feed]:
        first = 0
        for batch in self._batches:
            rows = row_count(batch) if self._free else 0
            held = np.arange(first, first + (rows or 1)) % EVERY == EVERY - 1
            first += len(held)
            chosen = held if self._held else ~held
            if chosen.all():
                yield batch
            elif chosen.any():
                yield {name: array[chosen] for name, array in batch.items()}


class Shown:
    """At most so many samples, the first ones, with a bar on stderr that says how long it takes."""

    def __init__(self, samples: Iterable[Feed], most: int, progress: bool | None, there: int | None = None) -> None:
        self._samples, self._most, self._progress = samples, most, progress
        self._total = None if there is None else min(there, most)

    def __iter__(self) -> Iterator[Feed]:
        few = itertools.islice(self._samples, self._most)
        return barred(few, "importance", "sample", self._total, self._progress)


def not_held(samples: int | None) -> int | None:
    """How many of so many samples are not held out; None where unknown."""
    return None if samples is None else samples - samples // EVERY
