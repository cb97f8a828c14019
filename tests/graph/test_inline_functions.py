# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Functions with Q/DQ or products are put in place of their calls, those without stay as they are."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto

import qdqtool
from qdqtool.graph.inline_functions import inline_products, inline_quantized, products_in_functions
from qdqtool.graph.model import Model
from qdqtool.passes.peel import peel_pairs
from qdqtool.trtversion import TrtVersion

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
    assert inline_quantized(Model(model)) == ("outer", "fake")
    assert [function.name for function in model.functions] == ["plain"]
    onnx.checker.check_model(model)
    peeled = peel_pairs(Model(model))
    assert list(peeled.scales) == ["x", "b"]
    assert [node.op_type for node in model.graph.node] == ["Relu", "plain", "Relu"]
    assert model.graph.node[0].output[0] == "a" and model.graph.node[2].output[0] == "z"


def test_functions_without_pairs_leave_the_model_alone() -> None:
    model = onnx.parser.parse_model(TEXT)
    for function in model.functions[:2]:
        del function.node[:]
        function.node.append(onnx.helper.make_node("Identity", [function.input[0]], [function.output[0]]))
    before = model.SerializeToString(deterministic=True)
    assert inline_quantized(Model(model)) == () and model.SerializeToString(deterministic=True) == before


# Convolutions in a function: the caller's weight, one function within another, opsets that differ.
PRODUCTS = """
<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w, float[4,4,1,1] v> { a = own.outer(x, w) b = own.plain(a) z = own.block(b, v) }
<domain: "own", opset_import: ["" : 18, "own" : 1]> outer (t, k) => (r) { f = own.block(t, k) r = Sigmoid(f) }
<domain: "own", opset_import: ["" : 17]> block (t, k) => (r) { c = Conv(t, k) r = Relu(c) }
<domain: "own", opset_import: ["" : 18]> plain (t) => (r) { r = Sigmoid(t) }
"""


def products_model(text: str = PRODUCTS) -> onnx.ModelProto:
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    model.graph.ClearField("value_info")
    weights = [onnx.numpy_helper.from_array(rng.normal(size=(4, 4, 1, 1)).astype(np.float32), name) for name in "wv"]
    model.graph.initializer.extend(weights)
    return model


def test_functions_with_products_are_put_in_place_and_the_others_stay() -> None:
    model = products_model()
    weights = [tensor.SerializeToString() for tensor in model.graph.initializer]
    assert inline_products(Model(model)) == ("outer", "block")
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Conv", "Relu", "Sigmoid", "plain", "Conv", "Relu"]
    assert [function.name for function in model.functions] == ["plain"]
    assert [tensor.SerializeToString() for tensor in model.graph.initializer] == weights
    assert {"a", "b", "z"} <= {name for node in model.graph.node for name in node.output}
    assert inline_products(Model(model)) == ()


def test_a_function_whose_operators_mean_something_else_in_the_models_opset_stays_and_is_listed() -> None:
    model = products_model(PRODUCTS.replace("c = Conv(t, k)", "s = Split<num_outputs=2>(t) c = Conv(t, k)"))
    model.functions[1].opset_import[0].version = 12  # Split changed in 13 and 18
    before = model.SerializeToString(deterministic=True)
    assert inline_products(Model(model)) == () and model.SerializeToString(deterministic=True) == before
    assert products_in_functions(model) == ["block/c"]
    plan = qdqtool.plan(model)
    assert [(one.site, one.rule) for one in plan.refusals] == [("block/c", "local-function")]


def test_functions_with_pairs_may_stay() -> None:
    model = onnx.parser.parse_model(
        TEXT.replace("f = own.fake(t, scale, zero)", "e = MatMul(t, t) f = own.fake(e, scale, zero)")
    )
    assert inline_products(Model(model), pairs=False) == ()
    assert inline_products(Model(model)) == ("outer",)


def test_every_verb_sees_the_products_inside_functions_and_peel_gives_the_file_back() -> None:
    model = products_model()
    source = model.SerializeToString(deterministic=True)
    data = [{"x": np.random.default_rng(seed).normal(size=(1, 4, 8, 8)).astype(np.float32)} for seed in range(2)]
    made = qdqtool.insert(model, data=data, options=qdqtool.InsertOptions(keep_float=0))
    assert [point.tensor for point in made.plan.weights] == ["w"], "the last convolution is a head"
    assert any(re.match("inlined 2 local functions .*: outer, block$", note) for note in made.notes)
    table = qdqtool.calibrate(model, data)
    again = qdqtool.insert(model, scales=table)
    assert again.plan.points == qdqtool.insert(model).plan.points
    options = qdqtool.PeelOptions(TrtVersion(8, 6, 1), source=model)
    peeled, flat = qdqtool.peel(made.model, options), qdqtool.peel(made.model, replace(options, source=None))
    assert peeled.model.SerializeToString(deterministic=True) == source == model.SerializeToString(deterministic=True)
    assert peeled.cache == flat.cache and not flat.model.functions[1:]
    assert any("local functions (outer, block)" in note for note in peeled.notes)
    assert [node.op_type for node in flat.model.graph.node].count("Conv") == 2
    conditioned = qdqtool.condition(model, data=data)
    inserted = qdqtool.insert(conditioned.model, data=data)
    assert qdqtool.peel(inserted.model, options).model == conditioned.model
    half = qdqtool.amp(model, options=qdqtool.AmpOptions(assume_range=10.0)).model
    assert {tensor.name for tensor in half.graph.initializer if tensor.data_type == TensorProto.FLOAT16} == {"w", "v"}
    assert sum(finding.code == "Q016" for finding in qdqtool.lint(model).findings) == 2
