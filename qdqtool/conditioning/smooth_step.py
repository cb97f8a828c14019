# SPDX-License-Identifier: Apache-2.0
"""The step `smooth`: a Mul behind a tensor divides its channels where no weights can take the factors in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_classes import ClassFamily
from qdqtool.conditioning.channel_map import why_shared
from qdqtool.conditioning.class_factors import choose_factors
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.conditioning.edits import Edit
from qdqtool.conditioning.equalization_sets import EqualizationSet, inverse_of
from qdqtool.conditioning.equalize_step import ClassState
from qdqtool.conditioning.mul_costs import within_bytes
from qdqtool.conditioning.placement import kept_divisions
from qdqtool.conditioning.predict import Rounding, predicted_noise
from qdqtool.conditioning.workspace import Workspace
from qdqtool.graph.channels.atoms import PINNED
from qdqtool.graph.view import GraphView
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.passes.condition.smooth import Division, divide

Muls = Literal["fitting", "all"]

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


def run_smooth(work: Workspace, state: ClassState, factors: Rounding, muls: Muls = "fitting") -> list[Division]:
    """Put Mul nodes where they win; the divisions made.

    Args:
        work: the model.
        state: what it is now.
        factors: float32, or powers of two alone.
        muls: "fitting" for those with which INT8 still moves fewer bytes than FP16, "all" for all that win.
    """
    made: list[Division] = []

    def attempt(kind: Rounding) -> Sequence[Edit]:
        verdicts, left = decide_smooth(state, kind)
        work.left.update(left)
        gains = {span.tensor: one.gain for one in verdicts for span in one.family.spans}
        wanted = [one for verdict in verdicts for one in divisions_of(state.context, verdict)]
        fitting, moved = kept_divisions(state.context, wanted, gains, work.plan)
        saved = {span.tensor: one.saved for one in verdicts for span in one.family.spans}
        every: tuple[list[Division], dict[str, str]] = (fitting, {})
        made[:], costly = within_bytes(state, fitting, saved, work.plan) if muls == "fitting" else every
        work.left.update({**moved, **costly})
        if not made:
            return ()
        inverse = inverse_of(state.classes.routes, made)
        for proto in work.protos:
            added = divide(GraphView(proto.graph, work.folder), made, inverse)
            list_as_inputs(proto)
        return [_edit(one, gains[one.tensor], added[one.tensor]) for one in made]

    return made if work.keeping_function("smooth", factors, attempt) else []


def _edit(one: Division, decibel: float, mul: str) -> Edit:
    spread = float(one.factors.max() / one.factors.min())
    reason = f"its channels, up to {spread:.3g} times apart, are equalized by a Mul; the weights behind it compensate"
    return Edit("smooth", one.tensor, decibel, reason, mul)
