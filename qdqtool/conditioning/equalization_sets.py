# SPDX-License-Identifier: Apache-2.0
"""Tensors that share one scale, and who reads them: all that decides about their factors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_histograms import ChannelSpectrum, ErrorTable
from qdqtool.conditioning.channel_map import ChannelRange, Routes
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.conditioning.predict import Weight
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.layout import cube_view
from qdqtool.passes.condition.smooth import Division
from qdqtool.runtime.array_file import ArrayFile


@dataclass(frozen=True, eq=False)
class EqualizationSet:
    """Tensors that share one scale, with all that decides about them.

    Attributes:
        spans: their labels, one after the other in the rows of `table`.
        table: the error of each channel.
        consumers: the operators that read them.
        clip: their clipping value, where the scale is given and stays.
    """

    spans: tuple[ChannelRange, ...]
    table: ErrorTable
    consumers: tuple[Weight, ...]
    clip: float | None = None

    def rows(self) -> Iterator[tuple[ChannelRange, slice]]:
        """Each tensor and its rows."""
        first = 0
        for span in self.spans:
            yield span, slice(first, first + span.channels)
            first += span.channels


def find_families(
    context: ConditionContext,
    routes: Routes,
    spectra: Mapping[str, ChannelSpectrum],
    clips: Mapping[str, float] | None = None,
) -> list[EqualizationSet]:
    """Every class of points of one scale that has at least one tensor whose channels are known, in the plan's order."""
    axes = {read.node: point.axis for point in context.plan.weights for read in point.reads}
    consumers, file = _consumers_by_tensor(routes), ArrayFile()
    families = []
    for members in context.plan.shared_scales().values():
        spans = tuple(routes.spans[name] for name in members if name in routes.spans)
        if len(spans) != len(members):
            continue  # one of them cannot be distinguished by channel: the scale they share is not known then
        given = None if clips is None else {clips.get(name) for name in members}
        if given is not None and (None in given or len(given) > 1):
            continue
        rows = np.full(routes.size, -1, np.int64)
        rows[np.concatenate([np.arange(routes.size)[span.labels] for span in spans])] = np.arange(
            sum(span.channels for span in spans)
        )
        keys = sorted({key for span in spans for key in consumers.get(span.tensor, ())})
        weights = tuple(_weight(context, key, rows[routes.consumers[key].labels], axes, file) for key in keys)
        table = ErrorTable(
            np.concatenate([spectra[span.tensor].counts for span in spans]),
            np.concatenate([spectra[span.tensor].amax for span in spans]),
        )
        families.append(EqualizationSet(spans, table, weights, given.pop() if given else None))
    return families


def _consumers_by_tensor(routes: Routes) -> dict[str, list[str]]:
    owner = np.full(routes.size, -1)
    names = list(routes.spans)
    for number, span in enumerate(routes.spans.values()):
        owner[span.labels] = number
    found: dict[str, list[str]] = {}
    for key, consumer in routes.consumers.items():
        for number in np.unique(owner[consumer.labels]).tolist():
            if number >= 0:
                found.setdefault(names[number], []).append(key)
    return found


def _weight(
    context: ConditionContext,
    key: str,
    channels: npt.NDArray[np.int64],
    axes: Mapping[str, int | None],
    file: ArrayFile,
) -> Weight:
    """A consumer whose weight lies in a file, as it is now: the model may be edited."""
    node = context.view.producers[key]
    index = weight_index(context.view, node)
    value = None if index is None else context.view.array(node.inputs[index])
    assert value is not None
    rounded = "no" if key not in axes else "tensor" if axes[key] is None else "channel"
    return Weight(key, cube_view(node, file.add(value.astype(np.float32, copy=False))), channels, rounded)


def inverse_of(routes: Routes, divisions: Sequence[Division]) -> dict[str, npt.NDArray[np.float64]]:
    """What the input channels of each consumer are multiplied with, to make up for the divisions."""
    factors = np.ones(routes.size)
    for one in divisions:
        factors[routes.spans[one.tensor].labels] = one.factors
    found = {key: factors[consumer.labels] for key, consumer in routes.consumers.items()}
    return {key: own for key, own in found.items() if (own != 1).any()}
