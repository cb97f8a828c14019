# SPDX-License-Identifier: Apache-2.0
"""The verb `prune`: open, remove channels, hand back the kind that was given. What goes is decided elsewhere."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

import onnx

from qdqtool.display import Displayed, counted, model_name, table
from qdqtool.graph.io import ModelSource, ModelT, Opened, give_back, open_model
from qdqtool.output_paths import check_target, files_of, output_path
from qdqtool.pruning.choice import Criterion, parse_criterion

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader, DataOptions
    from qdqtool.pruning.run import Pruned

_BATCHES = 8  # of the data that the check runs on
_SHOWN = 20


@dataclass(frozen=True)
class PruneOptions:
    """Which channels go; at most one of threshold, ratio and macs, with none TAO's threshold 0.1.

    Attributes:
        threshold: keep channels that are worth more (-pth).
        ratio: share of each group's channels that goes.
        macs: share of the multiply-adds that stays.
        normalizer: max or L2 (-n).
        equalization: union, intersection, arithmetic_mean or geometric_mean (-eq).
        granularity: a group keeps a multiple of it (-pg); None for 8 with a threshold, else 1.
        min_filters: a group keeps at least so many (-nf); None for 16 with a threshold, else 1.
        exclude: regular expressions of operators and tensors that keep their channels.
        data_options: how data is read.
        provider: what onnxruntime runs on while it checks: cpu, cuda or tensorrt.
        correct: with data, biases make up for the mean of the channels that go.
    """

    threshold: float | None = None
    ratio: float | None = None
    macs: float | None = None
    normalizer: str = "max"
    equalization: str = "union"
    granularity: int | None = None
    min_filters: int | None = None
    exclude: tuple[str, ...] = ()
    data_options: DataOptions | None = None
    provider: str = "cpu"
    correct: bool = True

    def criterion(self) -> Criterion:
        """The same, checked.

        Raises:
            QdqError: see `parse_criterion`.
        """
        return parse_criterion(
            self.threshold,
            self.ratio,
            self.macs,
            self.normalizer,
            self.equalization,
            self.granularity,
            self.min_filters,
        )


@dataclass(frozen=True, repr=False)
class PruneResult(Displayed, Generic[ModelT]):
    """A pruned model, of the kind that was given (a path for a path), and what was removed.

    Attributes:
        model: a path, ModelProto or gs.Graph; the one that was given where only a plan was asked for.
        done: groups, reasons, numbers.
    """

    model: ModelT
    done: Pruned

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
        lines = [
            self.headline(),
            f"  {done.prunable} of {done.channels} channels can go; {len(cut)} of {len(done.groups)} groups lose some",
            f"  parameters {done.parameters[0]} -> {done.parameters[1]}",
            f"  multiply-adds {done.multiply_adds[0]} -> {done.multiply_adds[1]}",
        ]
        if done.difference is not None:
            data = (
                "an input made by seed" if done.seeded else counted(done.samples, "batch").replace("batchs", "batches")
            )
            lines.append(f"  equals the masked original within {done.difference.outputs:.0e} on {data}")
        if done.corrected:
            lines.append(f"  biases of {counted(len(done.corrected), 'operator')} make up for the mean of what went")
        return lines

    def rows(self) -> list[list[str]]:
        """Each group: kept, total, how many operators it is in."""
        body = [[one.name, str(one.kept), str(one.total), str(len(one.operators))] for one in self.done.groups]
        return [["group", "kept", "total", "operators"], *body]

    def group_lines(self) -> list[str]:
        """The groups that lose channels, as a table, and who keeps channels and why."""
        rows = self.rows()
        lost = [row for row in rows[1:] if row[1] != row[2]]
        more = [f"and {len(lost) - _SHOWN} more (--json)"] if len(lost) > _SHOWN else []
        return [*(table(rows[0], lost[:_SHOWN]) if lost else []), *more]


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
    largest magnitude. Activations' Q/DQ are seen through for that.

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
    options.criterion()  # a slip here is reported before a large model is read
    opened = open_model(model)
    target = output_path(opened, output, ".pruned.onnx")
    check_target(target, [*opened.files, *files_of(data)])
    done = _run(opened, data, options, dry=False)
    return PruneResult(give_back(done.model, opened, target), done)


def plan_pruning(
    model: ModelSource, data: Data | DataLoader | None = None, options: PruneOptions | None = None
) -> PruneResult[Any]:
    """What `prune` would remove; nothing is edited, checked or written. Arguments and faults are those of `prune`."""
    options = options or PruneOptions()
    options.criterion()
    opened = open_model(model)
    kept = opened.path if opened.path is not None else model
    return PruneResult(kept, _run(opened, data, options, dry=True))


def _run(opened: Opened, data: Data | DataLoader | None, options: PruneOptions, *, dry: bool) -> Pruned:
    from qdqtool.data.loader import inputs_of, open_loader
    from qdqtool.pruning.probe import Feed, ProbeRun
    from qdqtool.pruning.run import prune_model

    feeds: list[Feed] = []
    batches: Iterable[Feed] | None = None
    if data is not None:
        loader = open_loader(data, inputs_of(opened.proto.graph), options.data_options)
        feeds = list(itertools.islice(loader, _BATCHES))
        if options.correct:
            batches = feeds if loader.once else loader
    run = ProbeRun(opened.folder, feeds, opened.name, options.provider)
    return prune_model(opened.proto, options.criterion(), options.exclude, run, batches, dry=dry)
