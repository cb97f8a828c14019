# SPDX-License-Identifier: Apache-2.0
"""The step `smooth`: the channels of one tensor are divided, by a Mul after it where no weights can take that in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_classes import ClassFamily
from qdqtool.conditioning.channel_map import why_shared
from qdqtool.conditioning.class_factors import choose_factors, to_power_of_two
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.conditioning.edits import Edit
from qdqtool.conditioning.equalization_sets import EqualizationSet
from qdqtool.conditioning.equalize_step import SHARES, ClassState, count_state
from qdqtool.conditioning.free_divisions import carry_out, split_free
from qdqtool.conditioning.judge import counted_scales, output_losses, scale_of
from qdqtool.conditioning.node_costs import within_bytes
from qdqtool.conditioning.placement import MUL, kept_edits
from qdqtool.conditioning.predict import Rounding, predicted_noise
from qdqtool.conditioning.workspace import Workspace
from qdqtool.data.loader import Batch
from qdqtool.graph.channels.atoms import PINNED
from qdqtool.graph.model import Model
from qdqtool.graph.weight_store import WeightStore
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.passes.condition.smooth import Division
from qdqtool.scales import Scale

Muls = Literal["fitting", "all"]

AS_MUCH = 0.9  # a few samples do not tell a loss that goes away from nine tenths of it
LEAST_MUL = 0.5  # decibels that a division must win where it costs a Mul


@dataclass(frozen=True, eq=False)
class MulDecision:
    """What was decided about tensors that share one scale.

    Attributes:
        family: the tensors.
        factors: float32 [rows of its table].
        gain: decibels won over all that reads them.
        saved: noise over signal that goes away, summed over all that reads them.
    """

    family: EqualizationSet
    factors: npt.NDArray[np.float32]
    gain: float
    saved: float

    @property
    def divided(self) -> bool:
        """Whether a Mul wins enough."""
        return self.gain >= LEAST_MUL


def choose_division(family: EqualizationSet, rounding: Rounding = "float") -> MulDecision:
    """Decide about one family, each channel by itself."""
    rows = np.arange(family.table.amax.size) + PINNED + 1
    found, gain = choose_factors(ClassFamily(family, rows), rounding)
    factors = found[rows].astype(np.float32)
    noise = [
        float(predicted_noise(family.table, family.consumers, own, family.clip).sum())
        for own in (np.ones_like(factors), factors)
    ]
    return MulDecision(family, factors, gain, noise[0] - noise[1])


def divisions_of(context: ConditionContext, decision: MulDecision) -> list[Division]:
    """The tensors of a family that are divided, where something was decided."""
    reads = {point.tensor: point.reads for point in context.plan.activations}
    return [
        Division(span.tensor, decision.factors[rows], span.axis, span.rank, reads[span.tensor])
        for span, rows in decision.family.rows()
        if decision.divided and (decision.factors[rows] != 1).any()
    ]


def decide_smooth(state: ClassState, rounding: Rounding) -> tuple[list[MulDecision], dict[str, str]]:
    """What a Mul would win, for each scale whose readers can make up for one; and why the others are left alone."""
    context = state.context
    left = {name: why for name, way in context.ways.items() if (why := why_shared(context.view, way))}
    left.update(state.classes.routes.left)
    families = [one.family for one in state.counted.families]
    open_ones = [one for one in families if not any(span.tensor in left for span in one.spans)]
    return [choose_division(one, rounding) for one in open_ones], left


@dataclass(frozen=True, eq=False)
class Smoothed:
    """What was divided."""

    state: ClassState
    divisions: Sequence[Division] = ()


@dataclass(frozen=True, eq=False)
class _Wanted:
    """Divisions that are predicted to win: those that weights take in, those that need a Mul, decibels by tensor."""

    free: Sequence[Division]
    paid: Sequence[Division]
    gains: Mapping[str, float]

    def weakened(self, share: float) -> _Wanted:
        free, paid = ([_weakened(one, share) for one in own] for own in (self.free, self.paid))
        return replace(self, free=free, paid=paid) if share < 1 else self


def run_smooth(
    work: Workspace, state: ClassState, held: Sequence[Batch], factors: Rounding, muls: Muls = "fitting"
) -> Smoothed:
    """Divide single tensors where it wins, by Mul nodes where weights cannot; `muls` says which (`ConditionSettings`).

    How strongly is decided on the samples `held`, which were not counted; then they count, too. Without any, what is
    predicted decides alone.
    """
    made = Smoothed(state)

    def attempt(kind: Rounding) -> Sequence[Edit]:
        nonlocal made
        wanted = _wanted(work, state, kind, muls)
        share = _strength(state, wanted, held)
        if share is None:
            return ()
        last = count_state(work) if held else state
        wanted = (_wanted(work, last, kind, muls) if held else wanted).weakened(share)
        made = Smoothed(last, [*wanted.free, *wanted.paid])
        for model in work.models if made.divisions else ():
            added = carry_out(model, last, wanted.free, wanted.paid)
            list_as_inputs(model.proto)
        return [_edit(one, wanted.gains[one.tensor], added.get(one.tensor, "")) for one in made.divisions]

    return made if work.keeping_function("smooth", factors, attempt) else Smoothed(state)


def _wanted(work: Workspace, state: ClassState, kind: Rounding, muls: Muls) -> _Wanted:
    """What is predicted to win, leaves the pairs where they are and, with "fitting", costs no more than it may."""
    verdicts, left = decide_smooth(state, kind)
    gains = {span.tensor: one.gain for one in verdicts for span in one.family.spans}
    wanted = [one for verdict in verdicts for one in divisions_of(state.context, verdict)]
    free, paid = split_free(state, wanted)
    fitting, moved = kept_edits(state.context, paid, gains, MUL)
    saved = {span.tensor: one.saved for one in verdicts for span in one.family.spans}
    every: tuple[list[Division], dict[str, str]] = (fitting, {})
    kept, costly = within_bytes(state, fitting, saved, MUL) if muls == "fitting" else every
    work.left.update({**left, **moved, **costly})
    return _Wanted(free, kept, gains)


def _strength(state: ClassState, wanted: _Wanted, held: Sequence[Batch]) -> float | None:
    """The strongest power of the factors that takes away nine tenths of the loss that the best one does.

    None where none takes any away.
    """
    if not wanted.free and not wanted.paid:
        return None
    context, counted = state.context, state.counted
    strengths = (1.0, *SHARES)
    plain = counted_scales(counted.families, np.ones(state.classes.factors.atoms.size), counted.amax)

    def form(share: float) -> tuple[Model, dict[str, Scale]]:
        made = context.model.copy(WeightStore())
        if not share:
            return made, plain
        own = wanted.weakened(share)
        added = carry_out(made, state, own.free, own.paid)
        return made, {**plain, **_scales(state, [*own.free, *own.paid], added)}

    losses = output_losses(context, [partial(form, share) for share in (0.0, *strengths)], held)
    if losses is None:
        return 1.0
    wins = [losses[0] - one for one in losses[1:]]
    if not max(wins) > 0:
        return None
    return next(share for share, win in zip(strengths, wins, strict=True) if win >= AS_MUCH * max(wins))


def _weakened(one: Division, share: float) -> Division:
    """A division with its factors to a power below 1; powers of two stay such."""
    made = to_power_of_two(one.factors**share) if (one.factors == to_power_of_two(one.factors)).all() else None
    return replace(one, factors=(one.factors**share if made is None else made).astype(np.float32))


def _scales(state: ClassState, divisions: Sequence[Division], added: Mapping[str, str]) -> dict[str, Scale]:
    """The scales of what is divided, by its name then, and of the tensors that share one with it."""
    factors = {one.tensor: one.factors for one in divisions}
    found: dict[str, Scale] = {}
    for one in state.counted.families:
        if not any(span.tensor in factors for span in one.family.spans):
            continue
        own = np.ones(one.family.table.amax.size)
        for span, rows in one.family.rows():
            own[rows] = factors.get(span.tensor, own[rows])
        scale = scale_of(one.family, own)
        found.update({added.get(span.tensor, span.tensor): scale for span in one.family.spans})
    return found


def _edit(one: Division, decibel: float, mul: str) -> Edit:
    channels = f"its channels, up to {float(one.factors.max() / one.factors.min()):.3g} times apart, are equalized"
    how = "by a Mul; the weights after it compensate" if mul else "in the weights before and after it"
    return Edit("smooth", one.tensor, decibel, f"{channels} {how}", mul)
