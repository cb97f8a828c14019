# SPDX-License-Identifier: Apache-2.0
"""Adds to the bias of weighted operators; one that has none gets one. This changes the float function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.constants import Constants, narrowed
from qdqtool.passes.condition.rescale import constant_side, has_plain_bias

Float64 = npt.NDArray[np.float64]


def bias_site(view: GraphView, node: Node) -> tuple[Node, int] | None:
    """The node and input that hold an operator's bias, or could; None where there is no such place.

    A MatMul's is the constant that the Add after it adds along the last axis; an Einsum has none.
    """
    if node.op == "Einsum":
        return None
    if node.op != "MatMul":
        return (node, 2) if has_plain_bias(view, node) else None
    uses = view.consumers(node.outputs[0])
    if len(uses) != 1 or uses[0].node.op != "Add" or view.is_output(node.outputs[0]):
        return None
    side = constant_side(view, uses[0].node)
    value = None if side is None else view.array(uses[0].node.inputs[side])
    index = weight_index(view, node)
    weight = None if index is None else view.constant_tensor(node.inputs[index])
    if side is None or value is None or weight is None or value.ndim != 1 or value.size != weight.dims[-1]:
        return None
    return uses[0].node, side


def correct_biases(model: Model, additions: Mapping[str, Float64]) -> list[str]:
    """Add float64 [channels] to the bias of each weighted operator, named by its first output.

    The model is edited, its main graph only. Returns the operators that had no bias.
    """
    view = model.view
    editor = Editor(view)
    constants = Constants(editor)
    sites = bias_sites(view, additions)
    fresh = [key for key, addition in additions.items() if add_to_vector(constants, *sites[key], addition)]
    editor.commit()
    return fresh


def bias_sites(view: GraphView, keys: Iterable[str]) -> dict[str, tuple[Node, int]]:
    """Where the biases of operators are, or could be, by their first output; each has a place for one.

    Read off before anything is written: a constant that was added is none of the view's.
    """
    found = {key: bias_site(view, view.producers[key]) for key in keys}
    return {key: site for key, site in found.items() if site is not None}


def add_to_vector(constants: Constants, node: Node, index: int, addition: Float64) -> bool:
    """Add to the constant that a node reads as its bias: one value, one per channel, or none; whether it was none."""
    given = constants.holds(node, index)
    bias = np.zeros(addition.size)
    if given:
        bias = np.broadcast_to(constants.read(node, index).astype(np.float64).reshape(-1), addition.shape)
    constants.write(node, index, narrowed(bias + addition, node.name))
    return not given
