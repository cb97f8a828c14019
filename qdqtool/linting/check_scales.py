# SPDX-License-Identifier: Apache-2.0
"""Checks of the scales: their values, where they come from, their axis and type, and that neighbors agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qdqtool.formats import INT8, NVFP4
from qdqtool.graph.edit import TRACE
from qdqtool.graph.view import Node, Pair
from qdqtool.graph.weighted import weight_rank
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext, number_of
from qdqtool.match.flow import joins, value_names
from qdqtool.match.rule_index import RuleIndex
from qdqtool.passes.dead_channels import find_dead_channels
from qdqtool.passes.insert import ESTIMATED
from qdqtool.scales import CACHE

_TINY = np.finfo(np.float32).tiny
_CALIBRATE = "qdqtool insert --requantize --data calibrates it"
_ALIVE = "qdqtool lint --fix gives dead channels a positive scale: their values stay zero"
_LARGEST = "qdqtool lint --fix gives all of them the largest scale"
_CACHED = (
    "scales of a calibration cache stay; qdqtool insert of the FP32 model, with data, gives one scale to all of them"
)


@check("Q010", "scale-value", "error")
def scale_value(context: LintContext) -> Iterator[CheckFault]:
    """A scale that is zero, negative, NaN, infinite, missing, or so small that it is denormal.

    TensorRT's importer asks for positive scales ("Scale coefficients must all be positive"). An infinite one is built,
    and all values become 0. A denormal one is taken for zero where the device flushes them. `--fix` gives a positive
    scale to channels of a constant that are zero.
    """
    dead = {one.pair.dequantize.outputs[0] for one in find_dead_channels(context.file_view)}
    for pair in context.all_pairs:
        scale = context.scale_of(pair)
        if scale is None or scale.dtype.kind not in "fV":
            continue
        with np.errstate(over="ignore"):  # a float64 scale beyond float32
            value = scale.astype(np.float32)
        if not value.size:
            yield CheckFault(pair.tensor, "its scale has no values", _CALIBRATE)
        elif scale.dtype == np.float64 and np.isfinite(scale).all() and not np.isfinite(value).all():
            yield CheckFault(pair.tensor, "its scale is beyond float32", _CALIBRATE)
        elif not np.isfinite(value).all():
            wrong = "" if np.isnan(value).any() else ": TensorRT builds it, and its values are wrong"
            yield CheckFault(pair.tensor, f"its scale is not finite{wrong}", _CALIBRATE)
        elif (value <= 0).any():
            kind = "negative" if (value < 0).any() else "zero"
            fixable = pair.dequantize.outputs[0] in dead
            todo = _ALIVE if fixable else _CALIBRATE
            yield CheckFault(
                pair.tensor, f"its scale is {kind}, and TensorRT takes positive scales only", todo, fixable
            )
        elif scale.dtype == np.float32 and (value < _TINY).any():
            yield CheckFault(
                pair.tensor,
                "its scale is denormal: zero on a device that flushes denormals",
                _CALIBRATE,
                severity="warning",
            )


@check("Q029", "pair-computes", "error")
def pair_computes(context: LintContext) -> Iterator[CheckFault]:
    """A Q and its DQ with different scales: the pair multiplies what goes through it.

    No cache can say that. TensorRT builds it in INT8, but its rewrites take a pair for a rounding only.
    """
    for pair in context.all_pairs:
        if pair.quantize is None or pair.quantize.inputs[1] == pair.dequantize.inputs[1]:
            continue
        into, back = (context.constant(node.inputs[1]) for node in (pair.quantize, pair.dequantize))
        if into is not None and back is not None and into.tobytes() != back.tobytes():
            text = f"its Q has the scale {_number(into)}, its DQ {_number(back)}: the pair changes values"
            yield CheckFault(pair.tensor, text, "multiply outside the pair")


@check("Q011", "scale-computed", "error")
def scale_computed(context: LintContext) -> Iterator[CheckFault]:
    """A scale that is not a constant of the graph.

    TensorRT needs it when it builds: an initializer, a Constant, or a Constant after a Cast.
    """
    for pair in context.all_pairs:
        node = pair.quantize or pair.dequantize
        if not context.view.is_constant(node.inputs[1]):
            yield CheckFault(
                pair.tensor, f"its scale {node.inputs[1]} is computed", "fold constants, or export the scale"
            )


@check("Q012", "axis", "error")
def axis(context: LintContext) -> Iterator[CheckFault]:
    """Scales per channel where TensorRT takes one, along another axis than it takes, or not one for each channel.

    Activations have one scale. Weights have one per output channel: axis 0 of a convolution and of a Gemm with
    transB, the last axis of other matrix products. For ConvTranspose sources differ (axis 0 by NVIDIA in 2022, axis 1
    in modelopt 2025): one scale for the whole tensor is right under both. Several scales on an activation and scales
    along another axis are not refused: TensorRT for RTX 1.7.1 builds them, and the product runs in float. Scales of
    more than one dimension without a block size, and zero points that are not one for each scale, are refused.
    """
    for pair in context.all_pairs:
        yield from _form(context, pair)
    for name, pairs in context.activation_pairs.items():
        for pair in pairs:
            scale = context.scale_of(pair)
            if context.format_of(pair) == NVFP4:
                continue  # Q064 tells of it
            if scale is not None and scale.size > 1:
                yield CheckFault(
                    name, f"{scale.size} scales on an activation, TensorRT takes one: it runs in float", _CALIBRATE
                )
    taken = {id(node): rule.axis for node, rule in RuleIndex(context.rules.weights, context.rules).nodes(context.view)}
    for node, index in context.weighted:
        behind = context.pair_of.get(node.inputs[index])
        scale = None if behind is None else context.scale_of(behind)
        if behind is not None and scale is not None and scale.size > 1 and id(node) in taken:
            yield from _weight_axis(context, node, behind, scale, taken[id(node)])


def _form(context: LintContext, pair: Pair) -> Iterator[CheckFault]:
    """A scale of a form that the importer refuses wherever the pair is."""
    scale, zero = context.scale_of(pair), context.zero_point(pair)
    blocks = any(number_of(node, "block_size", 0) for node in pair.nodes)
    if scale is None or blocks:
        return
    todo = "give one scale as a scalar, several as a list along the axis, with as many zero points"
    if scale.ndim > 1:
        sides = "x".join(map(str, scale.shape))
        yield CheckFault(pair.tensor, f"its scale is {sides} without a block size, which TensorRT refuses", todo)
    elif zero is not None and zero.ndim and zero.size != scale.size:
        text = f"{zero.size} zero points for {scale.size} scales, which TensorRT refuses"
        yield CheckFault(pair.tensor, text, todo)


def _weight_axis(
    context: LintContext,
    node: Node,
    pair: Pair,
    scale: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    takes: int | None,
) -> Iterator[CheckFault]:
    todo = "qdqtool insert on the FP32 model scales weights along the right axis"
    half = pair.quantize or pair.dequantize
    given = number_of(half, "axis", 1)
    rank = weight_rank(context.view, pair.tensor)
    if rank is None or scale.ndim != 1:
        return
    if not -rank <= given < rank:
        yield CheckFault(pair.tensor, f"its scales are along axis {given}, but it has {rank} axes", todo)
        return
    other = number_of(pair.dequantize, "axis", 1)
    if other not in (given, given - rank, given + rank):
        text = f"its QuantizeLinear has its scales along axis {given}, its DequantizeLinear along axis {other}"
        yield CheckFault(pair.tensor, text, todo)
        return
    tensor = context.view.constant_tensor(half.inputs[0])
    if tensor is not None and tensor.dims[given] != scale.size:
        yield CheckFault(pair.tensor, f"{scale.size} scales along an axis of {tensor.dims[given]}", todo)
    if takes is None:
        text = (
            f"scales along axis {given} of the weight of {node.op} {node.name}: sources differ on what TensorRT takes"
        )
        yield CheckFault(pair.tensor, text, "one scale for the whole tensor is right under all", severity="warning")
    elif given % rank != takes % rank:
        text = f"scales along axis {given % rank} of the weight of {node.op} {node.name}"
        text += f", TensorRT takes axis {takes % rank}: it runs in float"
        yield CheckFault(pair.tensor, text, todo)


@check("Q020", "unequal-scales", "warning")
def unequal_scales(context: LintContext) -> Iterator[CheckFault]:
    """Scales that differ where values only move: around Concat, MaxPool, Reshape and kin, or twice on one tensor.

    With one scale for all, such an operator runs on the integers and costs nothing, and parallel convolutions of one
    tensor are merged. With others each input is requantized: a kernel and a rounding more. On the DLA the inputs of
    an Add and both sides of a pooling must have one range, too. The next larger float32 after a Concat, which insert
    writes for rtx after pools, is no difference there. `--fix` gives all of them the largest. Scales that `graft` took
    from a calibration cache are left: the engine built with the cache requantized there, too.
    """
    for where, what, members in unequal_classes(context):
        values = sorted({_shown(context, pair) for pair in members})
        text = f"{what} with the scales {', '.join(values[:4])}" + (", ..." if len(values) > 4 else "")
        cached = any(is_cached(pair) for pair in members)
        yield CheckFault(where, text, _CACHED if cached else _LARGEST, fixable=not cached)


def is_cached(pair: Pair) -> bool:
    """Whether the scale of a pair is that of a calibration cache, as the trace that `graft` leaves says."""
    traced = (pair.quantize or pair.dequantize).proto.metadata_props
    return any((entry.key, entry.value) == (f"{TRACE}method", CACHE) for entry in traced)


def unequal_classes(context: LintContext) -> Iterator[tuple[str, str, list[Pair]]]:
    """Place, what meets there, and the pairs that should have one scale and have not."""
    for name, pairs in context.activation_pairs.items():
        if name not in context.requantize_points and _differ(context, pairs):
            yield name, f"{len(pairs)} pairs on one tensor", pairs
    for node in context.view.nodes:
        if context.flow.moves(node):
            members = _around(context, node, value_names(node))
            if _differ(context, members) and not _same_before(context, node):
                yield node.name, node.op, members
    if context.rules.policy.rounds_everything:
        for node, rule in RuleIndex(context.rules.shared_scales, context.rules).nodes(context.view):
            if rule.members == "none" or context.flow.moves(node):
                continue
            members = _around(context, node, [n for n in node.inputs if n], outputs=rule.members == "all")
            if _differ(context, members):
                yield node.name, node.op, members


def _around(context: LintContext, node: Node, inputs: list[str], *, outputs: bool = True) -> list[Pair]:
    """The pairs that bring INT8 to the inputs of a node, and those on its outputs."""
    found = [pair for name in inputs for pair in context.carriers(name) or ()]
    for name in node.outputs if outputs else ():
        if name not in context.requantize_points:
            found += [
                pair for pair in context.activation_pairs.get(name, []) if not _is_next(context, node, pair, found)
            ]
    return found


def _is_next(context: LintContext, node: Node, pair: Pair, before: list[Pair]) -> bool:
    """Whether a pair after a Concat has the next larger float32 than a pair before it, and the target's rules ask."""
    if not joins(node) or not any(rule.second == "next" for rule in context.rules.commutes):
        return False
    behind, scales = context.scale_of(pair), [context.scale_of(one) for one in before]
    floats = [one for one in scales if one is not None and one.size == 1 and one.dtype == np.float32]
    return behind is not None and any(np.array_equal(np.nextafter(one, np.float32(np.inf)), behind) for one in floats)


def _same_before(context: LintContext, node: Node) -> bool:
    """Whether the difference was there before the node: only one input, whose own pairs differ already."""
    inside = [pair for name in value_names(node) for pair in context.carriers(name) or ()]
    outside = [pair for name in node.outputs for pair in context.activation_pairs.get(name, [])]
    return len(value_names(node)) == 1 and _differ(context, inside) and not outside


def _differ(context: LintContext, pairs: list[Pair]) -> bool:
    scales = (context.scale_of(pair) for pair in pairs)
    return len({scale.tobytes() for scale in scales if scale is not None and scale.size == 1}) > 1


def _shown(context: LintContext, pair: Pair) -> str:
    scale = context.scale_of(pair)
    return "?" if scale is None else _number(scale)


def _number(scale: np.ndarray[Any, Any]) -> str:
    return f"{float(scale.reshape(-1)[0]):.6g}" if scale.size else "(empty)"


@check("Q021", "half-scale", "note")
def half_scale(context: LintContext) -> Iterator[CheckFault]:
    """A scale in FP16 or BF16.

    TensorRT reads such scales from 9 on; before, they must be FP32. A calibration cache holds FP32 in any case.
    FP16 keeps 11 bits of a scale, fewer below 6.1e-5 (a warning), and nothing below 3e-8, which is refused as zero.
    FP32 scales with a Cast after each DequantizeLinear give the same engine. Scales of FP8, INT4 and FP4 are left out:
    versions that have these formats read FP16, and INT4 fuses with it alone.
    """
    old = context.asked is not None and context.version.major < 9
    for pair in context.all_pairs:
        if context.format_of(pair) not in (INT8, None):
            continue
        if kind := context.half_constants.get((pair.quantize or pair.dequantize).inputs[1]):
            text = f"its scale is {kind}, which TensorRT reads from 9 on"
            scale = context.scale_of(pair)
            small = scale is not None and bool((np.abs(scale) < np.finfo(np.float16).smallest_normal).any())
            tiny = small and kind == "float16"
            text += f"; below {np.finfo(np.float16).smallest_normal:.2g} FP16 loses bits of it" if tiny else ""
            graver: Severity | None = "error" if old else "warning" if tiny else None
            yield CheckFault(pair.tensor, text, "export scales in FP32", severity=graver)


@check("Q023", "estimated-scale", "warning")
def estimated_scale(context: LintContext) -> Iterator[CheckFault]:
    """A scale that `insert` estimated from the model itself: no data was seen for it.

    It is a beginning for fine-tuning, not for use: `peel` refuses it without `--allow-estimated`.
    """
    for name, pairs in context.activation_pairs.items():
        for pair in pairs:
            node = pair.quantize or pair.dequantize
            trace = {entry.key: entry.value for entry in node.proto.metadata_props}
            if trace.get(TRACE + "origin") == "estimated" or node.inputs[1].startswith(name + ESTIMATED):
                yield CheckFault(name, "its scale was estimated without data", _CALIBRATE)
