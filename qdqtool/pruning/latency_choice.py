# SPDX-License-Identifier: Apache-2.0
"""Which channels go so that a forecast falls to a share of what it was: those that pay most for what they are worth."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qdqtool.errors import QdqError
from qdqtool.graph.channels.atoms import Int64
from qdqtool.pruning.channel_groups import ChannelGroup, ChannelMap
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.latency import LatencyForecast
from qdqtool.pruning.scores import Float64

_COUNTS = (1, 2, 4, 8, 16, 24, 32)  # classes that may go at once, beside those that fill up blocks
_BLOCK = 32
_PAYS = 1e-9  # microseconds; less is rounding


@dataclass(order=True)
class _Move:
    """Channels of one group that go together, so that the forecast sees it."""

    price: float  # what they are worth for each microsecond
    order: int
    group: int = field(compare=False)
    classes: list[int] = field(compare=False)
    step: int = field(compare=False)  # when it was weighed


class _LatencySearch:
    """The cut so far, and the time of each layer."""

    def __init__(self, channels: ChannelMap, groups: Sequence[ChannelGroup], forecast: LatencyForecast) -> None:
        self._channels, self._forecast = channels, forecast
        self.gone: list[int] = []
        self._times = np.array(forecast.layer_times(Cut(channels, ())))
        self._places = [forecast.touched(Cut(channels, group.classes[1:].tolist())) for group in groups]
        self._changed = np.zeros(len(self._times), np.int64)  # when a layer's time changed last
        self.step = 0

    @property
    def microseconds(self) -> float:
        """Of the network without what went."""
        return float(self._times.sum())

    def saved(self, number: int, classes: Sequence[int]) -> float:
        """Microseconds that go with some classes of a group."""
        places = self._places[number]
        after = self._forecast.layer_times(Cut(self._channels, [*self.gone, *classes]), places)
        return float(self._times[places].sum() - sum(after))

    def take(self, number: int, classes: Sequence[int]) -> None:
        """Let classes of a group go."""
        places = self._places[number]
        self.gone.extend(classes)
        self._times[places] = self._forecast.layer_times(Cut(self._channels, self.gone), places)
        self.step += 1
        self._changed[places] = self.step

    def is_fresh(self, move: _Move) -> bool:
        """Whether no layer that a move changes has changed since it was weighed."""
        return move.step >= int(self._changed[self._places[move.group]].max(initial=0))


class _Candidates:
    """What may go of each group next: its worst classes."""

    def __init__(
        self,
        groups: Sequence[ChannelGroup],
        scores: Mapping[str, Float64],
        limits: tuple[int, int],
        alone: Sequence[Sequence[int]],
    ) -> None:
        self._granularity, self._least = limits
        self._alone = [frozenset(classes) for classes in alone]
        self._worth: list[list[float]] = []
        self.left: list[list[int]] = []  # classes, the best first
        for group in groups:
            own = scores[group.name]
            order = np.argsort(-own, kind="stable")
            self.left.append(group.classes[order].tolist())
            self._worth.append(np.square(own[order]).tolist())

    def best(self, search: _LatencySearch, number: int, ticket: int) -> _Move | None:
        """The move with the least price, None where none pays."""
        left, worth = self.left[number], self._worth[number]
        full = len(left) % _BLOCK
        best: _Move | None = None
        for count in sorted({*_COUNTS, full, full + _BLOCK}):
            kept = len(left) - count
            if count < 1 or kept < self._least or kept % self._granularity:
                continue
            if any(classes.issubset((*search.gone, *left[kept:])) for classes in self._alone):
                continue  # nothing of some tensor would be left
            saved = search.saved(number, left[kept:])
            price = max(sum(worth[kept : len(left)]), 1e-30) / saved if saved > _PAYS else np.inf
            if price < (np.inf if best is None else best.price):
                best = _Move(price, ticket, number, left[kept:], search.step)
        return best

    def take(self, move: _Move) -> None:
        """Let the last classes go."""
        del self.left[move.group][-len(move.classes) :]


def choose_by_latency(
    channels: ChannelMap,
    groups: Sequence[ChannelGroup],
    scores: Mapping[str, Float64],
    forecast: LatencyForecast,
    share: float,
    limits: tuple[int, int] = (1, 1),
) -> Int64:
    """The classes that go, sorted: a greedy choice of what is worth least for each microsecond of the forecast.

    Raises:
        QdqError: no more can go before the share is reached.
    """
    search, candidates = _LatencySearch(channels, groups, forecast), _Candidates(groups, scores, limits, channels.alone)
    whole, tickets = search.microseconds, itertools.count()
    heap: list[_Move] = []
    waiting = every = range(len(groups))
    weighed = -1  # the step at which all were weighed last
    while search.microseconds > share * whole:
        for number in waiting:
            move = candidates.best(search, number, next(tickets))
            if move is not None:
                heapq.heappush(heap, move)
        if not heap and weighed < search.step:  # what did not pay may do so since another group lost channels
            waiting, weighed = every, search.step
            continue
        if not heap:
            reason = f"{share:g} of the forecast is too little; at least {search.microseconds / whole:.2f} must stay"
            raise QdqError("--latency", reason, "give a larger share")
        move = heapq.heappop(heap)
        if search.is_fresh(move):
            search.take(move.group, move.classes)
            candidates.take(move)
        waiting = range(move.group, move.group + 1)
    return np.array(sorted(search.gone), np.int64)
