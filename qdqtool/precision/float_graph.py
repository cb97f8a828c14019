# SPDX-License-Identifier: Apache-2.0
"""The operators whose type is open, the tensors between them, and the casts that any choice of types needs.

Q/DQ pairs, inputs, outputs and what bodies of control flow read are FP32 whatever is chosen. Nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from qdqtool.graph.shapes import Shape, shapes_of
from qdqtool.graph.types import known_types
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.sizes import gives_sizes


@dataclass(frozen=True)
class FloatTensor:
    """A float32 activation.

    Attributes:
        name: under which it is read.
        maker: key of the node that makes it; None for what is FP32 in any case, or half with `half_io`.
        readers: keys of the nodes that read it, each once, in file order.
        fixed: whether something that is FP32 in any case reads it: a QuantizeLinear, an output, a body.
        elements: how many values it has; 0 where that is not known.
        open_ends: whether it is an input or an output of the graph, which `half_io` turns.
        half_maker: whether a maker of None makes half: an input with `half_io`.
    """

    name: str
    maker: str | None
    readers: tuple[str, ...]
    fixed: bool
    elements: int
    half_maker: bool = False


@dataclass(frozen=True)
class FloatGraph:
    """The part of a model that has a choice of type.

    Attributes:
        view: the main graph.
        types: element types of tensors, as far as inference knows them.
        shapes: shapes of tensors, likewise.
        nodes: key -> node, for every operator that reads or makes a float32 activation, in file order.
        tensors: the activations.
        opset: of the default domain.
    """

    view: GraphView
    types: Mapping[str, int]
    shapes: Mapping[str, Shape]
    nodes: Mapping[str, Node]
    tensors: tuple[FloatTensor, ...]
    opset: int

    def floats(self, node: Node) -> list[str]:
        """The float32 activations that a node reads and makes, each once; of bodies: what the node itself reads."""
        names = [name for name in (*node.inputs, *node.outputs) if name and not self.view.is_constant(name)]
        return [name for name in dict.fromkeys(names) if self.types.get(name) == TensorProto.FLOAT]

    def casts(self, float32: Collection[str]) -> int:
        """How many Casts a choice needs: one per tensor and direction, shared by all readers."""
        return sum(up + down for up, down in (casts_of(tensor, float32) for tensor in self.tensors))


def casts_of(tensor: FloatTensor, float32: Collection[str]) -> tuple[bool, bool]:
    """Whether a tensor needs a Cast to FP32, and one to half, where these nodes are in FP32."""
    made = not tensor.half_maker if tensor.maker is None else tensor.maker in float32
    wide = tensor.fixed or any(key in float32 for key in tensor.readers)
    narrow = any(key not in float32 for key in tensor.readers)
    return not made and wide, made and narrow


def float_graph(
    model: onnx.ModelProto,
    view: GraphView,
    input_shapes: Mapping[str, tuple[int, ...]],
    *,
    half_io: bool = False,
) -> FloatGraph:
    """Look at a model whose float tensors are FP32.

    Args:
        model: plain or with Q/DQ; not changed.
        view: its main graph.
        input_shapes: of a run, for free axes; {} where there was none.
        half_io: whether inputs and outputs are half, too.
    """
    types = known_types(model, in_order=True)
    shapes = shapes_of(_with_shapes(view, input_shapes) if input_shapes else view)
    nodes = {
        node.key: node
        for node in view.nodes
        if node.key and not gives_sizes(node) and not _is_folded(view, node) and _has_floats(view, types, node)
    }
    tensors = _tensors(view, types, shapes, nodes, half_io=half_io)
    opset = next((int(one.version) for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)
    return FloatGraph(view, types, shapes, nodes, tensors, opset)


def _is_folded(view: GraphView, node: Node) -> bool:
    """Whether a node makes constants, which are stored in the types in which they are read."""
    return all(view.is_constant(name) for name in node.outputs if name)


def _has_floats(view: GraphView, types: Mapping[str, int], node: Node) -> bool:
    names = (name for name in (*node.inputs, *node.outputs) if name and not view.is_constant(name))
    return any(types.get(name, TensorProto.FLOAT) == TensorProto.FLOAT for name in names)


def _tensors(
    view: GraphView,
    types: Mapping[str, int],
    shapes: Mapping[str, Shape],
    nodes: Mapping[str, Node],
    *,
    half_io: bool,
) -> tuple[FloatTensor, ...]:
    readers: dict[str, dict[str, None]] = {}
    fixed = set(view.captured)
    for node in view.every:
        for name in node.inputs:
            if node.key in nodes:
                readers.setdefault(name, {})[node.key] = None
            elif not gives_sizes(node):
                fixed.add(name)
    outputs = set(view.outputs)
    if not half_io:
        fixed |= outputs
    found = []
    for name in dict.fromkeys((*view.inputs, *(name for node in view.every for name in node.outputs))):
        if types.get(name) != TensorProto.FLOAT or view.is_constant(name):
            continue
        producer = view.producers.get(name)
        maker = producer.key if producer is not None and producer.key in nodes else None
        shape = shapes.get(name)
        elements = 0 if shape is None else math.prod(size or 1 for size in shape)
        half = half_io and producer is None
        found.append(FloatTensor(name, maker, tuple(readers.get(name, ())), name in fixed, elements, half))
    return tuple(found)


def _with_shapes(view: GraphView, shapes: Mapping[str, tuple[int, ...]]) -> GraphView:
    """The graph with the shapes of its inputs as a run has them, and without those that the file declares elsewhere."""
    graph = onnx.GraphProto()
    graph.CopyFrom(view.graph)
    for value in graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    return GraphView(graph, view.folder)
