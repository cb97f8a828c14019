# SPDX-License-Identifier: Apache-2.0
"""A config.pbtxt for Triton: onnxruntime with the TensorRT accelerator reading TensorRT's own calibration cache.

Fields: triton-inference-server/common protobuf/model_config.proto; parameters: onnxruntime_backend README.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import onnx

from qdqtool.display import counted
from qdqtool.emit.job import EmitJob, Emitted, Tensor, comments
from qdqtool.errors import QdqError
from qdqtool.trtversion import require_caches

_ENGINES = "/var/cache/trt_engines"  # on the machine of Triton
_TYPES: dict[int, str] = {
    onnx.TensorProto.BOOL: "TYPE_BOOL",
    onnx.TensorProto.UINT8: "TYPE_UINT8",
    onnx.TensorProto.UINT16: "TYPE_UINT16",
    onnx.TensorProto.UINT32: "TYPE_UINT32",
    onnx.TensorProto.UINT64: "TYPE_UINT64",
    onnx.TensorProto.INT8: "TYPE_INT8",
    onnx.TensorProto.INT16: "TYPE_INT16",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.FLOAT16: "TYPE_FP16",
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.DOUBLE: "TYPE_FP64",
    onnx.TensorProto.STRING: "TYPE_STRING",
    onnx.TensorProto.BFLOAT16: "TYPE_BF16",
}


def write_triton(job: EmitJob) -> Emitted:
    """The configuration as text format of ModelConfig.

    A model whose inputs and outputs all leave the first axis free gets `max_batch_size`; any other keeps its sizes as
    they are, under `max_batch_size: 0`.

    Raises:
        QdqError: TensorRT 11 or later; an input or output of a type or rank that Triton cannot express.
    """
    if job.cache:
        require_caches(job.version)
    tensors = (*job.inputs, *job.outputs)
    batched = bool(tensors) and all(t.shape is not None and len(t.shape) > 1 and t.shape[0] is None for t in tensors)
    warnings = tuple(_warnings(job))
    lines = [*_head(job), *warnings]
    platform, served = ("onnxruntime_onnx", job.model) if job.cache else ("tensorrt_plan", f"{job.stem}.engine")
    body = [
        f"name: {_text(job.stem)}",
        f"platform: {_text(platform)}",
        f"default_model_filename: {_text(PurePath(served).name)}",
        f"max_batch_size: {job.batch if batched else 0}",
        *(_tensor("input", tensor, job, batched=batched) for tensor in job.inputs),
        *(_tensor("output", tensor, job, batched=batched) for tensor in job.outputs),
        "instance_group { kind: KIND_GPU count: 1 }",
        *([_accelerator(job)] if job.cache else []),
    ]
    return Emitted(comments(lines) + "".join(f"{entry}\n" for entry in body), warnings)


def _head(job: EmitJob) -> list[str]:
    """What must be known of the file, a sentence each."""
    if not job.cache:
        place = f"Copy it as config.pbtxt beside the folder 1, and {job.stem}.engine into that folder."
        return [f"Triton's TensorRT backend: {job.made_for}. {place}"]
    return [
        f"Triton's ONNX Runtime backend: {job.made_for}. Copy it as config.pbtxt beside the folder 1.",
        "The calibration cache must lie in trt_engine_cache_path: set that, and copy the cache there.",
    ]


def _tensor(kind: str, tensor: Tensor, job: EmitJob, *, batched: bool) -> str:
    if tensor.elem_type not in _TYPES or tensor.shape is None:
        what = "number of dimensions" if tensor.shape is None else "type"
        raise QdqError(tensor.name, f"{job.model} does not say its {what}", "leave triton out of --emit")
    shape = tensor.shape[1:] if batched else tensor.shape
    dims = ", ".join(str(-1 if size is None else size) for size in shape)
    return f"{kind} {{ name: {_text(tensor.name)} data_type: {_TYPES[tensor.elem_type]} dims: [ {dims} ] }}"


def _accelerator(job: EmitJob) -> str:
    parameters = {
        "precision_mode": "INT8",
        "int8_calibration_table_name": PurePath(job.cache).name,
        "int8_use_native_calibration_table": "1",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": _ENGINES,
    }
    if job.target == "dla":
        parameters |= {"trt_dla_enable": "1", "trt_dla_core": "0"}
    entries = "".join(f"    parameters {{ key: {_text(k)} value: {_text(v)} }}\n" for k, v in parameters.items())
    accelerator = f'  gpu_execution_accelerator {{\n    name: "tensorrt"\n{entries}  }}\n'
    return f"optimization {{ execution_accelerators {{\n{accelerator}}} }}"


def _warnings(job: EmitJob) -> Iterator[str]:
    if job.layers and job.target == "dla":
        yield (
            f"neither Triton nor onnxruntime can keep {counted(len(job.layers), 'layer')} out of INT8 that should "
            "stay in FP16; where every tensor has a scale, they may run in INT8"
        )
    cut = [name for name in job.scales if ":" in name]
    if cut:
        yield f"onnxruntime cuts names at ':', so it misses {len(cut)} scales, such as that of {cut[0]}"


def _text(value: str) -> str:
    """A string of protobuf's text format."""
    escaped = (f"\\{ord(c):03o}" if c < " " or c == "\x7f" else f"\\{c}" if c in '"\\' else c for c in value)
    return f'"{"".join(escaped)}"'
