# SPDX-License-Identifier: Apache-2.0
"""Which part of a graph onnxruntime can run: what lies before operators it lacks, such as TensorRT's plugins."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.order import read_names
from qdqtool.graph.types import infer_types, opset_of
from qdqtool.graph.view import GraphView, Node, node_bodies
from qdqtool.graph.weighted import weight_index
from qdqtool.runtime.providers import open_session
from qdqtool.runtime.session import session_options

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm"})
# A build for GPUs starts every provider to list its kernels, and ends the process where TensorRT is not installed.
_OWN_PROVIDERS = frozenset({"CPUExecutionProvider", "AzureExecutionProvider"})
_UNREGISTERED = re.compile(r"is not a registered function/op|No Op registered for")


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


def runnable_part(model: Model, runtime: Any, providers: Sequence[str] = ("CPUExecutionProvider",)) -> Runnable:
    """Leave out operators that onnxruntime lacks, and all that depends on them.

    Raises:
        QdqError: a weighted operator lies after one that is lacking; both are named.
    """
    view, lacking = model.view, _lacking_nodes(model, runtime, providers)
    behind = _descendants(view, lacking)
    for node in view.every if lacking else ():
        if id(node) in behind and id(node) not in lacking and _is_weighted(view, node):
            reason = f"comes after {behind[id(node)]}, which onnxruntime cannot run"
            raise QdqError(node.name, f"{node.op} {reason}", "calibrate a model without that operator")
    return _divided(view, behind)


def computable_part(model: Model, runtime: Any) -> Runnable:
    """What `runnable_part` gives, also where a weighted operator lies after one that is lacking."""
    return _divided(model.view, _descendants(model.view, _lacking_nodes(model, runtime, ("CPUExecutionProvider",))))


def _lacking_nodes(model: Model, runtime: Any, providers: Sequence[str]) -> dict[int, str]:
    operators = _Operators(model.proto, runtime, tuple(providers))
    return {id(node): operator for node in model.view.every if (operator := operators.lacking(node.proto))}


def _divided(view: GraphView, behind: Mapping[int, str]) -> Runnable:
    if not behind:
        return Runnable(tuple(view.every), {})
    lost = {name: behind[id(node)] for node in view.every if id(node) in behind for name in node.outputs if name}
    runs = tuple(node for node in view.every if id(node) not in behind)
    read = {name for node in view.every if id(node) in behind for name in read_names(node)}
    return Runnable(runs, lost, frozenset(read.intersection(name for node in runs for name in node.outputs if name)))


class _Operators:
    """Which operators of one model onnxruntime can run.

    onnxruntime's own list of kernels decides, where the build tells it. Builds without it (onnxruntime-training, and
    those for GPUs) are taken to have what ONNX defines, and what they make themselves: gradients. Any other operator
    has to start in a session of its own. So has, in any build, one of the default domain that ONNX does not define: the
    list names no opsets, and holds operators that newer opsets have lost (Affine, Crop).
    """

    def __init__(self, model: onnx.ModelProto, runtime: Any, providers: tuple[str, ...]) -> None:
        self._model = model
        self._runtime = runtime
        self._providers = providers
        self._functions = frozenset((_domain(function.domain), function.name) for function in model.functions)
        self._known: dict[tuple[str, str], bool] = {}

    def lacking(self, proto: onnx.NodeProto) -> str:
        """What the node, or a node in its bodies, is that cannot run; "" where all can."""
        for one in _with_bodies(proto):
            if not self._is_known(one):
                return one.op_type if not _domain(one.domain) else f"{one.domain}::{one.op_type}"
        return ""

    def _is_known(self, node: onnx.NodeProto) -> bool:
        """Operators are distinguished by name, so the first node of an operator speaks for all."""
        key = (_domain(node.domain), node.op_type)
        if key not in self._known:
            self._known[key] = key in self._functions or self._has(key, node)
        return self._known[key]

    def _has(self, key: tuple[str, str], node: onnx.NodeProto) -> bool:
        kernels = _listed_kernels(self._runtime)
        if kernels is not None and key in kernels and (key[0] or onnx.defs.has(key[1])):
            return True  # as below, without asking for every schema
        defined, composed = _defined_operators()
        if key in composed:
            return True
        if kernels is not None and (key not in kernels or key in defined or key[0]):
            return key in kernels
        if kernels is None and (key in defined or _is_gradient(key, self._runtime)):
            return True
        return _starts(self._runtime, _alone(node, self._model, self._types), self._providers, not key[0])

    @functools.cached_property
    def _types(self) -> dict[str, int]:
        """Element types of the main graph's tensors, as far as inference knows them."""
        graph = infer_types(self._model, opset_of(self._model) or 1)
        values = (*graph.value_info, *graph.output, *graph.input)
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        return kinds | {tensor.name: tensor.data_type for tensor in self._model.graph.initializer}


@functools.cache
def _listed_kernels(runtime: Any) -> frozenset[tuple[str, str]] | None:
    """Domain and name of every operator with a kernel; None where this build of onnxruntime does not tell."""
    if not _OWN_PROVIDERS.issuperset(runtime.get_available_providers()):
        return None
    tell = getattr(runtime.capi.onnxruntime_pybind11_state, "get_all_opkernel_def", None)
    return None if tell is None else frozenset((_domain(kernel.domain), kernel.op_name) for kernel in tell())


def _is_gradient(key: tuple[str, str], runtime: Any) -> bool:
    """Whether a build that makes gradients made this one. Alone it might not start: MaxPoolGrad needs known shapes."""
    ours = key[0] in ("", "com.microsoft") and key[1].endswith("Grad")
    return ours and hasattr(runtime.capi.onnxruntime_pybind11_state, "GradientGraphBuilder")


@functools.cache
def _defined_operators() -> tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]:
    """Domain and name of every operator that ONNX defines, in any opset; and of those that need no kernel."""
    schemas: Sequence[Any] = onnx.defs.get_all_schemas_with_history()
    composed = {
        (_domain(schema.domain), schema.name)
        for schema in schemas
        if schema.has_function or schema.has_context_dependent_function
    }
    defined = frozenset((_domain(schema.domain), schema.name) for schema in schemas)
    return defined, frozenset(composed | {("", "Constant")})


def _alone(node: onnx.NodeProto, model: onnx.ModelProto, types: dict[str, int]) -> bytes:
    """A model of the node alone: its inputs are fed, as float32 where their type is not known."""
    alone = onnx.ModelProto(ir_version=max(4, model.ir_version), opset_import=model.opset_import)
    if not alone.opset_import:
        alone.opset_import.add(version=1)
    alone.graph.name = "alone"
    alone.graph.node.add().CopyFrom(node)
    for name in dict.fromkeys(filter(None, node.input)):
        kind = types.get(name) or onnx.TensorProto.FLOAT
        alone.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, None))
    alone.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    serialized: bytes = alone.SerializeToString()
    return serialized


@functools.lru_cache(maxsize=256)
def _starts(runtime: Any, alone: bytes, providers: tuple[str, ...], strict: bool) -> bool:
    """Whether onnxruntime has the operator of a model of one node."""
    options = session_options(runtime, "ORT_DISABLE_ALL")
    try:
        open_session(runtime, alone, options, providers)
    except Exception as error:  # onnxruntime's exceptions share no base class but this
        return not strict and type(error).__name__ != "NotImplemented" and not _UNREGISTERED.search(str(error))
    return True


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


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
    consumers: dict[str, list[Node]] = {}
    for node in view.every:
        for name in read_names(node):
            consumers.setdefault(name, []).append(node)
    behind = dict(lacking)
    stack = [node for node in view.every if id(node) in lacking]
    while stack:
        node = stack.pop()
        for name in filter(None, node.outputs):
            for consumer in consumers.get(name, []):
                if id(consumer) not in behind:
                    behind[id(consumer)] = behind[id(node)]
                    stack.append(consumer)
    return behind


def _is_weighted(view: GraphView, node: Node) -> bool:
    inside = any(one.op_type in _WEIGHTED for one in _with_bodies(node.proto) if one is not node.proto)
    return inside or weight_index(view, node) is not None
