# SPDX-License-Identifier: Apache-2.0
"""Limits of the DLA's activations, arithmetic and moves of values. Docstrings read as those of `dla_limits.py` do."""

from __future__ import annotations

from qdqtool.graph.view import attribute
from qdqtool.linting.dla_place import Numbers, Place, Shape, check

# ---------------------------------------------------------------------- activations, arithmetic


@check
def clipped_relu(place: Place) -> bool:
    """It does not clip from 0 to a number of 1 to 127."""
    low, high = _end(place, 1, "min"), _end(place, 2, "max")
    return low == 0.0 and high is not None and 1.0 <= high <= 127.0


def _end(place: Place, index: int, name: str) -> float | None:
    """One end of a Clip: an input from opset 11 on, an attribute before; None where it has none."""
    if index < len(place.node.inputs) and place.node.inputs[index]:
        value = place.view.array(place.node.inputs[index])
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])
    given = attribute(place.node, name)
    return float(given) if isinstance(given, (int, float)) else None


@check
def constant_slope(place: Place) -> bool:
    """Its slope is computed."""
    return len(place.node.inputs) > 1 and place.view.is_constant(place.node.inputs[1])


@check
def broadcasts(place: Place) -> bool:
    """Its operands are of shapes that the DLA does not bring together."""
    shapes = [place.shape(index) for index in range(len(place.node.inputs))]
    known = [shape for shape in shapes if shape is not None]
    full = tuple(max(sizes, key=lambda n: n or 0) for sizes in zip(*known, strict=False))
    return len({len(shape) for shape in known}) <= 1 and all(_fits_into(shape, full) for shape in known)


def _fits_into(shape: Shape, full: Shape) -> bool:
    """[N, C, H, W], [N, C, 1, 1] or [N, 1, 1, 1]."""
    if shape == full:
        return True
    same = next((axis for axis, (n, m) in enumerate(zip(shape, full, strict=True)) if n != m), len(shape))
    return same in (1, 2) and all(n == 1 for n in shape[same:])


@check
def scale_constant(place: Place) -> bool:
    """Its constant operand is neither one number, nor one per channel, nor one for each value."""
    computed = place.computed()
    if len(computed) != 1 or len(place.node.inputs) != 2:
        return True
    index = 1 if place.node.inputs[0] == computed[0] else 0
    constant, full = place.constant(index), place.shapes.get(place.view.root(computed[0]))
    if constant is None or full is None:
        return constant is not None
    wide = [axis - len(constant) for axis, n in enumerate(constant) if n != 1]
    return not wide or wide == [1 - len(full)] or wide == [a - len(full) for a, n in enumerate(full) if a and n != 1]


@check
def no_constant(place: Place) -> bool:
    """An operand is constant."""
    return len(place.computed()) == len([name for name in place.node.inputs if name])


# ---------------------------------------------------------------------- joining, resizing, moving


@check
def joins_channels(place: Place) -> bool:
    """It joins along another axis than channels."""
    axis, shape = attribute(place.node, "axis", 1), place.shape()
    return isinstance(axis, int) and (axis == 1 or (shape is not None and axis + len(shape) == 1))


@check
def several_inputs(place: Place) -> bool:
    """It joins fewer than two computed tensors, or a constant."""
    return len(place.node.inputs) >= 2 and len(place.computed()) == len(place.node.inputs)


def _scales(place: Place) -> list[float] | None:
    """The four scales of a Resize or Upsample."""
    index = 1 if place.node.op == "Upsample" or len(place.node.inputs) == 2 else 2
    if index < len(place.node.inputs) and place.node.inputs[index]:
        value = place.view.array(place.node.inputs[index])
        return None if value is None or not value.size else [float(number) for number in value.reshape(-1)]
    given = attribute(place.node, "scales")
    return [float(number) for number in given] if isinstance(given, list) else None


@check
def given_scales(place: Place) -> bool:
    """It is not given four scales, 1 for batch and channels, but sizes or fewer."""
    scales = _scales(place)
    return scales is not None and len(scales) == 4 and scales[:2] == [1.0, 1.0]


@check
def whole_scales(place: Place) -> Numbers | None:
    """It enlarges by a number that the DLA does not have."""
    scales = _scales(place)
    return None if scales is None else [int(number) if number == int(number) else 0 for number in scales[2:]]


@check
def nearest_or_linear(place: Place) -> bool:
    """It interpolates neither by nearest neighbours nor linearly."""
    return attribute(place.node, "mode", "nearest") in ("nearest", "linear")


@check
def batch_of_one(place: Place) -> bool:
    """Its batch is not 1."""
    shape = place.shape()
    return shape is None or shape[0] == 1


@check
def one_long_axis(place: Place) -> bool:
    """Another dimension than that of its sum is not 1."""
    shape, axis = place.shape(), attribute(place.node, "axis", -1)
    if shape is None or not isinstance(axis, int):
        return True
    return all(n == 1 for index, n in enumerate(shape) if index != axis % len(shape))


@check
def lrn_window(place: Place) -> bool:
    """Its window is not 3, 5, 7 or 9."""
    return attribute(place.node, "size") in (3, 5, 7, 9)


@check
def static_slice(place: Place) -> bool:
    """Where it begins or ends is computed."""
    return all(place.view.is_constant(name) for name in place.node.inputs[1:] if name)


@check
def keeps_batch(place: Place) -> bool:
    """It cuts the batch, or a tensor that has not four dimensions."""
    around = place.shapes_around()
    return all(shape is not None and len(shape) == 4 for shape in around) and len({s[0] for s in around if s}) == 1


@check
def four_to_four(place: Place) -> bool:
    """It moves values between tensors of other than four dimensions, or across the batch."""
    if not keeps_batch(place):
        return False
    order = attribute(place.node, "perm")
    return place.node.op != "Transpose" or (isinstance(order, list) and order[0] == 0)
