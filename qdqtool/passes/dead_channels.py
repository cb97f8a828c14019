# SPDX-License-Identifier: Apache-2.0
"""Scales of zero, which TensorRT refuses, where the channel is dead and any positive scale gives the same zeros."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.graph.edit import Editor, count_uses, write_constant
from qdqtool.graph.view import GraphView, Node, Pair, Use, attribute

_TODO = "qdqtool insert --requantize --data calibrates it"


@dataclass(frozen=True)
class DeadChannels:
    """A pair on a constant some of whose channels are zero by a scale of zero.

    Attributes:
        tensor: the constant.
        pair: its pair.
        scale: the scales with a positive one for each dead channel: the smallest of the others, or 1.
        integers: the stored integers with the zero point in the dead channels; None where they are so, or not stored.
    """

    tensor: str
    pair: Pair
    scale: npt.NDArray[Any]
    integers: npt.NDArray[Any] | None


def find_dead_channels(view: GraphView) -> Iterator[DeadChannels]:
    """Constants whose scale is zero in channels that are zero: stored integers, or floats that are zero there.

    Floats that are not zero, computed tensors and scales in blocks are left out: there zero is no harmless scale.
    """
    for tensor, pairs in view.pairs.items():
        for pair in pairs:
            scale = view.array(pair.dequantize.inputs[1])
            if scale is None or scale.ndim > 1 or not view.is_constant(tensor) or pair.between:
                continue
            with np.errstate(over="ignore"):  # of doubles, which become infinity
                wide = scale.astype(np.float32)
            dead = wide == 0
            if not dead.any() or not np.isfinite(wide).all() or (wide < 0).any():
                continue
            found = _of_pair(view, tensor, pair, scale, dead)
            if found is not None:
                yield found


def _of_pair(
    view: GraphView, tensor: str, pair: Pair, scale: npt.NDArray[Any], dead: npt.NDArray[np.bool_]
) -> DeadChannels | None:
    source = pair.dequantize.inputs[0] if pair.quantize is None else tensor
    value: npt.NDArray[Any] | None = view.array(source)
    if value is None or (pair.quantize is not None and _differ(view, pair.quantize, pair.dequantize)):
        return None
    mask = _along(pair.dequantize, value, dead)
    if mask is None:
        return None
    filled = scale.copy()
    filled[dead] = scale[~dead].min() if (~dead).any() else np.ones((), scale.dtype)
    if pair.quantize is not None:
        return (
            None
            if np.any(value.astype(np.float32)[np.broadcast_to(mask, value.shape)])
            else DeadChannels(tensor, pair, filled, None)
        )
    names = pair.dequantize.inputs
    zero = view.array(names[2]) if len(names) > 2 and names[2] else np.zeros((), value.dtype)
    points = None if zero is None else _along(pair.dequantize, value, zero)
    if points is None:
        return None
    made = np.where(mask, points, value).astype(value.dtype)
    same = made.tobytes() == value.tobytes()
    if not same and value.dtype.kind not in "iu":  # INT4, FP8: left as they are
        return None
    return DeadChannels(tensor, pair, filled, None if same else made)


def _differ(view: GraphView, quantize: Node, dequantize: Node) -> bool:
    """Whether Q and DQ have different scales."""
    names = quantize.inputs[1], dequantize.inputs[1]
    into, back = (view.array(name) for name in names)
    return names[0] != names[1] and (into is None or back is None or into.tobytes() != back.tobytes())


def _along(node: Node, value: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Numbers of channels in a shape that goes with a tensor; None where they do not."""
    if numbers.size == 1:
        return numbers.reshape(())
    axis = int(str(attribute(node, "axis", 1)))
    if not -value.ndim <= axis < value.ndim or value.shape[axis] != numbers.size:
        return None
    return numbers.reshape([-1 if index == axis % value.ndim else 1 for index in range(value.ndim)])


def repair_dead_channels(view: GraphView) -> tuple[str, ...]:
    """Give dead channels a positive scale, and the zero point as their integers; the graph is edited.

    What the pairs make of the constants is the same, bit for bit.
    """
    found = list(find_dead_channels(view))
    if not found:
        return ()
    editor, uses = Editor(view), count_uses(view)
    for one in found:
        ends = [node for node in (one.pair.quantize, one.pair.dequantize) if node is not None]
        written = [([Use(node, 1) for node in ends], one.scale)]
        if one.integers is not None:
            written.append(([Use(one.pair.dequantize, 0)], one.integers))
        for places, value in written:
            name = min(use.node.inputs[use.index] for use in places)
            write_constant(editor, uses, places, value, f"{name}_alive")
    editor.commit()
    more = f" and {len(found) - 1} more" if found[1:] else ""
    return (
        f"{found[0].tensor}{more}: dead channels had a scale of zero, which TensorRT refuses, and have a positive one",
    )


def refuse_unusable_scales(view: GraphView) -> None:
    """Refuse a model whose Q/DQ have a scale that TensorRT's parser refuses.

    Raises:
        QdqError: a scale that is zero, negative or NaN; the tensor is named.
    """
    for tensor, pairs in view.pairs.items():
        for node in (node for pair in pairs for node in (pair.quantize, pair.dequantize) if node is not None):
            scale = view.array(node.inputs[1])
            if scale is None or scale.dtype.kind not in "fV":
                continue
            with np.errstate(over="ignore"):
                wide = scale.astype(np.float32)
            if not (wide > 0).all():
                worst = float(np.nanmin(wide, initial=np.inf))
                kind = "zero" if worst == 0 else "negative" if worst < 0 else "not a number"
                raise QdqError(tensor, f"the scale of its Q/DQ is {kind}, which TensorRT refuses", _TODO)
