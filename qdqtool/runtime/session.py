# SPDX-License-Identifier: Apache-2.0
"""Sessions of onnxruntime whose weights come from arrays: mapped where a file holds them.

`start_session` makes every session, `run_session` runs every batch: errors of onnxruntime become one line there.

onnxruntime copies the arrays that it is lent, and lays weights of products out anew (`array_file.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.model_file import whole
from qdqtool.graph.order import reads_of
from qdqtool.graph.tensors import array_of, bytes_needed, is_external
from qdqtool.runtime.array_file import FOLDER_ENTRY, ArrayFile, maps_files, place_of
from qdqtool.runtime.installed import one_line
from qdqtool.runtime.memory import large_pieces_mapped
from qdqtool.runtime.providers import CPU, open_session, with_settings
from qdqtool.runtime.shared_arena import ARENA

Array = npt.NDArray[Any]

# Shapes, axes and the like must be seen by shape inference, so they stay in the model.
_INLINE_BYTES = 1024
_LENT_KINDS = "biuf"
# Weights beyond this are not laid out anew by sessions that run few samples: that is a copy of them, and takes as long
# as it wins. Outputs differ in their last bits by it.
_LARGE_BYTES = 64 << 20
# What of ORT_ENABLE_BASIC merges operators. They change the last bits of a sum, which tips roundings to INT8, and only
# where the tensor between is not asked for: a figure would depend on what is observed beside it (0.03 dB measured).
MERGING = (
    "ConvAddFusion",
    "ConvBNFusion",
    "ConvMulFusion",
    "DivMulFusion",
    "FuseReluClip",
    "GemmSumFusion",
    "GemmTransposeFusion",
    "MatMul_BatchNormalization_Fusion",
    "Pad_Fusion",
)


def session_options(runtime: Any, level: str) -> Any:
    """Settings of every session: one thread, and Q/DQ computed as written, in float, never in integer kernels."""
    options = runtime.SessionOptions()
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.enable_mem_pattern = False
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what it would log comes as an exception, and is reported once
    return options


def start_session(
    runtime: Any,
    stripped: tuple[onnx.ModelProto, dict[str, Array], Iterable[str]],
    options: Any,
    providers: Sequence[str],
    where: object,
    disabled: Sequence[str] = (),
    *,
    few_runs: bool = False,
) -> Any:
    """A session that gives the named tensors.

    Raises:
        QdqError: onnxruntime refuses the model, or the provider does not start.
    """
    model, external_initializers, outputs = stripped
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    try:
        _give_weights(runtime, options, external_initializers)
        options.enable_cpu_mem_arena = options.enable_cpu_mem_arena and not few_runs  # which grows by doubling
        if not options.enable_cpu_mem_arena:
            ARENA.join(runtime, options, providers)
        large = sum(array.nbytes for array in external_initializers.values()) > _LARGE_BYTES
        if few_runs and large:
            options.add_session_config_entry("session.disable_prepacking", "1")
            disabled = (*disabled, "NchwcTransformer")
        options.use_deterministic_compute = providers[0] != CPU  # the same order of sums in each run
        with large_pieces_mapped() if large else nullcontext():
            return open_session(runtime, model.SerializeToString(), options, with_settings(providers), disabled)
    except QdqError:
        raise
    except Exception as error:  # onnxruntime's exceptions share no base class but this
        raise QdqError(where, f"onnxruntime refuses it ({one_line(error)})", "run onnx.checker on it") from error


def _give_weights(runtime: Any, options: Any, weights: Mapping[str, Array]) -> None:
    """Tell a session's options where the weights are: what no file holds is lent, and copied when it starts."""
    maps = maps_files(runtime)
    lent = {name: array for name, array in weights.items() if not maps or place_of(array) is None}
    if lent:
        values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in lent.values()]
        options.add_external_initializers(list(lent), values)
    if len(lent) < len(weights):
        options.add_session_config_entry(*FOLDER_ENTRY)


def run_session(
    session: Any,
    outputs: Sequence[str],
    feed: Mapping[str, Array],
    where: object,
    todo: str = "check the data's shapes",
    held: Mapping[str, Any] | None = None,
) -> list[Any]:
    """The named outputs of a session for one batch: arrays; those of `held` are written to the OrtValues given there.

    Raises:
        QdqError: onnxruntime cannot run it (shapes that do not go together, memory).
    """
    try:
        if not held:
            return list(session.run(list(outputs), dict(feed)))
        binding, given = session.io_binding(), {name: np.asarray(array, order="C") for name, array in feed.items()}
        for name, array in given.items():
            binding.bind_cpu_input(name, array)
        wanted = list(dict.fromkeys(outputs))
        for name in wanted:
            if name in held:
                binding.bind_ortvalue_output(name, held[name])
            else:
                binding.bind_output(name)
        session.run_with_iobinding(binding)
        found = dict(zip(wanted, binding.get_outputs(), strict=True))
        return [held[name] if name in held else np.array(found[name].numpy()) for name in outputs]
    except Exception as error:  # onnxruntime's exceptions share no base class but this
        raise QdqError(where, f"onnxruntime cannot run it ({one_line(error)})", todo) from error


def copy_without(proto: onnx.ModelProto, weights: Mapping[str, Array]) -> onnx.ModelProto:
    """A copy of a model in which these initializers have no bytes: type, shape, and where their arrays lie."""
    copy = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    copy.graph.name = proto.graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(copy.graph, field).extend(getattr(proto.graph, field))
    tensors = proto.graph.initializer
    copy.graph.initializer.extend(
        stand_in(tensor.name, tensor.data_type, tensor.dims, weights[tensor.name])
        if tensor.name in weights
        else whole(tensor)
        for tensor in tensors
    )
    return copy


def strip_weights(
    model: Model,
    nodes: Iterable[onnx.NodeProto],
    lent: Mapping[str, Array] | None = None,
    file: ArrayFile | None = None,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model without outputs and without its weights' bytes, and those weights as arrays (mapped if external)."""
    proto = model.proto
    stripped = onnx.ModelProto(
        ir_version=max(4, proto.ir_version), opset_import=proto.opset_import, functions=proto.functions
    )
    if not stripped.opset_import:
        stripped.opset_import.add(version=1)  # what IR versions 1 and 2 mean by none
    stripped.graph.name = model.graph.name or "graph"
    stripped.graph.node.extend(nodes)
    _free_names(stripped.graph)
    fed = frozenset(model.view.inputs)
    stripped.graph.input.extend(value for value in model.graph.input if value.name in fed)
    pooled = {name for node in stripped.graph.node if node.op_type.endswith("PoolGrad") for name in node.output}
    known = (value for value in model.graph.value_info if value.name in pooled)
    stripped.graph.value_info.extend(known)  # else it crashes
    stripped.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    external_initializers: dict[str, Array] = {}
    read = {name for node in stripped.graph.node for name in reads_of(node)}
    for tensor in model.graph.initializer:
        if tensor.name not in read:
            continue  # onnxruntime drops it first, and then misses what it should replace with the external one
        if lent is not None and tensor.name in lent:
            external_initializers[tensor.name] = lent[tensor.name]
            stripped.graph.initializer.append(stand_in(tensor.name, tensor.data_type, tensor.dims, lent[tensor.name]))
            continue
        if bytes_needed(tensor) > _INLINE_BYTES or is_external(tensor):
            array = array_of(tensor, model.folder)
            if array.dtype.kind in _LENT_KINDS and array.nbytes > _INLINE_BYTES:
                external_initializers[tensor.name] = array = array if file is None else file.add(array)
                stripped.graph.initializer.append(stand_in(tensor.name, tensor.data_type, tensor.dims, array))
                continue
            tensor = onnx.numpy_helper.from_array(array, tensor.name)
        stripped.graph.initializer.append(tensor)
    _inline_attributes(stripped.graph, model.folder)
    return stripped, external_initializers


def _free_names(graph: onnx.GraphProto) -> None:
    """Take the name from nodes whose name another has: onnxruntime refuses what ONNX allows."""
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            node.ClearField("name")
        seen.add(node.name)


def stand_in(name: str, data_type: int, dims: Iterable[int], array: Array | None = None) -> onnx.TensorProto:
    """A tensor whose bytes come from an array, and from the file that holds it; without one, from a lent array."""
    tensor = onnx.TensorProto(name=name, data_type=data_type, dims=dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    place = None if array is None else place_of(array)
    if array is None or place is None:
        tensor.external_data.add(key="location", value="lent by qdqtool")
        return tensor
    for key, value in (("location", place.location), ("offset", place.offset), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


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
