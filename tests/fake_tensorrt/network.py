# SPDX-License-Identifier: Apache-2.0
"""Networks and the ONNX parser of the stand-in: which tensors go in, which layers are Q/DQ. Nothing is optimized."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.graph.types import float_tensors
from qdqtool.trtversion import TrtVersion

_INT64_FROM = 10


class DataType(enum.Enum):
    """Types of tensors, by the names of the bindings."""

    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    INT64 = 8


class LayerType(enum.Enum):
    """Those kinds of layers that anyone asks the stand-in for; all others pass for IDENTITY."""

    CONVOLUTION = 0
    ACTIVATION = 2
    POOLING = 3
    SHAPE = 21
    IDENTITY = 26
    QUANTIZE = 38
    DEQUANTIZE = 39


_LAYERS = {
    "Conv": LayerType.CONVOLUTION,
    "Relu": LayerType.ACTIVATION,
    "MaxPool": LayerType.POOLING,
    "AveragePool": LayerType.POOLING,
    "Shape": LayerType.SHAPE,
    "QuantizeLinear": LayerType.QUANTIZE,
    "DequantizeLinear": LayerType.DEQUANTIZE,
}
_TYPES: dict[int, DataType] = {
    onnx.TensorProto.FLOAT: DataType.FLOAT,
    onnx.TensorProto.FLOAT16: DataType.HALF,
    onnx.TensorProto.INT8: DataType.INT8,
    onnx.TensorProto.INT32: DataType.INT32,
    onnx.TensorProto.INT64: DataType.INT64,
    onnx.TensorProto.BOOL: DataType.BOOL,
    onnx.TensorProto.UINT8: DataType.UINT8,
}


@dataclass(frozen=True)
class Tensor:
    """ITensor: an input of a network; an open dimension is -1."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    is_shape_tensor: bool = False


@dataclass
class Layer:
    """ILayer.

    Attributes:
        name: that of its node.
        type: its kind.
        outputs: what it makes.
        output_types: place of an output -> the type that it was given.
    """

    name: str
    type: LayerType
    outputs: tuple[Tensor, ...] = ()
    output_types: dict[int, DataType] = field(default_factory=dict)
    _precision: DataType | None = None

    @property
    def precision_is_set(self) -> bool:
        """Whether it was given a precision."""
        return self._precision is not None

    @property
    def precision(self) -> DataType:
        """What it computes in."""
        return self._precision or DataType.FLOAT

    @precision.setter
    def precision(self, wanted: DataType) -> None:
        self._precision = wanted

    @property
    def num_outputs(self) -> int:
        """How many outputs it has."""
        return len(self.outputs)

    def get_output(self, index: int) -> Tensor:
        """One of them."""
        return self.outputs[index]

    def set_output_type(self, index: int, wanted: DataType) -> None:
        """The type of an output."""
        self.output_types[index] = wanted


class Network:
    """INetworkDefinition, filled by a parser.

    Attributes:
        opened: the model it was parsed from, None before.
        strongly_typed: whether it was made so.
    """

    def __init__(self, version: TrtVersion) -> None:
        self.opened: Model | None = None
        self._version = version
        self.strongly_typed = False
        self._floats: frozenset[str] = frozenset()
        self._inputs: list[Tensor] = []
        self._layers: list[Layer] = []

    @property
    def num_inputs(self) -> int:
        """How many inputs must be fed."""
        return len(self._inputs)

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self._layers)

    def get_input(self, index: int) -> Tensor:
        """One input."""
        return self._inputs[index]

    def get_layer(self, index: int) -> Layer:
        """One layer."""
        return self._layers[index]

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers)

    def fill(self, opened: Model) -> None:
        """Take over a model."""
        self.opened = opened
        self._floats = frozenset(float_tensors(opened))
        stored = {tensor.name for tensor in opened.proto.graph.initializer}
        self._inputs = [self._input(value) for value in opened.proto.graph.input if value.name not in stored]
        bodies = [opened.proto.graph, *opened.proto.functions]
        self._layers = [
            Layer(
                node.name or f"node_of_{node.output[0]}",
                _LAYERS.get(node.op_type, LayerType.IDENTITY),
                tuple(Tensor(name, self._made(name), ()) for name in node.output),
            )
            for body in bodies
            for node in _nodes(body)
        ]

    def _made(self, name: str) -> DataType:
        """What a node makes: float32 or integers, which is all that anybody asks."""
        return DataType.FLOAT if name in self._floats else DataType.INT32

    def _input(self, value: onnx.ValueInfoProto) -> Tensor:
        tensor = value.type.tensor_type
        kind = _TYPES[tensor.elem_type]
        if kind is DataType.INT64 and self._version.major < _INT64_FROM:
            kind = DataType.INT32
        return Tensor(value.name, kind, tuple(d.dim_value if d.dim_value > 0 else -1 for d in tensor.shape.dim))


def _nodes(body: Any) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph or function, those of its bodies after them."""
    for node in body.node:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph)


class OnnxParser:
    """trt.OnnxParser."""

    def __init__(self, network: Network, logger: Any) -> None:
        self.flags = 0
        self._network, self._errors = network, list[str]()

    @property
    def num_errors(self) -> int:
        """How many errors there were."""
        return len(self._errors)

    def get_error(self, index: int) -> str:
        """One of them."""
        return self._errors[index]

    def get_flag(self, flag: Any) -> bool:
        """Whether a flag is set."""
        return bool(self.flags & 1 << int(flag))

    def parse(self, model: bytes) -> bool:
        """Read a model from bytes."""
        return self._take(lambda: open_model(onnx.ModelProto.FromString(bytes(model))))

    def parse_from_file(self, path: str) -> bool:
        """Read a model from a file."""
        return self._take(lambda: open_model(Path(path)))

    def _take(self, read: Any) -> bool:
        try:
            self._network.fill(read())
        except (QdqError, KeyError) as error:
            self._errors.append(f"In node -1: {error}")
        return not self._errors
