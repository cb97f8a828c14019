# SPDX-License-Identifier: Apache-2.0
"""Constants that hold NaN, or infinity where an operator multiplies by it. A mask or a bound may be infinite.

Scales of Q/DQ are not looked at: a verb may be about to replace them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qdqtool.errors import QdqError
from qdqtool.graph.tensors import BLOCK_BYTES
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node

TODO = "export the model again from sound weights"
# What multiplies its constants, or normalizes by them: an infinity among these makes NaN or infinity of every value.
_MULTIPLYING = frozenset(
    (
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "PRelu"),
        *("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"),
        "RMSNormalization",
    )
)


@dataclass(frozen=True)
class NotFinite:
    """A constant that breaks what reads it."""

    name: str
    reader: Node
    what: str


def not_finite(view: GraphView) -> Iterator[NotFinite]:
    """Such constants of a graph and of the bodies in it, in file order; weights are read in blocks."""
    for graph in (view, *view.bodies()):
        seen = set[str]()
        for node in graph.every:
            for name in node.inputs[:1] if node.op in (QUANTIZE, DEQUANTIZE) else node.inputs:
                if name and name not in seen and _is_stored(graph, name):
                    seen.add(name)
                    what = _worst(graph, name)
                    readers = [use.node for use in graph.consumers(name)]
                    if what == "infinity":
                        readers = [one for one in readers if one.op in _MULTIPLYING]
                    if what and readers:
                        yield NotFinite(name, readers[0], what)


def require_finite(view: GraphView) -> None:
    """Refuse a graph that computes with such a constant.

    Raises:
        QdqError: the first, with the operator that reads it.
    """
    found = next(not_finite(view), None)
    if found is not None:
        reason = f"the weight holds {found.what}, and {found.reader.op} {found.reader.name} reads it"
        raise QdqError(found.name, reason, TODO)


def _is_stored(view: GraphView, name: str) -> bool:
    maker = view.producers.get(name)
    return name in view.initializers or (maker is not None and maker.op == "Constant")


def _worst(view: GraphView, name: str) -> str:
    """NaN, infinity or "" for a constant that holds neither; "" for what cannot be read."""
    array = view.array(name)
    if array is None or array.dtype.kind not in "fV":
        return ""
    flat, infinite = array.reshape(-1), False
    step = max(1, BLOCK_BYTES // max(1, array.itemsize))
    for start in range(0, flat.size, step):
        block = flat[start : start + step]
        block = block if block.dtype.kind == "f" else block.astype(np.float32)  # kind V: the types of ml_dtypes
        low, high = block.min(), block.max()
        if np.isnan(low):
            return "NaN"
        infinite |= bool(np.isinf(low) or np.isinf(high))
    return "infinity" if infinite else ""
