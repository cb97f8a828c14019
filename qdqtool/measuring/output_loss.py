# SPDX-License-Identifier: Apache-2.0
"""How far the outputs of a model with Q/DQ are from those of the float model, as one number between 0 and 1.

A guide for choices on calibration images, not a figure of quality: that takes labels and held-out images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import student_interval
from qdqtool.evaluation.metrics import Figure
from qdqtool.graph.model import Model
from qdqtool.graph.output_rows import has_features
from qdqtool.measures import channel_loss, sample_losses
from qdqtool.progress import steps
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.runtime.sample_pass import pass_samples
from qdqtool.simulation.picked_rows import PickedRows, in_order, picked_rows
from qdqtool.simulation.weight_values import with_weight_values

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
# From here on a search may keep groups of operators in float. Of 51 INT8 models (17 labeled networks by three methods,
# regression heads in float; tests/bench/README.md) none lies between 0.14 and 0.24. The words that people read have
# bounds of their own (`evaluation/loss_scale.py`).
LARGE_LOSS = 0.2
# From here on a look at what conditioning would win is worth its time.
NOTABLE_LOSS = 0.02


# Weights beyond this are run stage by stage, and the last bits of what comes out may be others.
_LARGE_BYTES = 16 << 20


class FloatOutputs:
    """The outputs of the first samples; `None` in `samples` until a pass has run them."""

    def __init__(self, names: Sequence[str], count: int) -> None:
        """Nothing is known yet."""
        self.names, self._count = tuple(names), count
        self._taken: dict[int, dict[str, Array]] = {}

    def take(self, at: int, values: Mapping[str, Array]) -> None:
        """Take what of these values is an output."""
        if at < self._count:
            self._taken.setdefault(at, {}).update({name: values[name] for name in self.names if name in values})

    def of(self, samples: int) -> list[tuple[Array, ...]] | None:
        """Per sample an array per name; None where one is missing."""
        taken = [self._taken.get(at, {}) for at in range(samples)]
        if not all(name in one for one in taken for name in self.names):
            return None
        return [tuple(one[name] for name in self.names) for one in taken]


@dataclass(frozen=True)
class OutputReference:
    """Samples, and what the float model gives for them.

    Attributes:
        samples: what is run.
        outputs: names of the tensors that are compared; see `comparable_outputs`.
        wanted: per sample, an array per output.
        provider: execution provider of onnxruntime (default cpu).
        where: what messages call the model.
        picked: outputs whose rows are compared as sets.
        features: of each output, whether its last axis holds features, see `has_features`.
    """

    samples: tuple[Batch, ...]
    outputs: tuple[str, ...]
    wanted: tuple[tuple[Float32, ...], ...]
    provider: str
    where: object
    picked: tuple[PickedRows, ...]
    features: tuple[bool, ...]

    @classmethod
    def of(cls, model: ObservableModel, samples: Sequence[Batch], given: FloatOutputs | None = None) -> OutputReference:
        """Run the float model, where it was not run on these samples before.

        Raises:
            QdqError: nothing to compare by; what `OrtActivations` refuses.
        """
        outputs = comparable_outputs(model)
        if not outputs:
            raise QdqError(model.where, "has no float32 output to compare", "leave --keep-float and sensitivity out")
        taken = None if given is None or given.names != outputs else given.of(len(samples))
        if taken is None:
            wanted = _outputs(OrtActivations.of(model, outputs, few_runs=True), samples, outputs)
        else:
            wanted = tuple(taken)
        features = tuple(has_features(model.view, name) for name in outputs)
        return cls(tuple(samples), outputs, wanted, model.provider, model.where, picked_rows(model.view), features)

    def loss(self, model: Model) -> float:
        """What a form of the model loses; see `loss_of`."""
        return self.loss_of(self._run(model))

    def figure(self, model: Model, given: FloatOutputs | None = None) -> Figure:
        """What a form of the model loses, with its 95 % interval: how it moves with the samples (`sample_losses`).

        `given`: its outputs, where it was run on these samples.
        """
        made = None if given is None else given.of(len(self.samples))
        got = self._ordered(self._run(model) if made is None else made)
        losses = [channel_loss(*compared) for compared in self._pairs(got)]
        each = np.mean([sample_losses(*compared) for compared in self._pairs(got)], axis=0)
        value = sum(losses) / len(losses)
        return Figure(value, student_interval(value, each * (value / each.mean()) if each.any() else each))

    def _run(self, model: Model) -> Sequence[Sequence[Array]]:
        """Per sample, what a form of the model gives for each output."""
        ready = with_weight_values(model, self.provider, self.where)
        if _float_bytes(ready) <= _LARGE_BYTES:
            activations = OrtActivations.of(ready, ready.chosen(self.outputs), few_runs=True)
            return _outputs(activations, self.samples, self.outputs)
        taken: list[dict[str, Float32]] = [{} for _ in self.samples]
        pass_samples(ready, ready.chosen(self.outputs), self.samples, lambda at, made: taken[at].update(made))
        return [[made[name] for name in self.outputs] for made in taken]

    def loss_of(self, got: Sequence[Sequence[npt.NDArray[np.floating]]]) -> float:
        """Mean over outputs of what their channels lose, from 0 to 1; see `measures.channel_loss`."""
        losses = [channel_loss(*compared) for compared in self._pairs(self._ordered(got))]
        return sum(losses) / len(losses)

    def _pairs(self, got: Sequence[Sequence[Array]]) -> Iterator[tuple[list[Array], list[Array], bool]]:
        """Of each output, what is wanted and what came, sample by sample, and whether it holds features."""
        for index, features in enumerate(self.features):
            yield [arrays[index] for arrays in self.wanted], [arrays[index] for arrays in got], features

    def _ordered(self, got: Sequence[Sequence[Array]]) -> Sequence[Sequence[Array]]:
        """Outputs whose rows a TopK picked have them in the order of the float model's."""
        if not self.picked:
            return got
        pairs = [
            [dict(zip(self.outputs, arrays, strict=True)) for arrays in both]
            for both in zip(self.wanted, got, strict=True)
        ]
        return [list(in_order(self.picked, *both).values()) for both in pairs]


def _float_bytes(model: ObservableModel) -> int:
    """What the weights take in a session: codes of fewer bits than 8, and of floats, are dequantized when it starts."""
    graph, arrays = model.stripped[0].graph, model.stripped[1]
    codes = (tensor for tensor in graph.initializer if tensor.name not in arrays)
    dequantized: int = sum(4 * math.prod(one.dims) for one in codes)
    return dequantized + sum(array.nbytes for array in arrays.values())


def comparable_outputs(model: ObservableModel) -> tuple[str, ...]:
    """The float32 tensors by which two forms of a model are compared: the last ones that onnxruntime can compute.

    Those are the outputs of the graph that nodes make, and what an operator that onnxruntime lacks reads, such as a
    detector's boxes and scores in front of an NMS plugin.
    """
    return model.floats(model.ends)


def _outputs(
    activations: OrtActivations, samples: Sequence[Batch], names: Sequence[str]
) -> tuple[tuple[Float32, ...], ...]:
    taken = []
    for sample in steps(samples, "sample"):
        got = dict(activations.run(sample))
        taken.append(tuple(got[name] for name in names))
    return tuple(taken)
