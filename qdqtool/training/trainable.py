# SPDX-License-Identifier: Apache-2.0
"""What of a graph is trained: weights and biases of weighted operators, scale and bias of BatchNormalization.

Looks at a training copy in which every weight is a float initializer. Nothing is edited here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.view import DEQUANTIZE, GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import Read
from qdqtool.options import compile_pattern
from qdqtool.rule_files import operator_set

Kind = Literal["weight", "bias", "norm"]
_WITH_BIAS = frozenset({"Conv", "ConvTranspose", "Gemm"})


@dataclass(frozen=True)
class Role:
    """One place that a trained initializer has in the graph.

    Attributes:
        initializer: its name.
        kind: what it is there.
        read: the node that reads the initializer itself: the operator, or the first of what lies between.
        operator: name of the operator that computes with it.
        key: first output of that operator.
    """

    initializer: str
    kind: Kind
    read: Read
    operator: str
    key: str


def find_roles(view: GraphView) -> list[Role]:
    """Every trained float32 initializer with every place that it is read for, in graph order."""
    found: dict[tuple[str, Read], Role] = {}
    for node in view.nodes:
        for index, kind in _places(view, node):
            source = _source(view, node, index)
            if source is not None:
                found.setdefault(source, Role(source[0], kind, source[1], node.name, node.key))
    return list(found.values())


def _places(view: GraphView, node: Node) -> Iterator[tuple[int, Kind]]:
    """The inputs of a node that may be trained."""
    weight = weight_index(view, node)
    if weight is not None:
        yield weight, "weight"
        if node.op in _WITH_BIAS and len(node.inputs) > 2 and node.inputs[2]:
            yield 2, "bias"
    elif node.op == "BatchNormalization":
        yield 1, "norm"
        yield 2, "norm"
    elif node.op == "Add":
        for index in (0, 1):
            other = view.producer(node.inputs[1 - index])
            if other is not None and weight_index(view, other) is not None and _is_vector(view, node.inputs[index]):
                yield index, "bias"


def _is_vector(view: GraphView, name: str) -> bool:
    """Whether a constant is one value per channel: a bias that an exporter wrote as an Add."""
    value = view.array(name) if view.is_constant(name) else None
    return value is not None and value.size > 1 and sum(size > 1 for size in value.shape) == 1


def _source(view: GraphView, node: Node, index: int) -> tuple[str, Read] | None:
    """The float32 initializer after an input, pairs and moves seen through, and who reads it itself."""
    name, read = node.inputs[index], Read(node.key, index)
    while name not in view.initializers:
        producer = view.producers.get(name)
        if producer is None or not view.is_constant(name):
            return None
        if producer.op == DEQUANTIZE:
            pair = next((p for p in view.pairs.get(view.root(name), ()) if p.dequantize is producer), None)
            if pair is None or pair.quantize is None:
                return None
            producer = pair.quantize
        elif producer.op not in operator_set("rearranging"):
            return None
        name, read = producer.inputs[0], Read(producer.key, 0)
    kind = view.initializers[name].data_type
    return (name, read) if kind == onnx.TensorProto.FLOAT else None


def without_frozen(roles: Sequence[Role], freeze: Sequence[str]) -> list[Role]:
    """The roles that no pattern matches, by the name of the initializer, of its operator or of that one's output.

    Raises:
        QdqError: a pattern that is not a regular expression, or that matches nothing.
    """
    kept = list(roles)
    for pattern in freeze:
        expression = compile_pattern("--freeze", pattern)
        matched = [role for role in roles if any(expression.search(name) for name in _names(role))]
        if not matched:
            near = difflib.get_close_matches(pattern, sorted({name for role in roles for name in _names(role)}), 3)
            todo = f"near: {', '.join(near)}" if near else "name an initializer or a node"
            raise QdqError(f"--freeze {pattern}", "matches no trained parameter", todo)
        gone = set(matched)
        kept = [role for role in kept if role not in gone]
    return kept


def _names(role: Role) -> tuple[str, str, str]:
    return role.initializer, role.operator, role.key


def by_accident(view: GraphView, name: str) -> bool:
    """Whether an initializer holds one value throughout: exporters write equal ones once, though they have no tie."""
    value = view.array(name)
    return value is not None and value.size > 0 and bool(np.all(value == value.reshape(-1)[0]))
