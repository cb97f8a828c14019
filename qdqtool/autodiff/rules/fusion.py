# SPDX-License-Identifier: Apache-2.0
"""Neighbors that are differentiated together, because the way back then reads large tensors less often.

A stored-statistics BatchNormalization after a Conv is a factor on its weight: what costs five passes over an
activation costs three over a weight, and the gradients by both come out of the same rules. x * Sigmoid(x) has a
derivative of four passes, not six. The numbers are the same but for rounding; what is exported is not touched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from qdqtool.autodiff.rules.tape import GraphValue, Shape, Tape
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext

JOINT_DOMAIN = "qdqtool.joint"
"""Domain of nodes that stand for several until they are written down; none of it is in a finished graph."""
SILU = f"{JOINT_DOMAIN}::SiLU"


class FusedOps:
    """Joins nodes of one forward graph. What is differentiated is a graph of its own, so nothing is edited."""

    def __init__(self, tape: Tape, shapes: dict[str, Shape], types: dict[str, int], kept: Iterable[str]) -> None:
        """Nothing is joined yet."""
        self._tape, self._shapes, self._types, self._kept = tape, shapes, types, frozenset(kept)

    def join(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes in their order, joined where that pays."""
        consumers = Counter(name for node in nodes for name in node.input)
        producer = {name: node for node in nodes for name in node.output}
        replaced: dict[str, list[onnx.NodeProto]] = {}
        gone: set[str] = set()
        for node in nodes:
            inner = self._inner(node, producer)
            if inner is None or inner.output[0] in self._kept or consumers[inner.output[0]] != 1:
                continue
            joint = self._scaled_conv(inner, node) if inner.op_type == "Conv" else [_silu(inner, node)]
            if joint:
                replaced[node.output[0]] = joint
                gone.add(inner.output[0])
        result: list[onnx.NodeProto] = []
        for node in nodes:
            if node.output[0] not in gone:
                result.extend(replaced.get(node.output[0], [node]))
        return result

    def _inner(self, node: onnx.NodeProto, producer: dict[str, onnx.NodeProto]) -> onnx.NodeProto | None:
        """The Conv before a BatchNormalization, or the Sigmoid whose input a Mul multiplies it with."""
        if _is(node, "BatchNormalization"):
            conv = producer.get(node.input[0])
            inference = len(node.output) == 1 and not any(a.name == "training_mode" and a.i for a in node.attribute)
            return conv if inference and _is(conv, "Conv") else None
        if _is(node, "Mul"):
            for x, s in (tuple(node.input), tuple(node.input)[::-1]):
                sigmoid = producer.get(s)
                if sigmoid is not None and _is(sigmoid, "Sigmoid") and sigmoid.input[0] == x:
                    return sigmoid
        return None

    def _scaled_conv(self, conv: onnx.NodeProto, norm: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Conv by w k and (bias - mean) k + shift, k = scale / sqrt(variance + epsilon); nothing where w is large."""
        w_shape, x_kind = self._shapes[conv.input[1]], self._types[conv.input[0]]
        if math.prod(w_shape) > math.prod(self._shapes[norm.output[0]]):
            return []
        _, scale, shift, mean, variance = norm.input
        epsilon = next((item.f for item in norm.attribute if item.name == "epsilon"), 1e-5)
        dtype = helper.tensor_dtype_to_np_dtype(x_kind)
        channels: Shape = (w_shape[0],)
        eps = self._constant(self._tape.constant(np.asarray(epsilon, dtype)))
        wide = self._constant(self._tape.integers((w_shape[0], *(1,) * (len(w_shape) - 1))))
        nodes: list[onnx.NodeProto] = []

        def write(op: str, inputs: Sequence[str], shape: Shape) -> str:
            name = self._tape.fresh(f"{norm.output[0]}/{op}")
            nodes.append(helper.make_node(op, inputs, [name]))
            self._shapes[name], self._types[name] = shape, x_kind
            return name

        root = write("Sqrt", [write("Add", [variance, eps], channels)], channels)
        k = write("Div", [scale, root], channels)
        wide_k = write("Reshape", [k, wide], (w_shape[0], *(1,) * (len(w_shape) - 1)))
        weight = write("Mul", [conv.input[1], wide_k], w_shape)
        has_bias = len(conv.input) > 2 and conv.input[2]
        centered = write("Sub", [conv.input[2], mean], channels) if has_bias else write("Neg", [mean], channels)
        bias = write("Add", [write("Mul", [centered, k], channels), shift], channels)
        made = onnx.NodeProto()
        made.CopyFrom(conv)
        del made.input[:], made.output[:]
        made.input.extend([conv.input[0], weight, bias])
        made.output.append(norm.output[0])
        return [*nodes, made]

    def _constant(self, value: GraphValue) -> str:
        self._shapes[value.name], self._types[value.name] = value.shape, value.kind
        return value.name


def _is(node: onnx.NodeProto | None, op: str) -> bool:
    return node is not None and node.op_type == op and node.domain in ("", "ai.onnx")


def _silu(sigmoid: onnx.NodeProto, product: onnx.NodeProto) -> onnx.NodeProto:
    name = product.name or product.output[0]
    inputs, outputs = [sigmoid.input[0]], [product.output[0], sigmoid.output[0]]
    return helper.make_node("SiLU", inputs, outputs, name=name, domain=JOINT_DOMAIN)


def written_out(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A joint node as the nodes that it stands for."""
    x, (y, s) = node.input[0], node.output
    return [helper.make_node("Sigmoid", [x], [s]), helper.make_node("Mul", [x, s], [y], name=node.name)]


def _silu_gradient(site: VjpContext) -> Gradients:
    """With s = sigmoid(x), y = x s: dx = g (s + y (1 - s))."""
    s = site.outputs[1]
    assert s is not None  # `_silu` names it
    return [site.g * (s + site.y * (1 - s))]


RULES: Mapping[str, Rule] = {SILU: _silu_gradient}
