# SPDX-License-Identifier: Apache-2.0
"""Little graphs as text, and the ranges that are estimated of them."""

from __future__ import annotations

import onnx
from onnx import parser

from qdqtool.datafree.estimate import estimate_scales
from qdqtool.graph.view import GraphView
from qdqtool.scales import ScaleTable

BN = "Y = BatchNormalization(X, gamma, beta, mean, var)"
STATISTICS = "float[2] gamma = {2, -1}, float[2] beta = {1, 5}, float[2] mean = {0, 3}, float[2] var = {4, 9}"


def model(body: str, weights: str = STATISTICS, head: str = "float[1,2,8,8] X", opset: int = 20) -> onnx.ModelProto:
    made = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}, "other": 1]>
        g ({head}) => (float OUT) <{weights}> {{ {body} }}""")
    assert isinstance(made, onnx.ModelProto)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def estimate(body: str, weights: str = STATISTICS, head: str = "float[1,2,8,8] X", **more: object) -> ScaleTable:
    return of(model(body, weights, head), **more)


def of(proto: onnx.ModelProto, **more: object) -> ScaleTable:
    view = GraphView(proto.graph)
    names = [*view.inputs, *(name for node in view.nodes for name in node.outputs if name)]
    return estimate_scales(view, names, **more)  # type: ignore[arg-type]


def amax(table: ScaleTable, name: str) -> float:
    return float(table[name].bits) * 127
