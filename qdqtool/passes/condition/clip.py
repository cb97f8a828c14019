# SPDX-License-Identifier: Apache-2.0
"""Clips weights per output channel, so that abs-max / 127 is the step chosen. This changes the float function."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.constants import Constants, narrowed
from qdqtool.passes.condition.layout import as_cube, from_cube

Float64 = npt.NDArray[np.float64]


def clip_weights(model: Model, shares: Mapping[str, Float64]) -> int:
    """Clip weights to shares (float64 [channels], by the operator's first output) of the largest of each channel.

    The model is edited, its main graph only. Returns how many weights were clipped.
    """
    view = model.view
    editor = Editor(view)
    constants = Constants(editor)
    cut = 0
    for key, share in shares.items():
        node = view.producers[key]
        index = weight_index(view, node)
        assert index is not None
        weight = constants.read(node, index)
        cube = as_cube(node, weight)
        bound = np.abs(cube).max(axis=(2, 3), keepdims=True) * share.reshape(cube.shape[0], cube.shape[1], 1, 1)
        cut += int((np.abs(cube) > bound).sum())
        clipped = np.clip(cube, -bound, bound)
        constants.write(node, index, narrowed(from_cube(node, clipped, weight.shape), node.name))
    editor.commit()
    return cut
