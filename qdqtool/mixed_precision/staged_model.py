# SPDX-License-Identifier: Apache-2.0
"""A model on a few samples with tensors rounded to INT8 at any places, run again only from where two forms differ.

The model is cut into stages with a session each. The form that was kept last keeps its sessions and the values between
its stages; another form runs the stages that differ and those behind. Weights are rounded once and lent to every
session. Which places are rounded is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.builder import names_in, tensor_of
from qdqtool.graph.order import reads_of, wrapped
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from qdqtool.mixed_precision.stages import Stage, cut_stages
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.session import run_session, session_options, stand_in, start_session
from qdqtool.simulation.rounding import through_int8

Array = npt.NDArray[Any]
Values = dict[str, Array]

# Values between stages that are kept; where there are more, forms run from earlier stages.
_KEPT_BYTES = 256 << 20
_LOWEST = -128


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor rounded to INT8 and back.

    Attributes:
        tensor: its name.
        scale: bytes of its float32 scale, or of one per index of an axis.
        axis: of those; None for one scale.
    """

    tensor: str
    scale: bytes
    axis: int | None = None


# (first output of a node, number of its input) -> what it reads there in place of its tensor.
Placement = Mapping[tuple[str, int], RoundedTensor]
_Form = frozenset[tuple[tuple[str, int], RoundedTensor]]


@dataclass(frozen=True)
class _KeptStage:
    """A stage of the form that was kept: its session, and of each sample the values that go in, if they are held."""

    form: _Form
    session: Any
    values: list[Values] | None


class StagedModel:
    """A plain model in stages; see the module.

    Attributes:
        runs: of each stage, how many samples ran through it.
    """

    def __init__(
        self, model: ObservableModel, outputs: Sequence[str], samples: Sequence[Batch], operators: Collection[str]
    ) -> None:
        """Cut a model that was made ready for onnxruntime.

        Args:
            model: a plain model, opset 13 or later.
            outputs: tensors to compute.
            samples: what is run.
            operators: first outputs of the weighted operators.
        """
        self._model, self._samples, self._outputs = model, samples, tuple(outputs)
        self._skeleton, weights = model.stripped
        self._weights = dict(weights)  # rounded ones are added
        self._initializers = {tensor.name: tensor for tensor in self._skeleton.graph.initializer}
        self._inputs = {value.name: value for value in self._skeleton.graph.input}
        self._names = FreshNames(names_in(self._skeleton.graph))
        self._rounded: dict[RoundedTensor, str] = {}
        nodes = wrapped(self._skeleton.graph.node)
        self._use(cut_stages(nodes, model.view.is_constant, self._outputs, operators))

    def stage_of(self, operator: str) -> int:
        """The first stage that runs an operator; the number of stages where the outputs do not need it."""
        return next((at for at, keys in enumerate(self._keys) if operator in keys), len(self._keys))

    def first_to_run(self, placement: Placement) -> int:
        """The first stage that a form must run: where it differs from the kept one, or the last with values before."""
        first = 0
        for at, kept in enumerate(self._kept):
            if kept.values is not None:
                first = at
            if kept.form != self._form(at, placement):
                break
        return first

    def run(self, placement: Placement, *, keep: bool = False) -> list[tuple[Array, ...]]:
        """The outputs of a form of the model: per sample an array per output.

        Args:
            placement: where a rounded tensor is read.
            keep: hold the sessions and values of this form, so that others begin where they differ from it.

        Raises:
            QdqError: onnxruntime refuses the model, or cannot run it.
        """
        first = self.first_to_run(placement)
        held = self._kept[first].values if self._kept else None
        values = [dict(one) for one in (held if held is not None else self._samples)]
        for at in range(first, len(self._stages)):
            form = self._form(at, placement)
            same = at < len(self._kept) and self._kept[at].form == form
            session = self._kept[at].session if same else self._session(at, placement, values)
            before, values = values, [self._step(at, session, one) for one in values]
            if not all(isinstance(value, np.ndarray) for one in values for value in one.values()):
                return self._run_in_one(placement, keep=keep)
            if keep:
                self._kept[at : at + 1] = [_KeptStage(form, session, before)]
        if keep:
            self._limit()
        return [tuple(one[name] for name in self._outputs) for one in values]

    def _use(self, stages: list[Stage]) -> None:
        self._stages = stages
        self._keys = [{node.key for node in stage.nodes} for stage in stages]
        self._reads = [{name for node in stage.nodes for name in reads_of(node.proto)} for stage in stages]
        self._kept: list[_KeptStage] = []
        self.runs = [0] * len(stages)

    def _run_in_one(self, placement: Placement, *, keep: bool) -> list[tuple[Array, ...]]:
        """The same without stages: a sequence or an optional passes a cut, which no session takes."""
        if len(self._stages) == 1:
            raise QdqError(
                self._model.where, "has an output that is no tensor", "leave --keep-float and sensitivity out"
            )
        nodes = {node.key: node for stage in self._stages for node in stage.nodes}
        self._use([Stage(tuple(nodes.values()), self._outputs)])
        return self.run(placement, keep=keep)

    def _form(self, at: int, placement: Placement) -> _Form:
        return frozenset(place for place in placement.items() if place[0][0] in self._keys[at])

    def _step(self, at: int, session: Any, values: Values) -> Values:
        """What is read behind a stage: what it makes, and what passes it."""
        gives, feeds = self._stages[at].gives, [one.name for one in session.get_inputs()]
        made = run_session(session, gives, {name: values[name] for name in feeds}, self._model.where)
        self.runs[at] += 1
        later = set(self._outputs).union(*self._reads[at + 1 :])
        passing = {name: value for name, value in values.items() if name in later}
        return passing | dict(zip(gives, made, strict=True))

    def _limit(self) -> None:
        """Forget values between stages while there are too many, the largest first; the first stage reads samples."""
        while len(held := {at: _bytes(kept.values) for at, kept in enumerate(self._kept) if at and kept.values}):
            if sum(held.values()) <= _KEPT_BYTES:
                break
            at = max(held, key=lambda one: (held[one], one))
            self._kept[at] = replace(self._kept[at], values=None)

    def _session(self, at: int, placement: Placement, values: list[Values]) -> Any:
        """The session of one stage; the values that go in tell their types, and their shapes where all have one."""
        skeleton, graph = self._skeleton, onnx.GraphProto(name=self._skeleton.graph.name)
        lent: dict[str, Array] = {}
        for node in self._stages[at].nodes:
            proto = onnx.NodeProto()
            proto.CopyFrom(node.proto)
            for index, name in enumerate(node.inputs):
                rounded = placement.get((node.key, index))
                if rounded is not None and rounded.tensor == name:
                    proto.input[index] = self._read(graph, lent, rounded)
            graph.node.append(proto)
        made = {name for node in graph.node for name in node.output}
        there = {tensor.name for tensor in graph.initializer}
        for name in dict.fromkeys(name for node in graph.node for name in reads_of(node)):
            if name in self._initializers and name not in there:
                graph.initializer.append(self._initializers[name])
                if name in self._weights:
                    lent[name] = self._weights[name]
            elif name and name not in made and name not in there:
                graph.input.append(self._inputs.get(name) or _value(name, [one[name] for one in values]))
        graph.sparse_initializer.extend(skeleton.graph.sparse_initializer)
        proto = onnx.ModelProto(ir_version=skeleton.ir_version, opset_import=skeleton.opset_import, graph=graph)
        proto.functions.extend(skeleton.functions)
        options = session_options(self._model.runtime, "ORT_ENABLE_BASIC")
        parts = (proto, lent, self._stages[at].gives)
        model = self._model
        return start_session(model.runtime, parts, options, model.providers, model.where, few_runs=True)

    def _read(self, graph: onnx.GraphProto, lent: dict[str, Array], rounded: RoundedTensor) -> str:
        """The name of a rounded tensor in a stage, which gets what makes it: an array, or a pair."""
        scale = np.frombuffer(rounded.scale, np.float32)
        if self._model.view.is_constant(rounded.tensor):
            name = self._rounded_weight(rounded, scale)
            if name not in lent:
                lent[name] = self._weights[name]
                graph.initializer.append(self._initializers[name])
            return name
        name = self._name(rounded)
        if all(name not in node.output for node in graph.node):
            levels, step, zero = f"{name}_levels", f"{name}_scale", f"{name}_zero"
            graph.initializer.extend((tensor_of(scale.reshape(()), step), tensor_of(np.zeros((), np.int8), zero)))
            graph.node.append(helper.make_node(QUANTIZE, [rounded.tensor, step, zero], [levels]))
            graph.node.append(helper.make_node(DEQUANTIZE, [levels, step, zero], [name]))
        return name

    def _rounded_weight(self, rounded: RoundedTensor, scale: Array) -> str:
        """The name of the array of a rounded constant, made when it is first read."""
        name = self._name(rounded)
        if name not in self._weights:
            weight = self._weights.get(rounded.tensor)
            weight = self._model.view.array(rounded.tensor) if weight is None else weight
            if weight is None or weight.dtype != np.float32:
                raise QdqError(rounded.tensor, "a weight whose value cannot be read", "fold constants first")
            shape = [-1 if axis == rounded.axis else 1 for axis in range(weight.ndim)] if scale.size > 1 else []
            rounded_weight = through_int8(weight.astype(np.float32, copy=False), scale.reshape(shape), "even", _LOWEST)
            self._weights[name] = np.ascontiguousarray(rounded_weight)  # of a transposed constant it is not
            self._initializers[name] = stand_in(name, onnx.TensorProto.FLOAT, weight.shape)
        return name

    def _name(self, rounded: RoundedTensor) -> str:
        if rounded not in self._rounded:
            self._rounded[rounded] = self._names.unique(f"{rounded.tensor}_rounded")
        return self._rounded[rounded]


def _value(name: str, values: list[Array]) -> onnx.ValueInfoProto:
    """An input of the type of some arrays, and of their shape where all have the same."""
    shapes = {value.shape for value in values}
    shape = list(shapes.pop()) if len(shapes) == 1 else None
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[0].dtype), shape)


def _bytes(values: list[Values]) -> int:
    return sum(value.nbytes for one in values for value in one.values())


def macs_of(model: StagedModel, work: Iterable[tuple[str, int]]) -> list[int]:
    """Multiply-adds of each stage for one sample, from those of operators, by their first outputs."""
    found = [0] * (len(model.runs) + 1)
    for operator, macs in work:
        found[model.stage_of(operator)] += macs
    return found[:-1]
