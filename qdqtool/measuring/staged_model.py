# SPDX-License-Identifier: Apache-2.0
"""A model on a few samples with tensors rounded to INT8 at any places, run again only from where two forms differ.

The model is cut into stages with a session each. The form that was kept last keeps its sessions and the values between
its stages; another form runs the stages that differ and those behind. Weights are rounded once,
into a file that every session maps. Which places are rounded is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qdqtool.amax.weight_blocks import BlockLayout
from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.formats import INT8, NumberFormat
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.builder import names_in, tensor_of
from qdqtool.graph.shapes import known_lengths
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.array_file import ArrayFile, drop_pages
from qdqtool.runtime.session import session_options, stand_in, start_session
from qdqtool.runtime.stage_models import StageModels, Values, all_tensors
from qdqtool.runtime.stages import CutOptions
from qdqtool.simulation.rounding import fake_quantize

Array = npt.NDArray[Any]

# Values between stages that are kept; where there are more, forms run from earlier stages.
_KEPT_BYTES = 256 << 20


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor rounded to the codes of a number format and back.

    Attributes:
        tensor: its name.
        scale: bytes of its float32 scale, or of one per index of an axis.
        axis: of those; None for one scale.
        format: of the codes.
        block: values along the axis that share a scale; 0 where there are no blocks.
    """

    tensor: str
    scale: bytes
    axis: int | None = None
    format: NumberFormat = INT8
    block: int = 0


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
        """Cut a model that was made ready for onnxruntime."""
        self._model, self._samples, self._outputs = model, samples, tuple(outputs)
        cut = CutOptions(lengths=known_lengths(model.view))
        self._parts = StageModels(model, self._outputs, operators, cut)  # rounded weights are added
        self._names = FreshNames(names_in(model.stripped[0].graph))
        self._rounded: dict[RoundedTensor, str] = {}
        self._file = ArrayFile()
        self._begin()

    def stage_of(self, operator: str) -> int:
        """The first stage that runs an operator; the number of stages where the outputs do not need it."""
        return next((at for at, keys in enumerate(self._parts.keys) if operator in keys), len(self._parts.keys))

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

        Raises:
            QdqError: onnxruntime refuses the model, or cannot run it.
        """
        first = self.first_to_run(placement)
        held = self._kept[first].values if self._kept else None
        values = [dict(one) for one in (held if held is not None else self._samples)]
        for at in range(first, len(self._parts.stages)):
            form = self._form(at, placement)
            same = at < len(self._kept) and self._kept[at].form == form
            session = self._kept[at].session if same else self._session(at, placement, values)
            before, values = values, self._parts.through(at, session, values)
            self.runs[at] += len(values)
            if not all_tensors(values):
                return self._run_in_one(placement, keep=keep)
            if keep:
                self._kept[at : at + 1] = [_KeptStage(form, session, before)]
        if keep:
            self._limit()
        return [tuple(one[name] for name in self._outputs) for one in values]

    def _begin(self) -> None:
        self._kept: list[_KeptStage] = []
        self.runs = [0] * len(self._parts.stages)

    def _run_in_one(self, placement: Placement, *, keep: bool) -> list[tuple[Array, ...]]:
        """The same without stages: a sequence or an optional passes a cut, which no session takes."""
        if len(self._parts.stages) == 1:
            raise QdqError(
                self._model.where, "has an output that is not a tensor", "leave --keep-float and sensitivity out"
            )
        self._parts.join()
        self._begin()
        return self.run(placement, keep=keep)

    def _form(self, at: int, placement: Placement) -> _Form:
        return frozenset(place for place in placement.items() if place[0][0] in self._parts.keys[at])

    def _limit(self) -> None:
        """Forget values between stages while there are too many, the largest first; the first stage reads samples."""
        while len(held := {at: _bytes(kept.values) for at, kept in enumerate(self._kept) if at and kept.values}):
            if sum(held.values()) <= _KEPT_BYTES:
                break
            at = max(held, key=lambda one: (held[one], one))
            self._kept[at] = replace(self._kept[at], values=None)

    def _session(self, at: int, placement: Placement, values: list[Values]) -> Any:
        """The session of one stage; the values that go in tell their types, and their shapes where all have one."""
        nodes: list[onnx.NodeProto] = []
        for node in self._parts.stages[at].nodes:
            proto = onnx.NodeProto()
            proto.CopyFrom(node.proto)
            for index, name in enumerate(node.inputs):
                rounded = placement.get((node.key, index))
                if rounded is not None and rounded.tensor == name:
                    proto.input[index] = self._read(nodes, rounded)
            nodes.append(proto)
        model = self._model
        options = session_options(model.runtime, "ORT_ENABLE_BASIC")
        parts = (*self._parts.proto(nodes, values), self._parts.stages[at].gives)
        return start_session(model.runtime, parts, options, model.providers, model.where, few_runs=True)

    def _read(self, nodes: list[onnx.NodeProto], rounded: RoundedTensor) -> str:
        """The name of a rounded tensor in a stage, whose nodes get what makes it where that is no array."""
        scale = np.frombuffer(rounded.scale, np.float32)
        if self._model.view.is_constant(rounded.tensor):
            return self._rounded_weight(rounded, scale)
        name = self._name(rounded)
        if all(name not in node.output for node in nodes):
            levels, step, zero = f"{name}_levels", f"{name}_scale", f"{name}_zero"
            constants = {step: tensor_of(scale.reshape(()), step), zero: tensor_of(rounded.format.zero_point(), zero)}
            self._parts.initializers.update(constants)
            nodes.append(helper.make_node(QUANTIZE, [rounded.tensor, step, zero], [levels]))
            nodes.append(helper.make_node(DEQUANTIZE, [levels, step, zero], [name]))
        return name

    def _rounded_weight(self, rounded: RoundedTensor, scale: Array) -> str:
        """The name of the array of a rounded constant, made when it is first read."""
        name, weights = self._name(rounded), self._parts.weights
        if name not in weights:
            array = self._model.rounded.get((rounded.tensor, rounded.scale, rounded.axis))
            weights[name] = array = self._file.add(self._round(rounded, scale)) if array is None else array
            self._parts.initializers[name] = stand_in(name, onnx.TensorProto.FLOAT, array.shape, array)
        return name

    def _round(self, rounded: RoundedTensor, scale: Array) -> Array:
        weight = self._parts.weights.get(rounded.tensor)
        weight = self._model.view.array(rounded.tensor) if weight is None else weight
        if weight is None or weight.dtype != np.float32:
            raise QdqError(rounded.tensor, "a weight whose value cannot be read", "fold constants first")
        if rounded.block:
            shape = [size // (rounded.block if axis == rounded.axis else 1) for axis, size in enumerate(weight.shape)]
            layout = BlockLayout(int(rounded.axis or 0), rounded.block, rounded.format, onnx.TensorProto.FLOAT)
            return layout.values(
                layout.codes(weight.astype(np.float32, copy=False), scale.reshape(shape)), scale.reshape(shape)
            )
        shape = [-1 if axis == rounded.axis else 1 for axis in range(weight.ndim)] if scale.size > 1 else []
        values, codes = weight.astype(np.float32, copy=False), rounded.format.codes
        made = fake_quantize(values, scale.reshape(shape), "even", codes, rounded.format)
        drop_pages(weight)
        return np.ascontiguousarray(made)  # of a transposed constant it is not contiguous

    def _name(self, rounded: RoundedTensor) -> str:
        if rounded not in self._rounded:
            self._rounded[rounded] = self._names.unique(f"{rounded.tensor}_rounded")
        return self._rounded[rounded]


def _bytes(values: list[Values]) -> int:
    return sum(value.nbytes for one in values for value in one.values())


def macs_of(model: StagedModel, work: Iterable[tuple[str, int]]) -> list[int]:
    """Multiply-adds of each stage for one sample, from those of operators, by their first outputs."""
    found = [0] * (len(model.runs) + 1)
    for operator, macs in work:
        found[model.stage_of(operator)] += macs
    return found[:-1]
