# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The index over a graph: makers, readers, constants, pairs seen through, levels, bodies."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.tensors import constant_value
from qdqtool.graph.view import UNKNOWN, GraphView, Use, attribute, captured_names, node_bodies
from tests.graphs import model_of, node_of, shuffled, view_of

PLAIN = "g (float[1,4] x) => (float[1,4] z) <float[4,4] w> { [first] a = MatMul(x, w) b = Relu(a) c = Sigmoid(a) z = Mul(b, c) }"
QDQ = """g (float[1,4] x) => (float[1,4] z) <float[4,4] w, float s = {0.5}, int8 o = {0}, int8[4,4] wi = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
 xq = QuantizeLinear(x, s, o) xd = DequantizeLinear(xq, s, o) wd = DequantizeLinear(wi, s, o) a = MatMul(xd, wd)
 aq = QuantizeLinear(a, s, o) ad = DequantizeLinear(aq, s, o) b = Relu(ad) c = Sigmoid(a) z = Mul(b, c) }"""


def uses(view: GraphView, name: str) -> list[tuple[str, int]]:
    return [(use.node.key, use.index) for use in view.consumers(name)]


def test_makers_readers_inputs_and_outputs() -> None:
    view = view_of(PLAIN)
    assert view.inputs == ["x"] and view.outputs == ["z"]
    assert uses(view, "a") == [("b", 0), ("c", 0)]
    assert uses(view, "z") == [] and uses(view, "nothing") == []
    maker = view.producer("b")
    assert maker is not None and (maker.op, maker.name, maker.weight) == ("Relu", "b", UNKNOWN)
    assert view.producer("x") is None and view.producer("w") is None
    assert view.is_output("z") and not view.is_output("a")
    assert node_of(view, "a").name == "first", "a name where it has one, else its first output"


def test_initializers_that_are_listed_as_inputs_are_no_inputs() -> None:
    model = model_of(PLAIN)
    value = model.graph.input.add()
    value.name = "w"
    view = GraphView(model.graph)
    assert view.inputs == ["x"] and view.is_constant("w")


def test_operators_of_other_domains_carry_them() -> None:
    view = view_of("g (float[4] x) => (float[4] z) { a = trt.Relu(x) z = Relu(a) }")
    assert [node.op for node in view.nodes] == ["trt::Relu", "Relu"]


def test_the_key_of_a_node_is_its_first_named_output() -> None:
    model = model_of("g (float[4] x) => (float[2] z) { a, z = Split<axis=0>(x) }")
    model.graph.node[0].output[0] = ""
    assert GraphView(model.graph).nodes[0].key == "z"


# ---------------------------------------------------------------- pairs


def test_pairs_are_seen_through() -> None:
    view = view_of(QDQ)
    assert [node.key for node in view.nodes] == ["a", "b", "c", "z"]
    assert set(view.pairs) == {"x", "a", "wd"}
    assert uses(view, "x") == [("a", 0)]
    assert uses(view, "a") == [("b", 0), ("c", 0)], "through the pair and directly"
    assert view.root("ad") == "a" and view.root("a") == "a"
    maker = view.producer("ad")
    assert maker is not None and maker.key == "a"


def test_the_nodes_of_a_plain_model_and_of_its_qdq_model_are_the_same_at_the_same_level() -> None:
    plain = view_of(
        "g (float[1,4] x) => (float[1,4] z) <float[4,4] wd> { a = MatMul(x, wd) b = Relu(a) c = Sigmoid(a) z = Mul(b, c) }"
    )
    assert [(n.key, n.level) for n in plain.nodes] == [(n.key, n.level) for n in view_of(QDQ).nodes]


def test_an_integer_constant_behind_dequantize_is_a_float_constant() -> None:
    view = view_of(QDQ)
    (pair,) = view.pairs["wd"]
    assert pair.quantize is None and view.is_constant("wd")


def test_several_dequantize_of_one_quantize_and_chained_pairs_have_one_root() -> None:
    view = view_of("""g (float[4] x) => (float[4] y, float[4] z) <float s = {1}, int8 o = {0}> { q = QuantizeLinear(x, s, o) d1 = DequantizeLinear(q, s, o)
        d2 = DequantizeLinear(q, s, o) q2 = QuantizeLinear(d2, s, o) d3 = DequantizeLinear(q2, s, o) y = Relu(d1) z = Tanh(d3) }""")
    assert uses(view, "x") == [("y", 0), ("z", 0)]
    assert [pair.dequantize.key for pair in view.pairs["x"]] == ["d1", "d2", "d3"]


def test_a_loose_quantize_or_dequantize_stays_a_node() -> None:
    view = view_of("""g (float[4] x, int8[4] i) => (int8[4] q, float[4] d, float[4] y) <float s = {1}, int8 o = {0}> {
        q = QuantizeLinear(x, s, o) e = DequantizeLinear(q, s, o) d = DequantizeLinear(i, s, o) y = Relu(e) }""")
    assert [node.op for node in view.nodes] == ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "Relu"]
    assert not view.pairs, "the integers of q leave the graph, those of d come from outside"


# ---------------------------------------------------------------- constants

CONSTANTS = """g (float[1,4] x) => (float[4,1] z) <float[4,1] w, int64[2] s = {4,1}, int64[2] o = {0,1}> {
 c = Constant<value = float[2,2] {1,2,3,4}>() f = Constant<value_floats = [1.5, 2.5]>() n = Constant<value_int = 7>() t = Constant<value_string = "a">()
 i = Identity(w) r = Transpose<perm=[1,0]>(i) h = Reshape(x, s) k = Cast<to=6>(f) e = Relu(w) u = Unsqueeze(n, o) z = Add(h, w) }"""


def test_what_is_constant() -> None:
    view = view_of(CONSTANTS)
    assert all(view.is_constant(name) for name in "wscfntirku")
    assert not any(view.is_constant(name) for name in "xhez"), (
        "computed from the input, or by an operator that computes"
    )


def test_values_of_constants() -> None:
    view = view_of(CONSTANTS)
    weight = view.array("w")
    assert weight is not None and weight.shape == (4, 1)
    expected = {
        "c": [[1, 2], [3, 4]],
        "f": [1.5, 2.5],
        "n": 7,
        "k": [1, 2],
        "r": weight.T.tolist(),
        "i": weight.tolist(),
    }
    for name, value in expected.items():
        found = view.array(name)
        assert found is not None and found.tolist() == value, name
    assert (
        view.array("t") is None
        and view.array("x") is None
        and view.array("h") is None
        and view.array("nothing") is None
    )
    kinds = [np.asarray(view.array(name)).dtype for name in "fnk"]
    assert kinds == [np.float32, np.int64, np.int32]


def test_the_tensor_that_holds_a_constant() -> None:
    view = view_of(CONSTANTS)
    assert view.constant_tensor("i") is view.initializers["w"]
    constant = view.constant_tensor("c")
    assert constant is not None and list(constant.dims) == [2, 2]
    assert view.constant_tensor("r") is None and view.constant_tensor("x") is None and view.constant_tensor("f") is None


def test_values_of_old_squeeze_with_axes_as_attribute() -> None:
    view = GraphView(
        model_of(
            "g (float[1] x) => (float[4] z) <float[1,4] w> { s = Squeeze<axes=[0]>(w) z = Add(x, s) }", opset=11
        ).graph
    )
    squeezed = view.array("s")
    assert squeezed is not None and squeezed.shape == (4,)


def test_a_weight_behind_a_pair_has_the_value_of_the_weight() -> None:
    view = view_of(
        "g (float[1,4] x) => (float[1,4] z) <float[4,4] w, float s = {0.5}, int8 o = {0}> { q = QuantizeLinear(w, s, o) d = DequantizeLinear(q, s, o) z = MatMul(x, d) }"
    )
    assert view.is_constant("d")
    assert np.array_equal(np.asarray(view.array("d")), np.asarray(view.array("w")))


def test_attributes_are_decoded() -> None:
    node = view_of('g (float[4] x) => (float[4] z) { z = Pad<mode="edge", pads=[0,0]>(x) }').nodes[0]
    assert attribute(node, "mode") == "edge"
    assert list(attribute(node, "pads")) == [0, 0]  # type: ignore[call-overload]
    assert attribute(node, "value", 3.0) == 3.0 and attribute(node, "value") is None


def test_a_sparse_constant_has_no_value_here() -> None:
    assert (
        constant_value(onnx.helper.make_node("Constant", [], ["c"], sparse_value=onnx.SparseTensorProto()), None)
        is None
    )


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("seed", range(5))
def test_levels_pairs_and_constants_do_not_depend_on_the_order_of_nodes(seed: int) -> None:
    for text in (QDQ, CONSTANTS):
        model = model_of(text)
        view, other = GraphView(model.graph), GraphView(shuffled(model, seed).graph)
        assert {n.key: n.level for n in view.every} == {n.key: n.level for n in other.every}
        assert set(view.pairs) == set(other.pairs) and {n.key for n in view.nodes} == {n.key for n in other.nodes}
        names = [*view.producers, *view.inputs]
        assert [view.is_constant(n) for n in names] == [other.is_constant(n) for n in names]
        assert {n: set(uses(view, n)) for n in names} == {n: set(uses(other, n)) for n in names}


def test_levels_are_the_longest_way_from_the_inputs() -> None:
    view = view_of(PLAIN)
    assert {node.key: node.level for node in view.nodes} == {"a": 1, "b": 2, "c": 2, "z": 3}
    assert view.level_of("x") == 0 and view.level_of("z") == 3


def test_a_cycle_is_refused_with_a_node_in_it() -> None:
    model = model_of(PLAIN)
    model.graph.node[0].input[0] = "z"
    with pytest.raises(QdqError, match="cycle"):
        GraphView(model.graph)


def test_a_cycle_through_a_body_is_refused() -> None:
    model = model_of(BODY)
    model.graph.node[0].input[0] = "z"
    with pytest.raises(QdqError, match="cycle"):
        GraphView(model.graph)


# ---------------------------------------------------------------- bodies

BODY = """g (float[1,4] x, bool p) => (float[1,4] z) <float[4,4] w> { a = Relu(x) b = Tanh(a)
 z = If<then_branch = t () => (float[1,4] t1) { t0 = MatMul(a, w) t1 = Relu(t0) },
        else_branch = e () => (float[1,4] e1) { e1 = If<then_branch = u () => (float[1,4] u1) { a2 = Relu(b) u1 = Tanh(a2) }, else_branch = v () => (float[1,4] v1) { v1 = Relu(b) }>(p) }>(p) }"""


def test_bodies_at_any_depth_with_their_scope() -> None:
    view = view_of(BODY)
    bodies = {body.scope: [node.key for node in body.nodes] for body in view.bodies()}
    assert bodies == {
        "z/then_branch": ["t0", "t1"],
        "z/else_branch": ["e1"],
        "z/else_branch/e1/then_branch": ["a2", "u1"],
        "z/else_branch/e1/else_branch": ["v1"],
    }


def test_names_that_bodies_capture() -> None:
    view = view_of(BODY)
    assert view.captured == {"a", "b", "w", "p"}
    assert captured_names(node_of(view, "a")) == set()
    assert [label for label, _ in node_bodies(node_of(view, "z"))] == ["then_branch", "else_branch"]


def test_a_name_that_a_body_makes_itself_is_not_captured() -> None:
    text = "g (float[4] x, bool p) => (float[4] z) { z = If<then_branch = t () => (float[4] t1) { b = Relu(x) t1 = Tanh(b) }, else_branch = e () => (float[4] x) { }>(p) }"
    view = view_of(text)
    assert view.captured == {"x"}, "b is the body's own; an output that it does not make comes from outside"


def test_a_body_needs_what_it_captures_before_it() -> None:
    model = model_of(BODY)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert {n.key for n in GraphView(model.graph).every} == {"a", "b", "z"}


def test_the_inputs_of_a_loop_body_belong_to_it() -> None:
    text = """g (float[4] x, int64 n, bool c) => (float[4] z) { z = Loop<body = l (int64 i, bool go, float[4] s) => (bool go2, float[4] s2) { go2 = Identity(go) s2 = Add(s, x) }>(n, c, x) }"""
    assert view_of(text).captured == {"x"}


def test_uses_are_values() -> None:
    view = view_of(PLAIN)
    assert view.consumers("x")[0] == Use(node_of(view, "a"), 0)


def test_a_weight_of_the_newest_exporter_is_constant() -> None:
    view = view_of(
        "g (float[1,4] x) => (float[1,2] y) <float[8] w, int64[2] s = {4,2}> { r = Reshape<allowzero=1>(w, s) y = MatMul(x, r) }"
    )
    value = view.array("r")
    assert view.is_constant("r") and view.shape("r") == (4, 2) and value is not None and value.shape == (4, 2)


@pytest.mark.parametrize(
    "body",
    [
        "r = ConstantOfShape(s)",
        "r = Reshape(w, t)",
        "r = Transpose<perm=[1,0]>(w)",
        "r = Unsqueeze(w, s)",
        "r = Cast<to=8>(w)",
    ],
)
def test_what_is_malformed_or_too_large_is_not_constant(body: str) -> None:
    text = f"g (float[1,4] x) => (float[1,2] y) <float[8] w, int64[4] s = {{1048576,3,64,64}}, int64[1] t = {{7}}> {{ {body} y = MatMul(x, r) }}"
    view = view_of(text)
    assert view.is_constant("r") == ("Cast" in body) and view.array("r") is None


@pytest.mark.parametrize("ways", [1, 2])
def test_a_constant_behind_too_many_operators_is_computed(ways: int) -> None:
    """A chain that would recurse, and 40 operators that read one constant twice each: 2 to the power of 40 steps."""
    number = 5000 if ways == 1 else 40
    nodes = [
        f"c{i + 1} = " + ("Identity(c{i})" if ways == 1 else "Reshape(c{i}, c{i})").format(i=i) for i in range(number)
    ]
    view = view_of(f"g (float[1] x) => (float[1] y) <int64[1] c0 = {{1}}> {{ {' '.join(nodes)} y = Identity(x) }}")
    assert view.is_constant("c3") and not view.is_constant(f"c{number}") and view.array(f"c{number}") is None


def test_scales_that_do_not_go_with_the_integers_have_no_value() -> None:
    view = view_of("""g (float[1,4] x) => (float[1,4] y) <float[3] s = {1,2,3}, int8[4,4] q = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
        w = DequantizeLinear(q, s) v = DequantizeLinear<axis=5>(q, s) y = MatMul(x, w) }""")
    assert view.array("w") is None and view.array("v") is None


def test_a_node_that_shares_its_name_is_called_by_what_it_makes() -> None:
    model = model_of("g (float[1] x) => (float[1] z) { y = Relu(x) v = Abs(y) z = Neg(v) }")
    for node, name in zip(model.graph.node, ("a", "a", "b"), strict=True):
        node.name = name
    view = GraphView(model.graph)
    assert [(node.name, node.shares_name) for node in view.every] == [("y", True), ("v", True), ("b", False)]
