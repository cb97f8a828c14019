# SPDX-License-Identifier: Apache-2.0
"""Sessions of the student: one that gives gradients, one that only measures. Which graph that is, others say."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backend import GradientGraph
from qdqtool.data.loader import Batch
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.providers import provider_names
from qdqtool.runtime.session import run_session, session_options, start_session, strip_weights
from qdqtool.training.parameters import Parameters, Slot
from qdqtool.training.training_run import Computed, Values

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Complete = Callable[[Batch], Mapping[str, Array]]


@dataclass(frozen=True)
class SessionOptions:
    """How sessions run.

    Attributes:
        threads: of onnxruntime inside one operator. Another number gives other last bits.
        provider: cpu, cuda or tensorrt.
    """

    threads: int = 1
    provider: str = "cpu"

    @property
    def device(self) -> str | None:
        """The device that gradients stay on, as onnxruntime names it; None: they come as arrays."""
        return None if self.provider == "cpu" else "cuda"


class Session:
    """One graph that is run again and again: pairs computed as written, ORT_ENABLE_BASIC."""

    def __init__(self, model: Model, names: Sequence[str], how: SessionOptions) -> None:
        """Start it."""
        runtime = load_onnxruntime()
        options = session_options(runtime, "ORT_ENABLE_BASIC")
        options.intra_op_num_threads = how.threads
        parts = strip_weights(model, model.graph.node)
        self._names = list(names)
        self._fed = frozenset(model.view.inputs)
        providers = provider_names(runtime, how.provider)
        self._session = start_session(runtime, (*parts, self._names), options, providers, "the training graph")

    def run(self, feed: Mapping[str, Array], held: Mapping[str, Any] | None = None) -> list[Any]:
        """The tensors, in the order of `names`; what the graph does not take is passed over. `held`: see `run_session`.

        Raises:
            QdqError: onnxruntime cannot run it.
        """
        given = {name: array for name, array in feed.items() if name in self._fed}
        todo = "is there enough memory for the batch? --batch 1 needs the least"
        return run_session(self._session, self._names, given, "the training graph", todo, held)


class GraphStudent:
    """A gradient graph that is run; see `training_run.Student`."""

    def __init__(
        self,
        graph: GradientGraph,
        loss: str,
        parts: Mapping[str, str],
        largest: Sequence[str],
        complete: Complete,
        how: SessionOptions,
        parameters: Parameters,
    ) -> None:
        """Start the session."""
        self._parts, self._largest = tuple(parts), len(largest)
        self._gradients, self._held = tuple(graph.gradients), dict[str, Any]()
        proto, gradients = graph.proto, list(graph.gradients.values())
        if how.device is not None:
            proto, vector = with_gradient_vector(graph, parameters.slots)
            make = load_onnxruntime().OrtValue.ortvalue_from_shape_and_type
            self._held[vector] = make([parameters.vector.size], np.float32, how.device, 0)
            gradients = [vector]
        self._session = Session(Model(proto), [loss, *parts.values(), *largest, *gradients], how)
        self._complete = complete

    def compute(self, batch: Batch, values: Values) -> Computed:
        """See `training_run.Student`."""
        loss, *rest = self._session.run({**self._complete(batch), **values}, self._held)
        count = len(self._parts)
        parts = {name: float(part) for name, part in zip(self._parts, rest, strict=False)}
        largest = tuple(float(one) for one in rest[count : count + self._largest])
        made = rest[count + self._largest :]
        gradients = made[0] if self._held else dict(zip(self._gradients, made, strict=True))
        return Computed(float(loss), parts, gradients, largest)


class HeldOutLoss:
    """The loss over batches that are not trained on: the measure where nothing else is asked for."""

    def __init__(
        self,
        model: Model,
        terms: Mapping[str, float],
        fed: Sequence[str],
        batches: Collection[Batch],
        complete: Complete,
        how: SessionOptions,
    ) -> None:
        """Start the session."""
        self._session = Session(replace(model, proto=with_inputs(model.proto, fed)), list(terms), how)
        self._weights, self._batches, self._complete = tuple(terms.values()), batches, complete

    def __call__(self, values: Values) -> float:
        """The mean loss at these values; NaN where a batch has none."""
        losses = [self._sum(self._session.run({**self._complete(batch), **values})) for batch in self._batches]
        return math.fsum(losses) / len(losses) if np.isfinite(losses).all() else math.nan

    def _sum(self, found: Sequence[Array]) -> float:
        return sum(float(one) * weight for one, weight in zip(found, self._weights, strict=True))


def with_inputs(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The graph with some initializers as inputs in their place, of their type and shape."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    wanted = frozenset(names)
    kept = [tensor for tensor in changed.graph.initializer if tensor.name not in wanted]
    made = [tensor for tensor in changed.graph.initializer if tensor.name in wanted]
    listed = {value.name for value in changed.graph.input}
    new = [
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in made
        if tensor.name not in listed
    ]
    kept = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del changed.graph.initializer[:]
    changed.graph.initializer.extend(kept)
    changed.graph.input.extend(new)
    return changed


def with_gradient_vector(graph: GradientGraph, slots: Mapping[str, Slot]) -> tuple[onnx.ModelProto, str]:
    """The graph that gives all gradients as one vector, by its name: what `Parameters.gather` makes of them."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph.proto)
    builder, parts = GraphBuilder(changed), dict[Slot, str]()
    flat = builder.constant("qdqtool.flat", np.array([-1]))
    for name, slot in slots.items():
        part = graph.gradients[name]
        if slot.logarithm:
            part = builder.append("Mul", [part, name], f"qdqtool.logarithm.{name}")
        part = builder.append("Reshape", [part, flat], f"qdqtool.part.{name}")
        parts[slot] = builder.append("Add", [parts[slot], part], f"qdqtool.sum.{name}") if slot in parts else part
    return changed, builder.append("Concat", list(parts.values()), "qdqtool.gradient", axis=0)


def watch_maxima(proto: onnx.ModelProto, groups: Sequence[Sequence[str]]) -> tuple[onnx.ModelProto, list[str]]:
    """The graph with max|x| over each group of tensors beside what it computes."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    builder, names = GraphBuilder(changed), list[str]()
    for number, group in enumerate(groups):
        each = []
        for place, tensor in enumerate(group):
            base = f"qdqtool.largest.{number}.{place}"
            positive = builder.append("Abs", [tensor], f"{base}.abs")
            each.append(builder.append("ReduceMax", [positive], base, keepdims=0))
        name = builder.append("Max", each, f"qdqtool.largest.{number}")
        changed.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []))
        names.append(name)
    return changed, names
