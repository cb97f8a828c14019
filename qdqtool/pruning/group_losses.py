# SPDX-License-Identifier: Apache-2.0
"""What a group of channels is worth as a whole: each group loses a part of its channels, and the outputs are measured.

Scores of single channels do not compare between layers, and say little of what many channels of one layer cost
together. So for each group a quarter and a half of its channels, those worth least, are replaced by their means, the
others stay, and the loss at the ends of the network is measured (sensitivity, as in Li 2017, Pruning filters for
efficient convnets, 3.2). Between and beyond the two a loss counts as a * k^p, k the number of channels that went. What
the loss is, the caller knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qdqtool.data.single_samples import first_samples, row_count
from qdqtool.graph.model import Model
from qdqtool.progress import counting
from qdqtool.pruning.channel_groups import ChannelGroup, ChannelMap
from qdqtool.pruning.channel_moments import channel_moments
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.gates import Gate, gate_shape, masked_copy
from qdqtool.pruning.probe import Array, Feed, ProbeRun
from qdqtool.pruning.scores import Float64

_SHARES = (0.25, 0.5)  # of a group's channels that go
_BUDGET = 5 * 10**11  # multiply-adds of all runs
_LEAST, _MOST = 4, 64  # samples
_STORED = 1 << 28  # bytes of the original's ends that are held
_EXPONENTS = (1.3, 4.0)  # of losses over channels; a loss that does not bend would leave all of a group or nothing


class EndLosses(Protocol):
    """How far a network's ends lie from those of the whole network."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """What must be computed for it."""
        ...

    def measure(self, whole: Mapping[str, Array], found: Mapping[str, Array]) -> Float64:
        """One loss for each kind of end, summed over a batch; kinds do not compare."""
        ...


@dataclass(frozen=True, eq=False)
class GroupLoss:
    """The losses of one group, kinds of ends put together.

    Attributes:
        counts: how many channels went.
        losses: what the ends lost then.
        total: how many channels the group has.
    """

    counts: tuple[int, ...]
    losses: tuple[float, ...]
    total: int

    def marginal(self) -> Float64:
        """What the k-th channel that goes adds: [total], of the first that goes first; it never falls."""
        low, high = _EXPONENTS
        exponent = 2.0
        first, last, little, much = self.counts[0], self.counts[-1], self.losses[0], self.losses[-1]
        if first < last and little > 0 and much > 0:
            exponent = float(np.clip(np.log(much / little) / np.log(last / first), low, high))
        gone = np.arange(self.total + 1, dtype=np.float64)
        return np.asarray(np.diff(max(much, 0.0) * (gone / last) ** exponent))


def loss_scores(
    channels: ChannelMap,
    scores: Mapping[str, Float64],
    run: ProbeRun,
    batches: Iterable[Feed],
    ends: EndLosses,
    *,
    centered: bool = True,
) -> dict[str, Float64]:
    """Group -> what its classes are worth, one unit for all groups: a root of what each adds when it goes in its turn.

    Raises:
        QdqError: onnxruntime cannot run the model; a tensor holds NaN or infinity (named).
    """
    groups = [group for group in channels.groups if len(group.classes) > 1]
    masked, gates = masked_copy(run.model, channels)
    samples = first_samples(batches, _sample_count(channels, len(groups), run))
    masks = _Masks(channels, gates, _means(channels, gates, run, samples) if centered else {})
    found = _measured(groups, scores, masks, (masked, run, samples), ends)
    return {group.name: _by_turn(scores[group.name], found[group.name].marginal()) for group in groups}


def _by_turn(scores: Float64, marginal: Float64) -> Float64:
    """The root of what each class adds when it goes in its turn; the square is what a cut adds up."""
    worth = np.empty(len(scores))
    worth[np.argsort(-scores, kind="stable")] = np.sqrt(marginal)[::-1]
    return worth


def _sample_count(channels: ChannelMap, groups: int, run: ProbeRun) -> int:
    rows = max(row_count(run.feeds[0]), 1) if run.feeds else 1
    of_one = max(Cut(channels, ()).multiply_adds() // rows, 1)
    return int(np.clip(_BUDGET // (of_one * max(groups, 1) * len(_SHARES)), _LEAST, _MOST))


def _means(channels: ChannelMap, gates: Sequence[Gate], run: ProbeRun, samples: Sequence[Feed]) -> dict[str, Float64]:
    """Gate -> the mean of each of its channels."""
    places = {gate.name: (channels.view.root(gate.tensor), gate.axis) for gate in gates}
    moments = channel_moments(list(dict.fromkeys(places.values())), run, samples)
    return {name: moments[place][0] for name, place in places.items()}


class _Masks:
    """What the gates of a masked copy are fed."""

    def __init__(self, channels: ChannelMap, gates: Sequence[Gate], means: Mapping[str, Float64]) -> None:
        self._means, self._size = means, channels.atoms.size
        self._gates: list[tuple[Gate, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]] = []
        self.whole: dict[str, Array] = {}
        for gate in gates:
            shape, row = gate_shape(channels, gate), channels.atoms.row(gate.tensor, gate.axis)
            self.whole.update({gate.name: np.ones(shape, np.float32), gate.offset: np.zeros(shape, np.float32)})
            if row is not None:
                self._gates.append((gate, row.atoms))

    def without(self, classes: Iterable[int]) -> dict[str, Array]:
        """Those of a cut of some classes."""
        gone, masks = np.zeros(self._size, bool), dict(self.whole)
        gone[list(classes)] = True
        for gate, atoms in self._gates:
            places = gone[atoms]
            if places.any():
                shape = masks[gate.name].shape
                masks[gate.name] = np.where(places, 0, 1).astype(np.float32).reshape(shape)
                if gate.name in self._means:
                    added = np.where(places, self._means[gate.name], 0)
                    masks[gate.offset] = added.astype(np.float32).reshape(shape)
        return masks


def _measured(
    groups: Sequence[ChannelGroup],
    scores: Mapping[str, Float64],
    masks: _Masks,
    runs: tuple[Model, ProbeRun, Sequence[Feed]],
    ends: EndLosses,
) -> dict[str, GroupLoss]:
    masked, run, samples = runs
    executor = run.executor(masked, ends.tensors)
    kept: list[tuple[Feed, dict[str, Array]]] = []
    stored = 0
    for feed in samples:
        whole = executor.run({**feed, **masks.whole})
        stored += sum(array.nbytes for array in whole.values())
        if kept and stored > _STORED:
            break
        kept.append((feed, whole))
    counts: dict[str, list[int]] = {}
    losses: dict[str, list[Float64]] = {}
    with counting("group", len(groups)) as count:
        for group in groups:
            order = group.classes[np.argsort(scores[group.name], kind="stable")]
            wanted = [max(1, round(len(order) * share)) for share in _SHARES]
            counts[group.name] = list(dict.fromkeys(wanted))
            losses[group.name] = []
            for gone in counts[group.name]:
                cut = masks.without(order[:gone].tolist())
                every = [ends.measure(whole, executor.run({**feed, **cut})) for feed, whole in kept]
                losses[group.name].append(np.sum(every, axis=0))
            count.advance()
    return _together(groups, counts, losses)


def _together(
    groups: Sequence[ChannelGroup], counts: Mapping[str, list[int]], losses: Mapping[str, list[Float64]]
) -> dict[str, GroupLoss]:
    """Kinds of ends in one figure: each counts by its share of what all groups lose of it together."""
    whole = np.sum([one for every in losses.values() for one in every], axis=0)
    weights = np.divide(1.0, whole, out=np.zeros_like(whole), where=whole > 0)
    return {
        group.name: GroupLoss(
            tuple(counts[group.name]),
            tuple(float(one @ weights) for one in losses[group.name]),
            len(group.classes),
        )
        for group in groups
    }
