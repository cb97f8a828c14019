# SPDX-License-Identifier: Apache-2.0
"""Activation ranges without data: BatchNormalization statistics, and moments propagated between them (Nagel 2019).

Nothing is run and nothing random is fed; what the model does not say stays a guess and is called one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qdqtool.amax.methods import scale_from_amax
from qdqtool.datafree import linear
from qdqtool.datafree.known_tensors import KnownTensors
from qdqtool.datafree.moments import INF, Array, Moments, constant, gaussian, guess
from qdqtool.datafree.propagate import batch_norm_statistics, known_fit, propagate
from qdqtool.decisions import Provenance
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView, Node
from qdqtool.rule_files import operator_set
from qdqtool.scales import Scale, ScaleTable

INPUT_SIGMAS = 3.0  # of an input, whose values end where the sensor's or the picture's do
_PADDED = frozenset({"Cast", "Pad"})  # the values are there, in another type or with some beside them
_FLOATS = (1, 10, 11, 16)  # FLOAT, FLOAT16, DOUBLE, BFLOAT16


def estimate_scales(
    view: GraphView, names: Sequence[str], input_range: tuple[float, float] | None = None
) -> ScaleTable:
    """Scales of activations from the model alone, origin "estimated".

    A tensor that a BatchNormalization reads has its running mean and variance, one that it makes mean beta and standard
    deviation |gamma|. Between them moments go through each operator as if its inputs were independent. amax is the
    largest magnitude within six standard deviations of any channel, or what an activation makes of those six, never
    past what Relu, Clip, Sigmoid and their kin allow; operators that only move values keep it. Bodies of control flow
    are not entered.

    Raises:
        QdqError: a weight holds NaN or infinity (named); `input_range` is not a range.
    """
    if input_range is not None:
        lo, hi = input_range
        if not (np.isfinite(lo) and np.isfinite(hi) and lo < hi):
            raise QdqError(
                f"--input-range {lo}:{hi}", "is not a range", "give the lowest and the highest value, LO < HI"
            )
    with np.errstate(all="ignore"):  # moments beyond float64 and undefined ones are held at a limit (moments.py)
        expected = _walk(view, set(map(view.root, names)), input_range)
    scales: dict[str, Scale] = {}
    for name in names:
        found, method = expected.get(view.root(name)) or (guess(), "guess")
        amax = found.amax if 0 < found.amax < INF else 1.0
        method = method if 0 < found.amax < INF else "guess"
        scales[name] = Scale.of(scale_from_amax(amax, name), origin="estimated", method=method)
    methods = [scale.method for scale in scales.values()]
    counts = {method: methods.count(method) for method in sorted(set(methods))}
    return ScaleTable(scales, provenance=Provenance("estimate", origins=counts))


def _walk(view: GraphView, wanted: set[str], input_range: tuple[float, float] | None) -> dict[str, tuple[Moments, str]]:
    """Moments and method of the wanted tensors; the others are forgotten once everything that reads them is done."""
    known = KnownTensors(view)
    consumers = _count_consumers(view)
    kept: dict[str, tuple[Moments, str]] = {}
    for name in view.inputs:
        found, method = _input(known, name, input_range)
        _keep(known, name, replace(found, source=name), method, wanted, kept)
    for name in sorted(wanted):
        if view.is_constant(name) and (value := known.numbers(name)) is not None:
            kept[name] = (constant(value), "moments")
    for node in sorted(view.nodes, key=lambda one: one.level):
        if all(view.is_constant(name) for name in node.outputs if name):
            continue
        for name, found in zip(node.outputs, propagate(known, node), strict=True):
            if name:
                found, method = _settled(known, node, name, found)
                _keep(known, name, found, method, wanted, kept)
        for name in map(view.root, node.inputs):
            consumers[name] = consumers.get(name, 1) - 1
            if consumers[name] <= 0:
                known.moments.pop(name, None)
    return kept


def _keep(
    known: KnownTensors, name: str, found: Moments, method: str, wanted: set[str], kept: dict[str, tuple[Moments, str]]
) -> None:
    known.moments[name] = found if found.source else replace(found, source=name if found.source == "" else None)
    if name in wanted:
        kept[name] = (replace(found, samples=None), method)


def _count_consumers(view: GraphView) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in view.nodes:
        for name in map(view.root, node.inputs):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _settled(known: KnownTensors, node: Node, name: str, found: Moments) -> tuple[Moments, str]:
    """A node's output, the statistics of a BatchNormalization that reads it in place of what was propagated."""
    consumer = _reading_norm(known, name)
    statistics = batch_norm_statistics(known, consumer) if consumer else None
    if statistics is not None:
        mean, deviation = statistics[2], np.sqrt(statistics[3])
        read = linear.normalized(deviation, mean, known.rank(name) or found.mean.ndim or None, 1)
        read = gaussian(read.mean, read.var, found.lo, found.hi, known=True)
        if node.op in operator_set("unchanged") | operator_set("resampling") | _PADDED:
            read = replace(read, low=found.low, high=found.high)
        return known_fit(known, name, read), "bn-statistics"
    if found.bounded:
        return found, "bounds"
    if node.op == "BatchNormalization" and found.known:
        return found, "bn-statistics"
    return found, "moments" if found.known else "guess"


def _reading_norm(known: KnownTensors, name: str) -> Node | None:
    uses = known.view.consumers(name)
    return next((use.node for use in uses if use.node.op == "BatchNormalization" and use.index == 0), None)


# ---------------------------------------------------------------------------- the network's input


def _input(known: KnownTensors, name: str, given: tuple[float, float] | None) -> tuple[Moments, str]:
    """What is expected of a graph input."""
    kind = next((value.type.tensor_type.elem_type for value in known.view.graph.input if value.name == name), 1)
    if kind not in _FLOATS:
        return guess(), "guess"
    if given is not None:
        return replace(guess(*map(float, given)), known=True), "given"
    solved = _solved(known, name)
    if solved is not None:
        mean, var = solved
        return _within_sigmas(gaussian(mean, var, known=True)), "bn-statistics"
    return _within_sigmas(guess()), "guess"


def _within_sigmas(found: Moments) -> Moments:
    reach = INPUT_SIGMAS * np.sqrt(found.var)
    return replace(found, low=float((found.mean - reach).min()), high=float((found.mean + reach).max()))


def _solved(known: KnownTensors, name: str) -> tuple[float, float] | None:
    """Mean and variance of an input from the statistics after its first convolution.

    With m = sum W mean + b and v = sum W^2 var for each output channel, mean is the least-squares solution over the
    channels and var the median of v / sum W^2.
    """
    scale, shift = 1.0, 0.0
    for _ in range(8):
        uses = known.view.consumers(name)
        if not uses:
            return None
        node = uses[0].node
        if node.op == "Conv":
            return _behind(known, node, scale, shift)
        step = _affine(known, node)
        if step is None:
            return None
        scale, shift = scale * step[0], shift * step[0] + step[1]
        name = node.outputs[0]
    return None


def _affine(known: KnownTensors, node: Node) -> tuple[float, float] | None:
    """A and b of a node that computes a x + b with constants; those of several channels count with their mean."""
    if node.op in operator_set("rearranging") | _PADDED:
        return 1.0, 0.0
    if node.op not in ("Add", "Sub", "Mul", "Div") or len(node.inputs) != 2:
        return None
    value = known.constant_input(node, 1)
    other = known.constant_input(node, 0)
    if value is None and other is not None and node.op in ("Add", "Mul"):
        value = other
    if value is None or not value.size or value.size > 64:
        return None
    amount = float(np.asarray(value, np.float64).mean())
    if node.op in ("Add", "Sub"):
        return 1.0, amount if node.op == "Add" else -amount
    if abs(amount) < 1e-12:
        return None
    return (amount if node.op == "Mul" else 1 / amount), 0.0


def _behind(known: KnownTensors, conv: Node, scale: float, shift: float) -> tuple[float, float] | None:
    weight = known.constant_input(conv, 1)
    norm = _reading_norm(known, conv.outputs[0])
    statistics = batch_norm_statistics(known, norm) if norm else None
    if weight is None or statistics is None or weight.ndim < 3 or weight.shape[0] != statistics[2].size:
        return None
    flat = linear.sound(weight, conv.inputs[1]).reshape(weight.shape[0], -1).astype(np.float64)
    sums, energy = flat.sum(1), (flat**2).sum(1)
    used = energy > 1e-6 * energy.max(initial=0)
    if not used.any():
        return None
    means: Array = statistics[2] - known.vector(conv, 2, 0.0)
    mean = float((sums[used] @ means[used]) / max(float(sums[used] @ sums[used]), 1e-12))
    var = float(np.median(statistics[3][used] / energy[used]))
    mean, var = (mean - shift) / scale, var / scale**2
    return (mean, var) if np.isfinite(mean) and 0 < var < INF else None
