# SPDX-License-Identifier: Apache-2.0
"""A copy of a Q/DQ model in which one thing is different: other scales, other weights, some pairs gone.

What it loses less than the model itself is the gain of a remedy. The copies are run and never written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.formats import INT8
from qdqtool.graph.edit import Editor, count_uses, write_constant
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Use
from qdqtool.graph.weighted import pair_behind
from qdqtool.scales import Scale

Array = npt.NDArray[Any]


def with_scales(model: Model, scales: Mapping[str, Scale]) -> Model:
    """The model with other symmetric INT8 scales on all pairs of some tensors; several scales need opset 13."""
    made = model.copy()
    view = made.view
    editor, uses = Editor(view), count_uses(view)
    for tensor, scale in scales.items():
        nodes = [node for pair in view.pairs[tensor] for node in (pair.quantize, pair.dequantize) if node is not None]
        values = scale.bits, INT8.zero_point(*scale.bits.shape)
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
    """The model in which some operators, by their first outputs, read floats: tensors without their pairs.

    Weights that the file holds as integers are those of the float model.
    """
    made = model.copy()
    view = made.view
    editor = Editor(view)
    paired = {pair.dequantize.outputs[0]: pair for pairs in view.pairs.values() for pair in pairs}
    for node in (view.producers[key] for key in operators):
        for index, name in enumerate(node.inputs):
            pair = pair_behind(view, name) if view.is_constant(name) else paired.get(name)
            if pair is None:
                continue
            value = plain.array(pair.tensor) if view.is_constant(name) and pair.dequantize.outputs[0] == name else None
            read = pair.tensor
            if value is not None:
                read = editor.add_initializer(editor.unique_name(f"{pair.tensor}_float"), value.astype(np.float32))
            if value is not None or not view.is_constant(name):
                editor.reroute(Use(node, index), read)
    editor.commit()
    return made
