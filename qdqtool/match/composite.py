# SPDX-License-Identifier: Apache-2.0
"""Activations that exporters write as several nodes: a small pattern in ONNX text, found after one tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx.parser

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.rule_kinds import Composite

_COMMUTATIVE = frozenset({"Add", "Mul"})
_TOLERANCE = 2e-3  # exporters write 1/6 and sqrt(2) with few digits


@dataclass(frozen=True)
class Pattern:
    """One spelling of a composite: its operators in order, and the constants it needs by value.

    Attributes:
        nodes: (operator, inputs, output), so that each reads something that is bound before.
        constants: name in the pattern -> value.
        output: the name of its output.
    """

    nodes: tuple[tuple[str, tuple[str, ...], str], ...]
    constants: dict[str, float]
    output: str

    @property
    def first_ops(self) -> tuple[str, ...]:
        """The operators that read x, sorted."""
        return tuple(sorted(op for op, inputs, _ in self.nodes for name in inputs if name == "x"))


@dataclass(frozen=True)
class Found:
    """Nodes of a composite in the graph, and the tensor that comes out."""

    nodes: tuple[Node, ...]
    output: str


def compile_composite(rule: Composite) -> tuple[Pattern, ...]:
    """The patterns of a rule.

    Raises:
        QdqError: text that is not ONNX, or has not exactly the input x and the output y.
    """
    return tuple(_compile(rule.name, text) for text in rule.text)


def _compile(name: str, text: str) -> Pattern:
    try:
        graph = onnx.parser.parse_graph(text)
    except onnx.parser.ParseError as error:
        raise QdqError(
            name, f"its text is not valid ONNX text: {str(error).splitlines()[0]}", "see rules/common.toml"
        ) from None
    if [value.name for value in graph.input] != ["x"] or [value.name for value in graph.output] != ["y"]:
        raise QdqError(name, "a composite has the input x and the output y", "see rules/common.toml")
    constants: dict[str, float] = {}
    nodes: list[tuple[str, tuple[str, ...], str]] = []
    for proto in graph.node:
        if proto.op_type == "Constant":
            constants[proto.output[0]] = float(proto.attribute[0].f)
        else:
            nodes.append((proto.op_type, tuple(proto.input), proto.output[0]))
    return Pattern(tuple(nodes), constants, "y")


def find_composite(view: GraphView, patterns: tuple[Pattern, ...], entry: str) -> Found | None:
    """The composite whose x is the tensor `entry`, where nothing outside of it reads x or what is inside; else None."""
    ops = tuple(sorted(use.node.op for use in view.consumers(entry)))
    if view.is_output(entry) or entry in view.captured:
        return None
    for pattern in patterns:
        if pattern.first_ops == ops:
            for bound in _bindings(view, pattern, 0, {"x": entry}, ()):
                found = _closed(view, pattern, *bound)
                if found is not None:
                    return found
    return None


def _bindings(
    view: GraphView, pattern: Pattern, at: int, names: dict[str, str], nodes: tuple[Node, ...]
) -> Iterator[tuple[dict[str, str], tuple[Node, ...]]]:
    """Every way to bind the pattern's nodes from number `at` on."""
    if at == len(pattern.nodes):
        yield names, nodes
        return
    op, inputs, output = pattern.nodes[at]
    anchor = next(name for name in inputs if name in names)
    for use in view.consumers(names[anchor]):
        if use.node.op != op or use.node in nodes:
            continue
        for order in (inputs, inputs[::-1]) if op in _COMMUTATIVE else (inputs,):
            if _agrees(view, pattern, use.node, order, names):
                yield from _bindings(view, pattern, at + 1, {**names, output: use.node.outputs[0]}, (*nodes, use.node))
                break


def _agrees(view: GraphView, pattern: Pattern, node: Node, inputs: tuple[str, ...], names: dict[str, str]) -> bool:
    actual = [view.root(name) for name in node.inputs]
    if node.op == "Clip" and len(actual) == 1:  # before opset 11 the limits are attributes
        limits = [attribute(node, "min"), attribute(node, "max")]
        return names[inputs[0]] == actual[0] and limits == [pattern.constants[name] for name in inputs[1:]]
    if len(actual) != len(inputs):
        return False
    for name, tensor in zip(inputs, actual, strict=True):
        if name in pattern.constants:
            shape = view.shape(tensor)
            value = view.array(tensor) if shape is not None and math.prod(shape) == 1 else None
            if value is None:
                return False
            if not np.isclose(float(value.reshape(-1)[0]), pattern.constants[name], rtol=_TOLERANCE, atol=1e-6):
                return False
        elif names.get(name) != tensor:
            return False
    return True


def _closed(view: GraphView, pattern: Pattern, names: dict[str, str], nodes: tuple[Node, ...]) -> Found | None:
    inside = [names[output] for _, _, output in pattern.nodes if output != pattern.output]
    for name in (names["x"], *inside):
        if view.is_output(name) or name in view.captured or any(use.node not in nodes for use in view.consumers(name)):
            return None
    return Found(nodes, names[pattern.output])
