# SPDX-License-Identifier: Apache-2.0
"""Which part of a graph onnxruntime can run: what lies before operators it lacks, such as TensorRT's plugins."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView, Node, captured_names, node_bodies
from qdqtool.graph.weighted import weight_index

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm"})


@dataclass(frozen=True)
class Runnable:
    """What onnxruntime computes of a graph.

    Attributes:
        nodes: those that run, in file order.
        behind: each output of the others -> the lacking operator that it depends on.
        feeding: what `nodes` make and the others read: where the runnable part ends.
    """

    nodes: tuple[Node, ...]
    behind: dict[str, str]
    feeding: frozenset[str] = frozenset()


def runnable_part(view: GraphView, functions: frozenset[tuple[str, str]], runtime: Any) -> Runnable:
    """Leave out operators that onnxruntime lacks, and all that depends on them.

    Args:
        view: the main graph; bodies of control flow are looked into, and stand or fall with their node.
        functions: domain and name of the model's local functions.
        runtime: the module onnxruntime.

    Raises:
        QdqError: a weighted operator lies behind one that is lacking; both are named.
    """
    lacking = _lacking_nodes(view, functions, runtime)
    behind = _descendants(view, lacking)
    for node in view.every if lacking else ():
        if id(node) in behind and id(node) not in lacking and _is_weighted(view, node):
            reason = f"lies behind {behind[id(node)]}, which onnxruntime cannot run"
            raise QdqError(node.name, f"{node.op} {reason}", "calibrate the model without that operator in its middle")
    return _divided(view, behind)


def computable_part(view: GraphView, functions: frozenset[tuple[str, str]], runtime: Any) -> Runnable:
    """What `runnable_part` gives, also where a weighted operator lies behind one that is lacking."""
    return _divided(view, _descendants(view, _lacking_nodes(view, functions, runtime)))


def _lacking_nodes(view: GraphView, functions: frozenset[tuple[str, str]], runtime: Any) -> dict[int, str]:
    known = _known_operators(runtime)
    return {id(node): operator for node in view.every if (operator := _lacking(node.proto, functions, known))}


def _divided(view: GraphView, behind: Mapping[int, str]) -> Runnable:
    if not behind:
        return Runnable(tuple(view.every), {})
    lost = {name: behind[id(node)] for node in view.every if id(node) in behind for name in node.outputs if name}
    runs = tuple(node for node in view.every if id(node) not in behind)
    read = {name for node in view.every if id(node) in behind for name in (*node.inputs, *captured_names(node))}
    return Runnable(runs, lost, frozenset(read.intersection(name for node in runs for name in node.outputs if name)))


@functools.cache
def _known_operators(runtime: Any) -> frozenset[tuple[str, str]]:
    """Domain and name of every operator with a kernel, or that is defined by others."""
    state = runtime.capi.onnxruntime_pybind11_state
    kernels = {(_domain(kernel.domain), kernel.op_name) for kernel in state.get_all_opkernel_def()}
    schemas: Sequence[Any] = onnx.defs.get_all_schemas_with_history()
    composed = {
        (_domain(schema.domain), schema.name)
        for schema in schemas
        if schema.has_function or schema.has_context_dependent_function
    }
    return frozenset(kernels | composed | {("", "Constant")})


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _lacking(proto: onnx.NodeProto, functions: frozenset[tuple[str, str]], known: frozenset[tuple[str, str]]) -> str:
    """What the node, or a node in its bodies, is that cannot run; "" where all can."""
    for one in _with_bodies(proto):
        key = (_domain(one.domain), one.op_type)
        if key not in known and key not in functions:
            return one.op_type if not key[0] else f"{one.domain}::{one.op_type}"
    return ""


def _with_bodies(proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    stack = [proto]
    while stack:
        one = stack.pop()
        yield one
        for _, body in node_bodies(Node(one, 0)):
            stack.extend(body.node)


def _descendants(view: GraphView, lacking: dict[int, str]) -> dict[int, str]:
    """By id, every node that depends on a lacking one, and of those themselves, with the lacking operator."""
    if not lacking:
        return {}
    readers: dict[str, list[Node]] = {}
    for node in view.every:
        for name in (*node.inputs, *sorted(captured_names(node))):
            readers.setdefault(name, []).append(node)
    behind = dict(lacking)
    stack = [node for node in view.every if id(node) in lacking]
    while stack:
        node = stack.pop()
        for name in filter(None, node.outputs):
            for reader in readers.get(name, []):
                if id(reader) not in behind:
                    behind[id(reader)] = behind[id(node)]
                    stack.append(reader)
    return behind


def _is_weighted(view: GraphView, node: Node) -> bool:
    inside = any(one.op_type in _WEIGHTED for one in _with_bodies(node.proto) if one is not node.proto)
    return inside or weight_index(view, node) is not None
