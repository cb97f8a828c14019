# SPDX-License-Identifier: Apache-2.0
"""From a training form and data to what the loop is given: loss, teacher, gradient graph, checks, parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backend import PAIR_DOMAIN, GradientBackend
from qdqtool.data.loader import Batch
from qdqtool.training.averages import MovingMaxima
from qdqtool.training.batches import Batches
from qdqtool.training.check import check_gradients, check_same_forward
from qdqtool.training.losses.append import LossGraph, append_losses
from qdqtool.training.losses.distill_targets import TargetKind, find_kinds
from qdqtool.training.losses.labels import label_feeds
from qdqtool.training.losses.options import LossOptions
from qdqtool.training.losses.points import choose_points, rescaled
from qdqtool.training.losses.reach import reached_parameters
from qdqtool.training.losses.teacher import Teacher, float_twin
from qdqtool.training.options import RunOptions, UpdateOptions
from qdqtool.training.parameters import Parameters, steps_of_weight
from qdqtool.training.shapes import make_forward, run_once
from qdqtool.training.student import GraphStudent, HeldOutLoss, Session, SessionOptions, watch_maxima, with_inputs
from qdqtool.training.training_graph import Ranges, TrainingGraph

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]

MOST_STEPS = 2000
_LEAST_STEPS = 20
_EPOCHS, _CHANGED_EPOCHS = 40, 80  # after which nothing more was won on other images, measured on 13; augmented ones
_FEW_STEPS = 200  # that are taken all the same
_MOST_AVERAGED = 4  # batches in an update, where time is left over; 3 won .3 dB of a face detector's scores
_TIMED = 3  # batches that are timed, the first one left out
_SHARE = 0.8  # of the time that is left goes into steps; the rest into measuring and what the estimate misses
_MEASURED = 20  # times at most
_JUDGED = 8  # held-out batches that say how large each error is
_INNER = 0.5  # share of what lies inside: it keeps few samples from being learned by heart; 0.1 won .1 to .2 dB less
_LEAST_ERROR = 0.01  # of the median error: less is not worth more
_SAME = 1e-5  # relative: max / 127 * 127 need not be max
_DEAR = 5  # steps per held-out batch, so that measuring takes a tenth at most: no gradients, half the price


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is asked for.

    Attributes:
        loss: what is minimized.
        update: how gradients become updates.
        run: how long, seed, threads.
        ranges: what becomes of scales.
        teacher: model and folder of another teacher; None for the form's own float twin.
        moved: whether that twin is no teacher, since `condition` changed its float function.
        provider: what onnxruntime runs on.
    """

    loss: LossOptions
    update: UpdateOptions
    run: RunOptions
    ranges: Ranges
    teacher: tuple[onnx.ModelProto, Path | None, str] | None
    moved: bool = False
    provider: str = "cpu"


@dataclass(frozen=True, eq=False)
class Prepared:
    """What the loop is given.

    Attributes:
        parameters: all that is trained.
        student: gives gradients.
        loss: measures on held-out batches.
        pace: float32[size], see `loop.Subject`.
        decayed: float32[size], likewise.
        maxima: scales that follow the data, for ranges "ema".
        bounds: float32[size], see `loop.Subject`.
        exported: parameters that go into the file; projections do not.
        terms: names of the terms of the loss.
        notes: what is to be said, a sentence each.
        checked: largest relative differences of the checks at the start: forward, gradients.
    """

    parameters: Parameters
    student: GraphStudent
    loss: HeldOutLoss
    pace: Float32
    decayed: Float32
    maxima: MovingMaxima | None
    bounds: Float32
    exported: tuple[str, ...]
    terms: tuple[str, ...]
    notes: tuple[str, ...]
    checked: tuple[float, float]


def prepare(form: TrainingGraph, batches: Batches, backend: GradientBackend, wanted: Wanted, where: object) -> Prepared:
    """Build and check everything that the loop needs.

    Args:
        form: the training form.
        batches: the data.
        backend: makes the gradient graph.
        wanted: what is asked for.
        where: the data, for messages.

    Raises:
        QdqError: what the loss, the back end and the checks refuse; labels that do not fit.
    """
    first = batches.held[0]
    inputs = {name: first[name] for name in _input_names(form.proto)}
    seen = run_once(form.proto, form.folder, inputs)
    shapes = {name: one.shape for name, one in seen.items()}
    teacher = _teacher(form, inputs, wanted)
    matched = _Matched()
    if teacher is not None and wanted.loss.match_weight:
        matched = _matched(form, teacher, shapes, inputs, wanted)
    graph = append_losses(form.proto, matched.points, wanted.loss, teacher, shapes, matched.kinds)
    complete = _Completion(graph, teacher, tuple(inputs), where)
    if matched.names:
        counts = _balanced(graph, form, matched, complete, batches.held[:_JUDGED])
        graph = append_losses(form.proto, counts, wanted.loss, teacher, shapes, matched.kinds)
        complete = _Completion(graph, teacher, tuple(inputs), where)
    maxima = _moving(form) if wanted.ranges == "ema" else None
    proto, watched = _watched(graph, form, maxima)
    reached = reached_parameters(proto, graph.loss, (*form.parameters, *graph.extra_parameters))
    lost = [name for name in form.parameters if name not in frozenset(reached)]
    values = _start_values(form, graph, reached)
    feed = {**complete(first), **(maxima.values() if maxima else {})}
    forward = make_forward(proto, reached, graph.loss, (*graph.parts.values(), *watched), feed)
    same = check_same_forward(form, inputs)
    gradients = backend.build(forward)
    difference = check_gradients(forward, gradients, feed, wanted.run.seed)
    how = SessionOptions(wanted.run.threads, wanted.provider)
    student = GraphStudent(gradients, graph.loss, graph.parts, watched, complete, how)
    changing = (*reached, *(maxima.scales if maxima else ()))
    judge = HeldOutLoss(graph.proto, form.folder, graph.loss, changing, batches.held, complete, how)
    parameters = Parameters(values, scales=[name for name in reached if name in frozenset(form.scales)])
    notes = _told(lost)
    pace, bounds = _pace(form, parameters, values, wanted.update), _bounds(form, parameters, values)
    pace[np.abs(parameters.vector) >= bounds * (1 - _SAME)] = 0  # the largest weights: a builder finds scales by them
    decayed = parameters.filled({n: 1.0 for n in reached if n in frozenset(form.weights) and values[n].ndim > 1}, 0.0)
    exported = tuple(name for name in changing if name not in frozenset(graph.extra_parameters))
    checked = (same, difference)
    terms = tuple(graph.parts)
    return Prepared(parameters, student, judge, pace, decayed, maxima, bounds, exported, terms, notes, checked)


def steps_of(prepared: Prepared, batches: Batches, size: int, run: RunOptions, left: float | None) -> tuple[int, int]:
    """How many updates there will be, and of how many batches: as asked for, or what data are good for and time allows.

    Args:
        prepared: the student is timed on a few batches.
        batches: the data.
        size: how many of its samples make one batch.
        run: how long.
        left: CPU seconds; None for any.
    """
    if run.steps is not None:
        return run.steps, run.accumulate or 1
    epochs = _CHANGED_EPOCHS if batches.changes else _EPOCHS
    most = min(MOST_STEPS, max(_FEW_STEPS, epochs * batches.count // (size * (run.accumulate or 1))))
    if left is None:
        return most, run.accumulate or 1
    moving = prepared.maxima.values() if prepared.maxima else {}
    values = {**prepared.parameters.values(), **moving}
    taken = []
    for _, batch in zip(range(_TIMED), batches.from_sample(0), strict=False):
        start = time.process_time()
        prepared.student.compute(batch, values)
        taken.append(time.process_time() - start)
    each = max(min(taken[1:]), 1e-4)
    averaged = run.accumulate or int(np.clip(_SHARE * left / (each * most), 1, _MOST_AVERAGED))
    return int(min(max(_SHARE * left / (each * averaged), _LEAST_STEPS), most)), averaged


def measured_every(steps: int, run: RunOptions, batches: Batches) -> int:
    """Updates between two measurements: about twenty of them, a tenth of the time at most."""
    if run.every is not None:
        return run.every
    return max(-(-steps // _MEASURED), -(-_DEAR * len(batches.held) // (run.accumulate or 1)), 1)


class _Completion:
    """A batch of the data to all that the loss graph is fed, parameters left out."""

    def __init__(self, graph: LossGraph, teacher: Teacher | None, inputs: Sequence[str], where: object) -> None:
        self._graph, self._teacher, self._inputs, self._where = graph, teacher, inputs, where

    def __call__(self, batch: Batch) -> Mapping[str, Array]:
        feed: dict[str, Array] = {name: batch[name] for name in self._inputs}
        if self._teacher is not None and self._graph.targets:
            found = self._teacher.run({name: batch[name] for name in self._inputs})
            feed |= {taker: found[name] for name, taker in self._graph.targets.items()}
        return feed | label_feeds(self._graph.label_specs, batch, self._where)


def _input_names(proto: onnx.ModelProto) -> list[str]:
    given = {tensor.name for tensor in proto.graph.initializer}
    return [value.name for value in proto.graph.input if value.name not in given]


def _teacher(form: TrainingGraph, inputs: Mapping[str, Array], wanted: Wanted) -> Teacher | None:
    """The teacher, where a term wants one; a script may."""
    if wanted.teacher is not None:
        proto, folder, name = wanted.teacher
        return Teacher(proto, folder, inputs, name)
    if wanted.moved or (not wanted.loss.needs_teacher and not wanted.loss.script):
        return None
    return _own_teacher(form, inputs)


def _own_teacher(form: TrainingGraph, inputs: Mapping[str, Array]) -> Teacher:
    return Teacher(float_twin(form.proto), form.folder, inputs, "the model in float")


@dataclass(frozen=True)
class _Matched:
    """What the label-free term holds against the teacher."""

    points: tuple[str, ...] = ()
    kinds: tuple[TargetKind, ...] = ()
    outputs: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.points, *(kind.name for kind in self.kinds))


def _matched(
    form: TrainingGraph, teacher: Teacher, shapes: Shapes, inputs: Mapping[str, Array], wanted: Wanted
) -> _Matched:
    """What the network ends in, and points inside; no tensor whose channels the teacher has on other scales."""
    made = {name for node in form.proto.graph.node for name in node.output} & teacher.names & shapes.keys()
    kinds, covered = find_kinds(form.quantized, form.folder, made, shapes)
    ends = {end.tensor for kind in kinds for end in kind.ends}
    points = choose_points(form.quantized, form.folder, form.proto, teacher.names, without=ends | covered)
    if wanted.teacher is not None and points:
        own, theirs = (_values(one, points, inputs) for one in (_own_teacher(form, inputs), teacher))
        points = tuple(name for name in points if not rescaled(own[name], theirs[name]))
    return _Matched(points, kinds, frozenset(value.name for value in form.proto.graph.output))


def _values(teacher: Teacher, names: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
    teacher.shapes(names)
    teacher.fetch(names)
    return teacher.run(inputs)


def _balanced(
    graph: LossGraph, form: TrainingGraph, matched: _Matched, complete: _Completion, batches: Sequence[Batch]
) -> dict[str, float]:
    """How much each term counts: the inverse of its error at the start; the ends together as much as what lies inside.

    So the loss begins near 1 and tells what part of the error is left; what is no end is there to lead to them.
    """
    names = matched.names
    session = Session(graph.proto, form.folder, [graph.parts[f"match:{name}"] for name in names], SessionOptions())
    errors = np.mean([[float(one) for one in session.run(complete(batch))] for batch in batches], axis=0)
    ends = np.array([name in matched.outputs for name in matched.points] + [True] * len(matched.kinds))
    for some in (ends, ~ends):  # sums and ratios do not compare
        if some.any():
            errors[some] = np.maximum(errors[some], max(_LEAST_ERROR * float(np.median(errors[some])), 1e-12))
    inner = int((~ends).sum())
    share = 1 - _INNER if inner and ends.any() else 1.0
    shares = np.where(ends, share / max(int(ends.sum()), 1), (1 - share if ends.any() else 1.0) / max(inner, 1))
    return {name: float(part / error) for name, part, error in zip(names, shares, errors, strict=True)}


def _watched(
    graph: LossGraph, form: TrainingGraph, maxima: MovingMaxima | None
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The loss graph, with what moving scales need: their maxima given out, themselves fed."""
    if maxima is None:
        return graph.proto, ()
    proto, names = watch_maxima(graph.proto, [form.activations[name] for name in maxima.scales])
    return with_inputs(proto, maxima.scales), tuple(names)


def _start_values(form: TrainingGraph, graph: LossGraph, reached: Sequence[str]) -> dict[str, Float32]:
    own = form.initial()
    extra = {t.name: t for t in graph.proto.graph.initializer if t.name in frozenset(graph.extra_parameters)}
    return {name: own[name] if name in own else np.array(onnx.numpy_helper.to_array(extra[name])) for name in reached}


def _moving(form: TrainingGraph) -> MovingMaxima:
    """The scales of activations as maxima, by what their pairs can hold."""
    levels: dict[str, int] = {}
    zeros = {tensor.name: tensor for tensor in form.proto.graph.initializer}
    for node in form.proto.graph.node:
        if node.domain == PAIR_DOMAIN and node.input[1] in form.activations:
            levels[node.input[1]] = _highest(zeros[node.input[2]])
    initial = form.initial()
    return MovingMaxima({name: initial[name] for name in form.activations}, levels)


def _highest(zero: onnx.TensorProto) -> int:
    """The most steps above the zero point that a pair's integers hold."""
    name = onnx.TensorProto.DataType.Name(zero.data_type)
    bits = int("".join(letter for letter in name if letter.isdigit()) or 8)
    most = 2**bits - 1 if name.startswith("U") else 2 ** (bits - 1) - 1
    return int(most - np.max(onnx.numpy_helper.to_array(zero).astype(np.int64), initial=0))


def _pace(form: TrainingGraph, parameters: Parameters, values: Mapping[str, Float32], update: UpdateOptions) -> Float32:
    """What the rate is multiplied by: the INT8 step of each weight, or 1; for scales what makes it theirs."""
    paces: dict[str, npt.ArrayLike] = {}
    for name, slot in parameters.slots.items():
        if slot.logarithm:
            paces[name] = update.scale_lr / update.rate
        elif update.relative:
            paces[name] = _step_size(form, name, values[name])
    return parameters.filled(paces, 1.0)


def _bounds(form: TrainingGraph, parameters: Parameters, values: Mapping[str, Float32]) -> Float32:
    """How large each weight may become: what its pair holds, or what it was, so that the range stays that of its scale.

    TensorRT quantizes the weights of a model with a calibration cache by their largest magnitude.
    """
    limits: dict[str, npt.ArrayLike] = {}
    for name, pair in form.weight_pairs.items():
        if name in parameters.slots and pair.scale not in parameters.slots and not np.any(pair.zero):
            steps = steps_of_weight(values[name], form.initial()[pair.scale], pair.axis)
            limits[name] = np.maximum(np.abs(values[name]), pair.high * steps)
    return parameters.filled(limits, np.inf)


def _step_size(form: TrainingGraph, name: str, value: Float32) -> Float32:
    pair = form.weight_pairs.get(name)
    if pair is None:
        return steps_of_weight(value)
    return steps_of_weight(value, form.initial()[pair.scale], pair.axis)


def _told(lost: Sequence[str]) -> tuple[str, ...]:
    if not lost:
        return ()
    return (f"{len(lost)} parameters are not trained, the loss does not depend on them, such as {lost[0]}",)
