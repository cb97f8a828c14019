# SPDX-License-Identifier: Apache-2.0
"""A forward graph made ready for onnxruntime-training's gradient builder: a copy that it cannot get wrong.

Its builder is silently wrong about some operators and knows nothing of others, so every node that a gradient flows
through is looked up here: left alone, rewritten, wrapped with a gradient of our own, or refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
from onnx import helper

from qdqtool.autodiff.activity import Activity, find_activity
from qdqtool.autodiff.backend import PAIR_DOMAIN, Forward
from qdqtool.autodiff.lowered.elementwise import ELEMENTWISE
from qdqtool.autodiff.lowered.moving import MOVING
from qdqtool.autodiff.lowered.normalizations import NORMALIZATIONS
from qdqtool.autodiff.lowered.quantized import pair_rule
from qdqtool.autodiff.lowered.reductions import REDUCTIONS
from qdqtool.autodiff.lowered.resize import RESIZE
from qdqtool.autodiff.lowered.site import Array, LoweringContext, Replacement, Rule, Shape, Treatment, Wrap, refuse
from qdqtool.autodiff.lowered.swish import SWISH, find_swishes
from qdqtool.autodiff.lowered.windows import WINDOWS
from qdqtool.autodiff.pairs import PairFunction
from qdqtool.errors import QdqError
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.builder import names_in, tensor_of
from qdqtool.graph.tensors import array_of

WRAP_DOMAIN = "qdqtool.gradients"
"""Domain of the functions that hold a node and of those that hold its gradient."""
TRAINING_DOMAIN = "com.microsoft"
_OPSETS = (13, 21)
_SEEN_BYTES = 1 << 16  # constants up to this size are looked at: axes, indices, scales of a Resize

# What the builder is right about, whatever the attributes.
_SOUND = {
    *(
        "Abs",
        "Add",
        "Concat",
        "Cos",
        "Div",
        "Erf",
        "Exp",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Gemm",
        "Identity",
        "LeakyRelu",
        "Log",
    ),
    *("LogSoftmax", "Max", "Min", "Mul", "Neg", "Reciprocal", "Relu", "Reshape", "Sigmoid", "Sin", "Softmax", "Sqrt"),
    *("Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze"),
}
RULES: dict[str, Rule] = {
    **{name: (lambda site: None) for name in sorted(_SOUND)},
    **ELEMENTWISE,
    **MOVING,
    **NORMALIZATIONS,
    **REDUCTIONS,
    **RESIZE,
    **WINDOWS,
}
"""Operator of the default domain -> how it is treated where a gradient flows through it."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """What the gradient builder is given.

    Attributes:
        proto: computes what the forward computes; parameters are inputs; every tensor has its shape.
        gradients: operator of `WRAP_DOMAIN` -> number of its inputs, number of its inputs that have a gradient. That
            gradient is the function `<operator>_gradient`: of the output's gradient, the inputs and the output.
    """

    proto: onnx.ModelProto
    gradients: Mapping[str, tuple[int, int]]


def lower(forward: Forward) -> Lowered:
    """Copy a forward and treat each node that a gradient flows through.

    Raises:
        QdqError: an operator without a gradient here; a parameter that the loss does not depend on; an opset that the
            wheel does not know; a name that the builder would take for its own.
    """
    opset = _checked_opset(forward.proto)
    _check_names(forward)
    return _Lowering(forward, find_activity(forward), opset).run()


class _Lowering:
    """The copy while it is written."""

    def __init__(self, forward: Forward, activity: Activity, opset: int) -> None:
        self._forward, self._activity, self._opset = forward, activity, opset
        graph = forward.proto.graph
        self._shapes: dict[str, Shape] = {name: tuple(shape) for name, shape in forward.shapes.items()}
        self._types = dict(forward.types)
        self._stored = {one.name: one for one in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._stored[node.output[0]] = node.attribute[0].t
        self._names = FreshNames(names_in(graph))
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._gradients: dict[str, tuple[int, int]] = {}

    def run(self) -> Lowered:
        graph = self._forward.proto.graph
        swishes = find_swishes(graph, self._activity.nodes, (self._forward.loss, *self._forward.auxiliary))
        inside = frozenset(swishes.values())
        for position, node in enumerate(graph.node):
            if position in inside:
                continue
            if position in swishes:
                self._swish(node, graph.node[swishes[position]])
            elif position in self._activity.nodes:
                self._treat(node)
            elif node.domain == PAIR_DOMAIN:
                self._inactive_pair(node)
            else:
                self._nodes.append(node)
        return Lowered(self._model(), self._gradients)

    def _treat(self, node: onnx.NodeProto) -> None:
        active = self._activity.inputs(node)
        node = self._reading_once(node)
        wanted = tuple(name in self._activity.tensors for name in node.output)
        site = self._site(node, active, wanted)
        done = _treatment(site)
        if done is None:
            self._nodes.append(node)
        elif isinstance(done, Replacement):
            self._nodes += done.nodes
            self._constants += done.initializers
        else:
            self._wrap(site, done)

    def _reading_once(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node, with copies where it reads a parameter again: the builder counts readers of a parameter by node."""
        again = [at for at, name in enumerate(node.input) if name in node.input[:at]]
        again = [at for at in again if node.input[at] in self._forward.parameters]
        if not again:
            return node
        made = onnx.NodeProto()
        made.CopyFrom(node)
        for at in again:
            name = self._names.unique(f"{node.output[0]}/{node.input[at]}")
            self._nodes.append(helper.make_node("Identity", [node.input[at]], [name], name=name))
            self._shapes[name], self._types[name] = self._shapes[node.input[at]], self._types[node.input[at]]
            made.input[at] = name
        return made

    def _swish(self, product: onnx.NodeProto, gate: onnx.NodeProto) -> None:
        """The call that stands for a Sigmoid and the Mul behind it."""
        node = helper.make_node("Swish", list(gate.input), list(product.output), name=product.name)
        self._wrap(self._site(node, (True,), (True,)), SWISH)

    def _site(self, node: onnx.NodeProto, active: tuple[bool, ...], wanted: tuple[bool, ...]) -> LoweringContext:
        return LoweringContext(node, self._shapes, self._types, self._value, active, wanted, self._names, self._opset)

    def _inactive_pair(self, node: onnx.NodeProto) -> None:
        """A pair that no gradient flows through stays a function call."""
        pair = _pair_of(node)
        self._functions.setdefault(f"{PAIR_DOMAIN}/{pair.op_type}", pair.function(self._opset))
        self._nodes.append(node)

    def _wrap(self, site: LoweringContext, wrap: Wrap) -> None:
        """The call of a function that holds the node; both functions are named after what is in them."""
        node = site.node
        body = _body(site, wrap)
        gradient = _gradient(wrap, self._opset)
        written = [one.SerializeToString(deterministic=True) for one in body]
        written.append(gradient.SerializeToString(deterministic=True))
        name = f"{node.op_type}_{hashlib.sha256(b''.join(written)).hexdigest()[:16]}"
        if name not in self._gradients:
            gradient.name = f"{name}_gradient"
            opsets = _opsets(self._opset)
            forward = helper.make_function(WRAP_DOMAIN, name, wrap.names, ["y"], body, opsets)
            self._functions[name], self._functions[gradient.name] = forward, gradient
            self._gradients[name] = (len(wrap.names), len(wrap.results))
        inputs = [one for one in node.input if one]
        for stem, array in wrap.extra.items():
            inputs.append(self._constant(f"{node.output[0]}/{stem}", array))
        self._nodes.append(helper.make_node(name, inputs, [node.output[0]], name=node.name, domain=WRAP_DOMAIN))

    def _constant(self, stem: str, array: Array) -> str:
        name = self._names.unique(stem)
        self._constants.append(tensor_of(array, name))
        return name

    def _value(self, name: str) -> Array | None:
        stored = self._stored.get(name)
        if stored is None or name in self._forward.parameters:
            return None
        small = int(np.prod(tuple(stored.dims), dtype=np.int64)) * 8 <= _SEEN_BYTES
        return array_of(stored, None) if small else None

    def _model(self) -> onnx.ModelProto:
        source, made = self._forward.proto, onnx.ModelProto()
        made.ir_version = source.ir_version
        made.opset_import.extend(one for one in source.opset_import if one.domain not in (WRAP_DOMAIN, TRAINING_DOMAIN))
        made.opset_import.extend([helper.make_opsetid(WRAP_DOMAIN, 1), helper.make_opsetid(TRAINING_DOMAIN, 1)])
        made.functions.extend(self._functions.values())
        graph, parameters = made.graph, frozenset(self._forward.parameters)
        graph.name = source.graph.name or "forward"
        graph.node.extend(self._nodes)
        graph.initializer.extend(one for one in source.graph.initializer if one.name not in parameters)
        graph.initializer.extend(self._constants)
        fixed = {one.name for one in graph.initializer}
        inputs = [one.name for one in source.graph.input if one.name not in fixed | parameters]
        graph.input.extend(self._info(name) for name in (*inputs, *self._forward.parameters))
        graph.output.extend(self._info(name) for name in (self._forward.loss, *self._forward.auxiliary))
        outside = {one.name for one in (*graph.input, *graph.output)} | fixed
        made_here = (name for node in self._nodes for name in node.output)
        known = (name for name in made_here if name in self._shapes and name in self._types and name not in outside)
        graph.value_info.extend(self._info(name) for name in known)
        return made

    def _info(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, self._types[name], self._shapes[name])


def _treatment(site: LoweringContext) -> Treatment:
    node = site.node
    if node.domain == PAIR_DOMAIN:
        return pair_rule(site, _pair_of(node))
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None:
        raise refuse(node, "has no gradient in the ort-training back end")
    return rule(site)


def _pair_of(node: onnx.NodeProto) -> PairFunction:
    pair = PairFunction.parse(node.op_type)
    if pair is None:
        raise refuse(node, "is not a pair")
    return pair


def _body(site: LoweringContext, wrap: Wrap) -> list[onnx.NodeProto]:
    """The nodes of the forward function: the pair's, or the node with its tensors renamed."""
    if wrap.body:
        return list(wrap.body)
    node, names = onnx.NodeProto(), iter(wrap.names)
    node.CopyFrom(site.node)
    inputs = [next(names) if name else "" for name in site.node.input]
    del node.input[:], node.output[:]
    node.input.extend(inputs)
    node.output.append("y")
    node.name = node.doc_string = ""
    del node.metadata_props[:]
    return [node]


def _gradient(wrap: Wrap, opset: int) -> onnx.FunctionProto:
    """The gradient's text as a function; an output called `unused` is left out."""
    results = ", ".join(f"d{name}" for name in wrap.results)
    head = f'<opset_import: ["" : {opset}, "{TRAINING_DOMAIN}" : 1], domain: "{WRAP_DOMAIN}">'
    text = f"{head} gradient (g, {', '.join(wrap.names)}, y) => ({results}) {{ {wrap.gradient} }}"
    function = onnx.parser.parse_function(text)
    for node in function.node:
        for at, name in enumerate(node.output):
            if name == "unused":
                node.output[at] = ""
    return function


def _opsets(opset: int) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid("", opset)]


def _checked_opset(proto: onnx.ModelProto) -> int:
    opset = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 0)
    if not _OPSETS[0] <= opset <= _OPSETS[1]:
        reason = f"is of opset {opset}, and the ort-training back end takes {_OPSETS[0]} to {_OPSETS[1]}"
        raise QdqError(proto.graph.name or "model", reason, "convert it, or use --backend builtin")
    return opset


def _check_names(forward: Forward) -> None:
    """The builder calls the gradient by `t` `t_grad` and would mix it up with a tensor of that name."""
    for name in forward.shapes:
        stem = name.rpartition("_grad")[0]
        if stem and stem in forward.shapes:
            reason = f"has the name that the gradient builder gives to the gradient by {stem}"
            raise QdqError(name, reason, "rename that tensor, or use --backend builtin")
