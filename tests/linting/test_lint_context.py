# SPDX-License-Identifier: Apache-2.0
"""What checks ask of a model: which pairs bring INT8 to a read, where reads lead to, what insert left behind."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from qdqtool.graph.edit import set_metadata
from qdqtool.graph.model import Model
from qdqtool.linting.lint_context import LintContext, load_words, number_of
from qdqtool.match.options import PlanOptions
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import V8_6, model_of
from tests.linting.quantized import classifier, conv, graph, pair


def tensors_of(context: LintContext, name: str) -> set[str] | None:
    """The tensors whose pairs bring INT8 to a read."""
    found = context.carriers(name)
    return None if found is None else {pair.tensor for pair in found}


def test_int8_comes_across_what_commutes_and_not_across_what_computes() -> None:
    body = f"{pair('x')} m = Transpose(x_dq) r = Relu(x_dq) k = Concat<axis=1>(m, x_dq) j = Concat<axis=1>(k, r)"
    context = LintContext(Model(graph(f"{body} y = Relu(j)")))
    assert tensors_of(context, "x_dq") == tensors_of(context, "m") == tensors_of(context, "k") == {"x"}
    assert tensors_of(context, "x") is tensors_of(context, "r") is tensors_of(context, "j") is None


def test_reads_are_followed_to_what_computes() -> None:
    body = f"{pair('x')} m = Transpose(x_dq) k = Concat<axis=1>(m, x_dq) {pair('k')} y = Relu(k_dq) o = Tanh(m)"
    context = LintContext(Model(graph(body, "float y, float o")))
    (behind,) = context.view.pairs["x"]
    assert {use.node.key for use in context.flow.ends(context.through(behind))} == {"y", "o"}
    assert [use.node.key for use in context.through(behind)] == ["m", "k"]


def test_a_weight_behind_a_transpose_is_quantized() -> None:
    turned = f"{pair('x')} {pair('w')} moved = Transpose<perm=[1,0,2,3]>(w_dq)"
    body = f"{turned} c = Conv<pads=[1,1,1,1]>(x_dq, moved) y = Relu(c)"
    context = LintContext(Model(graph(body)))
    assert context.int8_nodes == {"c"}


def test_a_plain_model_has_the_int8_nodes_of_its_plan() -> None:
    plain = LintContext(Model(classifier("c = Conv<pads=[1,1,1,1]>(x, w) a = Relu(c)")))
    assert plain.int8_nodes == {"c"}
    bare = LintContext(Model(classifier(f"{pair('x')} c = Conv<pads=[1,1,1,1]>(x_dq, w) a = Relu(c)")))
    assert bare.int8_nodes == frozenset()


@pytest.mark.parametrize("text", ["no json", "[]", '{"facts": 3}', '"facts"'])
def test_metadata_of_others_is_no_fault(text: str) -> None:
    model = classifier(f"{pair('x')} {conv('c', 'x_dq')} a = Relu(c)")
    set_metadata(model, "scales", text)
    context = LintContext(Model(model))
    assert context.float_layers == context.requantize_points == frozenset()
    set_metadata(model, "scales", json.dumps({"facts": {"kept": {"c": "why"}, "cuts": ["a"]}}))
    context = LintContext(Model(model))
    assert (context.float_layers, context.requantize_points) == ({"c"}, {"a"})


def test_after_an_edit_only_the_rules_are_kept() -> None:
    context = LintContext(Model(classifier(f"{pair('x')} {conv('c', 'x_dq')} a = Relu(c)")), target="dla", version=V8_6)
    again = context.again()
    assert again.rules is context.rules and again.view is not context.view
    assert (again.target, again.version, again.proto is context.proto) == ("dla", V8_6, True)


def test_attributes_of_files_before_ir_2_have_no_type() -> None:
    node = LintContext(Model(graph("c = Conv<pads=[1,1,1,1], group=1>(x, w) y = Relu(c)"))).view.nodes[0]
    for attribute in node.proto.attribute:
        attribute.ClearField("type")
    assert number_of(node, "group", 7) == 1 and number_of(node, "missing", 7) == 7


def test_the_words_name_operators_that_onnx_has() -> None:
    words = load_words()
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert words.sizes | words.roundings | set(words.places) - {"Upsample"} | set(words.biases) <= known


@pytest.mark.parametrize("name", ["int8", "fp8", "int4", "nvfp4"])
def test_the_number_format_of_the_pairs(name: str) -> None:
    net = "net (float[4,64] x) => (float[4,64] y) <float[64,64] w> { h = MatMul(x, w) y = Relu(h) }"
    data = {"x": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}
    placed = PlanOptions(format=name, float_heads="none")
    made = insert(model_of(net), data=data, options=InsertOptions(placed, keep_float=0)).model
    assert LintContext(Model(made)).number_format == name


def test_pairs_of_two_formats_are_mixed() -> None:
    model = classifier(f"{pair('x')} {conv('c', 'x_dq')} a = Relu(c)")
    assert LintContext(Model(model)).number_format == "int8"
    model.graph.initializer.append(onnx.helper.make_tensor("eight", onnx.TensorProto.FLOAT8E4M3FN, [], [0.0]))
    next(node for node in model.graph.node if node.output[0] == "x_dq").input[2] = "eight"
    next(node for node in model.graph.node if node.op_type == "QuantizeLinear").input[2] = "eight"
    assert LintContext(Model(model)).number_format == "mixed"
