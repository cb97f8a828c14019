# SPDX-License-Identifier: Apache-2.0
"""How much each value that a block gives matters where the network ends: the mean of its squared gradient there.

An error e of what a block gives changes the ends by J e, and what they say by e' J' F J e, F the Fisher information at
the ends (`end_probes`). Its diagonal is the mean square of the gradient of v' y (BRECQ, Li 2021). Taken are its mean
over places and its mean over channels, whose product stands for it: a single draw of v is enough for that.

Scores and boxes have no common unit. Each kind of end counts by the inverse of its error before training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qdqtool.autodiff.backend import GradientBackend
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.progress import steps
from qdqtool.training.blocks.block_samples import BlockSample, BlockSamples
from qdqtool.training.blocks.block_training import BlockOptions
from qdqtool.training.end_probes import End, ProbedGraph, draw_probe, with_probes
from qdqtool.training.losses.distill_targets import DistillTarget
from qdqtool.training.losses.teacher import float_twin
from qdqtool.training.shapes import SeenTensor, make_forward
from qdqtool.training.student import Session, SessionOptions
from qdqtool.training.training_graph import TrainingGraph

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

LARGEST = 10.0  # times the mean: a few places and channels must not be all that a block learns
_LEAST_ERROR = 1e-20


def measure_importance(
    form: TrainingGraph,
    seen: Mapping[str, SeenTensor],
    gives: Sequence[str],
    samples: BlockSamples,
    backend: GradientBackend,
    options: BlockOptions,
) -> None:
    """Set what each channel of a tensor counts in `samples`, and what each place counts in each of them: 1 in the mean.

    Tensors on which no end depends are left out.

    Raises:
        QdqError: an operator between a block and the ends has no gradient; what onnxruntime refuses.
    """
    probes = _Probes(form, seen, samples.held, options.sessions)
    source, taken = _with_zeros(probes.graph.proto, gives, seen)
    draw, every = np.random.default_rng(options.seed), samples.every
    first = {**every[0].exact, **probes.of(every[0], draw)}
    gradients = backend.build(make_forward(source, list(taken), probes.graph.scalar, (), first))
    session = Session(Model(gradients.proto), list(gradients.gradients.values()), options.sessions)
    zeros = {taker: np.zeros(seen[taken[taker]].shape, np.float32) for taker in gradients.gradients}
    names = [taken[taker] for taker in gradients.gradients]
    channels = dict.fromkeys(names, np.zeros(1))
    for sample in steps(every, "sample", len(every)):
        found = session.run({**sample.exact, **probes.of(sample, draw), **zeros})
        for name, gradient in zip(names, found, strict=True):
            square, axis = np.square(gradient, dtype=np.float64), _channel_axis(gradient.ndim)
            sample.places[name] = square.mean(axis=axis, keepdims=True).astype(np.float32)
            along = tuple(other for other in range(gradient.ndim) if other != axis)
            channels[name] = channels[name] + square.mean(axis=along, keepdims=True)
    means = {name: float(value.mean()) / len(every) for name, value in channels.items()}
    reached = {name: mean for name, mean in means.items() if 0 < mean < np.inf}
    for sample in every:
        sample.places = {name: _bounded(sample.places[name] / mean) for name, mean in reached.items()}
    samples.channels = {name: _bounded(channels[name] / channels[name].mean()) for name in reached}


def _bounded(counts: npt.NDArray[np.floating]) -> Float32:
    made: Float32 = np.minimum(counts, LARGEST).astype(np.float32)
    return made


def _channel_axis(rank: int) -> int:
    """Of pictures the second axis, else the last."""
    return 1 if rank > 3 else rank - 1


class _Probes:
    """V for each end of a sample, kinds of ends in one unit."""

    def __init__(
        self, form: TrainingGraph, seen: Mapping[str, SeenTensor], held: Sequence[BlockSample], how: SessionOptions
    ) -> None:
        twin = float_twin(form.proto)
        self.graph: ProbedGraph = with_probes(form, twin, seen)
        targets = {target.tensor: target for kind in self.graph.kinds for target in kind.ends}
        self._targets = {end.tensor: targets.get(end.tensor) for end in self.graph.ends}
        beside = [name for one in self._targets.values() if one is not None for name in one.beside]
        self._names = list(dict.fromkeys([*self._targets, *beside]))
        self._exact = Session(Model(twin), self._names, how)
        rounded = Session(Model(form.proto), list(self._targets), how)
        kinds = [[one.tensor for one in kind.ends] for kind in self.graph.kinds]
        alone = [[end.tensor] for end in self.graph.ends if end.tensor not in targets]
        errors = self._errors(held, rounded)
        self._units = {
            name: 1 / max(sum(errors[one] for one in kind), _LEAST_ERROR) ** 0.5
            for kind in (*kinds, *alone)
            for name in kind
        }

    def of(self, sample: BlockSample, draw: np.random.Generator) -> dict[str, Float32]:
        """What the graph is fed beside a sample."""
        values = self._values(sample)
        return {
            end.taker: (self._weighted(end, values, draw) * self._units[end.tensor]).astype(np.float32)
            for end in self.graph.ends
        }

    def _values(self, sample: BlockSample) -> dict[str, Array]:
        return dict(zip(self._names, self._exact.run(sample.exact), strict=True))

    def _weighted(self, end: End, values: Mapping[str, Array], draw: np.random.Generator) -> npt.NDArray[np.float64]:
        target = self._targets[end.tensor]
        return np.asarray(
            draw_probe(end, values[end.tensor], draw) * (1.0 if target is None else _sure(target, values))
        )

    def _errors(self, held: Sequence[BlockSample], rounded: Session) -> dict[str, float]:
        """The square error of each end before training, as its kind counts it, summed over samples."""
        found, draw = dict.fromkeys(self._targets, 0.0), np.random.default_rng(0)
        for sample in held:
            values = self._values(sample)
            for end, value in zip(self.graph.ends, rounded.run(sample.exact), strict=True):
                difference = value.astype(np.float64) - values[end.tensor]
                # By the diagonal, also after a Softmax: this is the unit of a kind, no more.
                found[end.tensor] += float(np.square(self._weighted(end, values, draw) * difference).sum())
        return found


def _sure(target: DistillTarget, values: Mapping[str, Array]) -> npt.NDArray[np.float64]:
    """The root of how sure the float network is that there is something: by scores for the same places, and its own.

    Thousands of places where all scores are low would count for more than the few where something is, else.
    """
    found = np.ones(1)
    for logits in target.beside:
        found = found * _sigmoid(values[logits]).max(axis=target.axis, keepdims=True)
    return np.sqrt(found * _sigmoid(values[target.tensor]) if target.form == "sigmoid" else found)


def _sigmoid(logits: Array) -> npt.NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -60, 60))))


def _with_zeros(
    proto: onnx.ModelProto, names: Sequence[str], seen: Mapping[str, SeenTensor]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Zeros added to tensors, as initializers: their gradients are those of the tensors; which is whose."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    draft = GraphBuilder(made)
    wanted, taken = frozenset(names), dict[str, str]()
    nodes: list[onnx.NodeProto] = []
    for node in made.graph.node:
        nodes.append(node)
        for index, name in enumerate(node.output):
            if name in wanted:
                node.output[index] = plain = draft.unique(f"plain/{name}")
                zeros = draft.initializer(f"zeros/{name}", np.zeros(seen[name].shape, np.float32))
                nodes.append(helper.make_node("Add", [plain, zeros], [name], draft.unique(f"add/{name}")))
                taken[zeros] = name
    draft.set_nodes(nodes)
    return made, taken
