# SPDX-License-Identifier: Apache-2.0
"""Weights fitted anew where channels went: operator after operator makes what the original made, of what is left.

He, Zhang, Sun 2017 (Channel pruning for accelerating very deep networks, 3.1 and 3.2): the target of each operator is
what it made in the original, its input what the pruned model gives it, its earlier operators fitted already. Before an
Add, the target also makes up for what the other operand lost. The edit is one of the original and of its pruned copy
alike, so that the check compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.single_samples import first_samples, row_count
from qdqtool.graph.edit import Editor, count_uses
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import attribute
from qdqtool.graph.view import GraphView, Node
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.passes.fold_bn import factor_of
from qdqtool.progress import counting, steps
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.least_squares import FittedWeights, LeastSquares, joined
from qdqtool.pruning.mean_correction import CorrectedModel, is_corrected, write_bias
from qdqtool.pruning.probe import Feed, ProbeRun
from qdqtool.pruning.sum_rows import draw_places, made_rows, read_rows
from qdqtool.pruning.weight_axes import groups_of, is_contraction
from qdqtool.runtime.memory import parts_within

Array = npt.NDArray[Any]
_SAMPLES = 256  # the most that are run
_BUDGET = 10**12  # multiply-adds of runs of the pruned model; where one takes many, several operators share it
_LEAST_WAVES = 4
_ROWS, _LEAST_ROWS = 16, 8192  # of data, for each weight of a channel; at least
_LARGEST = 4608  # weights of a channel; a matrix of so many rows and columns is solved
_STORED = 1 << 28  # bytes of the original's rows that are held at a time
_LEAST_SCALE = 1e-3  # of a BatchNormalization: what it leaves so little of makes up for nothing
_SEED = 21


@dataclass(frozen=True, eq=False)
class _Fit:
    """An operator whose weights are fitted."""

    node: Node
    twin: Node
    channels: int
    skip: str = ""
    scale: npt.NDArray[np.float32] = field(default_factory=lambda: np.ones(1, np.float32))


@dataclass(frozen=True, eq=False)
class _Job:
    """What all waves are fitted with."""

    pruned: Model
    source: Model
    cut: Cut
    run: ProbeRun
    batches: Sequence[Feed]
    rows: Mapping[str, int]

    def most(self, fit: _Fit, made: Sequence[int]) -> int:
        """Places to draw of each row of the first axis of what an operator makes."""
        return -(-self.rows[fit.node.key] // max(len(self.batches) * made[0], 1))


# Of each batch: what the original made at some places, the places, and the shape of all that it made.
_Wanted = list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], tuple[int, ...]]]


def reconstruct(made: tuple[Model, Model], cut: Cut, run: ProbeRun, batches: Iterable[Feed]) -> CorrectedModel:
    """Fit the weights of Conv, Gemm and MatMul that lose channels which they sum up.

    Raises:
        QdqError: onnxruntime cannot run a model.
    """
    source, pruned = (model.copy() for model in made)
    view = pruned.view
    fits = _fits(cut, view)
    rows = {fit.node.key: max(_ROWS * _summed(fit, view), _LEAST_ROWS) for fit in fits}
    job = _Job(pruned, source, cut, run, first_samples(batches, _SAMPLES), rows)
    names = []
    with counting("operator", len(fits)) as count:
        for waves in parts_within(_STORED, _waves(job, fits), partial(_stored_bytes, job)):
            wanted = _wanted(job, [fit for wave in waves for fit in wave])
            for wave in waves:
                for fit, weights in _solved(job, wave, wanted):
                    _write(source, cut, fit.node, fit.node, weights)
                    _write(pruned, None, fit.node, fit.twin, weights)
                    names.append(fit.node.name)
                count.advance(len(wave))
    return CorrectedModel(source, tuple(names))


# ---------------------------------------------------------------------- which operators, and when


def _fits(cut: Cut, pruned: GraphView) -> list[_Fit]:
    """Operators whose weights can be fitted, in an order in which they run."""
    view, uses = cut.channels.view, count_uses(cut.channels.view)
    found = []
    for node in sorted(view.nodes, key=lambda node: (node.level, node.index)):
        twin = pruned.producers.get(node.outputs[0])
        if node.op not in ("Conv", "Gemm", "MatMul") or twin is None or not is_contraction(view, node):
            continue
        if not _is_fitted(cut, node) or uses[node.inputs[1]] != 1:
            continue
        weight = pruned.array(twin.inputs[1])
        if twin.inputs[1] not in pruned.initializers or weight is None:
            continue
        parts = _rows_of(node, weight)
        if parts[0].shape[1] <= _LARGEST:
            found.append(_Fit(node, twin, sum(len(part) for part in parts)))
    return found


def _summed(fit: _Fit, pruned: GraphView) -> int:
    """How many values an operator sums up for one value of its output."""
    return int(_rows_of(fit.node, pruned.array(fit.twin.inputs[1]))[0].shape[1])


def _is_fitted(cut: Cut, node: Node) -> bool:
    if node.op != "MatMul":
        return is_corrected(cut, node) and node.inputs[1] in cut.channels.view.initializers
    view, shape = cut.channels.view, cut.shape(node.inputs[0])
    weight = view.array(node.inputs[1]) if node.inputs[1] in view.initializers else None
    plain = weight is not None and weight.dtype == np.float32 and weight.ndim == 2
    return plain and len(shape) > 1 and len(shape) - 1 in cut.kept(node.inputs[0])


def _waves(job: _Job, fits: Sequence[_Fit]) -> list[list[_Fit]]:
    """Operators that are fitted on one run, in order: one at a time where that is cheap."""
    of_one = job.cut.multiply_adds() // max(row_count(job.run.feeds[0]) if job.run.feeds else 1, 1)
    samples = sum(max(row_count(feed), 1) for feed in job.batches)
    run = max(of_one * samples // 2, 1)  # on average half of the model is run
    count = min(len(fits), max(_LEAST_WAVES, _BUDGET // run))
    waves = []
    for part in np.array_split(np.arange(len(fits)), count) if fits else []:
        moving = {fit.node.key for fit in fits[int(part[0]) :]}
        waves.append([_with_skip(job.cut, fits[place], moving) for place in part.tolist()])
    return waves


def _stored_bytes(job: _Job, wave: Sequence[_Fit]) -> int:
    """Of the rows of the original that a wave is fitted to."""
    return sum(4 * job.rows[fit.node.key] * fit.channels for fit in wave)


def _with_skip(cut: Cut, fit: _Fit, moving: set[str]) -> _Fit:
    """With the other operand of the Add that alone reads an operator, through a BatchNormalization if any."""
    view, name = cut.channels.view, fit.node.outputs[0]
    uses, scale = view.consumers(name), np.ones(1)
    if len(uses) == 1 and uses[0].node.op == "BatchNormalization" and not view.is_output(name):
        factor, variance = (view.array(uses[0].node.inputs[index]) for index in (1, 4))
        if factor is None or variance is None:
            return fit
        scale = factor_of(uses[0].node, factor, variance)
        scale = np.take(scale, cut.kept(name).get(1, np.arange(len(scale))))
        name = uses[0].node.outputs[0]
        uses = view.consumers(name)
    if len(uses) != 1 or uses[0].node.op != "Add" or view.is_output(name) or np.abs(scale).min() < _LEAST_SCALE:
        return fit
    other = next((view.root(one) for one in uses[0].node.inputs if view.root(one) != name), "")
    alike = other and cut.channels.atoms.shape(name) == cut.channels.atoms.shape(other)
    if not alike or view.is_constant(other) or _is_moved(view, other, moving):
        return fit
    return replace(fit, skip=other, scale=scale.astype(np.float32))


def _is_moved(view: GraphView, name: str, moving: set[str]) -> bool:
    """Whether a tensor depends on an operator that is fitted later."""
    seen, stack = set[str](), [name]
    while stack:
        node = view.producer(stack.pop())
        if node is None or node.key in seen:
            continue
        seen.add(node.key)
        if node.key in moving:
            return True
        stack += [one for one in node.inputs if one]
    return False


# ---------------------------------------------------------------------- rows and weights


def _wanted(job: _Job, fits: Sequence[_Fit]) -> dict[str, _Wanted]:
    """What operators should make, but for what the other operands of their Adds still have: by key, batch by batch."""
    names = dict.fromkeys(name for fit in fits for name in (fit.node.outputs[0], fit.skip) if name)
    executor = job.run.executor(job.run.model, list(names))
    random = np.random.default_rng(_SEED)
    found: dict[str, _Wanted] = {fit.node.key: [] for fit in fits}
    for feed in steps(job.batches, "batch"):
        values = executor.run(feed)
        for fit in fits:
            made = values[fit.node.outputs[0]]
            places = draw_places(fit.node, made.shape, job.most(fit, made.shape), random)
            rows = made_rows(fit.node, _kept(job.cut, fit.node.outputs[0], made), places)
            if fit.skip:
                rows = rows + made_rows(fit.node, _kept(job.cut, fit.skip, values[fit.skip]), places) / fit.scale
            found[fit.node.key].append((rows, places, made.shape))
    return found


def _solved(job: _Job, wave: Sequence[_Fit], wanted: Mapping[str, _Wanted]) -> list[tuple[_Fit, FittedWeights]]:
    """What each operator of a wave is fitted to; those for which nothing comes out are left out."""
    root = job.cut.channels.view.root
    names = dict.fromkeys(name for fit in wave for name in (root(fit.node.inputs[0]), fit.skip) if name)
    executor, view = job.run.executor(job.pruned, list(names)), job.pruned.view
    squares: dict[str, list[LeastSquares]] = {}
    for fit in wave:
        starts = _rows_of(fit.node, view.array(fit.twin.inputs[1]))
        squares[fit.node.key] = [LeastSquares(part, intercept=fit.node.op != "MatMul") for part in starts]
    for number, feed in enumerate(steps(job.batches, "batch")):
        values = executor.run(feed)
        for fit in wave:
            rows, places, shape = wanted[fit.node.key][number]
            if fit.skip:
                rows = rows - made_rows(fit.node, values[fit.skip], places) / fit.scale
            kernel = (view.shape(fit.twin.inputs[1]) or ())[2:] if fit.node.op == "Conv" else ()
            read = read_rows(fit.node, values[root(fit.node.inputs[0])], shape, kernel, places)
            samples = np.repeat(np.arange(len(places)), places.shape[1])
            parts = squares[fit.node.key]
            for part, x, y in zip(parts, read, np.split(rows, len(parts), axis=1), strict=True):
                part.add(x, y, samples)
    solved = ((fit, [part.solve() for part in squares[fit.node.key]]) for fit in wave)
    return [(fit, joined(parts)) for fit, parts in solved if None not in parts]


def _kept(cut: Cut, name: str, array: Array) -> Array:
    for axis, places in cut.kept(name).items():
        array = np.take(array, places, axis)
    return array


def _rows_of(node: Node, weight: Array | None) -> list[Array]:
    """The weights of each group as [channels, values that are summed up]."""
    if weight is None:
        raise AssertionError(f"{node.name} was chosen for its weight")
    if node.op == "Conv":
        return np.split(weight.reshape(len(weight), -1), groups_of(node))
    return [weight if attribute(node, "transB", 0) else weight.T]


def _write(model: Model, cut: Cut | None, node: Node, own: Node, fitted: FittedWeights) -> None:
    """Put weights and bias into a model: into the places that stay where `cut` is given, else all of them."""
    view = model.view
    editor, twin = Editor(view), view.producers[own.outputs[0]]
    before = np.array(view.array(twin.inputs[1]))
    turned = node.op == "MatMul" or (node.op == "Gemm" and not attribute(node, "transB", 0))
    made = 1 if turned else 0
    axes = {} if cut is None else _axes(cut, node)
    sides = [axes.get(axis, np.arange(size)) for axis, size in enumerate(before.shape)]
    shape = [len(side) for side in sides]
    values = fitted.weights.T if turned else fitted.weights.reshape(shape)
    before[np.ix_(*sides)] = values.reshape(shape)
    editor.set_initializer(twin.inputs[1], before)
    if node.op != "MatMul":
        count = before.shape[made]
        held = twin.inputs[2] if len(twin.inputs) > 2 else ""
        bias = np.zeros(count) if not held else np.array(view.array(held), np.float64)
        bias[sides[made]] = fitted.bias
        write_bias(editor, count_uses(view), twin, bias)
    editor.commit()
    list_as_inputs(model.proto)


def _axes(cut: Cut, node: Node) -> dict[int, npt.NDArray[np.int64]]:
    """Of each axis of an operator's weight the places that stay, where some go."""
    found = {}
    for axis in cut.channels.axes:
        if axis.use.node is node and axis.use.index == 1 and (left := cut.along(axis)) is not None:
            found[axis.axis] = left
    return found
