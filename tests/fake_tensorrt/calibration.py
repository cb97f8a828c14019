# SPDX-License-Identifier: Apache-2.0
"""One calibration of the stand-in's: the order of the calls is TensorRT's, the numbers are onnxruntime's and ours."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import array_of
from qdqtool.graph.view import GraphView
from qdqtool.match.shared_scales import take_shared_scales
from qdqtool.rulebook import load_rules
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.scales import Scale
from tests.fake_tensorrt.network import DataType, Network
from tests.fake_tensorrt.state import Callbacks, Fake

Array = npt.NDArray[Any]

ENTROPY_2, MINMAX = 2, 3  # CalibrationAlgoType
_ALGORITHMS = {
    0: "LegacyCalibration",
    1: "EntropyCalibration",
    ENTROPY_2: "EntropyCalibration2",
    MINMAX: "MinMaxCalibration",
}
_NUMPY = {
    DataType.FLOAT: np.float32,
    DataType.HALF: np.float32,  # TensorRT takes calibration data of it as float32
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.BOOL: np.bool_,
}


def calibrate(
    fake: Fake, calibrator: Callbacks, network: Network, shapes: Mapping[str, tuple[int, ...]], target: str
) -> None:
    """Algorithm, batch size, cache, batches until there are none, the new cache, and the cache again."""
    algorithm = calibrator.algorithm()
    calibrator.batch_size()
    held = calibrator.read_cache()
    header = fake.version.header(_ALGORITHMS[algorithm])
    if held and (fake.behavior.trusts_any_cache or held.startswith(header.encode())):
        return
    opened = network.opened
    assert opened is not None
    observer = _Observer(opened)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    while (pointers := calibrator.batch([one.name for one in inputs])) is not None:
        batch = {
            one.name: _read(pointer, shapes[one.name], np.dtype(_NUMPY[one.dtype]))
            for one, pointer in zip(inputs, pointers, strict=True)
        }
        fake.fed.append(batch)
        observer.add(batch)
    scales = observer.scales(algorithm)
    if fake.behavior.writes_cache:
        fake.written = _text(fake, fake.behavior.header or header, _tied(fake, opened, scales, target))
        calibrator.write_cache(fake.written)
        calibrator.read_cache()


class _Observer:
    """A model that shows every float32 tensor, and what of each is kept."""

    def __init__(self, opened: Model) -> None:
        whole = onnx.ModelProto()
        whole.CopyFrom(opened.proto)
        for tensor in whole.graph.initializer:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array_of(tensor, opened.folder), tensor.name))
        view = GraphView(opened.proto.graph, opened.folder)
        made = [name for node in whole.graph.node for name in node.output if name and not view.is_constant(name)]
        del whole.graph.output[:]
        whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
        runtime = load_onnxruntime()
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = runtime.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._made = [output.name for output in self._session.get_outputs() if output.type == "tensor(float)"]
        self._types = {value.name: value.type.tensor_type.elem_type for value in whole.graph.input}
        fed = [name for name in view.inputs if self._types[name] == onnx.TensorProto.FLOAT]
        self._seen = {name: (EntropyHistogram(), [np.float32(0)]) for name in [*fed, *self._made]}

    def add(self, batch: Mapping[str, Array]) -> None:
        """Run one batch."""
        feed = {
            name: array.astype(onnx.helper.tensor_dtype_to_np_dtype(self._types[name])) for name, array in batch.items()
        }
        found = {**feed, **dict(zip(self._made, self._session.run(self._made, feed), strict=True))}
        for name, (histogram, largest) in self._seen.items():
            histogram.add(found[name])
            largest[0] = max(largest[0], np.abs(found[name]).max(initial=np.float32(0)))

    def scales(self, algorithm: int) -> dict[str, np.float32]:
        """Scale by tensor; zero for one that is all zero, as TensorRT writes it."""
        chosen = {}
        for name, (histogram, largest) in self._seen.items():
            amax = largest[0] if algorithm == MINMAX else histogram.search()
            chosen[name] = np.float32(0) if amax is None else np.float32(amax / np.float32(127))
        return chosen


def _tied(fake: Fake, opened: Model, scales: dict[str, np.float32], target: str) -> dict[str, np.float32]:
    """The scales after the ties of our rules, which were read from TensorRT's caches."""
    view = GraphView(opened.proto.graph, opened.folder)
    known = {name: Scale.of(value) for name, value in scales.items() if value > 0}
    tied, _ = take_shared_scales(view, load_rules("dla" if target == "dla" else "gpu", fake.version), known)
    return {name: np.float32(tied[name].bits) if name in tied else value for name, value in scales.items()}


def _text(fake: Fake, header: str, scales: Mapping[str, np.float32]) -> bytes:
    lines = [f"{fake.behavior.rename(name)}: {int(value.view(np.uint32)):08x}\n" for name, value in scales.items()]
    return f"{header}\n{''.join(lines)}".encode()


def _read(pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A copy of what lies at an address of this process."""
    count = int(np.prod(shape, dtype=np.int64))
    block = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    copied: Array = np.frombuffer(bytes(block), dtype, count).reshape(shape).copy()
    return copied
