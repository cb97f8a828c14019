# SPDX-License-Identifier: Apache-2.0
"""Two models side by side over the same batches: which tensors they share, and how far these lie apart. No verdict."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.loader import Batch, DataLoader
from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.measures import Measure, MeasureSums, why_incomparable
from qdqtool.options import compile_pattern
from qdqtool.progress import barred
from qdqtool.runtime.executor import RunsInParts
from qdqtool.simulation.picked_rows import PickedRows, in_order
from qdqtool.simulation.row_order import RowOrder

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Shared:
    """The tensors of two graphs by name."""

    both: tuple[str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredTensors:
    """How far tensors lie apart."""

    measures: dict[str, Measure]
    uncompared: dict[str, str] = field(default_factory=dict)
    samples: int = 0


def shared_tensors(first: GraphView, second: GraphView, wanted: str = "all") -> Shared:
    """The tensors that operators of two graphs make, Q/DQ pairs seen through, matched by name.

    Raises:
        QdqError: not a regular expression, or no tensor of both is wanted.
    """
    names, others = _wanted(first, wanted), _wanted(second, wanted)
    known, other_known = frozenset(names), frozenset(others)
    both = tuple(name for name in names if name in other_known)
    if not both:
        near = f"such as {names[0]}" if names else "none"
        reason = f"the models share no tensor's name (of {len(names)} in the first, {near})"
        raise QdqError(f"--tensors {wanted}", reason, "both models must have the tensor names of the original")
    only_first = tuple(name for name in names if name not in other_known)
    return Shared(both, only_first, tuple(name for name in others if name not in known))


def _wanted(view: GraphView, wanted: str) -> list[str]:
    if wanted == "outputs":
        return list(dict.fromkeys(view.outputs))
    made = [name for node in view.nodes for name in node.outputs if name and not view.is_constant(name)]
    every = list(dict.fromkeys((*made, *view.outputs)))
    if wanted == "all":
        return every
    pattern = compile_pattern("--tensors", wanted)
    return [name for name in every if pattern.search(name)]


def check_same_inputs(first: Iterable[Input], second: Iterable[Input], names: tuple[str, str]) -> None:
    """Refuse two models that cannot be fed the same batch.

    Raises:
        QdqError: a name, type or shape differs; the first such one is named.
    """
    ours, theirs = {one.name: one for one in first}, {one.name: one for one in second}
    todo = "compare models that come from the same one"
    for name in (*ours, *theirs):
        if name not in ours or name not in theirs:
            here, there = names if name in ours else names[::-1]
            raise QdqError(there, f"has no input {name!r}, which {here} has", todo)
        one, other = ours[name], theirs[name]
        if one.dtype != other.dtype:
            raise QdqError(names[1], f"its input {name!r} is {other.dtype}, in {names[0]} {one.dtype}", todo)
        if not _can_agree(one, other):
            raise QdqError(
                names[1], f"its input {name!r} is {other.format_shape()}, in {names[0]} {one.format_shape()}", todo
            )


def _can_agree(one: Input, other: Input) -> bool:
    """Whether some array fits both."""
    if one.shape is None or other.shape is None:
        return True
    if len(one.shape) != len(other.shape):
        return False
    both = zip(one.shape, other.shape, strict=True)
    return all(a == b for a, b in both if isinstance(a, int) and isinstance(b, int))


def stricter(first: Iterable[Input], second: Iterable[Input]) -> tuple[Input, ...]:
    """The inputs with every size that one of the two fixes; for models that `check_same_inputs` lets through."""
    theirs = {one.name: one for one in second}
    merged = []
    for one in first:
        other = theirs[one.name]
        shape = one.shape if other.shape is None else other.shape if one.shape is None else None
        if one.shape is not None and other.shape is not None:
            shape = tuple(b if isinstance(b, int) else a for a, b in zip(one.shape, other.shape, strict=True))
        merged.append(Input(one.name, shape, one.dtype))
    return tuple(merged)


def without(shared: Shared, reasons: Mapping[str, str]) -> tuple[Shared, dict[str, str]]:
    """The tensors of both without those that cannot be compared, and why these are left out.

    Raises:
        QdqError: none is left.
    """
    left_out = {name: reasons[name] for name in shared.both if name in reasons}
    both = tuple(name for name in shared.both if name not in reasons)
    if not both:
        name, reason = next(iter(left_out.items()))
        raise QdqError(name, f"cannot be compared: it is {reason}", "compare other tensors")
    return replace(shared, both=both), left_out


def read_tensors(first: GraphView, second: GraphView, names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """What the consumers of a tensor see in two graphs, for tensors with Q/DQ in one of them."""
    found = {}
    for name in names:
        behind = tuple(
            next((p.dequantize.outputs[0] for p in view.pairs.get(name, ()) if p.quantize is not None), name)
            for view in (first, second)
        )
        if behind != (name, name):
            found[name] = (behind[0], behind[1])
    return found


def measure(
    runs: tuple[RunsInParts, RunsInParts],
    names: Mapping[str, tuple[str, str]],
    batches: Iterable[tuple[int, Batch]],
    also: Callable[[dict[str, Array]], None] | None = None,
    picked: Sequence[PickedRows] = (),
    inside: RowOrder | None = None,
) -> MeasuredTensors:
    """Run both models batch by batch and measure each tensor that both give, as soon as both have given it."""
    running = {name: MeasureSums() for name in names}
    uncompared: dict[str, str] = {}
    samples = 0
    last = _behind_picks(names, picked, inside)
    for count, batch in batches:
        given: dict[str, Array] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for ready, ours, theirs in _given_by_both(runs, names, batch, last):
            shapes.update((name, one.shape) for name, one in ours.items() if isinstance(one, np.ndarray))
            if also is not None:
                given.update(theirs)
            if not last.isdisjoint(ready):
                theirs = in_order(picked, ours, theirs)
                theirs = theirs if inside is None else inside.in_order(batch, ours, theirs, shapes)
            for name in ready:
                one, other = ours[names[name][0]], theirs[names[name][1]]
                reason = why_incomparable(one, other)
                if reason:
                    uncompared.setdefault(name, reason)
                elif name not in uncompared:
                    running[name].add(one, other, count)
        if also is not None:
            also(given)
        samples += count
    found = {name: one.measure(name) for name, one in running.items() if name not in uncompared}
    return MeasuredTensors(found, {name: uncompared[name] for name in names if name in uncompared}, samples)


def _behind_picks(
    names: Mapping[str, tuple[str, str]], picked: Sequence[PickedRows], inside: RowOrder | None
) -> frozenset[str]:
    """The measures of tensors whose rows may have to be put into another order: they need all that was picked."""
    outputs = {name for group in picked for name in group.outputs}
    if inside is None:
        return frozenset(name for name, (one, _) in names.items() if one in outputs)
    moved = outputs | inside.behind
    return frozenset(name for name, (one, _) in names.items() if one in moved or inside.view.root(one) in moved)


def _given_by_both(
    runs: tuple[RunsInParts, RunsInParts], names: Mapping[str, tuple[str, str]], batch: Batch, last: Container[str]
) -> Iterator[tuple[list[str], dict[str, Array], dict[str, Array]]]:
    """Names of measures, each as soon as both models have given its tensor of a batch, and the tensors of either.

    Those of `last` come at the end, together. A tensor is held until its measures are taken; the other model runs no
    further than it must.
    """
    parts = runs[1].parts(batch)
    ours, theirs = dict[str, Array](), dict[str, Array]()
    waiting = list(names)
    for part in runs[0].parts(batch):
        ours.update(part)
        due = [name for name in waiting if name not in last and names[name][0] in ours]
        while any(names[name][1] not in theirs for name in due):
            theirs.update(next(parts))
        waiting = [name for name in waiting if name not in due]
        yield from _with_tensors(due, names, waiting, ours, theirs)
    for part in parts:
        theirs.update(part)
    yield from _with_tensors(waiting, names, (), ours, theirs)


def _with_tensors(
    ready: list[str],
    names: Mapping[str, tuple[str, str]],
    waiting: Iterable[str],
    ours: dict[str, Array],
    theirs: dict[str, Array],
) -> Iterator[tuple[list[str], dict[str, Array], dict[str, Array]]]:
    """Names of measures with the tensors of either model; afterwards those that no other measure reads are dropped."""
    if ready:
        mine = {names[name][0]: ours[names[name][0]] for name in ready}
        other = {names[name][1]: theirs[names[name][1]] for name in ready}
        yield ready, mine, other
        mine.clear()  # whoever took them still has the dictionaries
        other.clear()
    for held, side in ((ours, 0), (theirs, 1)):
        kept = {names[name][side] for name in waiting}
        for tensor in {names[name][side] for name in ready} - kept:
            del held[tensor]


def counted_batches(loader: DataLoader, title: str, progress: bool | None) -> Iterator[tuple[int, Batch]]:
    """The batches with their number of samples, with a bar on stderr while they pass."""
    for batch in barred(loader, title, "batch", loader.batches, progress):
        yield loader.count(batch), batch
