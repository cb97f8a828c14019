# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with a Q/DQ model, by what its tensors hold; whether it costs accuracy, `diagnose` measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qdqtool.data.preprocess import parse_preprocess
from qdqtool.diagnosis.cause import Cause, CauseName
from qdqtool.diagnosis.evidence import Evidence, PairedTensor
from qdqtool.diagnosis.one_change import with_scales, with_weights
from qdqtool.display import counted
from qdqtool.evaluation.known_preprocess import known_preprocess, other_values
from qdqtool.formats import INT8
from qdqtool.graph.model import Model
from qdqtool.match.rule_index import RuleIndex
from qdqtool.recipe.values import OptionValue, RecipeStep
from qdqtool.simulation.rounding import fake_quantize_weight

# A range is suspected from so many dB below the best one on, where it leaves less than this many dB.
_DROP, _POOR = 6.0, 30.0
_FEW = 3  # tensors that are a fault of their own; more of them have one cause together
_PART = 0.3  # of all ranges, from which on a fault is that of the data
_OFF = 1.5  # a range of an input beyond this ratio is of other values
_MOSTLY = 0.5  # a tensor is dead where more of its values become zero


@dataclass(frozen=True)
class Suspect:
    """A cause that is not measured yet.

    Attributes:
        cause: without a gain.
        change: makes the model without it; None where no change shows what its remedy wins.
        unmeasured: why there is none.
    """

    cause: Cause
    change: Callable[[Model], Model] | None
    unmeasured: str = ""


def insert_step(**options: OptionValue) -> RecipeStep:
    """The step of `insert` with some options, whose names have underscores for dashes."""
    return RecipeStep("insert", "insert", options={name.replace("_", "-"): value for name, value in options.items()})


def per_tensor_weights(found: Evidence) -> Iterator[Suspect]:
    """Weights with one scale whose channels differ in size."""
    context = found.context
    axes = {id(node): rule.axis for node, rule in RuleIndex(context.rules.weights, context.rules).nodes(context.view)}
    weights, worst = {}, dict[str, float]()
    total = 0
    for node, index in context.weighted:
        pair, axis = context.weight_pair(node, index), axes.get(id(node))
        scale = None if pair is None else context.scale_of(pair)
        total += pair is not None
        if pair is None or scale is None or scale.size != 1 or axis is None:
            continue
        if node.inputs[index] != pair.dequantize.outputs[0]:
            continue
        array = found.plain.view.array(pair.tensor)
        if array is None or array.dtype != np.float32 or array.shape[axis] < 2:
            continue
        sizes = np.abs(np.moveaxis(array, axis, 0)).reshape(array.shape[axis], -1).max(axis=1)
        if sizes.max() > 0:
            worst[pair.tensor] = float(sizes.max() / max(np.median(sizes), sizes.max() / INT8.largest**2))
            weights[pair.tensor] = fake_quantize_weight(array.astype(np.float32, copy=False), axis)
    if not weights:
        return
    order = tuple(sorted(worst, key=lambda name: -worst[name]))
    text = f"{len(weights)} of {counted(total, 'weight')} have one scale"
    text += f"; in {order[0]} the largest channel is {worst[order[0]]:.3g} times the median one"
    figures = {"weights": len(weights), "of": total, "largest_over_median": worst[order[0]]}
    integers = not found.has_source and all(
        pair.quantize is None for name in weights for pair in context.view.pairs[name]
    )
    why = "the file holds integers: give the FP32 model" if integers else ""
    cause = Cause("per-tensor weights", order, text, insert_step(method="auto"), figures=figures)
    yield Suspect(cause, None if integers else lambda model: with_weights(model, weights), why)


def ranges(found: Evidence) -> Iterator[Suspect]:
    """Ranges of activations that do not fit the data: of all, for the preprocessing or the data; or of a few."""
    off = [one for one in found.tensors.values() if one.drop >= _DROP and one.sqnr < _POOR]
    off.sort(key=lambda one: -one.drop)
    if other := _other_inputs(found):
        yield _all_ranges(found, "preprocessing", [*found.context.view.inputs], other)
    elif len(off) > max(_FEW, _PART * len(found.tensors)):
        wide = sum(one.amax > one.best for one in off)
        if 2 * wide > len(off):
            text = f"{wide} of {counted(len(found.tensors), 'range')} are set by few large values; {_described(off[0])}"
            yield _all_ranges(found, "outliers", [one.name for one in off], text)
    else:
        for one in off:
            cause = Cause(_name_of(one), (one.name,), _described(one), insert_step(method="mse"), figures=_figures(one))
            yield Suspect(cause, _change([one]))


def _other_inputs(found: Evidence) -> str:
    """What shows that the pairs were calibrated on other values than the data have; "" where nothing does."""
    known, given = known_preprocess(found.context.model.proto), found.loader.description.get("preprocess")
    if known is not None and given and (differ := other_values(parse_preprocess(given), known.spec)):
        return f"{known.source} had {differ[1]}, the data have {differ[0]}"
    inputs = [found.tensors[name] for name in found.context.view.inputs if name in found.tensors]
    for one in inputs:
        ratio = one.amax / one.best
        if not 1 / _OFF <= ratio <= _OFF and one.drop >= _DROP:
            return f"the range of the input {one.name} ends at {one.amax:.4g}, its values at {one.histogram.amax:.4g}"
    return ""


def _all_ranges(found: Evidence, name: CauseName, where: Sequence[str], text: str) -> Suspect:
    """A suspicion that recalibrating all ranges removes."""
    cause = Cause(name, tuple(where), text, insert_step(method="auto" if name == "preprocessing" else "mse"))
    return Suspect(cause, _change(list(found.tensors.values())))


def _change(tensors: Sequence[PairedTensor]) -> Callable[[Model], Model]:
    scales = {one.name: np.float32(INT8.scale_of(one.best)) for one in tensors}
    return lambda model: with_scales(model, scales)


def _name_of(one: PairedTensor) -> CauseName:
    if one.amax < one.best:
        return "saturated tensor"
    return "dead tensor" if one.zeroed > _MOSTLY else "outliers"


def _described(one: PairedTensor) -> str:
    ends = f"{one.name} is clipped at {one.amax:.4g}"
    part = f"{one.clipped:.2%} of its values are beyond" if one.amax < one.best else f"{one.zeroed:.1%} become 0"
    return f"{ends}, where {part}: {one.sqnr:.1f} dB, {one.best_sqnr:.1f} dB at {one.best:.4g}"


def _figures(one: PairedTensor) -> dict[str, float]:
    figures = {"amax": one.amax, "best_amax": one.best, "largest": float(one.histogram.amax)}
    return {**figures, "sqnr_db": one.sqnr, "best_sqnr_db": one.best_sqnr, "clipped": one.clipped, "zeroed": one.zeroed}


SUSPECTS: tuple[Callable[[Evidence], Iterator[Suspect]], ...] = (per_tensor_weights, ranges)
