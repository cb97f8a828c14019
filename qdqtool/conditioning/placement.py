# SPDX-License-Identifier: Apache-2.0
"""Makes sure that dividing leaves the pairs where they were: the same points, those with a Mul right behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.graph.io import copy_of
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.passes.condition.smooth import Division, divide

LEAST_SKIP = 1.0  # decibels for which the skip of a residual block may be read in float


def kept_divisions(
    context: ConditionContext, divisions: Sequence[Division], gains: Mapping[str, float], options: PlanOptions
) -> tuple[list[Division], dict[str, str]]:
    """The divisions that leave the plan as it is, and why the others are left out.

    A Mul is tried on a copy of the graph: every point must then stand on
    the same tensor or behind its Mul. One price is taken where a Mul wins much: behind the Add of a residual block, the
    skip is read in float from then on, since the Add no longer ends in INT8.

    Args:
        context: the model and its plan.
        divisions: what is wanted.
        gains: tensor -> predicted decibels.
        options: what the plan was made with.
    """
    muls = list(divisions)
    left: dict[str, str] = {}
    while muls:
        moved, skips = _moved(context, muls, options)
        if not moved:
            moved = {name for name in skips if gains[name] < LEAST_SKIP}
        if not moved:
            break
        left.update(dict.fromkeys(sorted(moved), "a Mul after it would move Q/DQ pairs"))
        muls = [one for one in muls if one.tensor not in moved]
    return muls, left


def _moved(context: ConditionContext, muls: Sequence[Division], options: PlanOptions) -> tuple[set[str], set[str]]:
    """The tensors whose Mul moves pairs (all, where that is unknown), and those whose Mul only loses INT8 skips."""
    copy = copy_of(context.proto)
    done = with_unit_muls(copy, context.folder, muls)
    behind = {made: name for name, made in done.items()}
    after = make_plan(GraphView(copy.graph, context.folder), options)
    was = {(point.tensor, read) for point in context.plan.activations for read in point.reads}
    now = {(behind.get(point.tensor, point.tensor), read) for point in after.activations for read in point.reads}
    outputs = {node.key: group.output for group in context.plan.groups for node in group.nodes}
    producers = {read.node for _, read in was ^ now}  # who no longer reads INT8: what it makes got the Mul
    blamed = ({*producers, *(outputs[key] for key in producers if key in outputs)}) & set(done)
    if {name for name, _ in was} == {name for name, _ in now} and now < was and blamed:
        return set(), blamed
    if was == now:
        return set(), set()
    return blamed or ({name for name, _ in was ^ now} & set(done)) or set(done), set()


def with_unit_muls(proto: onnx.ModelProto, folder: Path | None, divisions: Sequence[Division]) -> dict[str, str]:
    """Put every Mul into a model, edited in place, with factors of 1; tensor -> what its Mul gives out."""
    ones = [replace(one, factors=np.ones(one.factors.size, np.float32)) for one in divisions]
    return divide(GraphView(proto.graph, folder), ones, {})
