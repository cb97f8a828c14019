# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Functions with Q/DQ are put in place of their calls, those without stay as they are."""

from __future__ import annotations

import onnx
import onnx.parser

from qdqtool.graph.view import GraphView
from qdqtool.passes.inline_functions import inline_quantized
from qdqtool.passes.peel import peel_pairs

TEXT = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[1,4] x) => (float[1,4] z) <float s = {0.25}, int8 o = {0}> { a = own.outer(x, s, o) b = own.plain(a) z = own.outer(b, s, o) }
<domain: "own", opset_import: ["" : 17, "own" : 1]>
outer (t, scale, zero) => (r) { f = own.fake(t, scale, zero) r = Relu(f) }
<domain: "own", opset_import: ["" : 17]>
fake (t, scale, zero) => (d) { q = QuantizeLinear(t, scale, zero) d = DequantizeLinear(q, scale, zero) }
<domain: "own", opset_import: ["" : 17]>
plain (t) => (r) { r = Sigmoid(t) }
"""


def test_functions_with_pairs_are_put_in_place_also_through_their_callers() -> None:
    model = onnx.parser.parse_model(TEXT)
    assert inline_quantized(model) == ("outer", "fake")
    assert [function.name for function in model.functions] == ["plain"]
    onnx.checker.check_model(model)
    peeled = peel_pairs(GraphView(model.graph))
    assert list(peeled.scales) == ["x", "b"]
    assert [node.op_type for node in model.graph.node] == ["Relu", "plain", "Relu"]
    assert model.graph.node[0].output[0] == "a" and model.graph.node[2].output[0] == "z"


def test_functions_without_pairs_leave_the_model_alone() -> None:
    model = onnx.parser.parse_model(TEXT)
    for function in model.functions[:2]:
        del function.node[:]
        function.node.append(onnx.helper.make_node("Identity", [function.input[0]], [function.output[0]]))
    before = model.SerializeToString(deterministic=True)
    assert inline_quantized(model) == () and model.SerializeToString(deterministic=True) == before
