# SPDX-License-Identifier: Apache-2.0
"""Limits of the DLA's activations, arithmetic and moves of values. Docstrings read as those of `limits.py` do."""

from __future__ import annotations

from onnx import TensorProto

from qdqtool.dla.node_context import NodeContext, Numbers, Shape, check
from qdqtool.graph.view import attribute

# The longest axis of a Softmax whose other axes are 1, and of another.
_ONE_AXIS, _SEVERAL_AXES = 8192, 1024
_COMPARISONS = ("Equal", "Greater", "Less")
_NUMBERS = (TensorProto.FLOAT16, TensorProto.INT8)

# ---------------------------------------------------------------------- activations, arithmetic


@check
def clipped_relu(place: NodeContext) -> bool:
    """It does not clip from 0 to a number of 1 to 127."""
    low, high = _end(place, 1, "min"), _end(place, 2, "max")
    return low == 0.0 and high is not None and 1.0 <= high <= 127.0


def _end(place: NodeContext, index: int, name: str) -> float | None:
    """One end of a Clip: an input from opset 11 on, an attribute before; None where it has none."""
    if index < len(place.node.inputs) and place.node.inputs[index]:
        value = place.view.array(place.node.inputs[index])
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])
    given = attribute(place.node, name)
    return float(given) if isinstance(given, (int, float)) else None


@check
def constant_slope(place: NodeContext) -> bool:
    """Its slope is computed."""
    return len(place.node.inputs) > 1 and place.view.is_constant(place.node.inputs[1])


@check
def broadcasts(place: NodeContext) -> bool:
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
def scale_constant(place: NodeContext) -> bool:
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
def no_constant(place: NodeContext) -> bool:
    """An operand is constant."""
    return len(place.computed()) == len([name for name in place.node.inputs if name])


@check
def one_constant(place: NodeContext) -> bool:
    """Not exactly one of its operands is constant."""
    return len(place.computed()) == 1


@check
def cast_behind(place: NodeContext) -> bool:
    """What it makes does not go into one Cast to float16 or int8 alone."""
    name = place.node.key
    consumers = [use.node for use in place.view.consumers(name)]
    casts = [node for node in consumers if node.op == "Cast" and attribute(node, "to") in _NUMBERS]
    return len(consumers) == len(casts) == 1 and not place.view.is_output(name)


@check
def cast_of_comparison(place: NodeContext) -> bool:
    """It is no Cast after a comparison."""
    producer = place.view.producer(place.node.inputs[0])
    return producer is not None and producer.op in _COMPARISONS and attribute(place.node, "to") in _NUMBERS


@check
def reduces_maps(place: NodeContext) -> bool:
    """It reduces the batch, or along axes that are not known."""
    shape, axes = place.shape(), _axes(place)
    if shape is None or axes is None:
        return False
    return len(shape) == 4 and all(axis % len(shape) != 0 for axis in axes or range(len(shape)))


def _axes(place: NodeContext) -> list[int] | None:
    """The axes of a reduction: an attribute, or an input from opset 18 on; [] for all, None where they are computed."""
    if len(place.node.inputs) > 1 and place.node.inputs[1]:
        value = place.view.array(place.node.inputs[1])
        return None if value is None else [int(axis) for axis in value.reshape(-1)]
    given = attribute(place.node, "axes")
    return [int(axis) for axis in given] if isinstance(given, list) else []


# ---------------------------------------------------------------------- joining, resizing, moving


@check
def joins_channels(place: NodeContext) -> bool:
    """It joins along another axis than channels."""
    axis, shape = attribute(place.node, "axis", 1), place.shape()
    return isinstance(axis, int) and (axis == 1 or (shape is not None and axis + len(shape) == 1))


@check
def several_inputs(place: NodeContext) -> bool:
    """It joins fewer than two computed tensors, or a constant."""
    return len(place.node.inputs) >= 2 and len(place.computed()) == len(place.node.inputs)


def _scales(place: NodeContext) -> list[float] | None:
    """The four scales of a Resize or Upsample."""
    index = 1 if place.node.op == "Upsample" or len(place.node.inputs) == 2 else 2
    if index < len(place.node.inputs) and place.node.inputs[index]:
        value = place.view.array(place.node.inputs[index])
        return None if value is None or not value.size else [float(number) for number in value.reshape(-1)]
    given = attribute(place.node, "scales")
    return [float(number) for number in given] if isinstance(given, list) else None


@check
def given_scales(place: NodeContext) -> bool:
    """It is not given four scales, 1 for batch and channels, but sizes or fewer."""
    scales = _scales(place)
    return scales is not None and len(scales) == 4 and scales[:2] == [1.0, 1.0]


@check
def whole_scales(place: NodeContext) -> Numbers | None:
    """It enlarges by a number that the DLA does not have."""
    scales = _scales(place)
    return None if scales is None else scales[2:]


@check
def resize_of_8_4(place: NodeContext) -> bool:
    """Its mode, coordinates and rounding are none of the five combinations that the DLA has."""
    mode, places, rounding = _resize_way(place)
    if mode == "linear":
        return places in ("half_pixel", "pytorch_half_pixel")
    halves = ("round_prefer_floor", "round_prefer_ceil")
    return mode == "nearest" and (
        (places == "asymmetric" and rounding == "floor") or (places == "half_pixel" and rounding in halves)
    )


@check
def resize_of_8_2(place: NodeContext) -> bool:
    """Its mode, coordinates and rounding are not nearest, asymmetric and floor."""
    return _resize_way(place) == ("nearest", "asymmetric", "floor")


def _resize_way(place: NodeContext) -> tuple[str, str, str]:
    """Mode, coordinates and rounding; an Upsample, and a Resize of opset 10 (two inputs), chooses the mode alone."""
    node = place.node
    mode = str(attribute(node, "mode", "nearest"))
    if node.op == "Upsample" or len(node.inputs) == 2:
        return mode, "asymmetric", "floor"
    places = str(attribute(node, "coordinate_transformation_mode", "half_pixel"))
    return mode, places, str(attribute(node, "nearest_mode", "round_prefer_floor"))


@check
def batch_of_one(place: NodeContext) -> bool:
    """Its batch is not 1."""
    shape = place.shape()
    return shape is None or shape[0] == 1


@check
def softmax_axis(place: NodeContext) -> bool:
    """It sums over the batch, or over more values than the DLA takes in a map of this shape."""
    shape, axis = place.shape(), attribute(place.node, "axis", -1)
    if shape is None or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return True
    alone = all(n == 1 for index, n in enumerate(shape) if index not in (0, axis % len(shape)))
    most = _ONE_AXIS if alone else _SEVERAL_AXES
    return axis % len(shape) > 0 and (shape[axis] or 0) <= most


@check
def lrn_window(place: NodeContext) -> bool:
    """Its window is not 3, 5, 7 or 9."""
    return attribute(place.node, "size") in (3, 5, 7, 9)


@check
def static_slice(place: NodeContext) -> bool:
    """Where it begins or ends is computed."""
    return all(place.view.is_constant(name) for name in place.node.inputs[1:] if name)


@check
def steps_of_one(place: NodeContext) -> bool:
    """One of its steps is not 1."""
    if len(place.node.inputs) <= 4 or not place.node.inputs[4]:
        return True
    steps = place.view.array(place.node.inputs[4])
    return steps is not None and bool((steps == 1).all())


@check
def keeps_batch(place: NodeContext) -> bool:
    """It cuts the batch, or a tensor that has not four dimensions."""
    around = place.shapes_around()
    return all(shape is not None and len(shape) == 4 for shape in around) and len({s[0] for s in around if s}) == 1


@check
def four_to_four(place: NodeContext) -> bool:
    """It moves values between tensors of other than four dimensions."""
    return all(shape is not None and len(shape) == 4 for shape in place.shapes_around())


@check
def leaves_batch(place: NodeContext) -> bool:
    """It moves values across the batch."""
    batches = {shape[0] for shape in place.shapes_around() if shape}
    order = attribute(place.node, "perm")
    return len(batches) <= 1 and (place.node.op != "Transpose" or (isinstance(order, list) and order[0] == 0))
