# SPDX-License-Identifier: Apache-2.0
"""Equalize: classes of channels divided in the weights before and multiplied in those behind. The float function stays.

No node is added. Enters the main graph only: what bodies of control flow read is pinned.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.graph.channels.factors import FactorClasses
from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.absorbers import scaled_constants
from qdqtool.passes.condition.constants import Constants
from qdqtool.passes.condition.rescale import scale_constant, scale_vector, scale_weight

Float64 = npt.NDArray[np.float64]


def equalize(model: Model, classes: FactorClasses, factors: Float64) -> list[str]:
    """Divide every channel of a class by its factor; the model is that of `classes`, or the same in another opset.

    `factors` (float64) are by atom: that of a class is at the atom that `find` gives; 1 for those that stay.

    Raises:
        QdqError: a constant passes what float32 holds; a node that is not in this graph.
    """
    view = model.view
    editor = Editor(view)
    constants = Constants(editor)
    nodes = {node.key: node for node in view.every}
    edited: dict[str, None] = {}
    for site in classes.sites:
        reads, gives = factors[site.reads], factors[site.gives]
        if (reads != 1).any() or (gives != 1).any():
            _scale(view, constants, _node(nodes, site.key), reads, gives)
            edited[site.key] = None
    for one in classes.added:
        field = factors[one.classes]
        if (field != 1).any():
            scale_constant(constants, _node(nodes, one.key), one.index, 1.0 / field)
            edited[one.key] = None
    editor.commit()
    return list(edited)


def _node(nodes: dict[str, Node], key: str) -> Node:
    if key not in nodes:
        raise QdqError(key, "is not made by one node in the model's own opset", "leave equalize out with --steps")
    return nodes[key]


def _scale(view: GraphView, constants: Constants, node: Node, reads: Float64, gives: Float64) -> None:
    """One node: y / gives from x / reads."""
    if weight_index(view, node) is not None:
        scale_weight(view, constants, node, reads, 1.0 / gives)
        return
    # Mul: c reads / gives. BatchNormalization: scale reads / gives, bias / gives, mean / reads. Others read nothing.
    read = reads if reads.size else np.ones_like(gives)
    first, *rest = scaled_constants(view, node)
    if node.op == "Mul":
        factors = (read / gives).reshape(constants.read(node, first).shape)  # one axis of it is not 1
        scale_constant(constants, node, first, factors)
        return
    scale_vector(constants, node, first, read / gives)
    for index, factors in zip(rest, (1.0 / gives, 1.0 / read), strict=False):
        scale_vector(constants, node, index, factors)
