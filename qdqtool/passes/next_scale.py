# SPDX-License-Identifier: Apache-2.0
"""The next larger float32 as the scale of a second pair after a Concat, and the way back to the first scale.

TensorRT for RTX merges pairs of one scale around a Concat of pools (`match/second_pairs.py` says what that costs). With
`s' = s * (1 + e)`, `0 < e <= 2^-23` for normal numbers, `k * s / s'` rounds to `k` for every integer of int8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qdqtool.graph.view import GraphView
from qdqtool.match.flow import joins, value_names
from qdqtool.scales import Scale


def next_scale(scale: Scale) -> Scale:
    """The scale of one whole tensor, one float32 larger."""
    return replace(scale, bits=np.nextafter(scale.bits, np.float32(np.inf)))


def first_scales(view: GraphView, scales: Mapping[str, Scale]) -> dict[str, Scale]:
    """Scales of activations where that of a Concat is the next larger than what it joins: there, the one below."""
    found = dict(scales)
    for tensor, scale in scales.items():
        joined = _joined(view, tensor) & scales.keys() if scale.bits.ndim == 0 else set()
        below = {name for name in joined if next_scale(scales[name]).same_bits(scale)}
        if below:
            found[tensor] = replace(scale, bits=scales[min(below)].bits)
    return found


def _joined(view: GraphView, tensor: str) -> set[str]:
    """The tensors that a Concat joins, and those that a Concat among them joins; none for what another node makes."""
    found: set[str] = set()
    stack = [tensor]
    while stack:
        maker = view.producer(stack.pop())
        for name in () if maker is None or not joins(maker) else map(view.root, value_names(maker)):
            if name not in found:
                found.add(name)
                stack.append(name)
    return found
