# SPDX-License-Identifier: Apache-2.0
"""A plain graph with a calibration cache, as TensorRT's implicit INT8 computes it: written into the graph in float.

GPU: at the outputs of fused groups that INT8 operators read. DLA: at every tensor. Which facts this rests on, and what
is a guess: docs/simulate.md. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.formats import INT8
from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import Plan, PlanOptions, Point, Read
from qdqtool.match.planner import Planner
from qdqtool.match.restrict_plan import restrict
from qdqtool.rulebook import load_rules
from qdqtool.simulation.rounding import Rounding, RoundingNodes, fake_quantize_weight
from qdqtool.trtversion import TrtVersion

Float32 = npt.NDArray[np.float32]

# target -> how activations and how weights round: facts of the developer guide's table of rounding modes.
ROUNDINGS: dict[str, tuple[Rounding, Rounding]] = {"gpu": ("even", "up"), "dla": ("away", "away")}
_NO_INPUT, _NO_OUTPUT = "its input has no scale", "its output has no scale"
_NO_RULE, _KEPT = "no rule reads it in INT8", "kept in float"


@dataclass(frozen=True)
class Implicit:
    """What was written into a graph.

    Attributes:
        tensors: activations that pass through INT8, in graph order.
        weights: weights that do.
        floats: weighted operator -> why it stays in float.
        unused: tensors of the graph that have a scale without an effect.
    """

    tensors: tuple[str, ...]
    weights: tuple[str, ...]
    floats: dict[str, str]
    unused: tuple[str, ...]


def simulate_implicit(
    view: GraphView,
    entries: Mapping[str, np.float32],
    target: str,
    version: TrtVersion | None,
    kept: Collection[str] = (),
) -> Implicit:
    """Write INT8 rounding into a plain graph, in place.

    A layer has an INT8 kernel only where the tensors that it reads and makes have a scale: TensorRT warns of a fallback
    "for any layer consuming or producing" one that has none. Tensors of the network keep their names: on the DLA a
    tensor's name is that of the rounded values from here on.

    Raises:
        QdqError: no entry is for a tensor that INT8 operators read; a weight holds NaN or Inf or cannot be read.
    """
    how, how_weights = ROUNDINGS[target]
    options = PlanOptions(target, version, float_heads="none")
    planner = Planner(view, options)
    whole = planner.plan(())
    everywhere = load_rules(target, version).policy.rounds_everything
    floats = _floats(view, whole, entries, kept, everywhere=everywhere)
    plan = planner.plan(floats.keys())
    plan = plan if everywhere else restrict(view, plan, entries)
    weights = [(point, _rounded_weight(view, point, how_weights)) for point in plan.weights]
    named_floats = {
        view.producers[key].name: reason for key, reason in floats.items()
    }  # before outputs get other names
    editor = Editor(view)
    nodes = RoundingNodes(editor, how, INT8.codes)
    by_key = {node.key: node for node in view.every}
    if everywhere:
        tensors = _everywhere(view, editor, nodes, entries)
    else:
        tensors = _at_points(view, editor, nodes, plan, entries, by_key)
    if not tensors:
        reason = f"none of the {len(entries)} scales is for a tensor that is INT8 here"
        raise QdqError("--cache", reason, "qdqtool cache check says which names differ")
    for point, value in weights:
        name = editor.add_initializer(editor.unique_name(f"{point.tensor}_int8"), value)
        _reroute(editor, by_key, point.reads, point.tensor, name)
    editor.commit()
    used = frozenset(tensors)
    unused = tuple(name for name in entries if name not in used and (name in view.producers or name in view.inputs))
    return Implicit(tuple(tensors), tuple(point.tensor for point, _ in weights), named_floats, unused)


def _floats(
    view: GraphView, plan: Plan, entries: Mapping[str, np.float32], kept: Collection[str], *, everywhere: bool
) -> dict[str, str]:
    """Weighted operators without an INT8 kernel, by first output, each with the reason."""
    ends = {} if everywhere else {group.start.key: group.output for group in plan.groups}
    planned = {read.node for point in plan.weights for read in point.reads}
    covered = {read.node for point in restrict(view, plan, entries).weights for read in point.reads}
    found: dict[str, str] = {}
    for node in view.nodes:
        index = weight_index(view, node)
        if index is None:
            continue
        reads_int8 = view.root(node.inputs[1 - index]) in entries if everywhere else node.key in covered
        if node.key in kept:
            found[node.key] = _KEPT
        elif node.key not in planned:
            found[node.key] = _NO_RULE
        elif not reads_int8:
            found[node.key] = _NO_INPUT
        elif ends.get(node.key, node.key) not in entries:
            found[node.key] = _NO_OUTPUT
    return found


def _rounded_weight(view: GraphView, point: Point, how: Rounding) -> Float32:
    """A weight quantized and dequantized per channel, as TensorRT scales the weights of implicit networks."""
    value = view.array(point.tensor)
    if value is None or value.dtype != np.float32:
        raise QdqError(point.tensor, "a weight whose float32 value cannot be read", "fold constants first")
    if not np.isfinite(value).all():
        raise QdqError(point.tensor, "the weight holds NaN or Inf", "repair the model")
    return fake_quantize_weight(value.astype(np.float32, copy=False), point.axis, how)


def _at_points(
    view: GraphView,
    editor: Editor,
    nodes: RoundingNodes,
    plan: Plan,
    entries: Mapping[str, np.float32],
    by_key: Mapping[str, Node],
) -> list[str]:
    """Round at the points of the plan: their consumers see INT8, all others the float tensor."""
    for point in plan.activations:
        name = editor.unique_name(f"{point.tensor}_int8")
        nodes.write(point.tensor, name, entries[point.tensor], beside=view.producers.get(point.tensor))
        _reroute(editor, by_key, point.reads, point.tensor, name)
    return [point.tensor for point in plan.activations]


def _everywhere(view: GraphView, editor: Editor, nodes: RoundingNodes, entries: Mapping[str, np.float32]) -> list[str]:
    """Round every tensor that has a scale, for all that read it, the outputs of the graph included."""
    done = []
    for name in (*view.inputs, *(name for node in view.nodes for name in node.outputs if name)):
        if name not in entries or view.is_constant(name):
            continue
        producer = view.producers.get(name)
        if producer is None:
            _round_input(view, editor, nodes, name, entries[name])
        else:
            raw = editor.unique_name(f"{name}_unrounded")
            editor.rename_output(producer, producer.outputs.index(name), raw)
            nodes.write(raw, name, entries[name], beside=producer)
        done.append(name)
    return done


def _round_input(view: GraphView, editor: Editor, nodes: RoundingNodes, name: str, scale: np.float32) -> None:
    """An input keeps its name, so its consumers are given another tensor."""
    target = editor.unique_name(f"{name}_int8")
    nodes.write(name, target, scale, beside=None)
    for use in view.consumers(name):
        editor.reroute(use, target)
    for node in view.nodes:
        editor.reroute_bodies(node, {name: target})


def _reroute(editor: Editor, by_key: Mapping[str, Node], reads: Collection[Read], tensor: str, name: str) -> None:
    for read in reads:
        node = by_key[read.node]
        if node.inputs[read.index] == tensor:
            editor.reroute(Use(node, read.index), name)
