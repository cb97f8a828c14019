# SPDX-License-Identifier: Apache-2.0
"""Equalizes a Q/DQ model within the scales that its activations have: weights and their own scales change, no other.

A channel that uses a part of its tensor's range is enlarged in the weights before it and made small again in those
behind it. The float function stays; what is rounded at the same steps loses less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.conditioning.channel_classes import count_classes, find_classes
from qdqtool.conditioning.check import Outputs, compare, moved_most
from qdqtool.conditioning.class_factors import choose_class_factors
from qdqtool.conditioning.condition_context import ConditionContext, look
from qdqtool.data.loader import Batch
from qdqtool.decisions import Decisions
from qdqtool.errors import QdqError
from qdqtool.formats import INT8
from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import array_of
from qdqtool.graph.view import GraphView, Node, Pair, attribute
from qdqtool.graph.weighted import weight_index
from qdqtool.match.flow import Flow
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.passes.condition.equalize import equalize
from qdqtool.passes.peel import Peeled, peel_pairs
from qdqtool.passes.quant_params import pair_scale
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.rule_files import operator_set

Array = npt.NDArray[np.float32]
# By which pairs may have been placed: all that may be INT8 is, but for what is in float in the model.
_PLANS = (
    PlanOptions(float_heads="none", decoder="int8", depthwise="int8"),
    PlanOptions(RTX_TARGET, float_heads="none", decoder="int8", depthwise="int8", attention="int8"),
)


@dataclass(frozen=True, eq=False)
class Within:
    """What was done.

    Attributes:
        model: the Q/DQ model with other weights; the one that was given where nothing was done.
        tensors: whose channels were equalized.
        why_not: where there are none, why; "" where there was nothing to win.
    """

    model: Model
    tensors: tuple[str, ...] = ()
    why_not: str = ""


def equalize_within(model: Model, samples: Iterable[Batch]) -> Within:
    """Even out the channels of the tensors that a Q/DQ model quantizes, their scales being what they are.

    Raises:
        QdqError: what running the model on the samples refuses.
    """
    plain = model.copy()
    try:
        peeled = peel_pairs(plain)
        _make_initializers(plain)
        context = _context_of(plain, peeled, _PLANS[0])
        if odd := _unplanned(context, peeled):
            context = _context_of(plain, peeled, _PLANS[1])
            if _unplanned(context, peeled):
                return Within(model, why_not=f"{odd[0]} has a Q/DQ pair where insert places none for a GPU")
    except QdqError as error:
        return Within(model, why_not=error.reason)
    clips = {name: scale.format.amax_of(scale.bits) for name, scale in peeled.scales.items()}
    classes = find_classes(context, next(iter(samples)), _not_held_alone(context, model.graph))
    counted = count_classes(context, classes, samples, clips)
    choice = choose_class_factors(counted.families, classes.factors.atoms.size, "float")
    if not choice.gains:
        return Within(model)
    before = _constants(plain)
    exact = Outputs(plain)
    equalize(plain, classes.factors, choice.factors)
    try:
        why_not = moved_most(compare(exact, [Outputs(plain)], samples)[0])
        if why_not:
            return Within(model, why_not=f"the FP32 results would change: {why_not}")
        made = _carried(model, before, _constants(plain))
    except QdqError as error:
        return Within(model, why_not=error.reason)
    return Within(made, tuple(name for name, own in classes.labels.items() if (choice.factors[own] != 1).any()))


def _make_initializers(plain: Model) -> None:
    """Weights that an exporter wrote as Constant nodes, under their names."""
    nodes = list(plain.graph.node)
    del plain.graph.node[:]
    for node in nodes:
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t"):
            tensor = plain.graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
        else:
            plain.graph.node.add().CopyFrom(node)
    plain.changed()


def _unplanned(context: ConditionContext, peeled: Peeled) -> list[str]:
    """The tensors whose pairs no plan has, and which values of other pairs may be beyond.

    A second pair (`match/second_pairs.py`) is none of them: it holds values of points, within the scales of these.
    """
    crossed = operator_set("unchanged") | operator_set("resampling")

    def crosses(node: Node) -> bool:
        return node.op in crossed and attribute(node, "mode", "") not in ("cubic", b"cubic")

    def is_second(name: str) -> bool:
        flow = Flow(context.view, crosses)
        origins = set(flow.origins(name, lambda one: one in context.ways))
        scale = peeled.scales[name].bits
        return all(one in context.ways and one in peeled.scales and peeled.scales[one].bits <= scale for one in origins)

    return [name for name in peeled.scales if name not in context.ways and not is_second(name)]


def _context_of(plain: Model, peeled: Peeled, options: PlanOptions) -> ConditionContext:
    """The plain model with the plan that its pairs followed: the same operators in INT8, their weights as they were."""
    view = plain.view
    int8 = frozenset(peeled.int8_nodes)
    weighted = [node.key for node in view.nodes if weight_index(view, node) is not None]
    kept = {key: "in float in this model" for key in weighted if key not in int8}
    context = look(plain, options, decisions=Decisions(float_layers=kept))
    return replace(context, plan=_with_axes(context.plan, peeled))


def _with_axes(plan: Plan, peeled: Peeled) -> Plan:
    """The plan with one scale for each weight that has one."""
    points = [
        replace(point, axis=peeled.weights[point.tensor].axis)
        if point.role == "weight" and point.tensor in peeled.weights
        else point
        for point in plan.points
    ]
    return replace(plan, points=tuple(points))


def _not_held_alone(context: ConditionContext, graph: onnx.GraphProto) -> frozenset[str]:
    """First outputs of nodes whose constants do not stand in the Q/DQ model, or which others read, too."""
    view = context.view
    uses = Counter(name for node in view.every for name in node.inputs if name)
    named = {tensor.name for tensor in graph.initializer}
    named.update(node.output[0] for node in graph.node if node.op_type == "Constant")

    def alone(name: str) -> bool:
        return name in named and name in view.initializers and uses[name] == 1

    return frozenset(
        node.key
        for node in view.nodes
        if not all(alone(name) for name in node.inputs if name and view.is_constant(name))
    )


def _constants(model: Model) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.copy().graph.initializer}


def _carried(model: Model, before: Mapping[str, onnx.TensorProto], after: Mapping[str, onnx.TensorProto]) -> Model:
    """The Q/DQ model with the plain model's edited weights, each scale changed as its largest magnitude changed."""
    made = model.copy()
    view = made.view
    editor = Editor(view)
    for name, tensor in after.items():
        if name not in before:
            raise QdqError(name, "would be a constant of its own", "give each operator its own constants")
        if tensor.SerializeToString() == before[name].SerializeToString():
            continue
        value, old = array_of(tensor, model.folder), array_of(before[name], model.folder)
        for pair in view.pairs.get(name, ()):
            _rescale(view, editor, pair, old, value)
        editor.set_constant(name, value)
    editor.commit()
    return made


def _rescale(view: GraphView, editor: Editor, pair: Pair, old: Array, new: Array) -> None:
    """The scale of a weight's pair in proportion to the largest weight it is for."""
    axis = pair_scale(view, pair).axis
    others = tuple(place for place in range(old.ndim) if axis is None or place != axis % old.ndim)
    own = {id(node) for node in pair.nodes}
    for name in sorted({node.inputs[1] for node in pair.nodes if len(node.inputs) > 1}):
        held = view.initializers.get(name)
        shared = any(name in node.inputs and id(node) not in own for node in view.every)
        if held is None or held.data_type != held.FLOAT or shared:
            raise QdqError(name, "a scale that several weights share would change", "give each its own")
        scale = array_of(held, view.folder)
        was, now = (np.abs(value).max(axis=others).reshape(scale.shape) for value in (old, new))
        exact = INT8.scale_of(was) == scale  # what a builder finds by the weights alone
        grown = np.divide(now, was, out=np.ones_like(was), where=was > 0)
        fresh = np.where(exact, INT8.scale_of(now), scale * grown)
        editor.set_initializer(name, fresh.astype(np.float32))
