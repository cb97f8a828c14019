# SPDX-License-Identifier: Apache-2.0
"""Engine and execution context of the stand-in: onnxruntime computes what the network was parsed from."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

import numpy as np
import onnx

from qdqtool.runtime.executor import Executor
from tests.fake_tensorrt.network import _TYPES, DataType
from tests.fake_tensorrt.state import Fake

_NUMPY = {DataType.FLOAT: np.float32, DataType.INT64: np.int64, DataType.INT32: np.int32, DataType.UINT8: np.uint8}


class TensorIOMode(enum.Enum):
    """Whether a tensor goes in or comes out."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorFormat(enum.Enum):
    """How a tensor lies in memory."""

    LINEAR = 0
    CHW16 = 4
    HWC = 8


class IOutputAllocator:
    """trt.IOutputAllocator: where a context asks for memory of its outputs."""


class IExecutionContext:
    """IExecutionContext: addresses and shapes by tensor."""

    active_optimization_profile = 0

    def __init__(self, engine: ICudaEngine) -> None:
        self.engine = engine
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._allocators: dict[str, Any] = {}

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """The shape that was set, else the engine's."""
        return self._shapes.get(name, self.engine.get_tensor_shape(name))

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        """Set it, if the engine takes it."""
        wanted = self.engine.get_tensor_shape(name)
        fits = len(wanted) == len(shape) and all(w in (-1, s) for w, s in zip(wanted, shape, strict=True))
        if fits:
            self._shapes[name] = tuple(shape)
        return fits

    def get_tensor_address(self, name: str) -> int:
        """The address that was set."""
        return self._addresses.get(name, 0)

    def set_tensor_address(self, name: str, address: int) -> bool:
        """Set it."""
        self._addresses[name] = address
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        """Who gives memory for an output."""
        self._allocators[name] = allocator
        return True

    def execute_async_v3(self, stream: int) -> bool:
        """Read the inputs, compute, write the outputs."""
        feed = {name: self._read(name) for name in self.engine.inputs}
        for name, value in self.engine.compute(feed).items():
            allocator = self._allocators[name]
            address = allocator.reallocate_output_async(name, 0, value.nbytes, 256, stream)
            ctypes.memmove(address, np.ascontiguousarray(value).ctypes.data, value.nbytes)
            allocator.notify_shape(name, value.shape)
        return True

    def _read(self, name: str) -> Any:
        shape, kind = self.get_tensor_shape(name), np.dtype(_NUMPY[self.engine.get_tensor_dtype(name)])
        size = int(np.prod(shape)) * kind.itemsize
        return np.frombuffer(ctypes.string_at(self._addresses[name], size), kind).reshape(shape)


class ICudaEngine:
    """ICudaEngine of the network that was built last."""

    def __init__(self, fake: Fake) -> None:
        opened = fake.network.opened
        self._run = Executor(opened)
        self._values = {value.name: value for value in (*opened.proto.graph.input, *opened.proto.graph.output)}
        self.outputs = [value.name for value in opened.proto.graph.output]
        self.inputs = [fake.network.get_input(index).name for index in range(fake.network.num_inputs)]

    @property
    def num_io_tensors(self) -> int:
        """Inputs and outputs."""
        return len(self.inputs) + len(self.outputs)

    def get_tensor_name(self, index: int) -> str:
        """Inputs first."""
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        """Input or output."""
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Its shape, -1 where it is open."""
        dims = self._tensor(name).shape.dim
        return tuple(dim.dim_value if dim.dim_value > 0 else -1 for dim in dims)

    def get_tensor_dtype(self, name: str) -> DataType:
        """Its type."""
        return _TYPES[self._tensor(name).elem_type]

    def get_tensor_format(self, name: str, profile: int = 0) -> TensorFormat:
        """How it lies in memory."""
        return TensorFormat.LINEAR

    def is_shape_inference_io(self, name: str) -> bool:
        """Whether it lies in host memory."""
        return False

    def get_aliased_input_tensor(self, name: str) -> str | None:
        """No output shares memory with an input."""
        return None

    def create_execution_context(self) -> IExecutionContext:
        """A new one."""
        return IExecutionContext(self)

    def compute(self, feed: dict[str, Any]) -> dict[str, Any]:
        """What onnxruntime makes of a batch."""
        return self._run.run(feed)

    def _tensor(self, name: str) -> onnx.TypeProto.Tensor:
        return self._values[name].type.tensor_type
