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
from qdqtool.graph.view import GraphView, Pair, Use

Array = npt.NDArray[Any]


def with_scales(model: Model, scales: Mapping[str, np.float32]) -> Model:
    """The model with one symmetric INT8 scale on each of some tensors, on all of their pairs."""
    made = model.copy()
    view = made.view
    editor, uses = Editor(view), count_uses(view)
    for tensor, scale in scales.items():
        places = [Use(node, 1) for pair in view.pairs[tensor] for node in pair.nodes if node.op != "Clip"]
        write_constant(editor, uses, places, np.asarray(scale, np.float32), f"{tensor}_scale", in_place=False)
    editor.commit()
    return made


def with_weights(model: Model, weights: Mapping[str, Array]) -> Model:
    """The model in which readers of the pairs of some weights read arrays instead, which are float32."""
    made = model.copy()
    view = made.view
    editor = Editor(view)
    for tensor, array in weights.items():
        name = editor.add_initializer(editor.unique_name(f"{tensor}_other"), np.asarray(array, np.float32))
        _reroute(view, editor, tensor, name)
    editor.commit()
    return made


def without_pairs(model: Model, tensors: Collection[str]) -> Model:
    """The model in which readers of the pairs of some tensors read the tensors themselves."""
    made = model.copy()
    view = made.view
    editor = Editor(view)
    for tensor in tensors:
        _reroute(view, editor, tensor, tensor)
    editor.commit()
    return made


def _reroute(view: GraphView, editor: Editor, tensor: str, name: str) -> None:
    """Let who reads a tensor through its pairs read another name."""
    made = {pair.dequantize.outputs[0] for pair in view.pairs[tensor]}
    for use in view.consumers(tensor):
        if use.node.inputs[use.index] in made:
            editor.reroute(use, name)


def is_plain_pair(pair: Pair) -> bool:
    """Whether nothing stands between a Q and its DQ, so that another scale can take the place of theirs."""
    return pair.quantize is not None and not pair.between
