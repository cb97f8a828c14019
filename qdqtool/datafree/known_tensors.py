# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph's tensors while moments go through it: constants, shapes, and the moments found so far."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdqtool.datafree.moments import Array, Moments, constant, guess
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.view import GraphView, Node, attribute


class KnownTensors:
    """What has been found so far about the tensors of one graph: changes while the graph is walked."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.shapes = shapes_of(view)
        self.moments: dict[str, Moments] = {}

    def of(self, node: Node, index: int) -> Moments:
        """The moments of one input; a guess where nothing is known."""
        name = node.inputs[index] if index < len(node.inputs) else ""
        found = self.moments.get(self.view.root(name))
        if found is None:
            value = self.numbers(name)
            found = guess() if value is None else constant(value)
        return found

    def numbers(self, name: str) -> npt.NDArray[np.generic] | None:
        """The value of a numeric constant, or None."""
        if not name or not self.view.is_constant(self.view.root(name)):
            return None
        pair = next((pair for pair in self.view.pairs.get(name, ()) if pair.quantize is None), None)
        value = self.view.array(name) if pair is None else self._dequantized(pair.dequantize)
        if value is None or value.dtype.kind in "biuf":
            return value
        return None if value.dtype.kind in "OSUc" else value.astype(np.float32)

    def _dequantized(self, node: Node) -> npt.NDArray[np.generic] | None:
        """(q - zero point) * scale of an integer constant, one scale or one per place of the axis."""
        values = [self.numbers(name) for name in node.inputs if name]
        if any(value is None for value in values) or not values:
            return None
        q, *others = (np.asarray(value, np.float32) for value in values)
        axis, wide = integer(node, "axis", 1), [np.ones((), np.float32), np.zeros((), np.float32)]
        for place, value in enumerate(others[:2]):
            fits = value.size == 1 or (value.ndim == 1 and -q.ndim <= axis < q.ndim and value.size == q.shape[axis])
            if not fits:
                return None
            shape = [-1 if n == axis % max(q.ndim, 1) else 1 for n in range(q.ndim)]
            wide[place] = value.reshape(()) if value.size == 1 else value.reshape(shape)
        return np.asarray((q - wide[1]) * wide[0])

    def constant_input(self, node: Node, index: int) -> npt.NDArray[np.generic] | None:
        """The value of a constant input, or None."""
        return self.numbers(node.inputs[index]) if index < len(node.inputs) else None

    def vector(self, node: Node, index: int, default: float) -> Array:
        """A constant input as float64; a 0-d default where it is absent, computed or empty."""
        value = self.constant_input(node, index)
        return np.asarray(default if value is None or not value.size else value, np.float64)

    def shape(self, name: str) -> Shape | None:
        """The shape of a tensor as far as it is known."""
        return self.shapes.get(self.view.root(name))

    def rank(self, name: str) -> int | None:
        """The number of axes of a tensor, if known."""
        shape = self.shape(name)
        return None if shape is None else len(shape)


def integer(node: Node, name: str, default: int) -> int:
    """An integer attribute; `default` where the node lacks it."""
    value = attribute(node, name, default)
    return int(value) if isinstance(value, int) else default
