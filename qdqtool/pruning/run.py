# SPDX-License-Identifier: Apache-2.0
"""From a model to a pruned model that was checked against the masked original, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.nodes import constant_tensor
from qdqtool.graph.view import GraphView, Node
from qdqtool.pruning.channel_groups import ChannelGroup, find_groups
from qdqtool.pruning.check import Differences, masked_original, measure_differences
from qdqtool.pruning.choice import Criterion, choose
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.kept_channels import note_kept
from qdqtool.pruning.mean_correction import correct_means
from qdqtool.pruning.probe import Feed, ProbeRun, TensorFacts, look, seeded_input
from qdqtool.pruning.remove import remove_channels

_FREE, _OTHER_FREE = 64, 96


@dataclass(frozen=True)
class PrunedGroup:
    """What became of a group of channels.

    Attributes:
        name: of the first operator that makes them.
        kept, total: channels, each counted once however many weights it has.
        operators: who makes or reads them, as `name: role`, in the order of the graph.
    """

    name: str
    kept: int
    total: int
    operators: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"name": self.name, "kept": self.kept, "total": self.total, "operators": list(self.operators)}


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
    """

    model: onnx.ModelProto
    groups: tuple[PrunedGroup, ...]
    pinned: dict[str, str]
    channels: int
    prunable: int
    parameters: tuple[int, int]
    multiply_adds: tuple[int, int]
    difference: Differences | None
    samples: int
    seeded: bool
    corrected: tuple[str, ...] = ()


def prune_model(
    proto: onnx.ModelProto,
    criterion: Criterion,
    exclude: Sequence[str],
    run: ProbeRun,
    batches: Iterable[Feed] | None = None,
    *,
    dry: bool = False,
) -> Pruned:
    """Remove channels from a model.

    Args:
        proto: the model; it is not changed.
        criterion: which channels go.
        exclude: regular expressions of operators and tensors that keep their channels.
        run: what the check runs on; without feeds, an input that is made by seed.
        batches: data for the biases that make up for the mean of what goes; None for none, see `correct_means`.
        dry: choose alone; no edit and no check.

    Raises:
        QdqError: onnxruntime cannot run the model; see `choose`; the pruned model is not the masked original.
    """
    view = GraphView(proto.graph, run.folder)
    facts = look(proto, view, replace(run, feeds=_probes(proto.graph, run.feeds)))
    channels = find_groups(view, facts, exclude)
    cut = Cut(channels, choose(channels, criterion).tolist())
    corrected: tuple[str, ...] = ()
    if batches is not None and not dry and cut.gone.any():
        made = correct_means(proto, cut, run, batches)
        proto, corrected = made.model, made.operators
        channels = find_groups(GraphView(proto.graph, run.folder), facts, exclude)  # numbers classes as before
        cut = Cut(channels, np.flatnonzero(cut.gone).tolist())
    pruned = proto if dry else remove_channels(proto, run.folder, cut)
    seeded = not run.feeds
    run = replace(run, feeds=list(run.feeds) or [seeded_input(proto.graph, _FREE)])
    difference = None
    if not dry:
        difference = _checked(proto, pruned, cut, facts, run) if cut.gone.any() else Differences(0.0, 0.0, "")
        if cut.gone.any():
            note_kept(pruned, cut)
    after = _parameters_after(view, cut) if dry else _parameters(GraphView(pruned.graph, run.folder))
    return Pruned(
        pruned,
        tuple(_told(group, cut) for group in channels.groups),
        dict(channels.pinned),
        channels.channels,
        channels.prunable,
        (_parameters(view), after),
        (Cut(channels, ()).multiply_adds(), cut.multiply_adds()),
        difference,
        len(run.feeds),
        seeded,
        corrected,
    )


def _probes(graph: onnx.GraphProto, feeds: Sequence[Feed]) -> list[Feed]:
    """An input, and one whose free axes are of another length where the graph has any."""
    first: Feed = feeds[0] if feeds else seeded_input(graph, _FREE)
    try:
        other = seeded_input(graph, _OTHER_FREE, 2)
    except QdqError:
        return [first]
    free = any(other[name].shape != array.shape for name, array in first.items() if name in other)
    return [first, other] if free else [first]


def _checked(
    proto: onnx.ModelProto, pruned: onnx.ModelProto, cut: Cut, facts: TensorFacts, run: ProbeRun
) -> Differences:
    """The difference, where it is small; else the first group that makes one by itself is named.

    Raises:
        QdqError: it is not small.
    """
    found, fault = _differences(proto, pruned, cut, facts, run)
    if found is not None and found.small:
        return found
    for group in cut.channels.groups:
        own = Cut(cut.channels, [one for one in group.classes.tolist() if cut.gone[one]])
        if own.gone.any():
            alone, said = _differences(proto, remove_channels(proto, run.folder, own), own, facts, run)
            if alone is None or not alone.small:
                raise _refusal(run.where, f"group {group.name}", alone, said)
    raise _refusal(run.where, "the groups together", found, fault)


def _differences(
    proto: onnx.ModelProto, pruned: onnx.ModelProto, cut: Cut, facts: TensorFacts, run: ProbeRun
) -> tuple[Differences | None, str]:
    masked = masked_original(proto, run.folder, cut, facts)
    try:
        return measure_differences(masked, pruned, cut, run), ""
    except QdqError as error:  # the pruned model does not run: as wrong as one that computes something else
        return None, error.reason


def _refusal(where: object, what: str, found: Differences | None, fault: str) -> QdqError:
    said = fault
    if found is not None:
        said = f"{found.tensor} differs by {max(found.outputs, found.inside):.1e} of its largest magnitude"
    reason = f"pruned is not the masked original, by {what} ({said}), so that nothing was written"
    return QdqError(where, reason, "--exclude the operators of that group (--explain shows them), and report it")


def _told(group: ChannelGroup, cut: Cut) -> PrunedGroup:
    total = len(group.classes)
    operators = dict.fromkeys(f"{axis.use.node.name}: {axis.role}" for axis in group.axes)
    return PrunedGroup(group.name, total - int(cut.gone[group.classes].sum()), total, tuple(operators))


def _parameters(view: GraphView) -> int:
    """Values of initializers and of the tensors of Constant nodes."""
    stored = sum(int(math.prod(tensor.dims)) for tensor in view.initializers.values())
    return stored + sum(_held(node) for node in view.every if node.op == "Constant")


def _held(node: Node) -> int:
    tensor = constant_tensor(node)
    return int(math.prod(tensor.dims)) if tensor is not None else 0


def _parameters_after(view: GraphView, cut: Cut) -> int:
    """What `_parameters` will be, by the weights' axes alone."""
    total, seen = _parameters(view), set[str]()
    for axis in cut.channels.axes:
        name = axis.use.node.inputs[axis.use.index]
        if name not in seen:
            seen.add(name)
            total += math.prod(cut.weight_shape(axis)) - math.prod(view.shape(name) or ())
    return total
