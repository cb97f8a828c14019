# SPDX-License-Identifier: Apache-2.0
"""How TensorRT names a layer after the ONNX nodes in it. The numbers of its unnamed helpers cannot be predicted."""

from __future__ import annotations

from qdqtool.engine.engine_view import EngineView
from qdqtool.engine.layer_units import Unit, constant_names
from qdqtool.graph.view import Node
from qdqtool.graph.weighted import pair_behind, weight_index

_LIMITED = frozenset({"Clip"})  # its constants are parameters, no layers
_SUMS = frozenset({"Add"})
_PLAIN = frozenset({"Relu", "BatchNormalization", "MaxPool"})  # named without PWN(...) behind a convolution


def names_in(view: EngineView, unit: Unit, unnamed: frozenset[str]) -> list[Node]:
    """The nodes of a unit that its name tells, the quantizer of the weight among them."""
    pair = _weight_quantizer(view, unit) if unnamed else None
    nodes = [] if pair is None else [pair]
    behind_add = False
    for node in unit.nodes:
        behind_add |= node.op in _SUMS and unit.residual is not None and node is unit.residual.node
        if node.op not in unnamed or behind_add or node is unit.start:
            nodes.append(node)
    return nodes


def layer_name(view: EngineView, group: tuple[Unit, ...], unnamed: frozenset[str]) -> str:
    """The name of a layer; parallel ones are joined by ||."""
    return " || ".join(_name(view, unit, unnamed) for unit in group)


def _name(view: EngineView, unit: Unit, unnamed: frozenset[str]) -> str:
    nodes = names_in(view, unit, unnamed)
    if unit.rule == "pointwise":
        return _pointwise(view, unit.nodes)
    words = [node.name for node in nodes if node not in unit.nodes]
    index = weight_index(view, unit.start)
    if index is not None and unnamed:
        words = [*constant_names(view, unit.start)[:1], *words]
    for node in nodes:
        if node in unit.nodes:
            plain = node is unit.start or node.op in _PLAIN | _SUMS or weight_index(view, unit.start) is None
            words.append(node.name if plain else _pointwise(view, (node,)))
    if unit.start.op == "Gemm" and len(unit.start.inputs) > 2 and unnamed:
        words += constant_names(view, unit.start)[1:2]
    return " + ".join(words)


def _pointwise(view: EngineView, nodes: tuple[Node, ...]) -> str:
    """PWN(a, PWN(b, c)): each operator with a constant is a layer of its own before it joins the ones before it."""
    node = nodes[-1]
    constants = [] if node.op in _LIMITED else constant_names(view, node)
    own = (
        f"PWN({', '.join([*constants, node.name])})"
        if constants or len(nodes) > 1 or node.op in _LIMITED or len(node.inputs) == 1
        else ""
    )
    text = own or node.name
    for earlier in reversed(nodes[:-1]):
        text = f"PWN({earlier.name}, {text})"
    return text


def _weight_quantizer(view: EngineView, unit: Unit) -> Node | None:
    index = weight_index(view, unit.start)
    pair = None if index is None else pair_behind(view, unit.start.inputs[index])
    return None if pair is None else pair.quantize
