# SPDX-License-Identifier: Apache-2.0
"""Gradients of a network's outputs by some of its constants, sample by sample and without labels: no training.

The scalar that is differentiated is v' y, y the tensors in which the network ends and v random. Of scores before a
Sigmoid, E[v v'] is diag(p (1 - p)), before a Softmax diag(p) - p p' (the Fisher information of what they say); of other
values it is the identity, divided by their mean square, so that what counts is the relative change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backends import BackendName, make_backend
from qdqtool.runtime.executor import Executor
from qdqtool.training.losses.distill_targets import Behind, find_kinds
from qdqtool.training.losses.nodes import Nodes
from qdqtool.training.shapes import make_forward, run_once
from qdqtool.training.student import Session, SessionOptions
from qdqtool.training.training_graph import TrainingGraph, make_form

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
_SEED = 20


@dataclass(frozen=True)
class _End:
    """A tensor in which the network ends: what stands behind it, the axis of its classes, the input that takes v."""

    tensor: str
    behind: Behind
    axis: int
    taker: str


def channel_gradients(
    proto: onnx.ModelProto,
    folder: Path | None,
    names: Sequence[str],
    samples: Iterable[Mapping[str, Array]],
    backend: BackendName = "auto",
) -> Iterator[dict[str, Float64]]:
    """For each sample, constant -> gradient of v' y, flattened; a constant that no end depends on is left out.

    Args:
        proto: the model, external data not loaded; Q/DQ pass gradients on where they do not cut off.
        folder: where its external data lie.
        names: float32 initializers that nothing but Mul reads.
        samples: inputs, all of the same shapes; gradients of those that are one batch are summed up.
        backend: what makes gradients.

    Raises:
        QdqError: an operator without gradient, or onnxruntime cannot run the model.
    """
    maker = make_backend(backend)
    form = make_form(proto, folder, operators=maker.operators())
    draw = np.random.default_rng(_SEED)
    session: Session | None = None
    for sample in samples:
        feed = {value.name: sample[value.name] for value in form.proto.graph.input}
        if session is None:
            ends, graph, loss = _with_ends(form, feed)
            values = Executor(form.proto, form.folder, [end.tensor for end in ends], "the training form")
            probes = _probes(ends, values.run(feed), np.random.default_rng(_SEED))
            forward = make_forward(graph, names, loss, (), {**feed, **probes})
            gradients = maker.build(forward)
            fixed = {t.name: onnx.numpy_helper.to_array(t) for t in graph.graph.initializer if t.name in names}
            session = Session(gradients.proto, None, list(gradients.gradients.values()), SessionOptions())
        probes = _probes(ends, values.run(feed), draw)
        found = session.run({**feed, **probes, **fixed})
        yield {
            name: np.asarray(array, np.float64).reshape(-1)
            for name, array in zip(gradients.gradients, found, strict=True)
        }


def _with_ends(form: TrainingGraph, feed: Mapping[str, Array]) -> tuple[list[_End], onnx.ModelProto, str]:
    """Where the network ends, and a copy of its form with the scalar behind it."""
    seen = run_once(form.proto, form.folder, feed)
    shapes = {name: one.shape for name, one in seen.items()}
    made = {name for node in form.proto.graph.node for name in node.output if name in shapes}
    kinds, covered = find_kinds(form.quantized, form.folder, made, shapes)
    targets: dict[str, tuple[Behind, int]] = {}
    for target in (end for kind in kinds for end in kind.ends):
        targets.setdefault(target.tensor, (target.form, target.axis))
    for value in form.proto.graph.output:
        kind = seen[value.name].elem_type
        if value.name not in covered and value.name not in targets and kind == onnx.TensorProto.FLOAT:
            targets[value.name] = ("values", 0)
    copy = onnx.ModelProto()
    copy.CopyFrom(form.proto)
    nodes = Nodes(copy, shapes)
    ends, total = [], None
    for tensor, (behind, axis) in targets.items():
        end = _End(tensor, behind, axis, nodes.names.unique(f"probe/{tensor}"))
        ends.append(end)
        part = (nodes.tensor(tensor, "importance") * nodes.input(end.taker, shapes[tensor])).sum()
        total = part if total is None else total + part
    if total is None:
        raise AssertionError("a form gives floats out")
    return ends, copy, nodes.named(total, "loss")


def _probes(ends: Sequence[_End], values: Mapping[str, Array], draw: np.random.Generator) -> dict[str, Array]:
    """V for each end, float32 of its shape."""
    return {end.taker: _probe(end, values[end.tensor].astype(np.float64), draw).astype(np.float32) for end in ends}


def _probe(end: _End, value: Float64, draw: np.random.Generator) -> Float64:
    signs = draw.choice([-1.0, 1.0], value.shape)
    if end.behind == "sigmoid":
        p = 1 / (1 + np.exp(-np.clip(value, -60, 60)))
        return np.asarray(signs * np.sqrt(p * (1 - p)))
    if end.behind == "softmax":
        power = np.exp(value - value.max(axis=end.axis, keepdims=True))
        p = power / power.sum(axis=end.axis, keepdims=True)
        rooted = np.sqrt(p) * signs
        return np.asarray(rooted - p * rooted.sum(axis=end.axis, keepdims=True))
    return np.asarray(signs / max(float(np.sqrt(np.square(value).sum())), 1e-12))
