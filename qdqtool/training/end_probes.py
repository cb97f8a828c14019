# SPDX-License-Identifier: Apache-2.0
"""What the ends of a network are differentiated by: the scalar v' y, y the tensors in which it ends and v random.

Of scores before a Sigmoid, E[v v'] is diag(p (1 - p)), before a Softmax diag(p) - p p' (the Fisher information of what
they say); of other values it is the identity, divided by their sum of squares, so that what counts is the relative
change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.training.losses.distill_targets import Behind, TargetKind, find_kinds
from qdqtool.training.losses.nodes import Nodes
from qdqtool.training.shapes import SeenTensor
from qdqtool.training.training_graph import TrainingGraph

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class End:
    """A tensor in which the network ends.

    Attributes:
        tensor: its name.
        behind: what stands after it.
        axis: of its channels or classes.
        taker: input of the scalar's graph that takes v.
    """

    tensor: str
    behind: Behind
    axis: int
    taker: str


@dataclass(frozen=True, eq=False)
class ProbedGraph:
    """A graph with the scalar v' y after it.

    Attributes:
        proto: a copy of the graph.
        ends: y, and which inputs take v.
        scalar: its name.
        kinds: what the network ends in; ends that are in none are outputs that no head leads to.
    """

    proto: onnx.ModelProto
    ends: tuple[End, ...]
    scalar: str
    kinds: tuple[TargetKind, ...]


def with_probes(form: TrainingGraph, proto: onnx.ModelProto, seen: Mapping[str, SeenTensor]) -> ProbedGraph:
    """Where a network ends, and a copy of a graph with the scalar after it."""
    shapes = {name: one.shape for name, one in seen.items()}
    made = {name for node in proto.graph.node for name in node.output if name in shapes}
    kinds, covered = find_kinds(form.quantized.view, made, shapes)
    targets: dict[str, tuple[Behind, int]] = {}
    for target in (end for kind in kinds for end in kind.ends):
        targets.setdefault(target.tensor, (target.form, target.axis))
    for value in proto.graph.output:
        kind = seen[value.name].elem_type
        if value.name not in covered and value.name not in targets and kind == onnx.TensorProto.FLOAT:
            targets[value.name] = ("values", 0)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    nodes = Nodes(copy, shapes)
    ends, total = [], None
    for tensor, (behind, axis) in targets.items():
        end = End(tensor, behind, axis, nodes.names.unique(f"probe/{tensor}"))
        ends.append(end)
        part = (nodes.tensor(tensor, "importance") * nodes.input(end.taker, shapes[tensor])).sum()
        total = part if total is None else total + part
    if total is None:
        raise AssertionError("a form gives floats out")
    return ProbedGraph(copy, tuple(ends), nodes.named(total, "loss"), kinds)


def draw_probes(ends: Sequence[End], values: Mapping[str, Array], draw: np.random.Generator) -> dict[str, Array]:
    """V for each end, float32 of its shape, by the input that takes it; `values` are what the network gives there."""
    return {end.taker: draw_probe(end, values[end.tensor], draw).astype(np.float32) for end in ends}


def draw_probe(end: End, given: Array, draw: np.random.Generator) -> Float64:
    """V for one end."""
    value = given.astype(np.float64)
    signs = draw.choice([-1.0, 1.0], value.shape)
    if end.behind == "sigmoid":
        p = 1 / (1 + np.exp(-np.clip(value, -60, 60)))
        return np.asarray(signs * np.sqrt(p * (1 - p)))
    if end.behind == "softmax":
        with np.errstate(invalid="ignore"):  # of a network that gives infinity: the gradients are refused
            power = np.exp(value - value.max(axis=end.axis, keepdims=True))
            p = power / power.sum(axis=end.axis, keepdims=True)
            rooted = np.sqrt(p) * signs
            return np.asarray(rooted - p * rooted.sum(axis=end.axis, keepdims=True))
    return np.asarray(signs / max(float(np.sqrt(np.square(value).sum())), 1e-12))
