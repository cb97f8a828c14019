# SPDX-License-Identifier: Apache-2.0
"""A copy of a Q/DQ model in which one thing is different: other scales, other weights, some pairs gone.

What it loses less than the model itself is the gain of a remedy. The copies are run and never written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor, count_uses, write_constant
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.graph.weighted import pair_behind
from qdqtool.scales import Scale

Array = npt.NDArray[Any]


def with_scales(model: Model, scales: Mapping[str, Scale]) -> Model:
    """The model with other scales, of the formats of the pairs, on some tensors; several scales need opset 13."""
    made = model.copy()
    view = made.view
    editor, uses = Editor(view), count_uses(view)
    for tensor, scale in scales.items():
        nodes = [node for pair in view.pairs[tensor] for node in (pair.quantize, pair.dequantize) if node is not None]
        values = scale.bits, scale.format.zero_point(*scale.bits.shape)
        for index, (value, kind) in enumerate(zip(values, ("scale", "zero"), strict=True), 1):
            places = [Use(node, index) for node in nodes]
            write_constant(editor, uses, places, value, f"{tensor}_{kind}", in_place=False)
        if scale.axis is not None:
            for node in nodes:
                editor.set_attribute(node, "axis", scale.axis)
    editor.commit()
    return made


def with_weights(model: Model, weights: Mapping[str, Array]) -> Model:
    """The model in which readers of the pairs of some weights read arrays instead, which are float32."""
    made = model.copy()
    view = made.view
    editor = Editor(view)
    for tensor, array in weights.items():
        other = editor.add_initializer(editor.unique_name(f"{tensor}_other"), np.asarray(array, np.float32))
        back = {pair.dequantize.outputs[0] for pair in view.pairs[tensor]}
        for use in view.consumers(tensor):
            if use.node.inputs[use.index] in back:
                editor.reroute(use, other)
    editor.commit()
    return made


def with_float_operators(model: Model, operators: Collection[str], plain: GraphView) -> Model:
    """The model in which some operators, by their first outputs, read tensors without pairs, and the float weights."""
    made = model.copy()
    view = made.view
    editor = Editor(view)
    paired = {pair.dequantize.outputs[0]: pair for pairs in view.pairs.values() for pair in pairs}
    for node in (view.producers[key] for key in operators):
        for index, name in enumerate(node.inputs):
            if not view.is_constant(name):
                if name in paired:
                    editor.reroute(Use(node, index), paired[name].tensor)
            elif pair_behind(view, name) is not None and (value := float_input(plain, node, index)) is not None:
                other = editor.add_initializer(editor.unique_name(f"{name}_float"), value.astype(np.float32))
                editor.reroute(Use(node, index), other)
    editor.commit()
    return made


def float_input(plain: GraphView, node: Node, index: int) -> Array | None:
    """What the float model has for a constant that a node of the Q/DQ model reads; None where it is not known."""
    twin = plain.producers.get(node.key)
    return None if twin is None or index >= len(twin.inputs) else plain.array(twin.inputs[index])
