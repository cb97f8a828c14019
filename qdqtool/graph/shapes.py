# SPDX-License-Identifier: Apache-2.0
"""The shapes of a graph's tensors, as far as shape inference finds them, without its weights. A help, never a need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import GraphProto

from qdqtool.graph.order import topological_protos
from qdqtool.graph.shape_values import ShapeValues
from qdqtool.graph.types import inferred, lean_constant, lean_tensor
from qdqtool.graph.view import GraphView

Shape = tuple[int | None, ...]
_ROUNDS = 64  # blocks of a network, each of whose shapes are computed from those of the one before


def shapes_of(
    view: GraphView, inputs: Mapping[str, Sequence[int]] | None = None, values: ShapeValues | None = None
) -> dict[str, Shape]:
    """Tensor name -> its shape, None for an axis that is free; tensors of unknown rank are left out.

    Args:
        view: the graph.
        inputs: shapes that graph inputs have in a run; the others are as the graph declares them.
        values: numbers that are known beyond what inference follows.
    """
    graph = _inferred(view.graph, inputs or {}, values)
    found: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in view.graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.tensor_type.HasField("shape"):
            axes = value.type.tensor_type.shape.dim
            found[value.name] = tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in axes)
    return found


def known_shapes(view: GraphView) -> dict[str, Shape]:
    """`followed_shapes` with the inputs as the graph declares them, once for a view."""
    if view.known_shapes is None:
        view.known_shapes = followed_shapes(view)
    return view.known_shapes


def sample_shapes(view: GraphView) -> dict[str, Shape]:
    """`followed_shapes` where a batch that is free, the only open side of an input, is one sample.

    An input with an initializer has that one's size, which may be 0: files of IR version 3 list initializers as inputs.
    """
    stored = {tensor.name for tensor in view.graph.initializer}
    values = (value for value in view.graph.input if value.name not in stored)
    inputs = (value for value in values if value.type.tensor_type.HasField("shape"))
    sizes = {value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in inputs}
    fed = {name: [1, *sides[1:]] for name, sides in sizes.items() if sides and sides[0] == 0 and all(sides[1:])}
    return followed_shapes(view, fed) if fed else known_shapes(view)


def followed_shapes(view: GraphView, inputs: Mapping[str, Sequence[int]] | None = None) -> dict[str, Shape]:
    """`shapes_of` with the numbers that `ShapeValues` follows.

    What a Reshape makes may be read by the Shape behind which the next one's target is computed: again, until nothing
    new is known.
    """
    values = ShapeValues(view)
    shapes = shapes_of(view, inputs, values)
    for _ in range(_ROUNDS):
        if _all_known(view, shapes) or not values.follow(shapes):
            break
        shapes = shapes_of(view, inputs, values)
    return shapes


def _all_known(view: GraphView, shapes: Mapping[str, Shape]) -> bool:
    """Whether the sizes of everything that a Reshape or Expand makes are known."""
    shaping = (name for node in view.every if node.op in ("Reshape", "Expand") for name in node.outputs)
    return all(None not in shapes.get(name, (None,)) for name in shaping)


def _inferred(graph: GraphProto, inputs: Mapping[str, Sequence[int]], values: ShapeValues | None) -> GraphProto:
    lean = onnx.ModelProto(ir_version=8)
    lean.opset_import.add(domain="", version=_opset_like(graph))
    for domain in sorted({node.domain for node in graph.node} - {"", "ai.onnx"}):
        lean.opset_import.add(domain=domain, version=1)
    for name in ("input", "output", "value_info"):
        getattr(lean.graph, name).extend(getattr(graph, name))
    for value in lean.graph.input:
        if value.name in inputs:
            shape = onnx.TensorShapeProto()
            shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in inputs[value.name])
            value.type.tensor_type.shape.CopyFrom(shape)
    lean.graph.initializer.extend(map(lean_tensor, graph.initializer))
    nodes = graph.node if values is None else topological_protos(graph.node)
    lean.graph.node.extend((values.constant(node) if values else None) or lean_constant(node) for node in nodes)
    return inferred(lean, values=True)


def _opset_like(graph: GraphProto) -> int:
    """An opset whose forms the graph's operators have: a graph does not say its own."""
    for node in graph.node:
        if node.op_type in ("Squeeze", "Unsqueeze"):
            return 11 if any(item.name == "axes" for item in node.attribute) else _modern(graph)
    return _modern(graph)


def _modern(graph: GraphProto) -> int:
    newest = max((_first_version(node) for node in graph.node if not node.domain), default=0)
    reducing = (node for node in graph.node if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum")
    listed = any(len(node.input) > 1 for node in reducing)
    return max(18 if listed else 17, newest)


def _first_version(node: onnx.NodeProto) -> int:
    """The opset that brought an operator which opset 18 does not have, such as RMSNormalization; else 0."""
    if onnx.defs.has(node.op_type, 18) or not onnx.defs.has(node.op_type):
        return 0
    return int(onnx.defs.get_schema(node.op_type).since_version)
