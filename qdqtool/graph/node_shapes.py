# SPDX-License-Identifier: Apache-2.0
"""The shapes of a graph's tensors followed node by node, with the numbers that targets of a Reshape are computed by.

Inference over a whole graph stops at each number that it does not follow; one walk in the order in which nodes run
passes them all. Bodies, local functions and axes that are free are left to inference over the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence

import onnx
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto

from qdqtool.graph.shape_values import Shape, ShapeValues
from qdqtool.graph.types import shape_input

Links = tuple[NodeProto, tuple[str, ...], tuple[str, ...]]  # a node, what it makes, what it reads


class NodeShapes:
    """A walk over the nodes of one graph; each walk begins with what is known by then."""

    def __init__(self, lean: onnx.ModelProto, values: ShapeValues) -> None:
        """Take a graph without its weights."""
        self._values = values
        self._opsets = {one.domain: one.version for one in lean.opset_import}
        self._imports = list(lean.opset_import)
        self._stored = {one.name: one for one in lean.graph.initializer if one.data_location != TensorProto.EXTERNAL}
        self._types = {
            one.name: onnx.helper.make_tensor_type_proto(one.data_type, one.dims) for one in lean.graph.initializer
        }

    def walk(
        self,
        ordered: Sequence[Links],
        known: MutableMapping[str, ValueInfoProto],
        shapes: MutableMapping[str, Shape],
    ) -> bool:
        """Follow numbers and shapes once; whether anything new came of it.

        Args:
            ordered: nodes in an order in which they can run.
            known: types of tensors; those that are found are added.
            shapes: tensor -> its shape, None for a free axis; those that are found are added.
        """
        new = False
        for node, made, reads in ordered:
            new |= bool(made) and self._values.follow(node.output[0], shapes)
            if all(_is_full(shapes.get(name)) for name in made):
                continue
            for name, kind in self._inferred(node, reads, known).items():
                shape = shape_of(kind)
                if shape is not None and None not in shape and not _is_full(shapes.get(name)):
                    known[name] = ValueInfoProto(name=name, type=kind)
                    shapes[name] = shape
                    new = True
        return new

    def _inferred(
        self, node: NodeProto, reads: Iterable[str], known: Mapping[str, ValueInfoProto]
    ) -> dict[str, TypeProto]:
        """What a node makes of tensors whose types and shapes are all known; empty for any other."""
        version = self._opsets.get(node.domain)
        if version is None or not onnx.defs.has(node.op_type, version, node.domain):
            return {}
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        types = {name: self._types.get(name) or (known[name].type if name in known else None) for name in reads}
        given = {name: kind for name, kind in types.items() if kind is not None and _is_full(shape_of(kind))}
        bodies = any(item.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for item in node.attribute)
        if len(given) < len(types) or bodies or not schema.has_type_and_shape_inference_function:
            return {}
        data = {name: tensor for name in reads if (tensor := self._number(name)) is not None}
        target = shape_input(node)
        if target and target not in data:
            return {}
        try:
            return onnx.shape_inference.infer_node_outputs(schema, node, given, data, opset_imports=self._imports)
        except Exception:  # what onnx's C++ raises has no common type; inference over the graph says what it can
            return {}

    def _number(self, name: str) -> TensorProto | None:
        value = self._values.number(name)
        return self._stored.get(name) if value is None else onnx.numpy_helper.from_array(value, name)


def shape_of(kind: TypeProto) -> Shape | None:
    """The shape that a type declares; None where it has no rank."""
    if not kind.tensor_type.HasField("shape"):
        return None
    axes = kind.tensor_type.shape.dim
    return tuple(axis.dim_value if axis.HasField("dim_value") and axis.dim_value >= 0 else None for axis in axes)


def _is_full(shape: Shape | None) -> bool:
    return shape is not None and None not in shape
