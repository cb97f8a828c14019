# SPDX-License-Identifier: Apache-2.0
"""Tensors of which only what an activation lets through matters: they take the scale of what comes out of it.

y -> Relu -> z: what y holds below 0 becomes 0 whatever y's scale is, and the rest is z. So the scale of z is the best
one for y, too, and y need not be fetched, which would keep onnxruntime (as it would TensorRT) from fusing the two. The
same holds for a Clip around 0. No scale is lost where a fused group is cut there: whoever asks for y itself gets it.

y -> SiLU: what lies far below 0 matters as little, but z has another shape, so y is counted and its clipping value
chosen by the error after the SiLU (amax/before_silu.py) once the scale of z is known. What the Sigmoid in it makes
is not fetched: its histogram follows from y's.

y -> MaxPool -> z: where y is padded or masked with -Inf, the range of z is the one that matters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.rule_files import operator_set

# What inference engines fuse with the activation after it.
_MAKERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Add"})


def before_activations(view: GraphView, names: Sequence[str], kept: Collection[str] = ()) -> dict[str, str]:
    """Of wanted tensors those that only a Relu, or a Clip around 0, reads -> what that makes, which is wanted too."""
    wanted = frozenset(names)
    found: dict[str, str] = {}
    for node in view.nodes:
        if node.op not in ("Relu", "Clip") or node.inputs[0] not in wanted or node.outputs[0] not in wanted:
            continue
        before = node.inputs[0]
        producer = view.producers.get(before)
        alone = len(view.consumers(before)) == 1 and not view.is_output(before) and before not in view.captured
        if (
            producer is not None
            and producer.op in _MAKERS
            and alone
            and before not in kept
            and _around_zero(view, node)
        ):
            found[before] = node.outputs[0]
    return found


def before_silu(view: GraphView, names: Iterable[str]) -> dict[str, str]:
    """Of wanted tensors those that only a Sigmoid and the Mul of both read -> what the Mul makes."""
    found = {name: _silu_of(view, name) for name in names}
    return {name: product for name, product in found.items() if product}


def before_pools(view: GraphView, names: Sequence[str]) -> dict[str, str]:
    """Of wanted tensors those that only a MaxPool reads -> what that makes, which is wanted too."""
    wanted = frozenset(names)
    found = {}
    for node in view.nodes:
        if node.op in operator_set("comparing") and {node.inputs[0], node.outputs[0]} <= wanted:
            before = node.inputs[0]
            if len(view.consumers(before)) == 1 and not view.is_output(before) and before not in view.captured:
                found[before] = node.outputs[0]
    return found


def gates_of(view: GraphView, silu: Iterable[str], kept: Collection[str] = ()) -> dict[str, str]:
    """What the Sigmoids of SiLUs make, for nobody but the SiLU -> what they read."""
    found = {}
    for name in silu:
        gate = next(use.node.outputs[0] for use in view.consumers(name) if use.node.op == "Sigmoid")
        if (
            gate not in kept
            and len(view.consumers(gate)) == 1
            and not view.is_output(gate)
            and gate not in view.captured
        ):
            found[gate] = name
    return found


def _silu_of(view: GraphView, name: str) -> str:
    """What a SiLU makes of a tensor that nothing else reads; empty where there is none."""
    readers = [use.node for use in view.consumers(name)]
    if sorted(one.op for one in readers) != ["Mul", "Sigmoid"] or view.is_output(name) or name in view.captured:
        return ""
    product, gate = sorted(readers, key=lambda one: one.op)
    return product.outputs[0] if set(product.inputs) == {name, gate.outputs[0]} else ""


def _around_zero(view: GraphView, node: Node) -> bool:
    """Whether the activation leaves 0 as it is and cuts off on either side of it only."""
    if node.op == "Relu":
        return True
    low, high = (_bound(view, node, index, name) for index, name in ((1, "min"), (2, "max")))
    return low is not None and high is not None and low <= 0.0 <= high


def _bound(view: GraphView, node: Node, index: int, name: str) -> float | None:
    """A bound of a Clip: an input since opset 11, an attribute before; 0 where there is none, None where computed."""
    if index < len(node.inputs) and node.inputs[index]:
        value = view.array(node.inputs[index])
        return None if value is None or value.size != 1 else float(value.reshape(()))
    given = attribute(node, name, 0.0)
    return float(given) if isinstance(given, int | float) else None
