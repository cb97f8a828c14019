# SPDX-License-Identifier: Apache-2.0
"""A model as onnxruntime runs it to show its activations: one session, weights lent and not copied, nothing on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.calibration.backends.runnable import runnable_part
from qdqtool.calibration.backends.runtime import load_onnxruntime, one_line, provider_names
from qdqtool.errors import QdqError
from qdqtool.graph.tensors import array_of, bytes_needed, is_external
from qdqtool.graph.view import QUANTIZE, GraphView

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

# Shapes, axes and the like must be seen by shape inference, so they stay in the model; weights are lent to the session.
_INLINE_BYTES = 1024
_LENT_KINDS = "biuf"


class OrtActivations:
    """Runs batches and gives the float32 tensors of the main graph.

    Initialisers, Constant nodes and what only moves or casts them are no activations; tensors inside bodies of control
    flow and local functions are not observed. One thread, so that results do not depend on the machine; initialisers
    listed as inputs are constants here, so that they fold (facts/performance.md 0 and 3).

    Attributes:
        names: what `run` gives, in graph order: inputs, then nodes as the file has them.
        behind: tensor -> operator that onnxruntime lacks, for those that cannot be computed because of it.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        folder: Path | None,
        wanted: Iterable[str] | None = None,
        provider: str = "cpu",
        where: object = "model",
    ) -> None:
        """Make the session.

        Args:
            proto: the model, external data not loaded; it is not changed.
            folder: where its external data lie.
            wanted: tensors to observe; None for every float32 one.
            provider: cpu, cuda or tensorrt.
            where: what messages call the model.

        Raises:
            QdqError: onnxruntime refuses the model; a weighted operator lies behind one that it lacks; a wanted tensor
                is not in the graph; nothing is left to observe.
            MissingPackageError: no onnxruntime, several, or one without the provider.
        """
        self._where = where
        self._runtime = load_onnxruntime()
        self._providers = provider_names(self._runtime, provider)
        view = GraphView(proto.graph, folder)
        functions = frozenset((function.domain, function.name) for function in proto.functions)
        part = runnable_part(view, functions, self._runtime)
        self.behind = part.behind
        made = [name for node in part.nodes for name in node.outputs if name and not view.is_constant(name)]
        asked = _asked(view, made, wanted)
        self._fed = [name for name in _float_inputs(proto.graph, view) if wanted is None or name in asked]
        self._skeleton = _skeleton(proto, [node.proto for node in part.nodes], view, folder)
        self._outputs = [name for name in made if name in asked]
        self._session = self._start() if self._outputs else None
        self.names = (*self._fed, *self._outputs)
        if not self.names:
            raise QdqError(self._where, "has no float32 activation that can be observed", "is it a float32 model?")

    def run(self, batch: Mapping[str, Array]) -> Iterable[tuple[str, Float32]]:
        """The observed tensors of one batch.

        Args:
            batch: every input's array.

        Raises:
            QdqError: onnxruntime cannot run it (shapes that do not go together, memory).
        """
        outputs: Sequence[Float32] = []
        if self._session is not None:
            try:
                outputs = self._session.run(self._outputs, dict(batch))
            except Exception as error:  # onnxruntime's exceptions share no base class but this
                reason = f"onnxruntime cannot run it ({one_line(error)})"
                raise QdqError(self._where, reason, "check the data's shapes") from error
        yield from ((name, batch[name]) for name in self._fed)
        yield from zip(self._outputs, outputs, strict=True)

    def _start(self) -> Any:
        """A session whose outputs are the wanted tensors; a second one without those that prove not to be float32."""
        session = self._session_with(self._outputs)
        kinds = {output.name: output.type for output in session.get_outputs()}
        floats = [name for name in self._outputs if kinds[name] == "tensor(float)"]
        if len(floats) != len(self._outputs):
            self._outputs = floats
            session = self._session_with(floats) if floats else None
        return session

    def _session_with(self, outputs: Iterable[str]) -> Any:
        model, lent = self._skeleton
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        try:
            options = self._options(any(node.op_type == QUANTIZE for node in model.graph.node))
            if lent:
                values = [self._runtime.OrtValue.ortvalue_from_numpy(array) for array in lent.values()]
                options.add_external_initializers(list(lent), values)
            session = self._runtime.InferenceSession(model.SerializeToString(), options, providers=self._providers)
        except Exception as error:  # onnxruntime's exceptions share no base class but this
            raise QdqError(
                self._where, f"onnxruntime refuses it ({one_line(error)})", "run onnx.checker on it"
            ) from error
        if self._providers[0] not in session.get_providers():
            raise QdqError("--provider", f"{self._providers[0]} does not start on this machine", "use --provider cpu")
        return session

    def _options(self, quantized: bool) -> Any:
        """Session settings; Q/DQ is computed as written, in float, never fused into integer kernels."""
        options, levels = self._runtime.SessionOptions(), self._runtime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_BASIC if quantized else levels.ORT_ENABLE_ALL
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.enable_mem_pattern = False
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what it would log comes as an exception, and is told once
        return options


def _asked(view: GraphView, made: Sequence[str], wanted: Iterable[str] | None) -> frozenset[str]:
    if wanted is None:
        return frozenset((*view.inputs, *made))
    names = list(wanted)
    every = {*view.inputs, *view.producer, *view.initializers}
    for name in names:
        if name not in every:
            raise QdqError(name, "is no tensor of the model's main graph", "name one that is")
    return frozenset(names)


def _float_inputs(graph: onnx.GraphProto, view: GraphView) -> list[str]:
    fed = frozenset(view.inputs)
    kind = onnx.TensorProto.FLOAT
    return [value.name for value in graph.input if value.name in fed and value.type.tensor_type.elem_type == kind]


def _skeleton(
    proto: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], view: GraphView, folder: Path | None
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model without outputs and without its weights' bytes, and those weights as arrays (mapped if external)."""
    model = onnx.ModelProto(
        ir_version=max(4, proto.ir_version), opset_import=proto.opset_import, functions=proto.functions
    )
    if not model.opset_import:
        model.opset_import.add(version=1)  # what IR versions 1 and 2 mean by none
    model.graph.name = proto.graph.name or "graph"
    model.graph.node.extend(nodes)
    _free_names(model.graph)
    fed = frozenset(view.inputs)
    model.graph.input.extend(value for value in proto.graph.input if value.name in fed)
    model.graph.sparse_initializer.extend(proto.graph.sparse_initializer)
    lent: dict[str, Array] = {}
    for tensor in proto.graph.initializer:
        if bytes_needed(tensor) > _INLINE_BYTES or is_external(tensor):
            array = array_of(tensor, folder)
            if array.dtype.kind in _LENT_KINDS and array.nbytes > _INLINE_BYTES:
                lent[tensor.name] = array
                model.graph.initializer.append(_stand_in(tensor))
                continue
            tensor = onnx.numpy_helper.from_array(array, tensor.name)
        model.graph.initializer.append(tensor)
    _inline_attributes(model.graph, folder)
    return model, lent


def _free_names(graph: onnx.GraphProto) -> None:
    """Take the name from nodes whose name another has: onnxruntime refuses what ONNX allows."""
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            node.ClearField("name")
        seen.add(node.name)


def _stand_in(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """A tensor of the same name, type and shape whose bytes come from elsewhere."""
    stand_in = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    stand_in.data_location = onnx.TensorProto.EXTERNAL
    stand_in.external_data.add(key="location", value="lent by qdqtool")
    return stand_in


def _inline_attributes(graph: onnx.GraphProto, folder: Path | None) -> None:
    """Bring external tensors of Constant nodes and of bodies in: a session made from bytes finds no files."""
    stack = [graph]
    while stack:
        one = stack.pop()
        if one is not graph:
            for tensor in filter(is_external, one.initializer):
                tensor.CopyFrom(onnx.numpy_helper.from_array(array_of(tensor, folder), tensor.name))
        for node in one.node:
            for attribute in node.attribute:
                if attribute.HasField("t") and is_external(attribute.t):
                    attribute.t.CopyFrom(onnx.numpy_helper.from_array(array_of(attribute.t, folder), attribute.t.name))
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)
