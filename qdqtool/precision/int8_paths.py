# SPDX-License-Identifier: Apache-2.0
"""Operators that move INT8 values from a DequantizeLinear to a QuantizeLinear: no Cast may stand between."""

from __future__ import annotations

from qdqtool.graph.order import topological
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node
from qdqtool.match.flow import value_names
from qdqtool.rule_files import operator_set


def int8_movers(view: GraphView) -> frozenset[str]:
    """First outputs of the operators that move values of one scale from DequantizeLinear to QuantizeLinear.

    In FP32 they are INT8 in the engine; with Casts around them TensorRT for RTX 1.7.1 builds kernels of their own
    (yolox_nano: 218 layers, 215 without). On the way to a product no operator needs this: the compiler moves a
    DequantizeLinear and the Cast directly behind it together, through MaxPool, Concat, Slice and their like. The Cast
    must stand there and not behind them: a Pad has to be next to its convolution (mobilenetv1: 4 of 28 products in FP16
    otherwise).
    """
    order = topological(view.every)
    scales: dict[str, bytes] = {}
    movers: list[Node] = []
    for node in order:
        if node.op == DEQUANTIZE and len(node.inputs) > 1:
            scale = view.array(node.inputs[1])
            scales[node.key] = node.key.encode() if scale is None else scale.tobytes()
        elif _moves(node) and (names := value_names(node)):
            before = {scales.get(name) for name in names}
            if len(before) == 1 and (scale_bits := before.pop()) is not None:
                movers.append(node)
                scales.update((name, scale_bits) for name in node.outputs if name)
    ends = {node.inputs[0] for node in order if node.op == QUANTIZE and node.inputs}
    kept = set()
    for node in reversed(movers):
        if not ends.isdisjoint(node.outputs):
            kept.add(node.key)
            ends.update(value_names(node))
    return frozenset(kept)


def _moves(node: Node) -> bool:
    return node.op in operator_set("unchanged") or node.op == "GlobalMaxPool"
