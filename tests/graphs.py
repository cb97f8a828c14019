# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Graphs as ONNX text for tests: weights by shape alone, and short ways to what was decided about them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnx.parser

from qdqtool.graph.view import GraphView, Node
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.scales import Scale
from qdqtool.trtversion import TrtVersion

# Two convolutions and a classifier: what the tests of verbs and of the command line run.
SMALL_NET = """net (float[N,4,8,8] x) => (float[N,3] y) <float[4,4,3,3] w1, float[4] b1, float[4,4,3,3] w2, float[4,3] fc>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1, b1)
 r1 = Relu(c1)
 c2 = Conv<pads=[1,1,1,1]>(r1, w2)
 r2 = Relu(c2)
 g = GlobalAveragePool(r2)
 f = Flatten(g)
 y = Gemm(f, fc)
}"""
V8_4 = TrtVersion(8, 4, 3)
V8_5 = TrtVersion(8, 5, 1)
V8_6 = TrtVersion(8, 6, 1)
V10 = TrtVersion(10, 3, 0)


def model_of(text: str, opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    """A model from the text of one graph.

    What stands between <> without a value and is made by no node becomes an initializer: seeded random float32 values in
    (0.1, 1) with alternating signs, none of them equal.
    """
    model = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}, "trt" : 1]> {text}')
    graph = model.graph
    made = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    values = np.random.default_rng(len(text))
    for value in [value for value in graph.value_info if value.name not in made]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = values.uniform(0.1, 1, shape).astype(np.float32)
        array.reshape(-1)[::2] *= -1
        graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        graph.value_info.remove(value)
    return model


def view_of(text: str, opset: int = 17) -> GraphView:
    """The index of a graph in text."""
    return GraphView(model_of(text, opset).graph)


def node_of(view: GraphView, key: str) -> Node:
    """The node whose first output is `key`."""
    return view.producers[key]


def plan_of(model: str | onnx.ModelProto, **options: Any) -> Plan:
    """What is decided about a graph; every head is quantized unless told otherwise."""
    options.setdefault("float_heads", "none")
    proto = model_of(model) if isinstance(model, str) else model
    return make_plan(GraphView(proto.graph), PlanOptions(**options))


def points_of(model: str | onnx.ModelProto, **options: Any) -> set[str]:
    """Names of the activations that have a pair."""
    return {point.tensor for point in plan_of(model, **options).activations}


def readers_of(plan: Plan, tensor: str) -> set[tuple[str, int]]:
    """(first output of the node, input) of every read that goes through the pair on a tensor."""
    return {(read.node, read.index) for point in plan.points if point.tensor == tensor for read in point.reads}


def table_of(plan: Plan, first: float = 0.01) -> dict[str, Scale]:
    """Another scale for each activation point."""
    return {point.tensor: Scale.of(first * (1 + index), method="max") for index, point in enumerate(plan.activations)}


def shuffled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with its nodes in another order."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = list(copy.graph.node)
    random.Random(seed).shuffle(nodes)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy
