# SPDX-License-Identifier: Apache-2.0
"""The shapes of a graph's tensors, as far as shape inference finds them, without its weights. A help, never a need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
from onnx import GraphProto, NodeProto, ValueInfoProto

from qdqtool.graph.node_shapes import Links, NodeShapes, shape_of
from qdqtool.graph.order import reads_of, topological_protos
from qdqtool.graph.shape_values import Shape, ShapeValues, Value
from qdqtool.graph.types import inferred, lean_constant, lean_tensor, stand_in
from qdqtool.graph.view import GraphView

_ROUNDS = 256  # of inference
# Operator -> an attribute that a later opset made an input ("": the operator itself is gone), and the last opset of it.
_OLD_FORMS = {
    "Pad": ("pads", 10),
    "ReduceSum": ("axes", 12),
    "Slice": ("starts", 9),
    "Split": ("split", 12),
    "Squeeze": ("axes", 12),
    "TopK": ("k", 9),
    "Unsqueeze": ("axes", 12),
    "Upsample": ("", 9),
}


def shapes_of(
    view: GraphView, inputs: Mapping[str, Sequence[int]] | None = None, *, declared: bool = True
) -> dict[str, Shape]:
    """Tensor name -> its shape, None for an axis that is free; tensors of unknown rank are left out.

    Without what is `declared`, shapes that the graph states of other tensors than its inputs do not count.
    """
    lean = _lean(view.graph, inputs or {})
    if not declared:
        del lean.graph.value_info[:]
        for value in lean.graph.output:
            value.type.tensor_type.ClearField("shape")
    return _with_initializers(view.graph, _shapes_in(inferred(lean, values=True)))


def known_shapes(view: GraphView) -> dict[str, Shape]:
    """`followed_shapes` with the inputs as the graph declares them, once for a view."""
    if view.known_shapes is None:
        values = ShapeValues(view)
        view.known_shapes = followed_shapes(view, values=values)
        view.known_numbers = values.known
    return view.known_shapes


def known_lengths(view: GraphView) -> dict[str, int]:
    """How many values tensors have, where that is known, with the inputs as the graph declares them."""
    return _lengths(known_shapes(view))


def known_numbers(view: GraphView) -> dict[str, Value]:
    """What nodes compute from sizes and short constants -> its value, with the inputs as the graph declares them.

    Empty where the graph declares shapes of other tensors that could have given a size: a run may have others.
    """
    outputs = {value.name for value in view.graph.output}
    if view.graph.value_info or any(view.consumers(name) for name in outputs):
        return {}
    known_shapes(view)
    return view.known_numbers


def sample_shapes(view: GraphView, fed: Mapping[str, Sequence[int]] | None = None) -> dict[str, Shape]:
    """`followed_shapes` where a batch that is free, the only open side of an input, is one sample.

    `fed` has the shape of one sample for inputs with other open sides.
    An input with an initializer has that one's size, which may be 0: files of IR version 3 list initializers as inputs.
    """
    stored = {tensor.name for tensor in view.graph.initializer}
    values = (value for value in view.graph.input if value.name not in stored)
    inputs = (value for value in values if value.type.tensor_type.HasField("shape"))
    sizes = {value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in inputs}
    known = {name: [1, *sides[1:]] for name, sides in sizes.items() if sides and sides[0] == 0 and all(sides[1:])}
    return followed_shapes(view, {**known, **(fed or {})}) if known or fed else known_shapes(view)


def sample_lengths(view: GraphView) -> dict[str, int]:
    """`known_lengths` where a batch that is free is one sample: by `sample_shapes`."""
    return _lengths(sample_shapes(view))


def _lengths(shapes: Mapping[str, Shape]) -> dict[str, int]:
    return {name: math.prod(size or 0 for size in shape) for name, shape in shapes.items() if None not in shape}


def followed_shapes(
    view: GraphView, inputs: Mapping[str, Sequence[int]] | None = None, values: ShapeValues | None = None
) -> dict[str, Shape]:
    """`shapes_of` with the numbers that `ShapeValues` follows.

    What a Reshape makes may be read by the Shape after which the next one's target is computed: node by node where all
    is known; inference over what is open follows single axes. Again, until nothing new is known.
    """
    values, lean = values or ShapeValues(view), _lean(view.graph, inputs or {})
    protos = topological_protos(lean.graph.node)
    del lean.graph.node[:]
    lean.graph.node.extend(protos)
    ordered = [(node, tuple(filter(None, node.output)), tuple(reads_of(node))) for node in protos]
    graph = inferred(lean, values=True)
    shapes = _with_initializers(view.graph, _shapes_in(graph))
    known = {value.name: value for value in _values_of(graph)}
    steps = NodeShapes(lean, values)
    for _ in range(_ROUNDS):
        if _all_known(view, shapes) or not steps.walk(ordered, known, shapes):
            break
        nodes = _open_nodes(ordered, values, shapes)
        graph = inferred(_open_part(lean, nodes, known), values=True) if nodes else onnx.GraphProto()
        known.update((value.name, value) for value in _values_of(graph))
        shapes.update(_shapes_in(graph))
    return shapes


def _open_nodes(ordered: Sequence[Links], values: ShapeValues, shapes: Mapping[str, Shape]) -> list[NodeProto]:
    """The nodes that make tensors of unknown shape, and what they depend on up to tensors whose shape is known.

    Nodes that make vectors and single numbers are among them: inference follows their values, as far as it can.
    """
    free, wanted = (None,), set[str]()
    found: list[NodeProto] = []
    for node, made, reads in reversed(ordered):
        if all(None not in shapes.get(name, free) for name in made) and wanted.isdisjoint(made):
            continue
        constant = values.constant(node)
        found.append(constant or node)
        if constant is None:
            wanted.update(name for name in reads if not _is_settled(shapes.get(name)))
    return found[::-1]


def _is_settled(shape: Shape | None) -> bool:
    return shape is not None and len(shape) > 1 and None not in shape


def _open_part(
    lean: onnx.ModelProto, nodes: Sequence[NodeProto], known: Mapping[str, ValueInfoProto]
) -> onnx.ModelProto:
    """A model of some nodes of another, whose inputs are what is known of the tensors that they read."""
    part = onnx.ModelProto(ir_version=lean.ir_version, opset_import=lean.opset_import)
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in reads_of(node))
    part.graph.initializer.extend(tensor for tensor in lean.graph.initializer if tensor.name in read)
    part.graph.input.extend(known[name] for name in read if name not in made and name in known)
    for field in ("output", "value_info"):
        getattr(part.graph, field).extend(value for value in getattr(lean.graph, field) if value.name in made)
    part.graph.node.extend(nodes)
    return part


def _values_of(graph: GraphProto) -> tuple[ValueInfoProto, ...]:
    return (*graph.value_info, *graph.output, *graph.input)


def _shapes_in(graph: GraphProto) -> dict[str, Shape]:
    """The shapes that a graph declares, of whatever has a rank."""
    found: dict[str, Shape] = {}
    for value in _values_of(graph):
        shape = shape_of(value.type)
        if shape is not None:
            found[value.name] = shape
    return found


def _with_initializers(graph: GraphProto, shapes: dict[str, Shape]) -> dict[str, Shape]:
    return {**{tensor.name: tuple(tensor.dims) for tensor in graph.initializer}, **shapes}


def _all_known(view: GraphView, shapes: Mapping[str, Shape]) -> bool:
    """Whether the sizes of everything that is made to computed sizes are known."""
    shaping = (name for node in view.every if node.op in ("Reshape", "Expand", "Slice") for name in node.outputs)
    return all(None not in shapes.get(name, (None,)) for name in shaping)


def _lean(graph: GraphProto, inputs: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """The graph without its weights, some of its inputs with the shapes of a run.

    An input with an initializer has that one's shape, whatever the file says of it.
    """
    lean, opset = onnx.ModelProto(ir_version=8), _opset_like(graph)
    lean.opset_import.add(domain="", version=opset)
    for domain in sorted({node.domain for node in graph.node} - {"", "ai.onnx"}):
        lean.opset_import.add(domain=domain, version=1)
    stored = {tensor.name for tensor in graph.initializer} - inputs.keys()
    lean.graph.input.extend(value for value in graph.input if value.name not in stored)
    for name in ("output", "value_info"):
        getattr(lean.graph, name).extend(getattr(graph, name))
    for value in lean.graph.input:
        if value.name in inputs:
            shape = onnx.TensorShapeProto()
            shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in inputs[value.name])
            value.type.tensor_type.shape.CopyFrom(shape)
    lean.graph.initializer.extend(map(lean_tensor, graph.initializer))
    lean.graph.node.extend(map(lean_constant, graph.node))
    for node in lean.graph.node:
        stand_in(node, opset)
    return lean


def _opset_like(graph: GraphProto) -> int:
    """An opset whose forms the graph's operators have: a graph does not say its own."""
    old = [_OLD_FORMS[node.op_type][1] for node in graph.node if node.op_type in _OLD_FORMS and _is_old(node)]
    return min(old) if old else _modern(graph)


def _is_old(node: NodeProto) -> bool:
    name = _OLD_FORMS[node.op_type][0]
    return not node.domain and (not name or any(item.name == name for item in node.attribute))


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
