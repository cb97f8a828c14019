# SPDX-License-Identifier: Apache-2.0
"""Which nodes take factors of channels in with constants of their own, and how. `rescale.py` writes the constants."""

from __future__ import annotations

from collections.abc import Callable, Collection

from qdqtool.graph.channels.atoms import ChannelAtoms
from qdqtool.graph.channels.factors import Absorber, FactorClasses, find_factor_classes
from qdqtool.graph.nodes import is_training
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.constants import is_plain_constant
from qdqtool.passes.condition.layout import readable
from qdqtool.passes.condition.rescale import constant_side, has_plain_bias

_PER_CHANNEL = {"BatchNormalization": 4, "InstanceNormalization": 3, "LayerNormalization": 3, "RMSNormalization": 2,
                "SimplifiedLayerNormalization": 2}  # fmt: skip


def factor_classes(atoms: ChannelAtoms, fixed: Collection[str] = (), coarse: Collection[str] = ()) -> FactorClasses:
    """The classes of a plain model's graph; every constant that stands in the model as it is may be written."""
    view, absorbs = atoms.view, absorber_of(atoms)

    def writable(node: Node, index: int) -> bool:
        return is_plain_constant(view, node, index) and node.key not in fixed

    def takes(node: Node) -> Absorber | None:
        return None if node.key in fixed else absorbs(node)

    return find_factor_classes(atoms, takes, writable, coarse)


def absorber_of(atoms: ChannelAtoms) -> Callable[[Node], Absorber | None]:
    """How a node of the graph takes factors in; None where that cannot be proven exact."""
    view = atoms.view

    def absorbs(node: Node) -> Absorber | None:
        if weight_index(view, node) is not None:
            return _weighted(atoms, node)
        if node.proto.domain:
            return None
        if node.op in _PER_CHANNEL:
            return _normalizing(atoms, node)
        return _multiplied(atoms, node) if node.op == "Mul" else None

    return absorbs


def _weighted(atoms: ChannelAtoms, node: Node) -> Absorber | None:
    view, index = atoms.view, weight_index(atoms.view, node)
    shape = atoms.shape(node.outputs[0])
    if index is None or shape is None or not readable(view, node) or not has_plain_bias(view, node):
        return None
    axis = 1 if node.op in ("Conv", "ConvTranspose") else len(shape) - 1
    return Absorber(axis, axis, 1 - index)


def _normalizing(atoms: ChannelAtoms, node: Node) -> Absorber | None:
    """BatchNormalization takes both sides in; the others are not the same for channels divided, what they give is."""
    used = [index for index in range(1, len(node.inputs)) if node.inputs[index]]
    plain = all(is_plain_constant(atoms.view, node, index) for index in used)
    shape = atoms.shape(node.outputs[0])
    if not plain or shape is None or len(used) < _PER_CHANNEL[node.op] - 2:
        return None
    if node.op == "BatchNormalization":
        return None if is_training(node) else Absorber(1, 1)
    if node.op == "InstanceNormalization":
        return Absorber(None, 1)
    last = len(shape) - 1
    one_axis = attribute(node, "axis", -1) in (-1, last)
    return Absorber(None, last) if one_axis and 1 in used else None


def _multiplied(atoms: ChannelAtoms, node: Node) -> Absorber | None:
    """A Mul with a constant that has one value per channel of one axis."""
    shape, side = atoms.shape(node.outputs[0]), constant_side(atoms.view, node)
    tensor = None if side is None else atoms.view.constant_tensor(node.inputs[side])
    if tensor is None or shape is None or side is None or len(tensor.dims) > len(shape):
        return None
    dims = (1,) * (len(shape) - len(tensor.dims)) + tuple(tensor.dims)
    wide = [axis for axis, size in enumerate(dims) if size != 1]
    before = atoms.shape(node.inputs[1 - side])
    if len(wide) != 1 or before is None or len(before) != len(shape) or before[wide[0]] != dims[wide[0]]:
        return None
    return Absorber(wide[0], wide[0], 1 - side)


def scaled_constants(view: GraphView, node: Node) -> list[int]:
    """Which inputs of a node that takes factors in are written."""
    index = weight_index(view, node)
    if index is not None:
        return [index, *([2] if node.op != "MatMul" and len(node.inputs) > 2 and node.inputs[2] else [])]
    if node.op == "Mul":
        side = constant_side(view, node)
        return [] if side is None else [side]
    last = 4 if node.op == "BatchNormalization" else 3
    return [place for place in range(1, min(last, len(node.inputs))) if node.inputs[place]]
