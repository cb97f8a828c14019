# SPDX-License-Identifier: Apache-2.0
"""The three ways in which TensorRT rounds to INT8, in numpy and in standard operators. Not who rounds which way.

Each is exact in float32, at half-way values and one step beside them: adding one half before rounding down is not
(0.49999997 + 0.5 is 1.0 in float32).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import EllipsisType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qdqtool.formats import INT8, NumberFormat
from qdqtool.graph.edit import Editor
from qdqtool.graph.view import Node

Float32 = npt.NDArray[np.float32]
Rounding = Literal["even", "up", "away"]

_TRACE = (("rule", "simulation"),)
# 1.5 * 2^23: float32 has no fraction there, so that adding it rounds to even; exact below 2^22.
_NO_FRACTION = np.float32(12582912)
_TINY = np.finfo(np.float32).tiny
_BLOCK_BYTES = 1 << 18


def rounded(values: Float32, how: Rounding) -> Float32:
    """The nearest whole numbers, half-way values to even, up (to +inf) or away from zero.

    Args:
        values: float32 of any shape.
        how: which way half-way values go.
    """
    if how == "away":
        size = np.abs(values)
        whole: Float32 = np.copysign(np.floor(size + size) - np.floor(size), values)
        return whole
    nearest: Float32 = np.rint(values)
    return nearest if how == "even" else nearest + (values - nearest == np.float32(0.5)).astype(np.float32)


def fake_quantize(
    values: Float32, scale: Float32, how: Rounding, codes: tuple[int, int], number_format: NumberFormat = INT8
) -> Float32:
    """Quantize and dequantize: `scale * clip(round(values / scale), *codes)`, float32 of the same shape.

    Args:
        values: float32.
        scale: float32, of a shape that goes with that of the values.
        how: which way half-way values go.
        codes: the lowest and the largest, `codes` or `weight_codes` of a number format.
        number_format: whose codes are the nearest, with "even".
    """
    made = np.empty(values.shape, np.float32)
    steps = np.broadcast_to(np.asarray(scale, np.float32), values.shape)
    for part in _blocks(made):
        levels, step = made[part], steps[part]
        with np.errstate(over="ignore"):  # what is beyond float32 saturates
            np.divide(values[part], step, out=levels)
        levels[...] = number_format.nearest(levels) if how == "even" else rounded(levels, how)
        np.clip(levels, *map(np.float32, codes), out=levels)
        np.multiply(levels, step, out=levels)
    return made


def _blocks(values: Float32) -> Iterator[EllipsisType | slice]:
    """Parts along the first axis that stay in a cache from the first step to the last: weights are large."""
    if values.nbytes <= _BLOCK_BYTES:
        yield ...
        return
    rows = max(1, _BLOCK_BYTES // values[:1].nbytes)
    for start in range(0, len(values), rows):
        yield slice(start, start + rows)


def fake_quantize_weight(weight: Float32, axis: int | None, how: Rounding = "even") -> Float32:
    """Quantize and dequantize a weight in INT8, at scales by its largest magnitudes.

    Args:
        weight: float32.
        axis: the axis with one scale per index; None for one scale.
        how: which way half-way values go.
    """
    return fake_quantize(weight, weight_steps(weight, axis), how, INT8.weight_codes)


def weight_steps(weight: Float32, axis: int | None) -> Float32:
    """The scales of a weight in INT8 by its largest magnitudes, in a shape that broadcasts to its own.

    Args:
        weight: float32.
        axis: the axis with one scale per index; None for one scale.
    """
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    top, bottom = (end(weight, axis=others, keepdims=True, initial=0) for end in (np.max, np.min))
    amax = np.maximum(top, -bottom)
    steps: Float32 = np.maximum(INT8.scale_of(amax), _TINY)  # a channel of zeros stays zero with any scale
    return steps


class RoundingNodes:
    """Writes the same arithmetic into a graph, in operators that every opset from 8 on has; shares its constants."""

    def __init__(self, editor: Editor, how: Rounding, codes: tuple[int, int]) -> None:
        if how == "up":
            raise ValueError("half-way values go up in weights only, which numpy rounds")
        self._editor, self._how, self._codes = editor, how, codes
        self._constants: dict[float, str] = {}

    def write(self, source: str, target: str, scale: np.float32, *, beside: Node | None) -> None:
        """Nodes after `beside` (at the front where it is None) that make `target` of `source`.

        Args:
            source: a float32 tensor of the graph.
            target: a name that nothing makes yet, taken already.
            scale: of the tensor.
            beside: the node that makes `source`.
        """
        chain = _Chain(self._editor, target, beside)
        step = self._editor.add_initializer(self._editor.unique_name(f"{target}_step"), np.asarray(scale, np.float32))
        level = chain.add("Div", source, step)
        lowest, largest = map(self._constant, self._codes)
        level = chain.add("Min", chain.add("Max", level, lowest), largest)
        chain.last("Mul", self._even(chain, level) if self._how == "even" else self._away(chain, level), step)

    def _even(self, chain: _Chain, level: str) -> str:
        shift = self._constant(float(_NO_FRACTION))
        return chain.add("Sub", chain.add("Add", level, shift), shift)

    def _away(self, chain: _Chain, level: str) -> str:
        """The sign times floor(2 |v|) - floor(|v|): below one half that is 0, and the sign need not be whole."""
        size = chain.add("Abs", level)
        whole = chain.add("Sub", chain.add("Floor", chain.add("Add", size, size)), chain.add("Floor", size))
        sign = chain.add("Max", chain.add("Add", level, level), self._constant(-1))
        return chain.add("Mul", chain.add("Min", sign, self._constant(1)), whole)

    def _constant(self, value: float) -> str:
        if value not in self._constants:
            name = self._editor.unique_name(f"simulation_{value:g}".replace("-", "minus_"))
            self._constants[value] = self._editor.add_initializer(name, np.asarray(value, np.float32))
        return self._constants[value]


class _Chain:
    """Nodes in a row, named after the tensor that the last one makes."""

    def __init__(self, editor: Editor, target: str, beside: Node | None) -> None:
        self._editor, self._target = editor, target
        self._place: dict[str, Any] = {"beside": beside, "after": beside is not None, "trace": _TRACE}

    def add(self, op: str, *inputs: str) -> str:
        output = self._editor.unique_name(f"{self._target}_{op}")
        self._editor.add_node(op, list(inputs), output, **self._place)
        return output

    def last(self, op: str, *inputs: str) -> None:
        self._editor.add_node(op, list(inputs), self._target, **self._place)
