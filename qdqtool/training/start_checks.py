# SPDX-License-Identifier: Apache-2.0
"""Checked before training starts: that the form computes what the file computes, and that its gradients are right."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qdqtool.autodiff.backend import PAIR_DOMAIN, Forward, GradientGraph
from qdqtool.autodiff.pairs import PairFunction
from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from qdqtool.measures import largest_difference
from qdqtool.runtime.executor import Executor
from qdqtool.training.training_graph import TrainingGraph

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

TOLERANCE = 2e-5
"""Largest difference of two forwards, relative to the largest magnitude of the tensor."""

_TODO = "please report it with the model: nothing was trained"


def check_same_forward(form: TrainingGraph, batch: Mapping[str, Array]) -> float:
    """Refuse a form that computes something else than its file.

    Compared are the outputs. A difference in the last bits may tip one rounding of a pair, and that step is seen at the
    outputs; so where they differ, every stretch from pair to pair is compared instead.

    Raises:
        QdqError: a tensor differs by more than `TOLERANCE`.
    """
    file = form.quantized.view
    known = {*file.producers, *file.inputs}
    outputs = [value.name for value in form.proto.graph.output if value.name in known]
    theirs = Executor(form.quantized, outputs, "the Q/DQ model").run(batch)
    ours = Executor(Model(form.proto), outputs, "the training form").run(batch)
    worst, name = largest_difference(ours, theirs)
    if worst <= TOLERANCE:
        return worst
    worst, name = largest_difference(*_stretches(form, known, outputs, batch))
    if not worst <= TOLERANCE:
        reason = f"differs by {worst:.1e} of its size between the training form and the file"
        raise QdqError(name, reason, _TODO)
    return worst


def _stretches(
    form: TrainingGraph, known: Collection[str], outputs: list[str], batch: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """What form and file make between pairs: every pair of the form is given what the file's pair reads."""
    cut = onnx.ModelProto()
    cut.CopyFrom(form.proto)
    fed = {value.name for value in cut.graph.input}
    computed = set(fed)
    given: dict[str, str] = {}
    draft = GraphBuilder(cut)
    for node in cut.graph.node:
        if any(name in computed for name in node.input):
            computed.update(node.output)
            source = node.input[0]
            if node.domain == PAIR_DOMAIN and source in known and source not in fed:
                if source not in given:
                    given[source] = draft.unique(f"{source}_given")
                node.input[0] = given[source]
    wanted = list(dict.fromkeys((*given, *outputs)))
    cut.graph.input.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in given.values())
    cut.graph.ClearField("output")
    cut.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    theirs = Executor(form.quantized, wanted, "the Q/DQ model").run(batch)
    feed = {**batch, **{name: theirs[source] for source, name in given.items()}}
    return Executor(Model(cut), wanted, "the training form").run(feed), theirs


# ---------------------------------------------------------------------- gradients

_CHECKED = 6  # parameters that are measured
_SPREAD = 0.05  # how far the point lies from the start, relative to each value: there teacher and student agree
_FARTHEST = 0.05  # longest step, in root mean squares of the parameter
_AIM = 1e-2  # change of the loss that a step aims at, relative to the loss
_LEAST = 1e-3  # a smaller change tells nothing in float32
_OFF = 0.05  # largest relative error of a derivative along a gradient
_OFF_ACROSS = 0.15  # and across it, relative to what a gradient of that length has there on average
_WIDE = np.float32(1e12)  # on a scale: then its pair cuts nothing off
_STEPS = (1.0, 0.25, 0.0625, 0.015625)  # parts of the longest step: kinks ask for short ones, float32 for long ones
_DOUBTS = 3  # times its own uncertainty that a measurement may be off before it speaks against a gradient


@dataclass(frozen=True, eq=False)
class _Point:
    """Where derivatives are measured: the feed, every parameter among it, loss and gradients there."""

    run: Executor
    feed: Mapping[str, Array]
    loss: str
    value: float

    def at(self, name: str, value: Float32) -> float:
        """The loss with another value of one parameter."""
        return float(self.run.run({**self.feed, name: np.asarray(value, np.float32)})[self.loss].reshape(()))

    def slope(self, name: str, direction: Float32, step: float) -> float:
        """(L(p + h d) - L(p - h d)) / 2h."""
        ahead, back = (self.feed[name] + np.float32(sign * step) * direction for sign in (1, -1))
        return (self.at(name, ahead) - self.at(name, back)) / (2 * step)

    def noise(self, name: str, draw: np.random.Generator) -> float:
        """What roundings alone do to the loss: values moved by one unit in their last place."""
        value = np.asarray(self.feed[name])
        moved = [
            np.nextafter(value, np.where(draw.random(value.shape) < 0.5, np.float32(np.inf), np.float32(-np.inf)))
            for _ in range(2)
        ]
        return 2 * max(abs(self.at(name, one) - self.value) for one in moved) + 1e-6 * abs(self.value)


def check_gradients(forward: Forward, graph: GradientGraph, batch: Mapping[str, Array], seed: int = 0) -> float:
    """Refuse a gradient graph whose gradients disagree with finite differences.

    Measured on copies in which pairs let everything through, since rounding has no derivative, and at a seeded point
    near the start. Of some parameters, drawn by seed, the derivative along the gradient itself and along a random
    direction: (L(p + h d) - L(p - h d)) / 2h against g . d. A measurement that does not settle as h shrinks (kinks of
    Relu, float32, jumps where a TopK chooses others) speaks for nothing. Scales are not measured: without rounding they
    do nothing.

    Raises:
        QdqError: a parameter whose gradient disagrees; or none of them moves the loss enough to tell.
    """
    draw = np.random.default_rng(seed)
    scales = _scales(forward.proto)
    names = [name for name in forward.parameters if name not in scales]
    point, gradients = _measured_point(forward, graph, batch, draw)
    agreed: list[float] = []
    unsettled: list[float] = []
    for place in draw.permutation(len(names)):
        name = names[int(place)]
        off, settled = _compare(point, name, gradients[graph.gradients[name]], draw)
        if off is not None:
            (agreed if settled else unsettled).append(off)
        if len(agreed) == _CHECKED or len(unsettled) == 2 * _CHECKED:
            break
    if names and not agreed and not unsettled:
        reason = f"is {point.value:.3g}, and no parameter changes it enough to check a gradient"
        raise QdqError(forward.loss, reason, "give another loss or other data")
    return max(agreed or unsettled or [0.0])


def _measured_point(
    forward: Forward, graph: GradientGraph, batch: Mapping[str, Array], draw: np.random.Generator
) -> tuple[_Point, dict[str, Array]]:
    tensors = {tensor.name: tensor for tensor in forward.proto.graph.initializer}
    scales = _scales(forward.proto)
    feed = dict(batch)
    for name in forward.parameters:
        value = onnx.numpy_helper.to_array(tensors[name]).astype(np.float32)
        spread = 0.0 if name in scales else _SPREAD
        feed[name] = np.asarray(value * (1 + spread * draw.standard_normal(value.shape)), np.float32)  # 0-d: an array
    feed.update((name, np.asarray(feed[name] * _WIDE, np.float32)) for name in sorted(scales & set(feed)))
    smooth = smooth_copy(with_inputs(forward.proto, forward.parameters), scales)
    run = Executor(Model(smooth), [forward.loss], "the loss")
    loss = float(run.run(feed)[forward.loss].reshape(()))
    if not np.isfinite(loss):
        raise QdqError(forward.loss, f"is the loss and is {loss} near the start", "check data and loss")
    wanted = list(graph.gradients.values())
    gradients = Executor(Model(smooth_copy(graph.proto, scales)), wanted, "the gradient graph").run(feed)
    for name, output in graph.gradients.items():
        if gradients[output].shape != feed[name].shape or not np.isfinite(gradients[output]).all():
            reason = f"has a gradient of shape {list(gradients[output].shape)}, or one that is not finite"
            raise QdqError(name, reason, _TODO)
    return _Point(run, feed, forward.loss, loss), gradients


def _compare(point: _Point, name: str, gradient: Array, draw: np.random.Generator) -> tuple[float | None, bool]:
    """The relative difference along a gradient, and whether it could be measured.

    None where the loss does not move enough to tell.
    """
    whole = float(np.linalg.norm(gradient.astype(np.float64)))
    noise = np.asarray(draw.standard_normal(gradient.shape))
    across = np.asarray(noise / max(float(np.linalg.norm(noise)), 1e-12), np.float32)
    along = np.asarray(gradient / whole, np.float32) if whole > 0 else across
    floor = point.noise(name, draw)
    off, settled = _measure(point, name, gradient, along, _Allowed(_OFF, 0.0, floor))
    _measure(point, name, gradient, across, _Allowed(_OFF_ACROSS, whole / np.sqrt(gradient.size), floor))
    return off, settled


@dataclass(frozen=True)
class _Allowed:
    """What a derivative may be off: a share of it, or of a usual one; and what roundings do to the loss."""

    share: float
    usual: float
    floor: float


def _measure(
    point: _Point, name: str, gradient: Array, direction: Float32, allowed: _Allowed
) -> tuple[float | None, bool]:
    """Compare the derivative along one direction with measured ones, from the longest step to the shortest.

    Two measurements that differ tell how far each can be trusted; the most trusted one decides.
    """
    predicted = float(np.sum(gradient.astype(np.float64) * direction))
    found: list[tuple[float, float]] = []  # measured slope, what roundings add
    for step in _steps(point, name, direction, max(abs(predicted), allowed.usual)):
        measured, blur = point.slope(name, direction, step), allowed.floor / (2 * step)
        found.append((measured, blur))
        size = max(abs(predicted), abs(measured), allowed.usual)
        if abs(measured - predicted) <= allowed.share * size + blur:
            enough = 2 * step * abs(predicted) >= _LEAST * abs(point.value) and blur <= allowed.share * size
            return (abs(measured - predicted) / size if enough and size else None), True
    sizes = [abs(slope) for slope, _ in found]
    if all(shorter > 2 * longer for longer, shorter in itertools.pairwise(sizes[-3:])):  # as 1/h: the loss jumps here
        return None, False
    doubts = [abs(one - other) + blur for (one, blur), (other, _) in itertools.pairwise(found)]
    best = int(np.argmin(doubts))
    measured = found[best][0]
    size = max(abs(predicted), abs(measured), allowed.usual)
    if abs(measured - predicted) > allowed.share * size + _DOUBTS * doubts[best]:
        reason = f"the gradient predicts a slope of the loss of {predicted:.4g}, finite differences give {measured:.4g}"
        raise QdqError(name, reason, _TODO)
    return abs(measured - predicted) / size, False


def _steps(point: _Point, name: str, direction: Float32, slope: float) -> Iterator[float]:
    """Step lengths to try, longest first."""
    value = np.asarray(point.feed[name])
    farthest = _FARTHEST * max(_rms(value), 1e-3) / max(_rms(direction), 1e-12)
    aimed = _AIM * abs(point.value) / (2 * slope) if slope else 0.0
    step = min(farthest, aimed or farthest)  # a loss of 0 says nothing of its own size
    for part in _STEPS:
        yield step * part


def _rms(value: Array) -> float:
    return float(np.sqrt(np.mean(np.square(value.astype(np.float64))))) if value.size else 0.0


def _scales(proto: onnx.ModelProto) -> set[str]:
    """What pairs read as their scale."""
    return {
        node.input[1] for node in proto.graph.node if node.domain == PAIR_DOMAIN and PairFunction.parse(node.op_type)
    }


def with_inputs(proto: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """A copy in which initializers are inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    wanted = frozenset(names)
    moved = [tensor for tensor in proto.graph.initializer if tensor.name in wanted]
    kept = onnx.GraphProto(initializer=[tensor for tensor in proto.graph.initializer if tensor.name not in wanted])
    copy.graph.ClearField("initializer")
    copy.graph.initializer.extend(kept.initializer)
    copy.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in moved)
    return copy


def smooth_copy(proto: onnx.ModelProto, scales: Collection[str] = ()) -> onnx.ModelProto:
    """A copy in which every pair lets its input through, whether a back end calls its function or writes it out."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for nodes in (copy.graph.node, *(function.node for function in copy.functions)):
        quantized = {node.output[0]: node.input[0] for node in nodes if node.op_type == QUANTIZE}
        for node in nodes:
            if node.op_type == DEQUANTIZE and node.input[0] in quantized:
                node.CopyFrom(helper.make_node("Identity", [quantized[node.input[0]]], node.output[:1]))
    for tensor in copy.graph.initializer:
        if tensor.name in scales:
            with np.errstate(over="ignore"):  # of scales near float32's end, which are wide as they are
                wide = np.asarray(onnx.numpy_helper.to_array(tensor) * _WIDE, np.float32)
            wide = np.minimum(wide, np.finfo(np.float32).max)
            tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
    return copy
