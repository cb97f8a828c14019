# SPDX-License-Identifier: Apache-2.0
"""Moments through sums over many values: convolutions, matrix products, means and normalizations.

Terms of a sum count as independent (Nagel 2019), but for neighboring places of one map, which resemble one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qdqtool.datafree.moments import INF, Array, Moments, collapsed, gaussian, guess, padded
from qdqtool.errors import QdqError
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.tensors import BLOCK_BYTES

# Correlation of neighboring places of one channel. 0 is Nagel's independence; with 0.3 more tensors of 12 of 22
# trained models come within 0.5 .. 3 times the range that data shows, and fewer of 2 (measured against 8 to 64 images).
ALIKE = 0.3


def sound(values: npt.NDArray[np.generic], name: str) -> npt.NDArray[np.generic]:
    """The same weights.

    Raises:
        QdqError: NaN or infinity among them.
    """
    if not np.isfinite(float(np.sum(values, dtype=np.float64))):
        raise QdqError(name, "the weight holds NaN or infinity", "export the model again from sound weights")
    return values


def channels(x: Moments, axis: int, rank: int, size: int) -> tuple[Array, Array]:
    """Mean and variance of each of `size` channels along an axis, mixed over every other axis."""
    x = padded(x, rank)
    if x.mean.ndim == rank:
        others = tuple(a for a in range(rank) if a != axis % rank)
        x = collapsed(x, others) if others else x
    else:
        x = collapsed(x)
    mean, var = x.mean.reshape(-1), x.var.reshape(-1)
    if mean.size not in (1, size):
        if size % mean.size == 0:  # a flattened map: the places of one channel lie side by side
            return np.repeat(mean, size // mean.size), np.repeat(var, size // mean.size)
        x = collapsed(x)
        mean, var = x.mean.reshape(-1), x.var.reshape(-1)
    return np.broadcast_to(mean, size), np.broadcast_to(var, size)


def convolution(x: Moments, weight: npt.NDArray[np.generic], bias: Array, groups: int) -> Moments:
    """A convolution; padding is ignored.

    With W over output channel, input channel c and tap k, and r = `ALIKE`:
    mean = sum_ck W mean_c, var = (1 - r) sum_ck W^2 var_c + r sum_c (sum_k W)^2 var_c.

    Args:
        x: the input, channels on axis 1.
        weight: [outputs, inputs / groups, kernel ...].
        bias: [outputs], or 0-d.
        groups: groups of channels.
    """
    outputs, each = weight.shape[0], weight.shape[1]
    kernel = tuple(range(2, weight.ndim))
    sums = [
        (
            part.sum(axis=kernel, dtype=np.float64),
            np.square(part.astype(np.float32, copy=False)).sum(axis=kernel, dtype=np.float64),
        )
        for part in _parts(weight, 0)
    ]
    plain, squared = (np.concatenate(part) for part in zip(*sums, strict=True))
    mean, var = channels(x, 1, weight.ndim, each * groups)
    squared = (1 - ALIKE) * squared + ALIKE * plain**2
    by_group = (groups, outputs // groups, each)
    means = np.einsum("goc,gc->go", plain.reshape(by_group), mean.reshape(groups, each)).reshape(-1) + bias
    variances = np.einsum("goc,gc->go", squared.reshape(by_group), var.reshape(groups, each)).reshape(-1)
    shape = (1, outputs) + (1,) * len(kernel)
    return gaussian(means.reshape(shape), variances.reshape(shape), known=x.known)


def transposed_convolution(
    x: Moments, weight: npt.NDArray[np.generic], bias: Array, groups: int, overlap: float
) -> Moments:
    """A convolution with weight [inputs, outputs / groups, kernel ...] whose output places see 1 / `overlap` taps."""
    inputs, each = weight.shape[0], weight.shape[1]
    kernel = weight.shape[2:]
    turned = weight.reshape(groups, inputs // groups, each, *kernel).swapaxes(1, 2)
    dense = convolution(x, turned.reshape(groups * each, inputs // groups, *kernel), np.zeros(()), groups)
    shape = (1, -1) + (1,) * len(kernel)
    extra = bias.reshape(shape) if bias.ndim else bias
    return gaussian(dense.mean / overlap + extra, dense.var / overlap, known=x.known)


def matrix_product(x: Moments, weight: npt.NDArray[np.generic], weight_left: bool) -> Moments:
    """A product with a constant matrix [.., K, N] on the right or [.., M, K] on the left."""
    if weight.ndim == 1:
        squared = np.square(weight.astype(np.float64))
        mean, var = channels(x, -1, max(x.mean.ndim, 1), weight.shape[0])
        return gaussian(np.dot(mean, weight), np.dot(var, squared), known=x.known)
    size = weight.shape[-1 if weight_left else -2]
    x = _spread(padded(x, 2), -2 if weight_left else -1, size)
    outputs = -2 if weight_left else -1
    try:
        products = [_product(x, part, weight_left) for part in _parts(weight, outputs)]
        mean, var = (np.concatenate(part, axis=outputs) for part in zip(*products, strict=True))
        return gaussian(mean, var, known=x.known)
    except ValueError:  # the axes in front do not fit
        return matrix_product(collapsed(x), weight, weight_left)


def _product(x: Moments, weight: npt.NDArray[np.generic], weight_left: bool) -> tuple[Array, Array]:
    """Mean and variance: W mean, W^2 var."""
    squared = np.square(weight.astype(np.float64))
    if weight_left:
        return np.matmul(weight, x.mean), np.matmul(squared, x.var)
    return np.matmul(x.mean, weight), np.matmul(x.var, squared)


def _parts(weight: npt.NDArray[np.generic], axis: int) -> Iterator[npt.NDArray[np.generic]]:
    """A weight along one axis, in parts of which float64 copies are small: the whole of it where that is small."""
    size = weight.shape[axis]
    step = max(1, BLOCK_BYTES * size // max(1, weight.nbytes))
    whole = (slice(None),) * (axis % weight.ndim)
    for begin in range(0, size, step) if size else (0,):
        yield weight[(*whole, slice(begin, begin + step))]


def inner_product(a: Moments, b: Moments, terms: int) -> Moments:
    """A product of two computed matrices: so many products of independent values."""
    a, b = (collapsed(padded(one, 2), axes) for one, axes in ((a, (-1,)), (b, (-2,))))
    try:
        mean = terms * a.mean * b.mean
    except ValueError:
        return inner_product(collapsed(a), collapsed(b), terms)
    var = terms * (a.var * b.var + a.var * b.mean**2 + b.var * a.mean**2)
    return gaussian(mean, var, known=a.known and b.known)


def averaged(x: Moments, axes: Sequence[int] | None, shape: Shape | None, keep: bool, total: bool = False) -> Moments:
    """The mean (or the sum) over some axes; values never pass those that are averaged.

    The variance falls by n along one axis (features), and along an axis whose values are described one by one; along
    several axes that are described alike (places of a map, which resemble their neighbors) by sqrt(n) each.
    """
    rank = len(shape) if shape is not None else x.mean.ndim
    places = range(rank) if axes is None else sorted({a + rank if a < 0 else a for a in axes})
    x = padded(x, rank) if rank else x
    mean, var, terms = x.mean, x.var, 1.0
    for axis in places:
        if axis >= mean.ndim or axis < 0:
            continue
        alike = mean.shape[axis] == 1
        length = (shape[axis] if shape is not None else None) or (64 if alike else mean.shape[axis])
        terms *= length
        mean = mean.mean(axis, keepdims=True)
        var = var.mean(axis, keepdims=True) / (np.sqrt(length) if alike and len(places) > 1 else length)
    if not keep and rank:
        inside = tuple(axis for axis in places if 0 <= axis < mean.ndim)
        mean, var = mean.squeeze(inside), var.squeeze(inside)
    if total:
        return gaussian(mean * terms, var * terms**2, _times(x.lo, terms), _times(x.hi, terms), x.known)
    found = gaussian(mean, var, x.lo, x.hi, x.known)
    return replace(found, low=max(found.low, x.low), high=min(found.high, x.high))


def normalized(scale: Array, bias: Array, rank: int | None, axis: int) -> Moments:
    """Mean 0 and variance 1, then scale and bias per channel, whatever came in.

    Args:
        scale: float [channels], or of one value.
        bias: the same.
        rank: of the output; None where it is not known.
        axis: the channels' in the output; -1 keeps the shape of scale and bias.
    """
    if bias.shape != scale.shape and 1 not in (bias.size, scale.size):  # no runtime takes them
        return guess()
    mean, deviation = np.broadcast_arrays(bias, scale)
    found = gaussian(mean, deviation**2, known=True)
    if mean.ndim != 1 or axis == -1:
        return found
    if rank is None or rank <= axis:
        return collapsed(found)
    shape = tuple(mean.size if place == axis else 1 for place in range(rank))
    return replace(found, mean=found.mean.reshape(shape), var=found.var.reshape(shape))


def _spread(x: Moments, axis: int, size: int) -> Moments:
    """With every place of one axis spelled out."""
    if x.mean.shape[axis] == size:
        return x
    if x.mean.shape[axis] > 1 and size % x.mean.shape[axis] == 0 and axis == -1:
        times = size // x.mean.shape[axis]
        return replace(x, mean=np.repeat(x.mean, times, -1), var=np.repeat(x.var, times, -1), source="", samples=None)
    if x.mean.shape[axis] > 1:
        x = collapsed(x, (x.mean.ndim + axis,))
    return replace(x, mean=np.repeat(x.mean, size, axis), var=np.repeat(x.var, size, axis), source="", samples=None)


def _times(bound: float, terms: float) -> float:
    return bound * terms if abs(bound) < INF else bound
