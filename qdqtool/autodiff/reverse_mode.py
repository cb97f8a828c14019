# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation, ONNX to ONNX: which nodes are asked, in what order, what becomes of the answers.

How one operator passes a gradient back is in `rules/`; both back ends differentiate here, each by its own table.
Operators without a rule that ONNX defines by a function body are decomposed first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from qdqtool.autodiff.activity import Activity, find_activity
from qdqtool.autodiff.backend import PAIR_DOMAIN, Forward, GradientGraph
from qdqtool.autodiff.decompose import body_of
from qdqtool.autodiff.pairs import PairFunction
from qdqtool.autodiff.rules.fusion import JOINT_DOMAIN, FusedOps, written_out
from qdqtool.autodiff.rules.known import KnownValues
from qdqtool.autodiff.rules.table import DECOMPOSED, key_of
from qdqtool.autodiff.rules.tape import LOWEST_OPSET, GraphValue, Tape
from qdqtool.autodiff.rules.vjp_context import TODO, Rule, VjpContext
from qdqtool.errors import QdqError
from qdqtool.graph.builder import names_in
from qdqtool.graph.order import needed, topological_protos, wrapped

_DEFAULT_DOMAINS = ("", "ai.onnx")
_CONTINUOUS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})
_LOWEST_IR = 8  # what belongs to opset 16


def differentiate(forward: Forward, rules: Mapping[str, Rule]) -> GradientGraph:
    """The gradient of the loss by every parameter.

    Raises:
        QdqError: an operator between a parameter and the loss has no gradient here; it is named. The loss is no
            scalar, or does not depend on a parameter.
        MissingPackageError: onnxruntime is not installed, and the graph resizes.
    """
    return _Differentiation(forward, rules).graph()


class _Differentiation:
    """One forward graph on its way to a gradient graph."""

    def __init__(self, forward: Forward, rules: Mapping[str, Rule]) -> None:
        self._forward, self._rules = forward, rules
        self._graph = forward.proto.graph
        opset = next((entry.version for entry in forward.proto.opset_import if entry.domain in _DEFAULT_DOMAINS), 1)
        self._tape = Tape(max(opset, LOWEST_OPSET), names_in(self._graph))
        self._initializers = {tensor.name: tensor for tensor in self._graph.initializer}
        self._shapes = {**forward.shapes, **{name: tuple(one.dims) for name, one in self._initializers.items()}}
        self._types = {**forward.types, **{name: one.data_type for name, one in self._initializers.items()}}
        plain = self._decomposed([_copy(node, opset) for node in topological_protos(self._graph.node)])
        fixed = {name: one for name, one in self._initializers.items() if name not in forward.parameters}
        self._known = KnownValues(plain, fixed, self._tape.opset, self._shapes)
        joints = FusedOps(self._tape, self._shapes, self._types, (forward.loss, *forward.auxiliary))
        self._nodes = joints.join(plain)
        self._activity = self._find_activity(self._nodes)
        self._refuse_unknown()
        self._cotangents: dict[str, list[GraphValue]] = {}

    # ------------------------------------------------------------------ what is on the way

    def _find_activity(self, nodes: Sequence[onnx.NodeProto]) -> Activity:
        def is_real(name: str) -> bool:
            """Whether a gradient passes. A sequence has no shape; it counts, so that it is refused by name."""
            return name not in self._shapes or self._value(name).kind in _CONTINUOUS

        return find_activity(nodes, self._forward.parameters, self._forward.loss, is_real)

    def _decomposed(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes, with bodies in place of those that a gradient passes and that have no rule."""
        activity = self._find_activity(nodes)
        return [one for node in nodes for one in (self._lowered(node) if activity.passes(node) else [node])]

    def _lowered(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        found = key_of(node) in DECOMPOSED
        body = body_of(node, self._tape.opset, self._shapes, self._types, self._tape.fresh) if found else None
        if body is None:
            return [node]
        self._shapes.update(body.shapes)
        self._types.update(body.types)
        return [one for inner in body.nodes for one in self._lowered(inner)]

    def _refuse_unknown(self) -> None:
        """Say no before anything is written, QuantizeLinear outside a pair among what has no rule."""
        for node in self._nodes:
            if self._rule(node) is None and self._activity.passes(node):
                label = node.op_type if node.domain in _DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"
                what = "has a subgraph, which has" if any(item.HasField("g") for item in node.attribute) else "has"
                raise QdqError(node.name or next(filter(None, node.output)), f"{label} {what} no gradient here", TODO)

    def _rule(self, node: onnx.NodeProto) -> Rule | None:
        return self._rules.get(key_of(node))

    # ------------------------------------------------------------------ the way back

    def graph(self) -> GradientGraph:
        """Forward nodes, backward nodes, and of both only what the outputs need."""
        loss = self._value(self._forward.loss)
        if math.prod(loss.shape) != 1 or loss.kind != TensorProto.FLOAT:
            reason = f"is not a scalar float32 loss, its shape is {list(loss.shape)}"
            raise QdqError(loss.name, reason, "sum it up or take its mean")
        for node in self._nodes:
            self._tape.nodes.extend(self._inlined(node))
        self._cotangents[loss.name] = [self._tape.constant(np.ones(loss.shape, np.float32))]
        for node in reversed(self._nodes):
            self._pass_back(node)
        gradients = {name: self._gradient(name) for name in self._forward.parameters}
        return GradientGraph(self._model(gradients), gradients)

    def _inlined(self, node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
        """A pair as its two nodes, a joint as those that were joined, any other node as it is."""
        if node.domain == JOINT_DOMAIN:
            return written_out(node)
        pair = PairFunction.parse(node.op_type) if node.domain == PAIR_DOMAIN else None
        if pair is None:
            return [node]
        return pair.nodes(node.input, self._tape.fresh(f"{node.input[0]}/quantized"), node.output[0])

    def _pass_back(self, node: onnx.NodeProto) -> None:
        cotangents = tuple(self._total(name) for name in node.output)
        wanted = tuple(self._activity.has(name) for name in node.input)
        if not any(wanted) or all(value is None for value in cotangents):
            return
        rule = self._rule(node)
        assert rule is not None  # what has none was refused before
        site = VjpContext(
            node,
            self._tape,
            tuple(self._value(name) if name else None for name in node.input),
            tuple(self._value(name) if name else None for name in node.output),
            cotangents,
            wanted,
            {item.name: helper.get_attribute_value(item) for item in node.attribute},
            self._known.value,
        )
        for name, use, gradient in zip(node.input, wanted, rule(site), strict=False):
            if use and gradient is not None:
                self._receive(name, gradient)

    def _receive(self, name: str, gradient: GraphValue) -> None:
        value = self._value(name)
        if (gradient.shape, gradient.kind) != (value.shape, value.kind):
            raise AssertionError(f"the gradient by {name} has shape {gradient.shape}, not {value.shape}")
        self._cotangents.setdefault(name, []).append(gradient)

    def _total(self, name: str) -> GraphValue | None:
        """The gradient by a tensor: the sum over all its consumers, each of which has been asked by now."""
        terms = self._cotangents.get(name)
        return self._tape.add_up(terms) if name and terms else None

    def _value(self, name: str) -> GraphValue:
        return GraphValue(name, self._shapes[name], self._types[name], self._tape)

    # ------------------------------------------------------------------ the result

    def _gradient(self, parameter: str) -> str:
        """The parameter's gradient under a name of its own."""
        total = self._total(parameter)
        if total is None:
            reason = f"has no gradient, since {self._forward.loss} does not depend on it but through steps"
            raise QdqError(parameter, reason, "freeze it")
        name = self._tape.fresh(f"{parameter}_grad")
        self._tape.nodes.append(helper.make_node("Identity", [total.name], [name]))
        return name

    def _model(self, gradients: Mapping[str, str]) -> onnx.ModelProto:
        forward, graph = self._forward, self._graph
        kept_outputs = dict.fromkeys((forward.loss, *forward.auxiliary))
        outputs = [self._described(name, self._value(name)) for name in kept_outputs]
        outputs += [self._described(gradients[name], self._value(name)) for name in forward.parameters]
        kept, read = needed(wrapped(self._tape.nodes), [output.name for output in outputs])
        fixed = [t for t in graph.initializer if t.name not in forward.parameters]
        inputs = [given for given in graph.input if given.name not in self._initializers]
        inputs += [self._described(name, self._value(name)) for name in forward.parameters]
        initializers = [tensor for tensor in (*fixed, *self._tape.initializers) if tensor.name in read]
        nodes = [node.proto for node in kept]
        made = helper.make_graph(nodes, graph.name or "gradients", inputs, outputs, initializers)
        opsets = [entry for entry in forward.proto.opset_import if entry.domain not in (*_DEFAULT_DOMAINS, PAIR_DOMAIN)]
        opsets.insert(0, helper.make_opsetid("", self._tape.opset))
        stated = {entry.domain for entry in opsets}
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted({node.domain for node in nodes} - stated)]
        version = max(forward.proto.ir_version, _LOWEST_IR)
        return helper.make_model(made, opset_imports=opsets, ir_version=version, producer_name="qdqtool")

    def _described(self, name: str, like: GraphValue) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, like.kind, like.shape)


def _copy(node: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """The node for a graph of at least `LOWEST_OPSET`; rules may name further outputs of it."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    if opset < LOWEST_OPSET and node.op_type == "RoiAlign":  # its default is another one from there on
        made.attribute.append(helper.make_attribute("coordinate_transformation_mode", "output_half_pixel"))
    return made
