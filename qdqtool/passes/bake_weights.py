# SPDX-License-Identifier: Apache-2.0
"""Compares the integers that a weight had under Q/DQ with those that TensorRT makes of it; writes floats that agree.

With a cache TensorRT scales each output channel by abs-max / 127 itself (levels -127 to 127), whatever range a pair
had learned. s * q comes back as q where the channel's largest |q| is 127 (-128 becomes -127 for that). Elsewhere no
float weights give these integers: s * q is written there, too, which TensorRT rounds to steps of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qdqtool.formats import INT8
from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.match.plan import Point
from qdqtool.passes.quant_params import QuantParams
from qdqtool.scales import Scale

Float32 = npt.NDArray[np.float32]
WeightRounding = Literal["half_up", "half_away"]
_Place = tuple[slice, ...]
# Per channel: whether it is the same as it stands, the same when written, and other by ties alone.
_Flags = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]

_LOST = -1000  # of a channel axis that cannot be followed
_BLOCK_BYTES = 4 << 20  # of a weight that is compared at a time: ten arrays of that size are held with it
_TINY = np.finfo(np.float32).tiny
# Operators through which a channel can be followed back to the weight that the pair stood on.
_MOVES = frozenset({"Identity", "Transpose"})


@dataclass(frozen=True)
class WeightCode:
    """How a pair quantized a weight: `scale` of its integers, with their zero point and bounds."""

    scale: Scale
    coding: QuantParams


@dataclass(frozen=True)
class Baked:
    """What the comparison found, in channels (a weight with one range for all of it counts as one).

    Attributes:
        channels: compared.
        same: come out as the integers they were, as the weights stand.
        agreeing: do not as they stand, and do when s * q is written.
        nearest: cannot, whatever is written, since their largest integer is not 127.
        ties: of both, those that differ in half-way values alone, which Q/DQ rounds to even and TensorRT another way.
        largest_change: of a weight's values by what was or would be written, in steps of its pair.
        weights: names of the weights that were written, or would be.
        unread: weights that were not compared -> why.
        coarse: of both, those of weights whose pair clips nothing and has one scale for all channels, where TensorRT
            has one for each.
    """

    channels: int = 0
    same: int = 0
    agreeing: int = 0
    nearest: int = 0
    largest_change: float = 0.0
    weights: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    ties: int = 0
    coarse: int = 0

    def to_json(self) -> dict[str, Any]:
        """For --json and for reports."""
        return {
            "channels": self.channels,
            "same_integers": self.same,
            "agreeing_when_baked": self.agreeing,
            "nearest": self.nearest,
            "rounding_ties": self.ties,
            "largest_change_in_steps": self.largest_change,
            "weights": list(self.weights),
            "not_compared": dict(self.unread),
        }


@dataclass(frozen=True)
class _BakedWeight:
    """One weight: its values as TensorRT should read them, where they are wanted and others than now; the counts."""

    value: npt.NDArray[Any] | None
    same: int
    agreeing: int
    nearest: int
    change: float
    ties: int


def bake_weights(
    view: GraphView, points: Iterable[Point], codes: Mapping[str, WeightCode], rounding: WeightRounding, *, write: bool
) -> Baked:
    """Compare every weight that had a pair, and where `write` is set write s * q for those that differ.

    Args:
        view: the graph without pairs; its proto is edited where `write` is set.
        points: the plan's weights, which say along which axis TensorRT scales.
        codes: the tensors that had a pair -> how they were coded.
        rounding: of half-way values of weights in TensorRT: "half_up" (GPU) or "half_away" from zero (DLA).
        write: whether to write.
    """
    editor = Editor(view)
    found: dict[str, _BakedWeight] = {}
    unread: dict[str, str] = {}
    coarse = 0
    for point in points:
        name, axis = _origin(view, point, codes)
        if name is None or name in found or name in unread:
            continue
        reason = _unreadable(view, name, axis, point)
        if reason:
            unread[name] = reason
            continue
        value, scale = view.array(name), codes[name].scale.bits
        assert value is not None  # else it is unreadable
        found[name] = one = _compare(value, codes[name], axis, rounding, write=write)
        end = max(value.max(initial=0), -value.min(initial=0))
        if axis is not None and scale.size == 1 and end <= (INT8.largest + 0.5) * float(scale.reshape(-1)[0]):
            coarse += one.agreeing + one.nearest
    changed = [name for name, one in found.items() if one.change > 0]
    for name, one in found.items():
        if one.value is not None:
            editor.set_constant(name, one.value)
    editor.commit()
    counts = found.values()
    return Baked(
        sum(one.same + one.agreeing + one.nearest for one in counts),
        sum(one.same for one in counts),
        sum(one.agreeing for one in counts),
        sum(one.nearest for one in counts),
        max((one.change for one in counts), default=0.0),
        tuple(changed),
        unread,
        sum(one.ties for one in counts),
        coarse,
    )


def _origin(view: GraphView, point: Point, codes: Collection[str]) -> tuple[str | None, int | None]:
    """The tensor that the pair stood on, and TensorRT's channel axis in it, or `_LOST`."""
    name, axis = point.tensor, point.axis
    while name not in codes:
        node = view.producers.get(name)
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
        return "its values are not a float32 or float16 constant"
    node = view.producers.get(name)
    if name not in view.initializers and (node is None or node.op != "Constant"):
        return "it is computed from other constants"
    keys = {read.node for read in point.reads}
    for use in view.consumers(name):
        if use.node.key not in keys and use.node.op not in _MOVES:
            return f"{use.node.op} {use.node.name} reads it, too"
    return "a subgraph (If, Loop, Scan) reads it, too" if name in view.captured else ""


def _compare(value: Any, code: WeightCode, axis: int | None, rounding: WeightRounding, *, write: bool) -> _BakedWeight:
    """One weight, in blocks of channels, so that a large one is never in memory as a whole.

    q = clip(round(w / s) + z, low, high) - z under Q/DQ, half-way values to even; t = abs-max / 127 of the channel and
    p = clip(round(w / t), -127, 127) in TensorRT. Same where p = q in the whole channel.
    """
    blocks = list(_blocks(value, code, axis))
    one_range = axis is None and len(blocks) > 1
    largest = _largest(value, blocks) if one_range else (None, None)
    flags: list[_Flags] = []
    for place, part in blocks:
        weight, levels, low, fake = _coded(value[place], part)
        here = _same(weight, levels, axis, rounding, largest[0])
        there = _same(fake.astype(np.float32), low, axis, rounding, largest[1])
        flags.append((here, there, ~here & _same(weight, levels, axis, "even", largest[0])))
    if one_range:
        here, there = (np.array([all(bool(each[i].all()) for each in flags)]) for i in (0, 1))
        tied = ~here & all(bool((each[0] | each[2]).all()) for each in flags)
        flags = [(here, there, tied)] * len(flags)
    result, change = (np.empty_like(value) if write else None), 0.0
    for (place, part), (here, _, _) in zip(blocks, flags, strict=True):
        if not here.all() or result is not None:
            weight, _, _, fake = _coded(value[place], part)
            made = np.where(_spread(~here, axis, weight.ndim), fake, value[place])
            steps = np.abs(made.astype(np.float64) - weight) / _along(part.scale.bits, part.scale.axis, weight.ndim)
            change = max(change, float(steps.max(initial=0.0)))
            if result is not None:
                result[place] = made
    flags = flags[:1] if one_range else flags
    same = sum(int(here.sum()) for here, _, _ in flags)
    agreeing = sum(int((~here & there).sum()) for here, there, _ in flags)
    total = sum(here.size for here, _, _ in flags)
    ties = sum(int(tied.sum()) for _, _, tied in flags)
    return _BakedWeight(result if change > 0 else None, same, agreeing, total - same - agreeing, change, ties)


def _blocks(value: Any, code: WeightCode, axis: int | None) -> Iterator[tuple[_Place, WeightCode]]:
    """Pieces of a weight along TensorRT's channels (along the first axis without such), each with its scales."""
    if value.nbytes <= _BLOCK_BYTES or not value.ndim:
        yield (), code
        return
    at = 0 if axis is None else axis % value.ndim
    own = None if code.scale.axis is None else code.scale.axis % value.ndim
    step = max(1, _BLOCK_BYTES * value.shape[at] // value.nbytes)
    for begin in range(0, value.shape[at], step):
        part = slice(begin, begin + step)
        place = (*(slice(None),) * at, part)
        if own != at or code.scale.bits.size == 1:
            yield place, code
            continue
        zero = code.coding.zero if code.coding.zero.size == 1 else code.coding.zero[part]
        scale = replace(code.scale, bits=code.scale.bits[part].reshape(-1))
        yield place, WeightCode(scale, replace(code.coding, zero=zero))


def _coded(value: Any, code: WeightCode) -> tuple[Float32, Float32, Float32, Any]:
    """A weight in float32, its integers less the zero point, these with -127 for -128, and s * q in its own type."""
    weight = value.astype(np.float32)
    scale = _along(code.scale.bits, code.scale.axis, weight.ndim)
    zero = _along(code.coding.zero.astype(np.float32), code.scale.axis, weight.ndim)
    with np.errstate(over="ignore"):  # a quotient that float32 cannot hold is cut off like every other
        levels = np.clip(np.rint(weight / scale) + zero, code.coding.low, code.coding.high) - zero
    low = np.where(levels == INT8.lowest, np.float32(-INT8.largest), levels)  # TensorRT's lowest
    return weight, levels, low, (low * scale).astype(value.dtype)


def _largest(value: Any, blocks: list[tuple[_Place, WeightCode]]) -> tuple[np.float32, np.float32]:
    """The largest magnitude of a whole weight, and of s * q."""
    own, written = np.float32(0), np.float32(0)
    for place, part in blocks:
        weight, _, _, fake = _coded(value[place], part)
        own = max(own, np.abs(weight).max(initial=0))
        written = max(written, np.abs(fake.astype(np.float32)).max(initial=0))
    return own, written


def _same(
    weight: Float32,
    levels: Float32,
    axis: int | None,
    rounding: WeightRounding | Literal["even"],
    amax: np.float32 | None,
) -> npt.NDArray[np.bool_]:
    """Per channel, whether TensorRT makes these integers of a weight whose largest magnitude may be given."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    largest = np.abs(weight).max(axis=others, keepdims=True, initial=0) if amax is None else amax
    step: Float32 = np.maximum(INT8.scale_of(largest), _TINY)
    made = np.clip(_rounded(weight / step, rounding), *INT8.weight_codes)
    return np.atleast_1d((made == levels).all(axis=others))


def _rounded(ratio: Float32, rounding: WeightRounding | Literal["even"]) -> Float32:
    nearest: Float32 = np.rint(ratio)
    if rounding == "even":
        return nearest
    half = np.abs(ratio - np.trunc(ratio)) == np.float32(0.5)
    if rounding == "half_up":
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
