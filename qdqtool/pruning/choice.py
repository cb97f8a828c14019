# SPDX-License-Identifier: Apache-2.0
"""Which channels go: by TAO's threshold, a share of each group, of the multiply-adds or of a forecast. No edit here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdqtool.errors import QdqError
from qdqtool.graph.channels.atoms import Int64
from qdqtool.pruning.channel_groups import ChannelGroup, ChannelMap
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.latency import LatencyForecast
from qdqtool.pruning.latency_choice import choose_by_latency
from qdqtool.pruning.scores import (
    EQUALIZATIONS,
    IMPORTANCES,
    NORMALIZERS,
    Equalization,
    Float64,
    Importance,
    Normalizer,
    class_scores,
)

_THRESHOLD, _GRANULARITY, _MIN_FILTERS = 0.1, 8, 16
_STEPS = 24  # halvings of the threshold that `macs` looks for


@dataclass(frozen=True)
class Criterion:
    """How channels are chosen; one of threshold, ratio, macs and latency is set.

    Attributes:
        threshold: keep what is worth more (TAO's -pth).
        ratio: of each group's channels that go.
        macs: of the multiply-adds that stay.
        normalizer: TAO's -n.
        equalization: TAO's -eq.
        granularity: of the channels that a group keeps (TAO's -pg).
        min_filters: that a group keeps at least (TAO's -nf).
        latency: of the forecast that stays.
        importance: what a channel's worth is taken from: its filters, gradients, or activations.
    """

    threshold: float | None = None
    ratio: float | None = None
    macs: float | None = None
    normalizer: Normalizer = "max"
    equalization: Equalization = "union"
    granularity: int = 1
    min_filters: int = 1
    latency: float | None = None
    importance: Importance = "l2"


def parse_criterion(
    threshold: float | None = None,
    ratio: float | None = None,
    macs: float | None = None,
    normalizer: str = "max",
    equalization: str = "union",
    granularity: int | None = None,
    min_filters: int | None = None,
    latency: float | None = None,
    importance: str = "l2",
) -> Criterion:
    """A criterion as options have it: with none of the four, TAO's threshold 0.1; its -pg 8 and -nf 16 go with it.

    Raises:
        QdqError: several of the four, or a value that is out of range.
    """
    given = {"-pth": threshold, "--ratio": ratio, "--macs": macs, "--latency": latency}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise QdqError(" and ".join(named), "exclude each other", "give one of them")
    if not named:
        threshold = _THRESHOLD
    lowest = {"--macs": 1e-9, "--latency": 1e-9}
    for name, value in {**given, "-pth": threshold}.items():
        if value is not None and not lowest.get(name, 0.0) <= value <= 1:
            raise QdqError(name, f"{value:g} is not a share", "give a number from 0 to 1")
    for name, count in (("-pg", granularity), ("-nf", min_filters)):
        if count is not None and count < 1:
            raise QdqError(name, f"{count} is not a number of channels", "give 1 or more")
    words = (("-n", normalizer, NORMALIZERS), ("-eq", equalization, EQUALIZATIONS))
    for name, word, known in (*words, ("--importance", importance, IMPORTANCES)):
        if word not in known:
            raise QdqError(name, f"{word} is unknown", f"give one of {', '.join(known)}")
    default = (_GRANULARITY, _MIN_FILTERS) if threshold is not None else (1, 1)
    return Criterion(
        threshold,
        ratio,
        macs,
        normalizer,  # type: ignore[arg-type]
        equalization,  # type: ignore[arg-type]
        granularity or default[0],
        min_filters or default[1],
        latency,
        importance,  # type: ignore[arg-type]
    )


def kept_count(total: int, wanted: int, granularity: int, min_filters: int) -> int:
    """TAO's count: at least `min_filters`, rounded up to a multiple of `granularity`, at most all; never none."""
    count = max(wanted, min_filters, 1)
    return min(total, -(-count // granularity) * granularity)


def choose(
    channels: ChannelMap,
    criterion: Criterion,
    measured: Mapping[str, Float64] | None = None,
    forecast: LatencyForecast | None = None,
    *,
    one_unit: bool = False,
) -> Int64:
    """The classes that go, sorted.

    Raises:
        QdqError: nothing can be pruned; --macs or --latency ask for less than can go; a weight cannot be read.
    """
    groups = [group for group in channels.groups if len(group.classes) > 1]
    if not groups:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(channels.pinned.items())[:4])
        raise QdqError(
            "prune", f"no channel of the model can be removed ({why or 'no operator with weights'})", "see --dry-run"
        )
    scores = dict(measured or {}) or filter_scores(channels, criterion)
    if criterion.latency is not None and forecast is not None:
        limits = criterion.granularity, criterion.min_filters
        return choose_by_latency(channels, groups, scores, forecast, criterion.latency, limits)
    if one_unit or criterion.importance == "taylor":
        scores = _comparable(channels, groups, scores, by_macs=criterion.macs is not None)
    if criterion.macs is not None:
        return _by_macs(channels, groups, scores, criterion, one_unit=one_unit)
    return _chosen(channels, groups, scores, criterion)


def choose_evenly(
    channels: ChannelMap, criterion: Criterion, measured: Mapping[str, Float64] | None = None
) -> Int64 | None:
    """The classes that go where each group loses the same share, the least that leaves `criterion.macs`."""
    groups = [group for group in channels.groups if len(group.classes) > 1]
    scores = dict(measured or {}) or filter_scores(channels, criterion)
    limit = (criterion.macs or 0.0) * Cut(channels, ()).multiply_adds()

    def found(ratio: float) -> Int64 | None:
        """What goes at a share of each group; None where too much is left."""
        gone = _chosen(channels, groups, scores, replace(criterion, threshold=None, ratio=ratio))
        return gone if Cut(channels, gone.tolist()).multiply_adds() <= limit else None

    low, high, best = 0.0, 1.0, found(1.0)
    for _ in range(_STEPS if best is not None else 0):
        middle = (low + high) / 2
        gone = found(middle)
        if gone is None:
            low = middle
        else:
            best, high = gone, middle
    return best


def filter_scores(channels: ChannelMap, criterion: Criterion) -> dict[str, Float64]:
    """Group -> what its classes are worth by their filters.

    Raises:
        QdqError: a weight cannot be read.
    """
    how = criterion.normalizer, criterion.equalization
    return {group.name: class_scores(channels, group, *how) for group in channels.groups if len(group.classes) > 1}


def _comparable(
    channels: ChannelMap, groups: Sequence[ChannelGroup], scores: Mapping[str, Float64], *, by_macs: bool
) -> dict[str, Float64]:
    """Scores from 0 to 1, of all groups together; for a share of multiply-adds, by what a channel costs of them.

    The least sum of squared scores that leaves a number of multiply-adds goes by score^2 / multiply-adds.
    """
    whole = Cut(channels, ()).multiply_adds() if by_macs else 0
    found: dict[str, Float64] = {}
    for group in groups:
        saved = whole - Cut(channels, group.classes[:1].tolist()).multiply_adds() if by_macs else 1
        found[group.name] = scores[group.name] / np.sqrt(max(saved, 1))
    most = max(float(own.max(initial=0.0)) for own in found.values())
    return {name: own / most if most > 0 else own for name, own in found.items()}


def with_one_left(channels: ChannelMap, gone: Iterable[int], worth: Mapping[int, float]) -> Int64:
    """The classes that go, sorted, but for the best one of each tensor that nothing would be left of."""
    chosen = set(gone)
    for classes in channels.alone:
        if chosen.issuperset(classes):
            chosen.remove(max(classes, key=lambda one: (worth[one], -one)))
    return np.array(sorted(chosen), np.int64)


def _chosen(
    channels: ChannelMap,
    groups: list[ChannelGroup],
    scores: Mapping[str, Float64],
    criterion: Criterion,
    floor: float = 0.0,
) -> Int64:
    gone: list[int] = []
    worth: dict[int, float] = {}
    for group in groups:
        own, total = scores[group.name], len(group.classes)
        better = int((own > (criterion.threshold or 0.0)).sum())
        wanted = better if criterion.ratio is None else total - int(np.floor(total * criterion.ratio))
        least = max(criterion.min_filters, int(np.ceil(total * floor)))
        count = kept_count(total, wanted, criterion.granularity, least)
        order = np.argsort(-own, kind="stable")
        gone.extend(group.classes[order[count:]].tolist())
        worth.update(zip(group.classes.tolist(), own.tolist(), strict=True))
    return with_one_left(channels, gone, worth)


def _by_macs(
    channels: ChannelMap,
    groups: list[ChannelGroup],
    scores: Mapping[str, Float64],
    criterion: Criterion,
    *,
    one_unit: bool,
) -> Int64:
    """The least threshold that leaves at most so many multiply-adds, found by halving.

    What groups lose is known one group at a time, and of a part of their channels, and would leave single layers next
    to nothing. So each group keeps a share: half of what stays of all, less where that does not suffice. (Other pruners
    bound the share of a layer as well: He 2018, AMC; Fang 2023, DepGraph's max_pruning_ratio.)
    """
    share = criterion.macs or 0.0
    if share >= 1:
        return np.empty(0, np.int64)
    whole = Cut(channels, ()).multiply_adds()
    for floor in (share / 2, share / 4, 0.0) if one_unit or criterion.importance == "taylor" else (0.0,):
        best = _chosen(channels, groups, scores, replace(criterion, threshold=1.0, ratio=None), floor)
        least = Cut(channels, best.tolist()).multiply_adds()
        if least <= share * whole:
            break
    else:
        reason = f"{share:g} of the multiply-adds is too little; at least {least / whole:.2f} must stay"
        raise QdqError("--macs", reason, "give a larger share, or --ratio")
    low, high = -1e-9, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        found = _chosen(channels, groups, scores, replace(criterion, threshold=middle, ratio=None), floor)
        if Cut(channels, found.tolist()).multiply_adds() <= share * whole:
            best, high = found, middle
        else:
            low = middle
    return best
