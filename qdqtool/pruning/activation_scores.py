# SPDX-License-Identifier: Apache-2.0
"""What a channel is worth by data: how far the operators that sum it up would move without it.

An operator adds W[:, c] x[c]. Where its bias makes up for the mean of what goes, taking c away moves the sum by
W[:, c] (x[c] - E x[c]), in the root mean square ||W[:, c]|| std(x[c]); without that, by ||W[:, c]|| rms(x[c]). What
nothing sums up with constant weights (queries and keys of attention) counts by its own std or rms.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from qdqtool.pruning.channel_groups import ChannelGroup, ChannelMap
from qdqtool.pruning.channel_moments import Place, channel_moments
from qdqtool.pruning.probe import Feed, ProbeRun
from qdqtool.pruning.scores import Equalization, Float64, Normalizer, equalized_scores, filter_norms, normalized
from qdqtool.pruning.weight_axes import ChannelAxis


def activation_scores(
    channels: ChannelMap,
    run: ProbeRun,
    batches: Iterable[Feed],
    how: tuple[Normalizer, Equalization],
    *,
    centered: bool = True,
) -> dict[str, Float64]:
    """Group -> what each of its classes is worth.

    Raises:
        QdqError: see `channel_moments`.
    """
    normalizer, equalization = how
    wanted = {group.name: summed_axes(group) for group in channels.groups}
    places = {_place(channels, axis) for axes in wanted.values() for axis in axes}
    moments = channel_moments(sorted(places), run, batches)
    spreads = {place: _spread(found, centered=centered) for place, found in moments.items()}

    def statistic(axis: ChannelAxis) -> Float64:
        spread = spreads[_place(channels, axis)]
        return normalized(filter_norms(channels, axis) * spread if axis.role == "read" else spread, normalizer)

    return {
        group.name: equalized_scores(channels, group, wanted[group.name], statistic, equalization)
        for group in channels.groups
    }


def summed_axes(group: ChannelGroup) -> tuple[ChannelAxis, ...]:
    """The axes of the weights that sum a group's channels up; where there are none, those that make them."""
    return tuple(axis for axis in group.axes if axis.role == "read") or group.made


def _place(channels: ChannelMap, axis: ChannelAxis) -> Place:
    return channels.view.root(axis.tensor), axis.tensor_axis


def _spread(moments: Float64, *, centered: bool) -> Float64:
    """Standard deviation or root mean square: float64[n]."""
    mean, square = moments
    return np.asarray(np.sqrt(np.maximum(square - mean * mean if centered else square, 0.0)))
