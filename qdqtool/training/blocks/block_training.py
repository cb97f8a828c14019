# SPDX-License-Identifier: Apache-2.0
"""One block, trained on its own: its loss, its updates, and which values of its parameters come out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backend import GradientBackend
from qdqtool.graph.model import Model
from qdqtool.graph.order import remove_dead
from qdqtool.training.averages import WeightAverage
from qdqtool.training.blocks.block_cuts import Block
from qdqtool.training.blocks.block_samples import BlockSample, BlockSamples
from qdqtool.training.log import Listener
from qdqtool.training.losses.nodes import Nodes
from qdqtool.training.optimizers import clip_to_norm, make_optimizer
from qdqtool.training.options import UpdateOptions
from qdqtool.training.parameters import Parameters
from qdqtool.training.schedules import Schedule
from qdqtool.training.shapes import SeenTensor, make_forward
from qdqtool.training.start_checks import check_gradients
from qdqtool.training.student import Session, SessionOptions, with_inputs
from qdqtool.training.training_graph import TrainingGraph
from qdqtool.training.weight_limits import at_bound, lr_multipliers, magnitude_bounds

Float32 = npt.NDArray[np.float32]
LOSS = "qdqtool.block.loss"
_TARGET = "qdqtool.block.target."
_PLACES = "qdqtool.block.places."
_IMPORTANCE = np.float32(0.5)  # share of the error that counts by importance; the other holds what it does not see
_LEAST_POWER = 1e-12
_MEASURES = 8
_FASTER = np.float32(4)  # than in a run over the whole network: a block has few updates
STEPS = 200
"""Updates of each block where nothing else is asked for."""


@dataclass(frozen=True)
class BlockOptions:
    """How each block is trained.

    Attributes:
        steps: updates, one sample each.
        mixed: the share of the values of a block's inputs that come from the float network while it is trained
            (QDrop, Wei 2022); the others come from the blocks before.
        update: rates; see `UpdateOptions`.
        schedule: course of the rate.
        seed: of the order of samples, and of what is mixed.
        sessions: threads, provider.
    """

    steps: int = STEPS
    mixed: float = 0.5
    update: UpdateOptions = field(default_factory=UpdateOptions)
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    sessions: SessionOptions = field(default_factory=SessionOptions)


@dataclass(frozen=True, eq=False)
class TrainedBlock:
    """What came of a block.

    Attributes:
        gives: the tensors that it is judged by.
        before, after: their error on held-out samples, over the power of what the float network gives.
        values: parameter -> value; empty where nothing was better than the start.
        trained: how many numbers were trained.
        checked: largest relative error of the gradients that were checked.
    """

    gives: tuple[str, ...]
    before: float
    after: float
    values: Mapping[str, Float32]
    trained: int = 0
    checked: float = 0.0


class BlockLoss:
    """The error of what a block gives against the float network, each tensor's over its own power.

    A half of it counts all values alike, a half by their importance, where that is known.

    Attributes:
        block: its proto stays as it is.
        samples: each has what the block takes, and what the float network gives.
        proto: the block with its loss; inputs are those of the block, the targets and what places count.
        targets: tensor -> input that takes what the float network gives.
        places: tensor -> input that takes what its places count.
        loss: its scalar; None where the block gives nothing in float.
    """

    def __init__(self, block: Block, samples: BlockSamples, seen: Mapping[str, SeenTensor]) -> None:
        self.block, self.samples, self._channels = block, samples, samples.channels
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(block.proto)
        floats = [name for name in block.gives if seen[name].elem_type == onnx.TensorProto.FLOAT]
        self.proto.graph.ClearField("output")
        shapes = {name: one.shape for name, one in seen.items()}
        nodes = Nodes(self.proto, shapes)
        self.targets = {name: nodes.names.unique(_TARGET + name) for name in floats}
        self.places = {name: nodes.names.unique(_PLACES + name) for name in floats if name in samples.channels}
        terms = []
        for name, given in self.targets.items():
            difference = nodes.tensor(name, "the block") - nodes.input(given, shapes[name])
            each = difference * difference
            if name in self.places:
                places = nodes.input(self.places[name], samples.learned[0].places[name].shape)
                each = each * (places * (_IMPORTANCE * samples.channels[name]) + (1 - _IMPORTANCE))
            power = np.mean([self._power(one, name) for one in samples.learned])
            terms.append(each.mean() * (1.0 / (len(floats) * max(float(power), _LEAST_POWER))))
        self.loss = nodes.named(reduce(add, terms), LOSS) if terms else None
        remove_dead(self.proto.graph)

    def _power(self, sample: BlockSample, name: str) -> float:
        square = np.square(sample.exact[name], dtype=np.float64)
        if name in self.places:
            square *= sample.places[name] * (_IMPORTANCE * self._channels[name]) + (1 - _IMPORTANCE)
        return float(square.mean())

    def feed(self, sample: BlockSample, mask: Mapping[str, npt.NDArray[np.bool_]] | None = None) -> dict[str, Float32]:
        """What the graph is fed of a sample."""
        found = {name: sample.rounded[name] for name in self.block.takes}
        for name, chosen in (mask or {}).items():
            found[name] = np.where(chosen, sample.exact[name], found[name])
        places = {given: sample.places[name] for name, given in self.places.items()}
        return {**found, **places, **{given: sample.exact[name] for name, given in self.targets.items()}}


def train_block(
    loss: BlockLoss, form: TrainingGraph, backend: GradientBackend, options: BlockOptions, reporter: Listener
) -> TrainedBlock:
    """Train the parameters that a block has for itself.

    Raises:
        QdqError: what the back end and onnxruntime refuse; gradients that are wrong.
    """
    block, samples, how = loss.block, loss.samples, options.sessions
    held = samples.held
    if loss.loss is None:
        return TrainedBlock(block.gives, 0.0, 0.0, {})
    forward = make_forward(loss.proto, block.parameters, loss.loss, (), loss.feed(held[0]))
    gradients = backend.build(forward)
    checked = check_gradients(forward, gradients, loss.feed(held[0]), options.seed)
    session = Session(Model(gradients.proto), [loss.loss, *gradients.gradients.values()], how)
    measuring = Session(Model(with_inputs(loss.proto, forward.parameters)), [loss.loss], how)
    run = _BlockRun(form, block, forward.parameters, options)

    def measured() -> float:
        values = run.parameters.values(run.given)
        return math.fsum(float(measuring.run({**loss.feed(one), **values})[0]) for one in held) / len(held)

    before = best = measured()
    vector = None
    for step in range(options.steps):
        sample, mask = run.draw(samples.learned)
        values = run.parameters.values()
        now, *found = session.run({**loss.feed(sample, mask), **values})
        run.move(dict(zip(gradients.gradients, found, strict=True)), values, step)
        reporter.step({"step": step + 1, "block": block.gives[-1], "loss": float(now)})
        if (step + 1) % max(1, options.steps // _MEASURES) == 0 or step + 1 == options.steps:
            error = measured()
            if error < best:
                best, vector = error, run.given.copy()
    best_values = {} if vector is None else {n: v.copy() for n, v in run.parameters.values(vector).items()}
    return TrainedBlock(block.gives, before, best, best_values, run.parameters.vector.size, checked)


class _BlockRun:
    """The parameters of a block on their way."""

    def __init__(self, form: TrainingGraph, block: Block, names: Sequence[str], options: BlockOptions) -> None:
        held = {tensor.name: tensor for tensor in block.proto.graph.initializer}
        values = {name: np.array(onnx.numpy_helper.to_array(held[name]), np.float32) for name in names}
        self.parameters = Parameters(values, scales=[name for name in names if name in frozenset(form.scales)])
        self._multiplier = lr_multipliers(form, self.parameters, values, options.update)
        self._bounds = magnitude_bounds(form, self.parameters, values)
        self._multiplier[at_bound(self.parameters, self._bounds)] = 0
        self._optimizer = make_optimizer(options.update, self.parameters.vector.size)
        self._options = options
        decay = options.update.ema_decay
        self._average = WeightAverage(self.parameters.vector, decay) if decay else None
        self._takes = block.takes
        self._draw = np.random.default_rng(options.seed)
        self._order: list[int] = []

    @property
    def given(self) -> Float32:
        """What is measured and handed out: the moving average, where there is one."""
        return self.parameters.vector if self._average is None else self._average.vector

    def draw(self, samples: Sequence[BlockSample]) -> tuple[BlockSample, dict[str, npt.NDArray[np.bool_]]]:
        """The next sample, and which values of what the block takes come from the float network."""
        if not self._order:
            self._order = self._draw.permutation(len(samples)).tolist()
        sample = samples[self._order.pop()]
        if not self._options.mixed:
            return sample, {}
        mask = {
            name: self._draw.random(sample.exact[name].shape, np.float32) < self._options.mixed
            for name in self._takes
            if sample.exact[name] is not sample.rounded[name] and sample.exact[name].dtype == np.float32
        }
        return sample, mask

    def move(self, gradients: Mapping[str, Float32], fed: Mapping[str, Float32], step: int) -> None:
        """One update; weights stay within what their pairs hold."""
        update, vector = self._options.update, self.parameters.vector
        total = np.zeros_like(vector)
        self.parameters.gather(gradients, fed, total)
        clip_to_norm(total, update.grad_clip)
        if not np.isfinite(total).all():
            return
        rate = _FASTER * np.float32(update.rate * self._options.schedule.factor(step, self._options.steps))
        vector -= rate * self._multiplier * self._optimizer.direction(total)
        np.clip(vector, -self._bounds, self._bounds, out=vector)
        if self._average is not None:
            self._average.add(vector, step + 1)
