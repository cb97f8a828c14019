# SPDX-License-Identifier: Apache-2.0
"""The operators whose type is open, the tensors between them, and the casts that any choice of types needs.

Q/DQ pairs, inputs, outputs and what bodies of control flow read are FP32 whatever is chosen. Nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node
from qdqtool.precision.fixed_types import float_types
from qdqtool.precision.half_places import half_places, reads_any_type


@dataclass(frozen=True)
class FloatTensor:
    """A float32 tensor that is fed or made by a node.

    Attributes:
        name: under which it is read.
        maker: key of the node that makes it; None for what is FP32 in any case: an input, behind a DequantizeLinear.
        readers: keys of the nodes that read it, each once, in file order.
        fixed: whether something that is FP32 in any case reads it: a QuantizeLinear, an output, a body.
        elements: how many values it has; 0 where that is not known.
        half_maker: whether it is made half in any case: an input with `half_io`.
        half_reader: whether it is read in half in any case: an output with `half_io`.
        paired: whether its Casts stand at pairs: a DequantizeLinear makes it, or nothing but QuantizeLinears is FP32 in
            any case behind it. A converter that is there anyway does what they do. Or in a layer (`with_layers`).
    """

    name: str
    maker: str | None
    readers: tuple[str, ...]
    fixed: bool
    elements: int
    half_maker: bool = False
    half_reader: bool = False
    paired: bool = False


@dataclass(frozen=True)
class FloatGraph:
    """The part of a model that has a choice of type.

    Attributes:
        view: the main graph.
        types: element types of tensors, as far as inference knows them.
        shapes: shapes of tensors, likewise.
        nodes: key -> node, for every operator that reads or makes a float32 activation, in file order.
        tensors: what is fed and what nodes make.
        opset: of the default domain.
    """

    view: GraphView
    types: Mapping[str, int]
    shapes: Mapping[str, Shape]
    nodes: Mapping[str, Node]
    tensors: tuple[FloatTensor, ...]
    opset: int

    def floats(self, node: Node) -> list[str]:
        """The float32 tensors that a node reads and makes, each once; constants that it reads are not among them."""
        read = [name for place, name in enumerate(node.inputs) if name and not reads_any_type(node, place)]
        names = dict.fromkeys(
            (*(name for name in read if not self.view.is_constant(name)), *filter(None, node.outputs))
        )
        return [name for name in names if self.types.get(name) == TensorProto.FLOAT]

    def casts(self, float32: Collection[str]) -> int:
        """How many Casts a choice needs: one per tensor and direction, shared by all readers."""
        return sum(up + down for up, down in (casts_of(tensor, float32) for tensor in self.tensors))

    def with_layers(self, keys: Collection[str]) -> FloatGraph:
        """The same where a Cast behind these operators is a part of their layer."""
        tensors = (replace(one, paired=True) if one.maker in keys else one for one in self.tensors)
        return replace(self, tensors=tuple(tensors))


def casts_of(tensor: FloatTensor, float32: Collection[str]) -> tuple[bool, bool]:
    """Whether a tensor needs a Cast to FP32, and one to half, where these nodes are in FP32."""
    made = not tensor.half_maker if tensor.maker is None else tensor.maker in float32
    wide = tensor.fixed or any(key in float32 for key in tensor.readers)
    narrow = tensor.half_reader or any(key not in float32 for key in tensor.readers)
    return not made and wide, made and narrow


def float_graph(
    model: Model, rest: int, input_shapes: Mapping[str, tuple[int, ...]], *, half_io: bool = False
) -> FloatGraph:
    """Look at a model whose float tensors are FP32."""
    view, types = model.view, float_types(model)
    shapes = shapes_of(view, input_shapes, declared=not input_shapes)  # of a run, which what is declared may not be
    nodes = {node.key: node for node in view.every if _has_choice(types, node)}
    graph = FloatGraph(view, types, shapes, nodes, (), opset_of(model.proto) or 1)
    return replace(graph, tensors=_tensors(graph, rest, half_io=half_io))


def _has_choice(types: Mapping[str, int], node: Node) -> bool:
    """Whether a node reads or makes float32, and is neither a constant nor a Q or DQ, whose types are fixed."""
    if not node.key or node.op in (QUANTIZE, DEQUANTIZE, "Constant"):
        return False
    read = [name for place, name in enumerate(node.inputs) if name and not reads_any_type(node, place)]
    return any(types.get(name, TensorProto.FLOAT) == TensorProto.FLOAT for name in (*read, *filter(None, node.outputs)))


def _tensors(graph: FloatGraph, rest: int, *, half_io: bool) -> tuple[FloatTensor, ...]:
    view, types = graph.view, graph.types
    readers: dict[str, dict[str, None]] = {}
    fixed = set(view.captured if half_io else {*view.captured, *view.outputs})
    unpaired = set(fixed)
    half_made, half_read = (set(view.inputs), set(view.outputs)) if half_io else (set[str](), set[str]())
    for node in view.every:
        places = half_places(node, graph.opset, rest)
        for place, name in enumerate(node.inputs):
            if reads_any_type(node, place):
                continue
            if node.key in graph.nodes and places is not None and places.reads(place):
                readers.setdefault(name, {})[node.key] = None
            else:
                fixed.add(name)
                unpaired.update([name] if node.op != QUANTIZE else ())
    found = []
    for name, producer, place in _made(view):
        if types.get(name) != TensorProto.FLOAT:
            continue
        maker = None
        if producer is not None and producer.key in graph.nodes:
            places = half_places(producer, graph.opset, rest)
            maker = producer.key if places is not None and places.gives(place) else None
        size = graph.shapes.get(name)
        elements = 0 if size is None else math.prod(length or 1 for length in size)
        ends = name in half_made, name in half_read
        paired = (producer is not None and producer.op == DEQUANTIZE) or (name in fixed and name not in unpaired)
        found.append(FloatTensor(name, maker, tuple(readers.get(name, ())), name in fixed, elements, *ends, paired))
    return tuple(found)


def _made(view: GraphView) -> Iterator[tuple[str, Node | None, int]]:
    """Every tensor that is fed or made, with the node and the number of the output; no stored constants."""
    yield from ((name, None, 0) for name in view.inputs)
    for node in view.every:
        if node.op != "Constant":
            yield from ((name, node, place) for place, name in enumerate(node.outputs) if name)
