# SPDX-License-Identifier: Apache-2.0
"""The stages of a model as models of their own, which read the same weights. Who runs them, and when, is not said here.

What one stage gives is what the next one is fed, so that no more than one stage's tensors are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from qdqtool.graph.order import reads_of, wrapped
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.array_file import ArrayFile, drop_pages
from qdqtool.runtime.session import run_session
from qdqtool.runtime.stages import AT_OPERATORS, CutOptions, Stage, cut_stages

Array = npt.NDArray[Any]
Values = dict[str, Array]
Take = Callable[[int, Mapping[str, Array]], None]  # number of a sample, tensors by name

# Types whose values no optimization of onnxruntime rounds otherwise; and with them those that onnxruntime gives as
# arrays of the same type: a bfloat16, a float8 or an int4 passes no cut.
EXACT_TYPES = frozenset(
    getattr(TensorProto, kind)
    for kind in ("BOOL", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "STRING")
)
ARRAY_TYPES = EXACT_TYPES | {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
_NO_TENSOR = 0  # a sequence or an optional; see `StageModels.join`


class StageModels:
    """A model that was made ready for onnxruntime, in stages."""

    def __init__(
        self,
        model: ObservableModel,
        outputs: Sequence[str],
        operators: Collection[str],
        how: CutOptions = AT_OPERATORS,
    ) -> None:
        """Cut a model; see `cut_stages`. By default all that can be held between sessions may pass a cut."""
        self.model, self._outputs, self._held = model, tuple(outputs), tuple(outputs) if how.hold else ()
        self._skeleton, weights = model.stripped
        self.weights = dict(weights)
        self.initializers = {tensor.name: tensor for tensor in self._skeleton.graph.initializer}
        self._sparse = {tensor.values.name for tensor in self._skeleton.graph.sparse_initializer}
        self._inputs = {value.name: value for value in self._skeleton.graph.input}
        nodes = wrapped(self._skeleton.graph.node)
        if how.passing is None:
            held = {*ARRAY_TYPES, _NO_TENSOR}
            passing = {n for node in nodes for n in node.outputs if model.types.get(n, _NO_TENSOR) in held}
            how = replace(how, passing=passing)
        self.use(cut_stages(nodes, model.view.is_constant, self._outputs, operators, how))

    def use(self, stages: Sequence[Stage]) -> None:
        """Take other stages of the same nodes."""
        self.stages = list(stages)
        self.keys = [{node.key for node in stage.nodes} for stage in stages]
        reads = [{name for node in stage.nodes for name in reads_of(node.proto)} for stage in stages]
        self._later = [set(self._held).union(*reads[at + 1 :]) for at in range(len(reads))]

    def join(self) -> None:
        """Take one stage in place of all: a sequence or an optional passes a cut, which no session takes."""
        nodes = {node.key: node for stage in self.stages for node in stage.nodes}
        self.use([Stage(tuple(nodes.values()), self._outputs)])

    def behind(self, at: int, values: Mapping[str, Array], made: Mapping[str, Array]) -> Values:
        """What is read after a stage: what it made, and what passes it."""
        return {name: value for name, value in values.items() if name in self._later[at]} | dict(made)

    def through(
        self, at: int, session: Any, values: Iterable[Values], also: Sequence[str] = (), take: Take | None = None
    ) -> list[Values]:
        """Every sample through a stage, one after the other: what is read after it, in a file.

        Raises:
            QdqError: onnxruntime cannot run it.
        """
        gives = self.stages[at].gives
        wanted, feeds = list(dict.fromkeys((*gives, *also))), [one.name for one in session.get_inputs()]

        def step(number: int, value: Values) -> Values:
            made = run_session(session, wanted, {name: value[name] for name in feeds}, self.model.where)
            got = dict(zip(wanted, made, strict=True))
            if take is not None:
                take(number, got)
            for name in feeds:
                drop_pages(value[name])
            return self.behind(at, value, {name: got[name] for name in gives})

        return filed(step(number, value) for number, value in enumerate(values))

    def proto(
        self, nodes: Iterable[onnx.NodeProto], values: Sequence[Mapping[str, Array]], *, free: bool = False
    ) -> tuple[onnx.ModelProto, Values]:
        """A model of some nodes without outputs, and the arrays of its large initializers."""
        skeleton, graph = self._skeleton, onnx.GraphProto(name=self._skeleton.graph.name)
        graph.node.extend(nodes)
        lent: Values = {}
        made = {name for node in graph.node for name in node.output}
        for name in dict.fromkeys(name for node in graph.node for name in reads_of(node)):
            if name in self.initializers:
                graph.initializer.append(self.initializers[name])
                if name in self.weights:
                    lent[name] = self.weights[name]
            elif name not in made and name not in self._sparse:
                graph.input.append(self._inputs.get(name) or _value(name, [one[name] for one in values], free=free))
        graph.sparse_initializer.extend(skeleton.graph.sparse_initializer)
        proto = onnx.ModelProto(ir_version=skeleton.ir_version, opset_import=skeleton.opset_import, graph=graph)
        proto.functions.extend(skeleton.functions)
        return proto, lent


def all_tensors(values: Iterable[Mapping[str, Any]]) -> bool:
    """Whether nothing but arrays passes a cut."""
    return all(isinstance(value, np.ndarray) for one in values for value in one.values())


def filed(values: Iterable[Values]) -> list[Values]:
    """The arrays between two stages in a file, which goes with them; what is no array as it is.

    Of values that are made as they are taken, one sample's are in memory at a time, and none while the next is made:
    a run that begins with the same memory free as the one before it takes no more of it.
    """
    return list(map(partial(_moved, ArrayFile()), values))


def _moved(file: ArrayFile, values: Values) -> Values:
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return {**values, **dict(zip(arrays, file.add_all(list(arrays.values())), strict=True))}


def _value(name: str, values: list[Array], *, free: bool) -> onnx.ValueInfoProto:
    """An input of the type of some arrays, and of their shape where all have the same and no other may come."""
    shapes = {value.shape for value in values}
    shape = list(shapes.pop()) if len(shapes) == 1 and not free else None
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[0].dtype), shape)
