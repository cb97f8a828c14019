# SPDX-License-Identifier: Apache-2.0
"""Quantized weights stored as the codes that their pairs make of them, with a DequantizeLinear alone after them.

Enters the main graph only. Activations keep both nodes of their pairs.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor, count_uses, release
from qdqtool.graph.view import GraphView, Pair
from qdqtool.passes.quant_params import coding_of, pair_scale


def store_integers(view: GraphView, tensors: Collection[str] | None = None) -> int:
    """Put codes in the place of each weight and its QuantizeLinear; a weight with other readers stays, too.

    Of all weights, or of some.
    """
    editor, uses, stored = Editor(view), count_uses(view), 0
    for tensor, pairs in view.pairs.items():
        if not view.is_constant(tensor) or (tensors is not None and tensor not in tensors):
            continue
        for pair in pairs:
            codes = None if pair.quantize is None or pair.between else _codes(view, pair)
            if codes is None or pair.quantize is None:
                continue
            editor.remove_node(pair.quantize)
            editor.add_initializer(pair.quantize.outputs[0], codes)
            for name in pair.quantize.inputs:
                release(editor, uses, name)
            stored += 1
    editor.commit()
    return stored


def _codes(view: GraphView, pair: Pair) -> npt.NDArray[np.generic] | None:
    """What the QuantizeLinear of a weight makes: the code nearest to w / s, ties to even, cut off at both ends."""
    coding, scale, value = coding_of(view, pair), pair_scale(view, pair), view.array(pair.tensor)
    row = coding.format
    if coding.kind != row.dtype.name or coding.zero.any() or value is None or value.dtype != np.float32:
        return None
    shape = [1] * value.ndim
    if scale.axis is not None:
        shape[scale.axis] = -1
    steps = row.nearest(
        value.astype(np.float32, copy=False) / np.asarray(scale.bits).reshape(shape if scale.axis is not None else ())
    )
    return np.clip(steps, coding.low, coding.high).astype(row.dtype)
