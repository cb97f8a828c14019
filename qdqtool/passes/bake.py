# SPDX-License-Identifier: Apache-2.0
"""Compares the integers that a weight had under Q/DQ with those that TensorRT makes of it; writes floats that agree.

With a cache TensorRT scales each output channel by abs-max / 127 itself (levels -127 to 127), whatever range a pair
had learned. s * q comes back as q where the channel's largest |q| is 127 (-128 becomes -127 for that). Elsewhere no
float weights give these integers: s * q is written there, too, which TensorRT rounds to steps of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.match.plan import Point
from qdqtool.passes.coding import Coding
from qdqtool.scales import Scale

Float32 = npt.NDArray[np.float32]
Halves = Literal["up", "away"]

_LOST = -1000  # of a channel axis that cannot be followed
_HIGHEST = 127
_TINY = np.finfo(np.float32).tiny
# Operators through which a channel can be followed back to the weight that the pair stood on.
_MOVES = frozenset({"Identity", "Transpose"})


@dataclass(frozen=True)
class WeightCode:
    """How a pair quantised a weight: `scale` of its integers, with their zero point and bounds."""

    scale: Scale
    coding: Coding


@dataclass(frozen=True)
class Baked:
    """What the comparison found, in channels (a weight with one range for all of it counts as one).

    Attributes:
        channels: compared.
        same: come out as the integers they were, as the weights stand.
        agreeing: do not as they stand, and do when s * q is written.
        nearest: cannot, whatever is written, since their largest integer is not 127.
        largest_change: of a weight's values by what was or would be written, in steps of its pair.
        weights: names of the weights that were written, or would be.
        unread: weights that were not compared -> why.
    """

    channels: int = 0
    same: int = 0
    agreeing: int = 0
    nearest: int = 0
    largest_change: float = 0.0
    weights: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For --json and for reports."""
        return {
            "channels": self.channels,
            "same_integers": self.same,
            "agreeing_when_baked": self.agreeing,
            "nearest": self.nearest,
            "largest_change_in_steps": self.largest_change,
            "weights": list(self.weights),
            "not_compared": dict(self.unread),
        }


@dataclass(frozen=True)
class _Found:
    """One weight: its values as TensorRT should read them, and the counts."""

    value: npt.NDArray[Any]
    same: int
    agreeing: int
    nearest: int
    change: float


def bake_weights(
    view: GraphView, points: Iterable[Point], codes: Mapping[str, WeightCode], halves: Halves, *, write: bool
) -> Baked:
    """Compare every weight that had a pair, and where `write` is set write s * q for those that differ.

    Args:
        view: the graph without pairs; its proto is edited where `write` is set.
        points: the plan's weights, which say along which axis TensorRT scales.
        codes: the tensors that had a pair -> how they were coded.
        halves: where TensorRT rounds half-way values of weights to: "up" (GPU) or "away" from zero (DLA).
        write: whether to write.

    Returns:
        Counts, which are the same with and without `write`.
    """
    editor = Editor(view)
    found: dict[str, _Found] = {}
    unread: dict[str, str] = {}
    for point in points:
        name, axis = _origin(view, point, codes)
        if name is None or name in found or name in unread:
            continue
        reason = _unreadable(view, name, axis, point)
        if reason:
            unread[name] = reason
            continue
        found[name] = _compare(view.array(name), codes[name], axis, halves)
    changed = [name for name, one in found.items() if one.change > 0]
    for name in changed if write else ():
        editor.set_constant(name, found[name].value)
    counts = found.values()
    return Baked(
        sum(one.same + one.agreeing + one.nearest for one in counts),
        sum(one.same for one in counts),
        sum(one.agreeing for one in counts),
        sum(one.nearest for one in counts),
        max((one.change for one in counts), default=0.0),
        tuple(changed),
        unread,
    )


def _origin(view: GraphView, point: Point, codes: Collection[str]) -> tuple[str | None, int | None]:
    """The tensor that the pair stood on, and TensorRT's channel axis in it, or `_LOST`."""
    name, axis = point.tensor, point.axis
    while name not in codes:
        node = view.producer.get(name)
        if node is None or not node.inputs or not view.is_constant(name):
            return None, None
        axis = _axis_before(node, axis)
        name = node.inputs[0]
    return name, axis


def _axis_before(node: Node, axis: int | None) -> int | None:
    """The axis in a node's input that is `axis` in its output."""
    if axis is None or axis == _LOST or node.op == "Identity":
        return axis
    perm: Any = attribute(node, "perm")
    return int(perm[axis]) if node.op == "Transpose" and perm else _LOST


def _unreadable(view: GraphView, name: str, axis: int | None, point: Point) -> str:
    """Why a weight cannot be compared; "" where it can."""
    if axis == _LOST:
        return f"it reaches {point.tensor} through an operator that moves its channels"
    value = view.array(name)
    if value is None or value.dtype not in (np.float32, np.float16):
        return "its values are no float32 or float16 constant"
    node = view.producer.get(name)
    if name not in view.initializers and (node is None or node.op != "Constant"):
        return "it is computed from other constants"
    keys = {read.node for read in point.reads}
    for use in view.readers(name):
        if use.node.key not in keys and use.node.op not in _MOVES:
            return f"{use.node.op} {use.node.name} reads it, too"
    return "the body of control flow reads it, too" if name in view.captured else ""


def _compare(value: Any, code: WeightCode, axis: int | None, halves: Halves) -> _Found:
    """One weight, channel by channel.

    q = clip(round(w / s) + z, low, high) - z under Q/DQ, half-way values to even; t = abs-max / 127 of the channel and
    p = clip(round(w / t), -127, 127) in TensorRT. Same where p = q in the whole channel.
    """
    weight = value.astype(np.float32)
    scale = _along(code.scale.bits, code.scale.axis, weight.ndim)
    zero = _along(code.coding.zero.astype(np.float32), code.scale.axis, weight.ndim)
    levels = np.clip(np.rint(weight / scale) + zero, code.coding.low, code.coding.high) - zero
    here = _same(weight, levels, axis, halves)
    levels = np.where(levels == -_HIGHEST - 1, np.float32(-_HIGHEST), levels)  # TensorRT's lowest
    fake = (levels * scale).astype(value.dtype)
    there = _same(fake.astype(np.float32), levels, axis, halves)
    result = np.where(_spread(~here, axis, weight.ndim), fake, value)
    change = np.abs(result.astype(np.float64) - weight) / scale
    agreeing, nearest = int((~here & there).sum()), int((~here & ~there).sum())
    return _Found(result, int(here.sum()), agreeing, nearest, float(change.max(initial=0.0)))


def _same(weight: Float32, levels: Float32, axis: int | None, halves: Halves) -> npt.NDArray[np.bool_]:
    """Per channel, whether TensorRT makes these integers of a weight."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    amax = np.abs(weight).max(axis=others, keepdims=True, initial=0)
    ratio = weight / np.maximum(amax / np.float32(_HIGHEST), _TINY)
    made = np.clip(_rounded(ratio, halves), -_HIGHEST, _HIGHEST)
    return np.atleast_1d((made == levels).all(axis=others))


def _rounded(ratio: Float32, halves: Halves) -> Float32:
    nearest: Float32 = np.rint(ratio)
    half = np.abs(ratio - np.trunc(ratio)) == np.float32(0.5)
    if halves == "up":
        return np.where(half, np.ceil(ratio), nearest).astype(np.float32)
    return np.where(half, np.trunc(ratio) + np.sign(ratio), nearest).astype(np.float32)


def _along(value: Any, axis: int | None, rank: int) -> Any:
    """A value per channel in a shape that goes with the weight's."""
    if value.size == 1 or axis is None:
        return value.reshape(()) if value.size == 1 else value
    shape = [1] * rank
    shape[axis] = -1
    return value.reshape(shape)


def _spread(channels: npt.NDArray[np.bool_], axis: int | None, rank: int) -> npt.NDArray[np.bool_]:
    if axis is None:
        return channels.reshape((1,) * rank)
    shape = [1] * rank
    shape[axis] = -1
    return channels.reshape(shape)
