# SPDX-License-Identifier: Apache-2.0
"""The step `smooth`: a Mul behind a tensor divides its channels where no weights can take the factors in."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.conditioning.channel_map import why_shared
from qdqtool.conditioning.edits import Edit
from qdqtool.conditioning.equalization_sets import (
    EqualizationDecision,
    choose_division,
    divisions_of,
    inverse_of,
)
from qdqtool.conditioning.equalize_step import ClassState
from qdqtool.conditioning.placement import kept_divisions
from qdqtool.conditioning.predict import Rounding
from qdqtool.conditioning.workspace import Workspace
from qdqtool.graph.view import GraphView
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.passes.condition.smooth import Division, divide


def decide_smooth(state: ClassState, rounding: Rounding) -> tuple[list[EqualizationDecision], dict[str, str]]:
    """What a Mul would win, for each scale whose readers can make up for one; and why the others are left alone."""
    subject = state.subject
    left = {name: why for name, way in subject.ways.items() if (why := why_shared(subject.view, way))}
    left.update(state.classes.routes.left)
    families = [one.family for one in state.counted.families]
    open_ones = [one for one in families if not any(span.tensor in left for span in one.spans)]
    return [choose_division(one, rounding) for one in open_ones], left


def run_smooth(work: Workspace, state: ClassState, factors: Rounding) -> list[Division]:
    """Put Mul nodes where they win; the divisions made."""
    made: list[Division] = []

    def attempt(kind: Rounding) -> Sequence[Edit]:
        verdicts, left = decide_smooth(state, kind)
        work.left.update(left)
        gains = {span.tensor: one.choice.gain for one in verdicts for span in one.family.spans}
        wanted = [one for verdict in verdicts for one in divisions_of(state.subject, verdict)]
        made[:], moved = kept_divisions(state.subject, wanted, gains, work.plan)
        work.left.update(moved)
        if not made:
            return ()
        inverse = inverse_of(state.classes.routes, made)
        for proto in work.protos:
            muls = divide(GraphView(proto.graph, work.folder), made, inverse)
            list_as_inputs(proto)
        return [_edit(one, gains[one.tensor], muls[one.tensor]) for one in made]

    return made if work.keeping_function("smooth", factors, attempt) else []


def _edit(one: Division, decibel: float, mul: str) -> Edit:
    spread = float(one.factors.max() / one.factors.min())
    reason = f"its channels, up to {spread:.3g} times apart, are equalized by a Mul; the weights behind it compensate"
    return Edit("smooth", one.tensor, decibel, reason, mul)
