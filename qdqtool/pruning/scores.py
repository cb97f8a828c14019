# SPDX-License-Identifier: Apache-2.0
"""What a channel is worth, by its weights: TAO's statistic. Which channels go is decided in `choice.py`.

The statistic of an output filter is its L2 norm, the bias left aside, divided by the largest norm of its layer (`max`)
or by the L2 norm of all of them (`L2`). Where several filters are one channel (operands of an Add, a depthwise
convolution, a head), their statistics are equalized: union takes the largest, intersection the least, and the means
are what their names say (NVIDIA's tao_tensorflow backend, core/pruning; bias and batch statistics are left aside).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.pruning.channel_groups import ChannelGroup, ChannelMap, axis_atoms
from qdqtool.pruning.weight_axes import ChannelAxis

Float64 = npt.NDArray[np.float64]
Normalizer = Literal["max", "L2"]
Equalization = Literal["union", "intersection", "arithmetic_mean", "geometric_mean"]
Importance = Literal["l2", "taylor", "activation"]
NORMALIZERS = get_args(Normalizer)
EQUALIZATIONS = get_args(Equalization)
IMPORTANCES = get_args(Importance)


def class_scores(
    channels: ChannelMap, group: ChannelGroup, normalizer: Normalizer = "max", equalization: Equalization = "union"
) -> Float64:
    """What each class of a group is worth: [classes], from 0; with `max` at most 1.

    Raises:
        QdqError: a weight that cannot be read.
    """

    def statistic(axis: ChannelAxis) -> Float64:
        return normalized(filter_norms(channels, axis), normalizer)

    return equalized_scores(channels, group, group.made, statistic, equalization)


def equalized_scores(
    channels: ChannelMap,
    group: ChannelGroup,
    axes: Iterable[ChannelAxis],
    statistic: Callable[[ChannelAxis], Float64],
    equalization: Equalization,
) -> Float64:
    """One value for each class of a group, of those that its places on some weight axes have: [classes].

    `statistic` has one value for each place of an axis, of a grouped convolution group after group.
    """
    held: list[list[float]] = [[] for _ in group.classes]
    place = {found: index for index, found in enumerate(group.classes.tolist())}
    for axis in axes:
        classes = np.tile(axis_atoms(channels.atoms, axis), axis.groups).tolist()
        for found, value in zip(classes, statistic(axis).tolist(), strict=True):
            if found in place:
                held[place[found]].append(value)
    return np.array([equalized(values, equalization) for values in held])


def equalized(values: list[float], how: Equalization) -> float:
    """One statistic of several."""
    found = np.array(values, np.float64)
    if how == "union":
        return float(found.max())
    if how == "intersection":
        return float(found.min())
    if how == "arithmetic_mean":
        return float(found.mean())
    return float(np.prod(found) ** (1 / len(found)))


def normalized(norms: Float64, how: Normalizer) -> Float64:
    """The norms of one layer's filters, made comparable between layers; zeros stay."""
    whole = norms.max(initial=0.0) if how == "max" else float(np.sqrt((norms * norms).sum()))
    return norms / whole if whole > 0 else norms


def filter_norms(channels: ChannelMap, axis: ChannelAxis) -> Float64:
    """The L2 norm of a weight at each place of an axis; with groups on that axis, group after group.

    Raises:
        QdqError: the weight cannot be read.
    """
    node = axis.use.node
    weight = channels.view.array(node.inputs[axis.use.index])
    if weight is None:
        raise QdqError(node.name, "has a weight that cannot be read", "fold constants first, or --exclude it")
    squares = np.square(weight.astype(np.float64))
    if axis.groups == 1:
        others = tuple(place for place in range(weight.ndim) if place != axis.axis)
        return np.asarray(np.sqrt(squares.sum(axis=others)))
    squares = squares.reshape(axis.groups, -1, *weight.shape[1:])  # a group's part of the first axis
    others = tuple(place for place in range(squares.ndim) if place not in (0, axis.axis + 1))
    return np.asarray(np.sqrt(squares.sum(axis=others)).reshape(-1))
