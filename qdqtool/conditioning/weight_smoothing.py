# SPDX-License-Identifier: Apache-2.0
"""The step `smooth` for formats of weights alone: channels that carry much get finer codes (AWQ, Lin et al. 2023).

What a product reads is divided by f[c] = rms[c]^a in the norm or product before, its weight multiplied: the function
stays, and an error of the codes of W f counts 1 / f. One power a is chosen for each tensor, by the error of the
products that read it. Where no weights take the division in, nothing is done: a Mul costs a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qdqtool.amax.weight_blocks import Moments
from qdqtool.conditioning.channel_classes import Counted, find_classes
from qdqtool.conditioning.class_factors import to_power_of_two
from qdqtool.conditioning.condition_context import look
from qdqtool.conditioning.edits import Edit
from qdqtool.conditioning.equalize_step import ClassState
from qdqtool.conditioning.free_divisions import carry_out, split_free
from qdqtool.conditioning.predict import Rounding
from qdqtool.conditioning.workspace import Workspace
from qdqtool.formats import INT8
from qdqtool.match.plan import Point
from qdqtool.measuring.weight_search import ProductInput, counted_moments, inputs_of_point
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.passes.condition.smooth import Division
from qdqtool.passes.insert import block_layout, block_weight
from qdqtool.runtime.activations import ObservableModel

_POWERS = tuple(number / 20 for number in range(1, 21))
_LEAST = 0.1  # decibels of the products' error, below which nothing is divided

Float64 = npt.NDArray[np.float64]


def smooth_for_weights(work: Workspace, factors: Rounding) -> None:
    """Divide what products with quantized weights read, where weights before them take it in and their error falls."""

    def attempt(kind: Rounding) -> Sequence[Edit]:
        plan = work.look().plan
        model = ObservableModel(work.lifted, "cpu", work.lifted.name)
        moments, _ = counted_moments(model, work.samples, plan, progress=False)
        # Where channels go is known of tensors that INT8 pairs would stand on: what products read.
        context = look(work.lifted, replace(work.plan, format=INT8.name, block=None))
        state = ClassState(context, find_classes(context, next(iter(work.samples))), Counted((), {}, {}))
        wanted, gains = [], dict[str, float]()
        for tensor, points in _readers(model, plan.weights).items():
            found = _choice(model, points, moments, tensor, kind)
            span = state.classes.routes.spans.get(tensor)
            if found is not None and span is not None and span.channels == found[0].size:
                reads = next(point.reads for point in context.plan.activations if point.tensor == tensor)
                wanted.append(Division(tensor, found[0], span.axis, span.rank, reads))
                gains[tensor] = found[1]
        free, paid = split_free(state, wanted)
        work.left.update({one.tensor: "no weights before it take the division in" for one in paid})
        for one in work.models if free else ():
            carry_out(one, state, free, [])
            list_as_inputs(one.proto)
        return [_edit(one, gains[one.tensor]) for one in free]

    work.keeping_function("smooth", factors, attempt)


def _readers(model: ObservableModel, points: Sequence[Point]) -> dict[str, list[Point]]:
    """Tensor -> the weights of all that reads it; without those that also multiply another tensor, or a turned one."""
    found: dict[str, list[Point]] = {}
    for point in points:
        inputs = set(inputs_of_point(model, point))
        if len(inputs) == 1 and not any(one.turned for one in inputs):
            found.setdefault(next(iter(inputs)).tensor, []).append(point)
    return found


def _choice(
    model: ObservableModel, points: Sequence[Point], moments: dict[ProductInput, Moments], tensor: str, kind: Rounding
) -> tuple[npt.NDArray[np.float32], float] | None:
    """The factors with which the products of a tensor lose least, and the decibels won; None where none wins."""
    seen = moments.get(ProductInput(tensor, turned=False, block=points[0].block))
    if seen is None or not seen.rows:
        return None
    mean = seen.sums / seen.rows
    rms = np.sqrt(np.maximum(np.einsum("bkk->bk", mean).reshape(-1), 0))
    rms = np.maximum(rms, rms.max(initial=0) * 1e-4)
    if not rms.all():
        return None
    plain = _error(model, points, mean, np.ones_like(rms, np.float32))
    best = plain, np.ones_like(rms, np.float32)
    for power in _POWERS:
        factors = np.power(rms, power)
        factors = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
        own = to_power_of_two(factors).astype(np.float32) if kind == "power-of-two" else factors
        best = min(best, (_error(model, points, mean, own), own), key=lambda one: one[0])
    gain = 10 * float(np.log10(plain / best[0])) if best[0] > 0 else 0.0
    return (best[1], gain) if gain >= _LEAST else None


def _error(model: ObservableModel, points: Sequence[Point], mean: Float64, factors: npt.NDArray[np.float32]) -> float:
    """The error of all products of a tensor that is divided by the factors, their weights rounded to the nearest."""
    total, (blocks, block, _) = 0.0, mean.shape
    own = factors.astype(np.float64).reshape(blocks, block)
    divided = mean / own[:, :, None] / own[:, None, :]
    for point in points:
        weight = block_weight(model.view, point)
        scaled = weight * factors.reshape([1, -1] if point.axis else [-1, 1])
        layout = block_layout(point, scaled)
        total += layout.error(scaled, layout.scales(scaled), divided)
    return total


def _edit(one: Division, decibel: float) -> Edit:
    apart = float(one.factors.max() / one.factors.min())
    reason = f"its channels, divided by factors up to {apart:.3g} times apart in the weights before, get finer codes"
    return Edit("smooth", one.tensor, decibel, reason)
