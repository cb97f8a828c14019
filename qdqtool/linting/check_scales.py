# SPDX-License-Identifier: Apache-2.0
"""Checks of the scales: their values, where they come from, their axis and type, and that neighbors agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qdqtool.graph.edit import TRACE
from qdqtool.graph.view import Node, Pair
from qdqtool.graph.weighted import weight_rank
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.lint_context import LintContext, number_of
from qdqtool.match.flow import value_names
from qdqtool.match.rule_index import RuleIndex
from qdqtool.passes.insert import ESTIMATED

_TINY = np.finfo(np.float32).tiny
_CALIBRATE = "qdqtool insert --requantize --data calibrates it"


@check("Q010", "scale-value", "error")
def scale_value(subject: LintContext) -> Iterator[CheckFault]:
    """A scale that is zero, negative, NaN, infinite, missing, or so small that it is denormal.

    TensorRT's importer asks for positive scales ("Scale coefficients must all be positive"). An infinite one is built,
    and all values become 0. A denormal one is taken for zero where the device flushes them.
    """
    for pair in _pairs(subject):
        scale = subject.scale_of(pair)
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
            yield CheckFault(pair.tensor, f"its scale is {kind}, TensorRT takes positive ones only", _CALIBRATE)
        elif scale.dtype == np.float32 and (value < _TINY).any():
            yield CheckFault(
                pair.tensor, "its scale is denormal: zero on a device that flushes", _CALIBRATE, severity="warning"
            )


@check("Q029", "pair-computes", "error")
def pair_computes(subject: LintContext) -> Iterator[CheckFault]:
    """A Q and its DQ with different scales: the pair multiplies what goes through it.

    No cache can say that. TensorRT builds it in INT8, but its rewrites take a pair for a rounding only.
    """
    for pair in _pairs(subject):
        if pair.quantize is None or pair.quantize.inputs[1] == pair.dequantize.inputs[1]:
            continue
        into, back = (subject.constant(node.inputs[1]) for node in (pair.quantize, pair.dequantize))
        if into is not None and back is not None and into.tobytes() != back.tobytes():
            text = f"its Q has the scale {_number(into)}, its DQ {_number(back)}: the pair computes"
            yield CheckFault(pair.tensor, text, "multiply outside of the pair")


@check("Q011", "scale-computed", "error")
def scale_computed(subject: LintContext) -> Iterator[CheckFault]:
    """A scale that is no constant of the graph.

    TensorRT needs it when it builds: an initializer, a Constant, or a Constant behind a Cast.
    """
    for pair in _pairs(subject):
        node = pair.quantize or pair.dequantize
        if not subject.view.is_constant(node.inputs[1]):
            yield CheckFault(
                pair.tensor, f"its scale {node.inputs[1]} is computed", "fold constants, or export the scale"
            )


@check("Q012", "axis", "error")
def axis(subject: LintContext) -> Iterator[CheckFault]:
    """Scales per channel where TensorRT takes one, along another axis than it takes, or not one for each channel.

    Activations have one scale. Weights have one per output channel: axis 0 of a convolution and of a Gemm with
    transB, the last axis of other matrix products. For ConvTranspose sources differ (axis 0 by NVIDIA in 2022, axis 1
    in modelopt 2025): one scale for the whole tensor is right under both. Several scales on an activation and scales
    along another axis are not refused: TensorRT for RTX 1.7.1 builds them, and the product runs in float. Scales of
    more than one dimension without a block size, and zero points that are not one for each scale, are refused.
    """
    for pair in _pairs(subject):
        yield from _form(subject, pair)
    for name, pairs in subject.activation_pairs.items():
        for pair in pairs:
            scale = subject.scale_of(pair)
            if scale is not None and scale.size > 1:
                yield CheckFault(
                    name, f"{scale.size} scales on an activation, TensorRT takes one: it runs in float", _CALIBRATE
                )
    taken = {id(node): rule.axis for node, rule in RuleIndex(subject.rules.weights, subject.rules).nodes(subject.view)}
    for node, index in subject.weighted:
        behind = subject.pair_of.get(node.inputs[index])
        scale = None if behind is None else subject.scale_of(behind)
        if behind is not None and scale is not None and scale.size > 1 and id(node) in taken:
            yield from _weight_axis(subject, node, behind, scale, taken[id(node)])


def _form(subject: LintContext, pair: Pair) -> Iterator[CheckFault]:
    """A scale of a form that the importer refuses wherever the pair stands."""
    scale, zero = subject.scale_of(pair), subject.zero_point(pair)
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
    subject: LintContext,
    node: Node,
    pair: Pair,
    scale: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    takes: int | None,
) -> Iterator[CheckFault]:
    todo = "qdqtool insert on the FP32 model scales weights along the right axis"
    half = pair.quantize or pair.dequantize
    given = number_of(half, "axis", 1)
    rank = weight_rank(subject.view, pair.tensor)
    if rank is None or scale.ndim != 1:
        return
    if not -rank <= given < rank:
        yield CheckFault(pair.tensor, f"its scales lie along axis {given}, but it has {rank} axes", todo)
        return
    other = number_of(pair.dequantize, "axis", 1)
    if other not in (given, given - rank, given + rank):
        text = f"its QuantizeLinear has its scales along axis {given}, its DequantizeLinear along axis {other}"
        yield CheckFault(pair.tensor, text, todo)
        return
    tensor = subject.view.constant_tensor(half.inputs[0])
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
def unequal_scales(subject: LintContext) -> Iterator[CheckFault]:
    """Scales that differ where values only move: around Concat, MaxPool, Reshape and kin, or twice on one tensor.

    With one scale for all, such an operator runs on the integers and costs nothing, and parallel convolutions of one
    tensor are merged. With others each input is requantized: a kernel and a rounding more. On the DLA the inputs of
    an Add and both sides of a pooling must have one range, too. `--fix` gives all of them the largest.
    """
    for where, what, members in unequal_classes(subject):
        values = sorted({_shown(subject, pair) for pair in members})
        text = f"{what} with the scales {', '.join(values[:4])}" + (", ..." if len(values) > 4 else "")
        yield CheckFault(where, text, "qdqtool lint --fix gives all of them the largest scale", fixable=True)


def unequal_classes(subject: LintContext) -> Iterator[tuple[str, str, list[Pair]]]:
    """Place, what meets there, and the pairs that should have one scale and have not."""
    for name, pairs in subject.activation_pairs.items():
        if name not in subject.requantize_points and _differ(subject, pairs):
            yield name, f"{len(pairs)} pairs on one tensor", pairs
    for node in subject.view.nodes:
        if subject.flow.moves(node):
            members = _around(subject, node, value_names(node))
            if _differ(subject, members) and not _same_before(subject, node):
                yield node.name, node.op, members
    if subject.rules.policy.rounds_everything:
        for node, rule in RuleIndex(subject.rules.ties, subject.rules).nodes(subject.view):
            if rule.members == "none" or subject.flow.moves(node):
                continue
            members = _around(subject, node, [n for n in node.inputs if n], outputs=rule.members == "all")
            if _differ(subject, members):
                yield node.name, node.op, members


def _around(subject: LintContext, node: Node, inputs: list[str], *, outputs: bool = True) -> list[Pair]:
    """The pairs that bring INT8 to the inputs of a node, and those on its outputs."""
    found = [pair for name in inputs for pair in subject.carriers(name) or ()]
    for name in node.outputs if outputs else ():
        if name not in subject.requantize_points:
            found += subject.activation_pairs.get(name, [])
    return found


def _same_before(subject: LintContext, node: Node) -> bool:
    """Whether the difference was there before the node: only one input, whose own pairs differ already."""
    inside = [pair for name in value_names(node) for pair in subject.carriers(name) or ()]
    outside = [pair for name in node.outputs for pair in subject.activation_pairs.get(name, [])]
    return len(value_names(node)) == 1 and _differ(subject, inside) and not outside


def _differ(subject: LintContext, pairs: list[Pair]) -> bool:
    scales = (subject.scale_of(pair) for pair in pairs)
    return len({scale.tobytes() for scale in scales if scale is not None and scale.size == 1}) > 1


def _shown(subject: LintContext, pair: Pair) -> str:
    scale = subject.scale_of(pair)
    return "?" if scale is None else _number(scale)


def _number(scale: np.ndarray[Any, Any]) -> str:
    return f"{float(scale.reshape(-1)[0]):.6g}" if scale.size else "(empty)"


@check("Q021", "half-scale", "note")
def half_scale(subject: LintContext) -> Iterator[CheckFault]:
    """A scale in FP16 or BF16.

    TensorRT reads such scales from 9 on; before, they must be FP32. A calibration cache holds FP32 in any case.
    """
    old = subject.asked is not None and subject.version.major < 9
    for pair in _pairs(subject):
        if kind := subject.half_constants.get((pair.quantize or pair.dequantize).inputs[1]):
            text = f"its scale is {kind}, which TensorRT reads from 9 on"
            yield CheckFault(pair.tensor, text, "export scales in FP32", severity="error" if old else None)


@check("Q023", "estimated-scale", "warning")
def estimated_scale(subject: LintContext) -> Iterator[CheckFault]:
    """A scale that `insert` estimated from the model itself: no data was seen for it.

    It is a beginning for fine-tuning, not for use: `peel` refuses it without `--allow-estimated`.
    """
    for name, pairs in subject.activation_pairs.items():
        for pair in pairs:
            node = pair.quantize or pair.dequantize
            trace = {entry.key: entry.value for entry in node.proto.metadata_props}
            if trace.get(TRACE + "origin") == "estimated" or node.inputs[1].startswith(name + ESTIMATED):
                yield CheckFault(name, "its scale was estimated without data", _CALIBRATE)


def _pairs(subject: LintContext) -> Iterator[Pair]:
    for pairs in subject.view.pairs.values():
        yield from pairs
