# SPDX-License-Identifier: Apache-2.0
"""Which nodes behind tensors are worth their bytes: a file that moves more than the network in FP16 is no gain.

A Mul or an Add behind an activation keeps TensorRT 8 to 11 from writing INT8 out of the convolution before it: values
are written and read in FP16 by that node, then by a quantize layer. Judged by the predicted layers (`engine/`), not by
a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqtool.conditioning.equalize_step import ClassState
from qdqtool.conditioning.judge import counted_scales
from qdqtool.conditioning.placement import EditT, NodeBehind
from qdqtool.engine.cost import forecast
from qdqtool.engine.predict import predict_layers
from qdqtool.graph.io import copy_of
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.passes.insert import insert_pairs

SHARE = 0.8  # of the bytes in FP16; the rest is for operators that stay in float for accuracy, chosen afterwards
FEW_BYTES = 1 << 20  # a network that moves fewer is bound by its launches, not by memory
TOO_MANY_BYTES = "after it would move more bytes than INT8 saves"
ROUNDED_BEFORE = "on the DLA it is rounded before"


def within_bytes(
    state: ClassState,
    wanted: Sequence[EditT],
    saved: Mapping[str, float],
    options: PlanOptions,
    behind: NodeBehind[EditT],
) -> tuple[list[EditT], dict[str, str]]:
    """The edits with which INT8 moves at most `SHARE` of FP16's bytes, those that save most noise first.

    Their order is noise saved over the root of the tensor's size: by noise over size large tensors come last, and these
    stand early in networks, where what is lost goes on to all outputs.

    None for the DLA: without FP16 in between the tensor is rounded before its node, which is one rounding more.

    All of them where that cannot be told (open shapes; a target without predicted layers), where bytes do not count
    (`FEW_BYTES`), or where INT8 moves no fewer bytes even without a node: such a file is wanted for something else.
    """
    if options.target == "dla":
        return [], {one.tensor: f"{ROUNDED_BEFORE} {behind.name} after it" for one in wanted}
    if options.target != "gpu" or not wanted:
        return list(wanted), {}
    limit = _float_bytes(state, options)
    sizes = _sizes(state)
    order = sorted(wanted, key=lambda one: -saved[one.tensor] / max(sizes.get(one.tensor, 0), 1) ** 0.5)
    if limit is None or limit < FEW_BYTES:
        return list(wanted), {}
    least, most = (_int8_bytes(state, order[:count], options, behind) for count in (0, len(order)))
    if least is None or most is None or least >= limit:
        return list(wanted), {}
    limit = max(int(SHARE * limit), least + 1)
    low, high = 0, len(order)  # the first fits, the second may not
    if most < limit:
        return list(wanted), {}
    while high - low > 1:
        middle = (low + high) // 2
        moved = _int8_bytes(state, order[:middle], options, behind)
        low, high = (middle, high) if moved is not None and moved < limit else (low, middle)
    kept = {one.tensor for one in order[:low]}
    left = {one.tensor: f"{behind.name} {TOO_MANY_BYTES}" for one in order[low:]}
    return [one for one in wanted if one.tensor in kept], left


def _sizes(state: ClassState) -> dict[str, float]:
    """Elements of each tensor, open axes taken as 1."""
    shapes = shapes_of(state.context.view)
    return {name: float(np.prod([axis or 1 for axis in shape])) for name, shape in shapes.items()}


def _float_bytes(state: ClassState, options: PlanOptions) -> int | None:
    view = GraphView(state.context.proto.graph, state.context.folder)
    return forecast(view, predict_layers(view, options.trt_version)).bytes_moved


def _int8_bytes(
    state: ClassState, wanted: Sequence[EditT], options: PlanOptions, behind: NodeBehind[EditT]
) -> int | None:
    """What the model with its pairs moves, a node behind some tensors."""
    context = state.context
    copy = copy_of(context.proto)
    done = behind.put(copy, context.folder, wanted)
    view = GraphView(copy.graph, context.folder)
    plan = make_plan(view, options)
    scales = counted_scales(state.counted.families, np.ones(state.classes.factors.atoms.size), state.counted.amax)
    scales = {**scales, **{made: scales[name] for made, name in done.items()}}
    insert_pairs(view, plan, scales)
    view = GraphView(copy.graph, context.folder)
    return forecast(view, predict_layers(view, options.trt_version)).bytes_moved
