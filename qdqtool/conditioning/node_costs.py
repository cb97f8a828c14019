# SPDX-License-Identifier: Apache-2.0
"""Which nodes after tensors are worth their bytes: a file that moves more than the network in FP16 is no gain.

A Mul or an Add after an activation keeps TensorRT 8 to 11 from writing INT8 out of the convolution before it: values
are written and read in FP16 by that node, then by a quantize layer. Judged by the predicted layers (`engine/`), not by
a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqtool.conditioning.condition_context import place_pairs
from qdqtool.conditioning.equalize_step import ClassState
from qdqtool.conditioning.judge import counted_scales
from qdqtool.conditioning.placement import EditT, NodeBehind
from qdqtool.engine.cost import forecast
from qdqtool.engine.predict import predict_layers
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.view import GraphView
from qdqtool.trtversion import TrtVersion

SHARE = 0.8  # of the bytes in FP16; the rest is for operators that stay in float for accuracy, chosen afterwards
FEW_BYTES = 1 << 20  # a network that moves fewer is bound by its launches, not by memory
TOO_MANY_BYTES = "after it would move more bytes than INT8 saves"
ROUNDED_BEFORE = "on the DLA it is rounded before"


def within_bytes(
    state: ClassState, wanted: Sequence[EditT], saved: Mapping[str, float], behind: NodeBehind[EditT]
) -> tuple[list[EditT], dict[str, str]]:
    """The edits with which INT8 moves at most `SHARE` of FP16's bytes, those that save most noise first.

    Their order is noise saved over the root of the tensor's size: by noise over size large tensors come last, and these
    stand early in networks, where what is lost goes on to all outputs.

    None for the DLA: without FP16 in between the tensor is rounded before its node, which is one rounding more.

    All of them where that is not known (open shapes; a target without predicted layers), where bytes do not count
    (`FEW_BYTES`), or where INT8 moves no fewer bytes even without a node: such a file is wanted for something else.
    """
    options = state.context.options
    if options.target == "dla":
        return [], {one.tensor: f"{ROUNDED_BEFORE} {behind.name} after it" for one in wanted}
    if options.target != "gpu" or not wanted:
        return list(wanted), {}
    limit = _bytes_moved(state.context.view, options.trt_version)
    # Elements of each tensor, open axes taken as 1
    shapes = shapes_of(state.context.view)
    sizes = {name: float(np.prod([axis or 1 for axis in shape])) for name, shape in shapes.items()}
    order = sorted(wanted, key=lambda one: -saved[one.tensor] / max(sizes.get(one.tensor, 0), 1) ** 0.5)
    if limit is None or limit < FEW_BYTES:
        return list(wanted), {}
    least, most = (_int8_bytes(state, order[:count], behind) for count in (0, len(order)))
    if least is None or most is None or least >= limit:
        return list(wanted), {}
    limit = max(int(SHARE * limit), least + 1)
    low, high = 0, len(order)  # the first fits, the second may not
    if most < limit:
        return list(wanted), {}
    while high - low > 1:
        middle = (low + high) // 2
        moved = _int8_bytes(state, order[:middle], behind)
        low, high = (middle, high) if moved is not None and moved < limit else (low, middle)
    kept = {one.tensor for one in order[:low]}
    left = {one.tensor: f"{behind.name} {TOO_MANY_BYTES}" for one in order[low:]}
    return [one for one in wanted if one.tensor in kept], left


def _int8_bytes(state: ClassState, wanted: Sequence[EditT], behind: NodeBehind[EditT]) -> int | None:
    """What the model with its pairs moves, a node after some tensors."""
    options = state.context.options
    edited, done = behind.tried(state.context, wanted)
    scales = counted_scales(state.counted.families, np.ones(state.classes.factors.atoms.size), state.counted.amax)
    scales = {**scales, **{made: scales[name] for made, name in done.items()}}
    place_pairs(edited, options, scales)
    return _bytes_moved(edited.view, options.trt_version)


def _bytes_moved(view: GraphView, version: TrtVersion | None) -> int | None:
    return forecast(view, predict_layers(view, version)).bytes_moved
