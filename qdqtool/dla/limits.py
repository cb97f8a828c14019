# SPDX-License-Identifier: Apache-2.0
"""Limits of every DLA layer, convolution and pool. Docstrings read well after "falls back to the GPU because".

A check gives whether it lets through, or the numbers that must lie within the rule's; None where they are not known.
"""

from __future__ import annotations

import math

from qdqtool.dla.node_context import NodeContext, Numbers, check
from qdqtool.graph.view import attribute
from qdqtool.graph.weighted import weight_index

# The convolution buffer: banks of 32 KiB for weights, of 256 entries of 128 bytes for data; 32 bytes are an atom.
_BANK_BYTES, _BANK_ENTRIES, _WEIGHT_ALIGN, _ATOM = 32768, 256, 128, 32
_BESIDE_MAPS = 3
_WIDE = (64, 96, 128)
_DISABLED = range(23, 33)
_NARROW = range(1, 33)


@check
def never(place: NodeContext) -> bool:
    """The DLA has no such layer."""
    return False


# ---------------------------------------------------------------------- every layer


@check
def static(place: NodeContext) -> bool:
    """A tensor that it reads or makes has no fixed shape."""
    return all(shape is not None and None not in shape for shape in place.shapes_around())


@check
def half(place: NodeContext) -> bool:
    """The file has it in FP32, and this DLA runs FP16 and INT8 alone."""
    return not place.float32


@check
def sizes(place: NodeContext) -> Numbers:
    """A dimension besides the batch is of a size that the DLA does not take."""
    return [n for shape in place.shapes_around() for n in (shape or ())[-_BESIDE_MAPS:][-len(shape or ()) + 1 :] if n]


@check
def batch(place: NodeContext) -> Numbers:
    """Its batch is of a size that the DLA does not take."""
    return [math.prod(n or 1 for n in shape[:-_BESIDE_MAPS]) for shape in place.shapes_around() if shape]


@check
def four_dimensions(place: NodeContext) -> bool:
    """A tensor that it reads or makes has fewer than four dimensions."""
    return all(shape is None or len(shape) >= 4 for shape in place.shapes_around())


# ---------------------------------------------------------------------- convolution and pooling


@check
def constant_weight(place: NodeContext) -> bool:
    """Its weight is computed, or stands on the left."""
    return weight_index(place.view, place.node) == 1


@check
def planar(place: NodeContext) -> bool:
    """It does not run over height and width."""
    shape = place.shape()
    return shape is None or len(shape) == 4


@check
def kernel(place: NodeContext) -> Numbers | None:
    """Its kernel is of a size that the DLA does not have."""
    given = attribute(place.node, "kernel_shape")
    if isinstance(given, list):
        return [int(number) for number in given]
    weight = place.weight()
    return None if weight is None else [n for n in weight[2:] if n is not None]


@check
def stride(place: NodeContext) -> Numbers:
    """Its stride is of a size that the DLA does not have."""
    return place.numbers("strides")


@check
def dilation(place: NodeContext) -> Numbers:
    """Its dilation is one that the DLA does not have."""
    return place.numbers("dilations")


@check
def groups(place: NodeContext) -> Numbers:
    """Its number of groups is one that the DLA does not have."""
    number = attribute(place.node, "group", 1)
    return [number] if isinstance(number, int) else []


@check
def pads(place: NodeContext) -> Numbers | None:
    """Its padding is one that the DLA does not have."""
    mode = attribute(place.node, "auto_pad", "NOTSET")
    if mode == "NOTSET":
        return place.numbers("pads", 0)
    if mode == "VALID":
        return [0]
    before, after, size = place.shape(), place.shapes.get(place.node.key), kernel(place)
    if before is None or after is None or size is None or None in (*before, *after):
        return None
    transposed = place.node.op == "ConvTranspose"
    small, large = (before, after) if transposed else (after, before)
    sides = zip(small[2:], large[2:], size, stride(place), dilation(place), strict=False)
    whole = [max(0, (int(s or 0) - 1) * step + (k - 1) * d + 1 - int(n or 0)) for s, n, k, step, d in sides]
    return [part for number in whole for part in (number // 2, number - number // 2)]


@check
def pads_below_kernel(place: NodeContext) -> bool:
    """Its padding is as wide as its kernel, or wider."""
    around, size = pads(place), kernel(place)
    if not isinstance(around, list) or not isinstance(size, list):
        return True
    return all(number < size[index % len(size)] for index, number in enumerate(around))


@check
def channels(place: NodeContext) -> Numbers | None:
    """It reads or makes a number of channels that the DLA does not have."""
    weight = place.weight()
    if weight is None or len(weight) < 2:
        return None
    count = attribute(place.node, "group", 1)
    many = count if isinstance(count, int) and place.node.op in ("Conv", "ConvTranspose") else 1
    first, second = (int(n or 0) for n in weight[:2])
    return [first, second * many] if place.node.op != "MatMul" else [int(n or 0) for n in weight]


@check
def buffer_banks(place: NodeContext) -> Numbers | None:
    """A kernel and the rows that it needs take more banks of the convolution buffer than there are."""
    weight, shape = place.weight(), place.shape()
    if weight is None or shape is None or None in weight:
        return None
    size = 1 if place.int8 else 2
    if place.node.op != "Conv":
        # How many values each output of a fully connected layer sums
        transposed = place.node.op == "Gemm" and attribute(place.node, "transB", 0)
        depth = int((weight[-1] if transposed else weight[-2] if len(weight) > 1 else weight[-1]) or 0)
        return [_weight_banks(depth * size) + _data_banks(depth * size, 1, 1)]
    if len(shape) != 4 or None in shape[1:]:
        return None
    volume = math.prod(int(n or 0) for n in weight[1:])
    rows = (int(weight[2] or 1) - 1) * place.numbers("dilations")[0] + 1
    return [_weight_banks(volume * size) + _data_banks(int(shape[1] or 0) * size, int(shape[3] or 0), rows)]


def _weight_banks(kernel_bytes: int) -> int:
    """ceil(roundUp(kernel_bytes, 128) / 32768)."""
    return _up(_up(kernel_bytes, _WEIGHT_ALIGN) * _WEIGHT_ALIGN, _BANK_BYTES)


def _data_banks(channel_bytes: int, width: int, rows: int) -> int:
    """ceil(ceil(ceil(channel_bytes / 32) * width / 4) * rows / 256)."""
    return _up(_up(_up(channel_bytes, _ATOM) * width, 4) * rows, _BANK_ENTRIES)


def _up(number: int, by: int) -> int:
    return -(-number // by)


@check
def deconvolution_kernel(place: NodeContext) -> bool:
    """Its kernel is of a size that deconvolutions of the DLA do not have."""
    size = kernel(place)
    if not isinstance(size, list) or len(size) != 2:
        return not isinstance(size, list)
    return _fits_deconvolution(size) and not (size[0] == size[1] and size[0] in _DISABLED)


@check
def deconvolution_stride(place: NodeContext) -> bool:
    """Its stride is one that deconvolutions of the DLA do not have."""
    return _fits_deconvolution(place.numbers("strides"))


@check
def stride_is_kernel(place: NodeContext) -> bool:
    """Its stride is not as wide as its kernel."""
    size = kernel(place)
    return size is None or list(size) == place.numbers("strides")


def _fits_deconvolution(pair: list[int]) -> bool:
    if len(pair) != 2:  # the limit on axes says so
        return True
    low, high = sorted(pair)
    return (high in _NARROW and low in _NARROW) or (high in _WIDE and low == 1)
