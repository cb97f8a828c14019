# SPDX-License-Identifier: Apache-2.0
"""A typed model with its roundings as an FP32 model: what a typed model computes, on any machine.

onnxruntime's CPU runs chains of FP16 operators in FP32 between Casts, and has no BF16 operators: two FP16 products of
300 and 300 give it 90,000, where FP16 has Inf. Here every FP16 or BF16 tensor is rounded behind its node, by a Cast
there and one back, to nearest even, and each node computes in FP32, as TensorRT accumulates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
import onnx.inliner
from onnx import GraphProto, NodeProto, TensorProto, helper

from qdqtool.errors import QdqError
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.builder import names_in
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import Node, node_bodies
from qdqtool.graph.normalize import normalize
from qdqtool.precision.scopes import CAST_TYPES, HALF_TYPES, TypeScope, typed_scope
from qdqtool.precision.widen import is_typed, mentioned_types, retyped
from qdqtool.rule_files import operator_set

# Beside those that move values: what comes out has a number of the input, or it with another sign.
_EXACT = frozenset({"Relu", "Abs", "Neg", "GlobalMaxPool", "Min", "Max"})


def rounded(model: Model) -> Model:
    """The model in FP32 with a rounding behind each node that makes FP16 or BF16, every tensor under its own name.

    Weights and constants are the numbers that the file holds. FP16 inputs become FP32 inputs, which are rounded before
    anything reads them; FP16 outputs become FP32 outputs with rounded values. Q/DQ stay: their codes are those of the
    rounded values. Values beyond FP16 are Inf, subnormal ones stay. Bodies of control flow are treated as the main
    graph is; local functions are written out. A model without FP16 or BF16 is given back as an equal copy.

    Raises:
        QdqError: local functions that cannot be written out.
    """
    if not is_typed(model):
        return replace(model, proto=retyped(model.proto))
    flat = _without_functions(model)
    made = replace(model, proto=retyped(flat.proto))
    _round_graph(made.graph, flat.graph, typed_scope(flat), FreshNames(names_in(made.graph)), {})
    if TensorProto.BFLOAT16 in mentioned_types(flat.proto):
        normalize(made)  # a Cast to BF16 came with the opset that it lifts to
    return made


def as_run(model: Model) -> Model:
    """What a judge runs in the place of a model: `rounded` of a typed one; any other model itself, not copied."""
    return rounded(model) if is_typed(model) else model


def open_to_run(source: ModelSource) -> Model:
    """`open_model` for what judges a model by running it: a typed one comes with its roundings written out."""
    return as_run(open_model(source))


def _without_functions(model: Model) -> Model:
    if not model.proto.functions:
        return model
    try:
        return replace(model, proto=onnx.inliner.inline_local_functions(model.proto))
    except Exception as error:  # what onnx's C++ raises has no common type
        reason = f"its local functions cannot be inlined ({str(error).splitlines()[0]})"
        raise QdqError(model.graph.name or "the model", reason, "export the model without functions") from None


def _round_graph(
    graph: GraphProto, typed: GraphProto, scope: TypeScope, fresh: FreshNames, around: Mapping[str, str]
) -> None:
    """Put roundings into a graph and its bodies."""
    weights = {tensor.name for tensor in graph.initializer}
    own = weights.union((value.name for value in graph.input), (name for proto in graph.node for name in proto.output))
    reads = {name: new for name, new in around.items() if name not in own}
    nodes: list[NodeProto] = []
    for name in (value.name for value in typed.input if value.name not in weights):
        if (kind := scope.types.get(name, 0)) in HALF_TYPES:
            reads[name] = fresh.unique(f"{name}_rounded")
            nodes += _rounding(name, reads[name], kind, fresh)
    for proto, other in zip(graph.node, typed.node, strict=True):
        node = Node(other, 0)
        twins = dict(node_bodies(node))
        for label, body in node_bodies(Node(proto, 0)):
            _round_graph(body, twins[label], scope.body(node, label), fresh, reads)
        for index, name in enumerate(proto.input):
            proto.input[index] = reads.get(name, name)
        nodes += _with_roundings(proto, node, scope.types, fresh)
    made = GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(made.node)


def _with_roundings(proto: NodeProto, node: Node, types: Mapping[str, int], fresh: FreshNames) -> list[NodeProto]:
    """A node and what stands behind it, or in the place of a Cast, so that its outputs have numbers of their types."""
    if node.op in ("Cast", "CastLike"):
        return _cast(proto, node, types, fresh)
    nodes = [proto]
    if not _is_exact(node, types):
        for index, name in enumerate(node.outputs):
            if name and (kind := types.get(name, 0)) in HALF_TYPES:
                proto.output[index] = fresh.unique(f"{name}_unrounded")
                nodes += _rounding(proto.output[index], name, kind, fresh)
    return nodes


def _cast(proto: NodeProto, node: Node, types: Mapping[str, int], fresh: FreshNames) -> list[NodeProto]:
    """What stands for a Cast: one rounding of what it reads, nothing, or the Cast."""
    made = node.outputs[0]
    kind = types.get(made, 0)
    if kind in HALF_TYPES:
        return _rounding(proto.input[0], made, kind, fresh)
    if kind == TensorProto.FLOAT and types.get(node.inputs[0], 0) in HALF_TYPES:
        return [helper.make_node("Identity", [proto.input[0]], [made], name=proto.name)]
    return [proto]


def _is_exact(node: Node, types: Mapping[str, int]) -> bool:
    """Whether what a node makes is rounded already: a constant, numbers of its inputs, or what its bodies round."""
    if node.op in ("Constant", "ConstantOfShape") or node_bodies(node):
        return True
    if node.op not in _EXACT and node.op not in operator_set("unchanged"):
        return False
    floats = {types.get(name, 0) for name in (*node.inputs, *node.outputs) if name} & {*CAST_TYPES, 0}
    return len(floats) == 1


def _rounding(source: str, made: str, kind: int, fresh: FreshNames) -> list[NodeProto]:
    """A Cast to a half type and one back. `source` may be of any type: it is rounded once."""
    half = fresh.unique(f"{made}_half")
    return [
        helper.make_node("Cast", [source], [half], name=half, to=kind),
        helper.make_node("Cast", [half], [made], name=fresh.unique(f"{made}_rounding"), to=TensorProto.FLOAT),
    ]
