# SPDX-License-Identifier: Apache-2.0
"""The step `shift`: channels on one side of zero are moved to the middle; the biases after them make up for it.

Symmetric INT8 spends half of its 256 steps on values that a ReLU or a SiLU never gives. What a zero point does for
other targets, a subtraction before the pair and a bias after it do here (Outlier Suppression+, Wei 2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_map import ChannelRange
from qdqtool.conditioning.condition_context import ConditionContext, look
from qdqtool.conditioning.edits import Edit
from qdqtool.conditioning.equalization_sets import EqualizationSet
from qdqtool.conditioning.equalize_step import ClassState, count_state
from qdqtool.conditioning.judge import HeldOut, counted_scales
from qdqtool.conditioning.losses import measure_losses
from qdqtool.conditioning.node_costs import within_bytes
from qdqtool.conditioning.placement import ADD, kept_edits
from qdqtool.conditioning.predict import Rounding, best_clip, predicted_noise
from qdqtool.conditioning.shift_readers import ReadGroup, group_reads
from qdqtool.conditioning.smooth_step import Muls
from qdqtool.conditioning.workspace import Workspace
from qdqtool.formats import INT8
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.constants import list_as_inputs, read_constant
from qdqtool.passes.condition.layout import as_cube
from qdqtool.passes.condition.shift import Shift, own_bias, shift_channels
from qdqtool.scales import Scale, ScaleTable

Float64 = npt.NDArray[np.float64]

_PADS_AS_INPUT = 11  # from this opset on Pad takes its sizes as an input
LEAST_WIN = 0.5  # decibels that a shift must win at the outputs of what reads the tensor
LEAST_SHIFT = 1.0  # decibels by which the range must shrink; after SiLU or ReLU it halves, which is 6


@dataclass(frozen=True, eq=False)
class ScaleShift:
    """What was decided about tensors that share one scale.

    Attributes:
        shifts: those of its tensors that are shifted.
        members: tensors that go on sharing the scale; () where what is shifted gets a scale of its own.
        readers: first outputs of the weighted operators that make up for them.
        clip: the largest absolute value that the scale must hold then.
        decibel: what the range shrinks by.
        saved: noise over signal that goes away, summed over all that reads them.
    """

    shifts: tuple[Shift, ...]
    members: tuple[str, ...]
    readers: tuple[str, ...]
    clip: float
    decibel: float
    saved: float


def run_shift(work: Workspace, held: HeldOut, muls: Muls = "fitting") -> bool:
    """Shift the channels of single tensors where what reads them in INT8 gains on the samples held out.

    Returns whether any was shifted. `muls` says which Add nodes may be added; see `ConditionSettings`.
    """

    def attempt(kind: Rounding) -> Sequence[Edit]:
        if kind != "float":
            return ()  # what rounding to powers of two keeps to the bit, a sum does not
        state = count_state(work, held)
        wanted = _wanted(work, state, muls)
        wanted = _winning(work, state, wanted, held) if wanted and held.samples else wanted
        shifts = [shift for one in wanted for shift in one.shifts]
        additions = additions_of(state, wanted)
        for model in work.models:
            added = shift_channels(model, shifts, additions)
            list_as_inputs(model.proto)
        decibels = [one.decibel for one in wanted for _ in one.shifts]
        return [_edit(*each) for each in zip(shifts, decibels, added, strict=True)]

    return bool(work.keeping_function("shift", "float", attempt))


def decide_shifts(state: ClassState, *, can_pad: bool) -> tuple[list[ScaleShift], dict[str, str]]:
    """What a shift would win, for each scale with a tensor whose readers can make up for one; why others cannot."""
    groups, left = {}, dict(state.classes.routes.left)
    for point in state.context.plan.activations:
        groups[point.tensor], why = group_reads(state.context, point, can_pad=can_pad)
        if why:
            left.setdefault(point.tensor, why)
    return [one for found in state.counted.families for one in _decide(state, found.family, groups)], left


def _decide(
    state: ClassState, family: EqualizationSet, groups: Mapping[str, Sequence[ReadGroup]]
) -> Iterator[ScaleShift]:
    """What is shifted of the tensors of a scale: all together after which values are moved, and each other group."""
    ones = np.ones(family.table.amax.size)
    if not family.consumers or not (family.table.amax > 0).any():
        return
    clip = best_clip(family.table, family.consumers, ones)
    predicted = predicted_noise(family.table, family.consumers, ones.astype(np.float32)).tolist()
    noise = {one.key: own for one, own in zip(family.consumers, predicted, strict=True)}
    moved: list[_Middle] = []
    kept = 0.0  # the largest value of what keeps its scale, and is not shifted
    behind = {name for span in family.spans for group in groups[span.tensor] for name in group.behind}
    for span in family.spans:
        bounds = [np.clip(bound.astype(np.float64), -clip, clip) for bound in state.counted.bounds[span.tensor]]
        for group in groups[span.tensor]:
            middle = _Middle.of(span, group, bounds)
            if group.behind:
                moved.append(middle)
            else:
                yield from _scale_shift([middle], (), 0.0, clip, noise)
        if span.tensor not in behind and not any(group.behind for group in groups[span.tensor]):
            kept = max(kept, *(float(np.abs(bound).max(initial=0.0)) for bound in bounds))
    yield from _scale_shift(moved, tuple(span.tensor for span in family.spans), kept, clip, noise)


@dataclass(frozen=True, eq=False)
class _Middle:
    """The middle of each channel of a tensor as some of its readers see it, and how far values then are from zero."""

    shift: Shift
    readers: tuple[str, ...]
    largest: float

    @classmethod
    def of(cls, span: ChannelRange, group: ReadGroup, bounds: Sequence[Float64]) -> _Middle:
        # Zeros that a convolution puts around the tensor are shifted, too.
        low, high = bounds if not group.pads else (np.minimum(bounds[0], 0), np.maximum(bounds[1], 0))
        values = ((low + high) / 2).astype(np.float32)
        largest = float(np.maximum(high - values, values - low).max(initial=0.0))
        return cls(Shift(span.tensor, values, span.axis, span.rank, group.reads, group.pads), group.readers, largest)


def _scale_shift(
    middles: Sequence[_Middle], members: tuple[str, ...], kept: float, clip: float, noise: Mapping[str, float]
) -> Iterator[ScaleShift]:
    """Shifts that share a scale with `members`, whose values reach up to `kept`; none where nothing moves."""
    shifts = tuple(one.shift for one in middles if one.shift.values.any())
    largest = max([kept, *(one.largest for one in middles)])
    if shifts and largest > 0:
        readers = tuple(dict.fromkeys(key for one in middles if one.shift.values.any() for key in one.readers))
        saved = sum(noise[key] for key in readers) * (1 - (largest / clip) ** 2)
        yield ScaleShift(shifts, members, readers, largest, float(20 * np.log10(clip / largest)), saved)


def _wanted(work: Workspace, state: ClassState, muls: Muls) -> list[ScaleShift]:
    """What shrinks the range enough, leaves the pairs where they are and, with "fitting", costs no more than it may."""
    decided, left = decide_shifts(state, can_pad=(opset_of(work.model.proto) or 0) >= _PADS_AS_INPUT)
    decided = [one for one in decided if one.decibel >= LEAST_SHIFT]
    view, context = state.context.view, state.context
    paid = [shift for one in decided for shift in one.shifts if own_bias(view, shift) is None]
    gains = {shift.tensor: one.decibel for one in decided for shift in one.shifts}
    kept, moved = kept_edits(context, paid, gains, ADD)
    costly: dict[str, str] = {}
    if muls == "fitting":
        saved: dict[str, float] = {}
        for one in decided:
            for tensor in {shift.tensor for shift in one.shifts}:
                saved[tensor] = saved.get(tensor, 0.0) + one.saved
        kept, costly = within_bytes(state, kept, saved, ADD)
    away = {shift.tensor for shift in paid} - {shift.tensor for shift in kept}
    work.left.update({**left, **moved, **costly})
    # A scale keeps its range where one of its tensors keeps its values: the others are not shifted for nothing.
    return [one for one in decided if not any(shift.tensor in away for shift in one.shifts)]


def additions_of(state: ClassState, wanted: Sequence[ScaleShift]) -> dict[str, Float64]:
    """What the bias of each reader gets: its weights times the values that its input channels lost."""
    routes, view = state.classes.routes, state.context.view
    found: dict[str, Float64] = {}
    for one in wanted:
        for shift in one.shifts:
            values = np.zeros(routes.size)
            values[routes.spans[shift.tensor].labels] = shift.values
            own_readers = {read.node for read in shift.reads} & set(one.readers) or set(one.readers)
            for key in sorted(own_readers):
                own = values[np.maximum(routes.consumers[key].labels, 0)]
                if own.any():
                    cube = as_cube(view.producers[key], _weight(view, view.producers[key]))
                    lost = np.einsum("goik,gi->go", cube, own.reshape(cube.shape[0], cube.shape[2])).reshape(-1)
                    found[key] = found.get(key, 0.0) + lost
    return found


def _weight(view: GraphView, node: Node) -> npt.NDArray[np.float32]:
    index = weight_index(view, node)
    assert index is not None
    return read_constant(view, node, index)


@dataclass(frozen=True)
class _Corrected:
    """The noise that is left of an operator's output once its mean is corrected, and the power of the output."""

    rest: float
    power: float


def _winning(work: Workspace, state: ClassState, wanted: Sequence[ScaleShift], held: HeldOut) -> list[ScaleShift]:
    """Those with which what reads the tensors loses less on the samples held out, and what they win there.

    Each operator is looked at by itself, with its bias corrected: values that lie far from zero make the rounding of
    the weights a constant error, which `correct` and `finetune --blocks` take away. The loss of the outputs on eight
    samples does not tell shifts that win from others: it went up and down by a tenth for the same edits.
    """
    counted = state.counted
    plain = counted_scales(counted.families, np.ones(state.classes.factors.atoms.size), counted.amax)
    shifts = [shift for one in wanted for shift in one.shifts]
    shifted = state.context.model.copy()
    added = shift_channels(shifted, shifts, additions_of(state, wanted))
    scales = {**plain, **dict(_scales(wanted, added))}
    before = _corrected_losses(state.context, plain, held)
    after = _corrected_losses(look(shifted, work.plan), scales, held)
    found = []
    for one in wanted:
        left = [key for key in one.readers if key not in after]
        if left:
            why = f"with a shift {', '.join(left)} would stay in float"
            work.left.update({shift.tensor: why for shift in one.shifts})
            continue
        # A MatMul whose bias is an Add after it gives another signal once its input is shifted: the one before counts.
        noise = [sum(losses[key].rest / before[key].power for key in one.readers) for losses in (before, after)]
        decibel = _decibel(*noise)
        if decibel >= LEAST_WIN:
            found.append(replace(one, decibel=decibel))
        else:
            why = f"a shift would change what reads it by {decibel:.1f} dB, and {LEAST_WIN} are asked for"
            work.left.update({shift.tensor: why for shift in one.shifts})
    return found


def _corrected_losses(context: ConditionContext, scales: Mapping[str, Scale], held: HeldOut) -> dict[str, _Corrected]:
    """First output of each operator that reads INT8 -> what it loses once its bias is corrected."""
    losses = measure_losses(context, ScaleTable(dict(scales)), held.samples)
    powers = [max(float(loss.signal.sum()), 1e-30) for loss in losses]
    return {
        loss.key: _Corrected(power * loss.noise(loss.mean), power) for loss, power in zip(losses, powers, strict=True)
    }


def _decibel(before: float, after: float) -> float:
    return float(10 * np.log10(before / after)) if before > 0 and after > 0 else 0.0


def _scales(wanted: Sequence[ScaleShift], added: Iterable[str]) -> Iterator[tuple[str, Scale]]:
    """The scale of every tensor of a scale that shrinks, by its name then."""
    names = iter(added)
    for one in wanted:
        shifted = [next(names) or shift.tensor for shift in one.shifts]
        others = set(one.members) - {shift.tensor for shift in one.shifts}
        scale = Scale.of(INT8.scale_of(one.clip))
        yield from ((name, scale) for name in (*shifted, *sorted(others)))


def _edit(shift: Shift, decibel: float, add: str) -> Edit:
    how = "by the bias before it"
    if add:
        how = "by an Add after a Pad, which adds the zeros around it," if shift.pads else "by an Add"
    reason = f"the middle of each channel is subtracted {how}, which shrinks the range; the biases after it compensate"
    return Edit("shift", shift.tensor, decibel, reason, add)
