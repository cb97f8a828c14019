# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Where pairs stand, operator by operator: the tensors that have one, who reads it, which share a scale, and where there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import V8_6, model_of, plan_of, points_of, readers_of, shuffled

C4 = "float[4,4,3,3] w1, float[4,4,3,3] w2, float[4,4,3,3] w3, float[4,4,1,1] p1, float[4,4,1,1] p2, float[4,8,1,1] p8, float[4] b"
PAD = "<pads=[1,1,1,1]>"


def net(body: str, more: str = "", inputs: str = "float[1,4,8,8] x", outputs: str = "float[N,M,H,W] z") -> str:
    text = body.replace("Conv3(", f"Conv{PAD}(")
    return f"g ({inputs}) => ({outputs}) <{C4}{', ' + more if more else ''}> {{ {text} }}"


PLACES = {
    # convolutions and what lies between them
    "each convolution's input": ("r = Conv3(x, w1) z = Conv3(r, w2)", "", "x r"),
    "never between a convolution and its norm and activation": ("c = Conv3(x, w1) n = BatchNormalization(c, b, b, b, b) r = Relu(n) z = Conv3(r, w2)", "", "x r"),
    "never on a bias": ("c = Conv3(x, w1, b) a = Add(c, cb) z = Conv3(a, w2)", "float[1,4,1,1] cb", "x a"),
    "an output that nobody reads in INT8": ("c = Conv3(x, w1) z = Relu(c)", "", "x"),
    "the input of a loose activation's reader": ("a = Relu(x) z = Conv3(a, w1)", "", "a"),
    # pools
    "behind the pool of a stem": ("c = Conv3(x, w1) r = Relu(c) q = MaxPool<kernel_shape=[2,2]>(r) z = Conv3(q, w2)", "", "x q"),
    "before the pool where others read its input": ("c = Conv3(x, w1) r = Relu(c) q = MaxPool<kernel_shape=[2,2]>(r) y = Conv3(q, w2) z = Conv3(r, w3)", "", "x r"),
    "before a pool of no group": ("e = Erf(x) q = MaxPool<kernel_shape=[2,2]>(e) z = Conv3(q, w1)", "", "e"),
    "before a pool of the input": ("q = MaxPool<kernel_shape=[2,2]>(x) z = Conv3(q, w1)", "", "x"),
    "both sides of an average": ("r = Conv3(x, w1) q = AveragePool<kernel_shape=[2,2]>(r) z = Conv3(q, w2)", "", "x r q"),
    "both sides of a global average": ("r = Conv3(x, w1) q = GlobalAveragePool(r) z = Conv(q, p1)", "", "x r q"),
    "both sides of a mean over the map": ("r = Conv3(x, w1) q = ReduceMean<axes=[2,3]>(r) z = Conv(q, p1)", "", "x r q"),
    "one side of a mean over the channels": ("r = Conv3(x, w1) q = ReduceMean<axes=[1]>(r) e = Concat<axis=1>(q, q, q, q) z = Conv(e, p1)", "", "x q"),
    "one side of an average of float": ("r = Conv3(x, w1) e = Erf(r) q = AveragePool<kernel_shape=[2,2]>(e) z = Conv3(q, w2)", "", "x q"),
    # transformers
    "none on the operands of a gate between linear layers": ("g = MatMul(x, l1) u = MatMul(x, l2) s = Sigmoid(g) m = Mul(g, s) h = Mul(m, u) z = MatMul(h, l1)", "float[8,8] l1, float[8,8] l2", "x h"),
    "none on the operands of a gate out of one linear layer": ("k = MatMul(x, l3) g, u = Split<axis=-1>(k, two) s = Gelu(g) h = Mul(s, u) z = MatMul(h, l4)", "float[8,8] l3, float[4,8] l4, int64[2] two = {4,4}", "x h"),
    "both operands of a gate that a convolution makes": ("g = Conv3(x, w1) s = Sigmoid(g) u = Conv3(x, w2) h = Mul(s, u) z = Conv3(h, w3)", "", "x s u h"),
    "one for queries, keys and values": ("n = LayerNormalization(x, n1) q = MatMul(n, l1) k = MatMul(n, l2) v = MatMul(n, l1) a = Add(q, k) z = Add(a, v)", "float[8] n1, float[8,8] l1, float[8,8] l2", "n"),
    "none on a stream that norms read": ("n = LayerNormalization(x, n1) a = MatMul(n, l1) r = Add(a, x) m = LayerNormalization(r, n1) b = MatMul(m, l2) z = Add(b, r)", "float[8] n1, float[8,8] l1, float[8,8] l2", "n m"),
    "none on a stream after whose sum a norm stands": ("a = MatMul(x, l1) r = Add(a, x) n = LayerNormalization(r, n1) b = MatMul(n, l2) s = Add(b, n) z = LayerNormalization(s, n1)", "float[8] n1, float[8,8] l1, float[8,8] l2", "x n"),
    # padding
    "before zero padding": ("r = Conv3(x, w1) a = Pad(r, pads) z = Conv(a, w2)", "int64[8] pads = {0,0,1,1,0,0,1,1}", "x r"),
    "before padding with copies": ("r = Conv3(x, w1) a = Pad<mode=\"reflect\">(r, pads) z = Conv(a, w2)", "int64[8] pads = {0,0,1,1,0,0,1,1}", "x r"),
    "behind padding that no convolution reads": ("a = Pad(x, pads) t = Transpose<perm=[0,2,3,1]>(a) z = MatMul(t, m4)", "int64[8] pads = {0,0,1,1,0,0,1,1}, float[4,4] m4", "a"),
    "behind padding with ones": ("r = Conv3(x, w1) a = Pad(r, pads, one) z = Conv(a, w2)", "int64[8] pads = {0,0,1,1,0,0,1,1}, float one = {1}", "x a"),
    # resize
    "before copies of the nearest": ("r = Conv3(x, w1) a = Resize<mode=\"nearest\">(r, , s) z = Conv3(a, w2)", "float[4] s = {1,1,2,2}", "x r"),
    "both sides of interpolation": ("r = Conv3(x, w1) a = Resize<mode=\"linear\">(r, , s) z = Conv3(a, w2)", "float[4] s = {1,1,2,2}", "x r a"),
    "one side of interpolation of float": ("r = Erf(x) a = Resize<mode=\"linear\">(r, , s) z = Conv3(a, w2)", "float[4] s = {1,1,2,2}", "a"),
    # data movement
    "before what only moves": ("r = Conv3(x, w1) f = Flatten(r) z = Gemm(f, fc)", "float[256,3] fc", "x r"),
    "before a chain of moves": ("r = Conv3(x, w1) t = Transpose<perm=[0,2,3,1]>(r) e = Reshape(t, s) u = Unsqueeze(e, one) q = Squeeze(u, one) i = Identity(q) z = MatMul(i, fc)", "int64[3] s = {1,64,4}, int64[1] one = {1}, float[4,3] fc", "x r"),
    "before a choice": ("r = Conv3(x, w1) a = Gather<axis=1>(r, i) e = Slice(a, f, t, ax) z = Conv3(e, w2)", "int64[4] i = {3,2,1,0}, int64[1] f = {0}, int64[1] t = {4}, int64[1] ax = {2}", "x r"),
    "behind a lookup in a table": ("a = Gather(table, i) e = Relu(a) z = MatMul(e, fc)", "float[9,4] table, float[4,4] fc", "e"),
    "behind a lookup read at once": ("a = Gather(table, i) z = MatMul(a, fc)", "float[9,4] table, float[4,4] fc", "a"),
    # concat
    "before a concat": ("r = Conv3(x, w1) s = Conv3(x, w2) k = Concat<axis=1>(r, s) z = Conv(k, p8)", "", "x r s"),
    "behind a concat with a constant": ("r = Conv3(x, w1) k = Concat<axis=1>(r, t) z = Conv(k, p8)", "float[1,4,8,8] t", "x k"),
    # elementwise
    "both sides of a product of INT8": ("r = Conv3(x, w1) s = Conv3(x, w2) m = Mul(r, s) z = Conv3(m, w3)", "", "x r s m"),
    "both sides of a product with a gate": ("r = Conv3(x, w1) q = GlobalAveragePool(r) c = Conv(q, p1) g = HardSigmoid(c) m = Mul(r, g) z = Conv3(m, w2)", "", "x r q g m"),
    "both sides of a product with a gate written out": ("r = Conv3(x, w1) q = GlobalAveragePool(r) c = Conv(q, p1) a = Add(c, three) d = Clip(a, zero, six) g = Div(d, six) m = Mul(r, g) z = Conv3(m, w2)", "float three = {3}, float zero = {0}, float six = {6}", "x r q g m"),
    "one side of a product with float": ("r = Conv3(x, w1) e = Erf(r) s = Conv3(x, w2) m = Mul(e, s) z = Conv3(m, w3)", "", "x m"),
    "one side of a product with a constant": ("r = Conv3(x, w1) e = Erf(r) m = Mul(e, b0) z = Conv3(m, w3)", "float[1,1,8,8] b0", "x m"),
    "one side of a sum with a network input in float": ("r = Conv3(x, w1) m = Add(r, v) u = Mul(m, v) z = Conv3(u, w3)", "", "x u"),
    "both sides of a sum with a network input in INT8": ("r = Conv3(x, w1) e = Erf(r) s = Conv3(e, w2) u = Mul(s, x) z = Conv3(u, w3)", "", "x e s u"),
    "both sides of a product behind moves and joins of INT8": ("r = Conv3(x, w1) s = Conv3(x, w2) k = Concat<axis=1>(r, s) t = Transpose(s) m = Mul(k, t) z = Conv3(m, w3)", "", "x r s m"),
    "one side of a product after a join with float": ("r = Conv3(x, w1) e = Erf(r) s = Conv3(x, w2) k = Concat<axis=1>(r, e) m = Mul(k, s) z = Conv3(m, w3)", "", "x m"),
    "no side of a product that is read in float": ("r = Conv3(x, w1) s = Conv3(x, w2) m = Mul(r, s) z = Erf(m)", "", "x"),
    "a chain of sums": ("r = Conv3(x, w1) s = Conv3(x, w2) u = Mul(r, s) v = Mul(u, r) z = Conv3(v, w3)", "", "x r s u v"),
    "a product of computed matrices in float": ("r = MatMul(x, fc) s = MatMul(x, fc2) z = MatMul(r, s)", "float[8,8] fc, float[8,8] fc2", "x"),
    "a product of computed matrices read in INT8": ("r = MatMul(x, fc) s = MatMul(x, fc2) m = MatMul(r, s) z = MatMul(m, fc)", "float[8,8] fc, float[8,8] fc2", "x r s m"),
    # squeeze and excitation
    "a gate of INT8": ("r = Conv3(x, w1) q = GlobalAveragePool(r) u = Conv(q, p1) a = Relu(u) v = Conv(a, p2) s = Sigmoid(v) m = Mul(r, s) z = Conv3(m, w2)", "", "x r q a s m"),
    "a gate by HardSigmoid, turned": ("r = Conv3(x, w1) q = GlobalAveragePool(r) u = Conv(q, p1) a = Relu(u) v = Conv(a, p2) s = HardSigmoid(v) m = Mul(s, r) z = Conv3(m, w2)", "", "x r q a s m"),
    "a gate of float": ("r = Conv3(x, w1) q = GlobalAveragePool(r) u = Conv(q, p1) a = Relu(u) v = Conv(a, p2) s = Softmax<axis=1>(v) m = Mul(r, s) z = Conv3(m, w2)", "", "x r q a m"),
    # what INT8 never reads
    "before softmax": ("r = Conv3(x, w1) s = Softmax<axis=1>(r) z = Conv3(s, w2)", "", "x s"),
    "shape arithmetic": ("r = Conv3(x, w1) s = Shape(r) g = Gather(s, zero) u = Unsqueeze(g, ax) k = Concat<axis=0>(u, rest) f = Reshape(r, k) z = Gemm(f, fc)", "int64 zero = {0}, int64[1] ax = {0}, int64[1] rest = {-1}, float[256,3] fc", "x r"),
    "layer norm": ("r = Conv3(x, w1) l = LayerNormalization(r, g8) z = Conv3(l, w2)", "float[8] g8", "x l"),
    "a norm that stands alone": ("r = Erf(x) l = BatchNormalization(r, b, b, b, b) z = Conv3(l, w2)", "", "l"),
}  # fmt: skip


def text_of(kind: str) -> str:
    body, more, _ = PLACES[kind]
    inputs = "float[1,4,8,8] x"
    if "(r, v)" in body:
        inputs = "float[1,4,8,8] x, float[1,4,8,8] v"
    if "MatMul(x" in body:
        inputs = "float[8,8] x"
    if "table" in more:
        inputs = "int64[5] i"
    return net(body, more, inputs)


@pytest.mark.parametrize("kind", PLACES)
def test_the_tensors_with_a_pair(kind: str) -> None:
    assert points_of(text_of(kind)) == set(PLACES[kind][2].split())


@given(kind=st.sampled_from(sorted(PLACES)), seed=st.integers(0, 10**6))
def test_the_plan_does_not_depend_on_the_order_of_the_node_list(kind: str, seed: int) -> None:
    model = model_of(text_of(kind))
    plan, other = plan_of(model), plan_of(shuffled(model, seed))
    assert plan.points == other.points
    assert set(plan.refusals) == set(other.refusals)
    assert {group.key for group in plan.groups} == {group.key for group in other.groups}


def tied(text: str) -> set[frozenset[str]]:
    """Sets of tensors of one scale, of two or more members."""
    return {frozenset(names) for names in plan_of(text).shared_scales().values() if len(names) > 1}


SHUFFLE = net(
    "a = Conv(x, p1) r = Relu(a) c = Conv(x, p2) s = Relu(c) k = Concat<axis=1>(r, s) e = Reshape(k, s5) t = Transpose<perm=[0,2,1,3,4]>(e) f = Reshape(t, s4) "
    "h, i = Split<axis=1>(f, halves) u = Conv3(i, w1) v = Relu(u) k2 = Concat<axis=1>(h, v) z = Conv(k2, p8)",
    "int64[5] s5 = {1,2,4,8,8}, int64[4] s4 = {1,8,8,8}, int64[2] halves = {4,4}",
)


def test_all_branches_of_a_shuffle_share_one_scale_and_nothing_stands_inside() -> None:
    assert points_of(SHUFFLE) == {"x", "r", "s", "v"}
    assert tied(SHUFFLE) == {frozenset({"r", "s", "v"})}


def test_a_concat_ties_its_inputs_and_leaves_others_alone() -> None:
    text = net("r = Conv3(x, w1) s = Conv3(r, w2) k = Concat<axis=1>(r, s) z = Conv(k, p8)")
    assert tied(text) == {frozenset({"r", "s"})}
    assert readers_of(plan_of(text), "r") == {("s", 0), ("k", 0)}
    assert not tied(net("r = Conv3(x, w1) z = Conv3(r, w2)"))


def test_a_pyramid_ties_through_nearest_resize_and_pools() -> None:
    text = net(
        'r = Conv3(x, w1) q = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r) s = Conv3(q, w2) u = Resize<mode="nearest">(s, , sc) k = Concat<axis=1>(r, u) z = Conv(k, p8)',
        "float[4] sc = {1,1,2,2}",
    )
    assert points_of(text) == {"x", "r", "s"}
    assert tied(text) == {frozenset({"r", "s"})}


def test_a_tie_behind_a_pool_holds_when_the_pair_moves_before_it() -> None:
    stem = "c = Conv3(x, w1) r = Relu(c) q = MaxPool<kernel_shape=[1,1]>(r) d = Conv3(q, w2) k = Concat<axis=1>(q, d) z = Conv(k, p8)"
    assert tied(net(stem)) == {frozenset({"q", "d"})}
    text = net(f"{stem} m = Mul(r, d) y = Conv3(m, w3)")
    assert points_of(text) == {"x", "r", "d", "m"}, "the product reads r in INT8"
    assert tied(text) == {frozenset({"r", "d"})}


def test_a_pool_in_a_concat_of_pools_has_one_pair_in_front() -> None:
    pools = " ".join(
        f"q{i} = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>({'r' if i == 1 else f'q{i - 1}'})" for i in (1, 2, 3)
    )
    text = net(
        f"c = Conv3(x, w1) r = Relu(c) {pools} k = Concat<axis=1>(r, q1, q2, q3) z = Conv(k, p16)",
        "float[4,16,1,1] p16",
    )
    assert points_of(text) == {"x", "r"}, "spatial pyramid pooling: one scale, before the first pool"


def test_one_pair_serves_all_int8_readers_and_only_them() -> None:
    plan = plan_of(net("r = Conv3(x, w1) y = Conv3(r, w2) z = Conv3(r, w3) e = Erf(r)"))
    assert readers_of(plan, "r") == {("y", 0), ("z", 0)}


def test_readers_behind_the_network_input() -> None:
    plan = plan_of(net("r = Conv3(x, w1) z = Conv3(x, w2)"))
    assert readers_of(plan, "x") == {("r", 0), ("z", 0)}


def test_no_pair_in_box_decode_nms_or_topk() -> None:
    text = net(
        "r = Conv3(x, w1) l = Conv3(r, w2) s = Conv3(r, w3) e = Exp(l) m = Mul(e, anchors) a = Add(m, grid) f = Reshape(a, sb) "
        "p = Sigmoid(s) o = Reshape(p, ss) z = NonMaxSuppression(f, o, n)",
        "float[1,4,1,1] anchors, float[1,1,8,8] grid, int64[3] sb = {1,64,4}, int64[3] ss = {1,4,64}, int64 n = {5}",
    )
    for heads, points in (("none", {"x", "r"}), ("regression", {"x", "r"}), ("all", {"x"})):
        assert points_of(text, float_heads=heads) == points
    top = net(
        "r = Conv3(x, w1) f = Reshape(r, s) z, i = TopK(f, n)",
        "int64[1] n = {3}, int64[2] s = {1,256}",
        outputs="float[N,M] z, int64[N,M] i",
    )
    assert points_of(top) == {"x"}


# ---------------------------------------------------------------- heads

HEADS = net(
    "r = Conv3(x, w1) boxes = Conv3(r, w2) s = Conv3(r, w3) z = Sigmoid(s)",
    outputs="float[N,M,H,W] z, float[N,M,H,W] boxes",
)


def test_a_float_head_reads_what_its_int8_sibling_reads_and_keeps_its_weight() -> None:
    plan = plan_of(HEADS, float_heads="regression")
    assert readers_of(plan, "r") == {("boxes", 0), ("s", 0)}
    assert [point.tensor for point in plan.weights] == ["w1", "w3"]
    assert plan.float_nodes == ("boxes",)
    assert ("boxes", "float-head") in {(r.site, r.rule) for r in plan.refusals}


def test_there_is_no_point_where_only_float_heads_read() -> None:
    plan = plan_of(HEADS, float_heads="all")
    assert {point.tensor for point in plan.activations} == {"x"}
    assert [point.tensor for point in plan.weights] == ["w1"]


def test_a_float_head_makes_nothing_in_int8() -> None:
    text = net(
        "r = Conv3(x, w1) boxes = Conv3(r, w2) m = Mul(boxes, r) z = Conv3(m, w3)",
        outputs="float[N,M,H,W] z, float[N,M,H,W] boxes",
    )
    assert points_of(text) == {"x", "r", "boxes", "m"}
    assert points_of(text, heads=("^boxes$",)) == {"x", "m"}, (
        "a product with a float operand runs in float, so nothing reads r in INT8"
    )


# ---------------------------------------------------------------- weights

AXES = {
    "Conv": ("Conv(x, w)", "float[1,2,4,4] x", "float[3,2,1,1] w", 0),
    "grouped Conv": ("Conv<group=2>(x, w)", "float[1,2,4,4] x", "float[2,1,1,1] w", 0),
    "1-d Conv": ("Conv(x, w)", "float[1,2,4] x", "float[3,2,1] w", 0),
    "ConvTranspose": ("ConvTranspose(x, w)", "float[1,2,4,4] x", "float[2,3,1,1] w", None),
    "Gemm": ("Gemm(x, w)", "float[1,2] x", "float[2,3] w", -1),
    "Gemm transB": ("Gemm<transB=1>(x, w)", "float[1,2] x", "float[3,2] w", 0),
    "MatMul": ("MatMul(x, w)", "float[1,2] x", "float[2,3] w", -1),
    "MatMul of a stack": ("MatMul(x, w)", "float[4,1,2] x", "float[4,2,3] w", None),
    "MatMul on the left": ("MatMul(w, x)", "float[2,3] x", "float[5,2] w", None),
}


@pytest.mark.parametrize(("call", "data", "weight", "axis"), AXES.values(), ids=AXES)
def test_the_axis_of_a_weight(call: str, data: str, weight: str, axis: int | None) -> None:
    plan = plan_of(f"g ({data}) => (float[N] y) <{weight}, float[3] b> {{ y = {call} }}")
    assert [(point.tensor, point.axis) for point in plan.weights] == [("w", axis)]
    assert [point.tensor for point in plan.activations] == ["x"]


def test_a_weight_that_several_operators_read_has_one_point() -> None:
    plan = plan_of(net("r = Conv3(x, w1) z = Conv3(r, w1)"))
    assert [(point.tensor, len(point.reads)) for point in plan.weights] == [("w1", 2)]
    assert readers_of(plan, "w1") == {("r", 1), ("z", 1)}


def test_a_weight_read_along_two_axes_has_a_point_for_each() -> None:
    plan = plan_of("g (float[1,3,4,4] x) => (float[N] z) <float[3,3,1,1] w> { r = Conv(x, w) z = ConvTranspose(r, w) }")
    assert [(point.tensor, point.axis, [read.node for read in point.reads]) for point in plan.weights] == [
        ("w", 0, ["r"]),
        ("w", None, ["z"]),
    ]


WRAPPED = {
    "Constant node": "w = Constant<value = float[2,3] {1,2,3,4,5,7}>() y = MatMul(x, w)",
    "Identity": "w = Identity(w0) y = MatMul(x, w)",
    "Transpose of a constant": "w = Transpose<perm=[1,0]>(w1) y = MatMul(x, w)",
}


@pytest.mark.parametrize("body", WRAPPED.values(), ids=WRAPPED)
def test_a_weight_may_be_wrapped(body: str) -> None:
    plan = plan_of(f"g (float[1,2] x) => (float[1,3] y) <float[2,3] w0, float[3,2] w1> {{ {body} }}")
    assert [(point.tensor, point.axis) for point in plan.weights] == [("w", -1)]


def test_weights_listed_as_inputs_are_weights() -> None:
    model = model_of("g (float[1,2] x) => (float[1,3] y) <float[2,3] w> { y = MatMul(x, w) }")
    value = model.graph.input.add()
    value.CopyFrom(model.graph.input[0])
    value.name = "w"
    plan = plan_of(model)
    assert [point.tensor for point in plan.points] == ["x", "w"]


# ---------------------------------------------------------------- reasons

REFUSALS = {
    "an elementwise operator with a float operand": ("r = Conv3(x, w1) e = Erf(r) s = Conv3(x, w2) m = Mul(e, s) z = Conv3(m, w3)", "m", "elementwise", "e"),
    "an average of float": ("e = Erf(x) q = AveragePool<kernel_shape=[2,2]>(e) z = Conv3(q, w2)", "q", "average-pool", "e"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "site", "rule", "odd"), REFUSALS.values(), ids=REFUSALS)
def test_what_is_left_in_float_says_why(body: str, site: str, rule: str, odd: str) -> None:
    (refusal,) = plan_of(net(body)).refusals
    assert (refusal.site, refusal.rule) == (site, rule)
    assert f" {odd} " in refusal.reason


def test_every_point_names_a_rule_that_exists_and_a_reason() -> None:
    from qdqtool.rulebook import load_rules

    rules = load_rules("gpu")
    for kind in PLACES:
        for point in plan_of(text_of(kind)).points:
            assert rules.rule(point.rule).why
            assert point.reason


@pytest.mark.parametrize("version", [None, V8_6])
def test_a_model_without_weighted_operators_has_no_points(version: object) -> None:
    plan = plan_of("g (float[1,4] x) => (float[1,4] z) { a = Relu(x) z = Softmax(a) }", trt_version=version)
    assert plan.points == () and plan.groups == () and plan.heads == ()


def test_ways_that_part_and_meet_again_are_walked_once() -> None:
    """Every Concat doubles the ways back to x: 2 ** 60 of them."""
    links = (f"a{i} = Transpose(d{i}) b{i} = Identity(d{i}) d{i + 1} = Concat<axis=1>(a{i}, b{i})" for i in range(60))
    body = f"d0 = Relu(x) {' '.join(links)} z = Conv(d60, p1)"
    assert [point.tensor for point in plan_of(net(body)).activations] == ["d0"]


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("LSTM", "z = LSTM<hidden_size=4>(x, w, r)"),
        ("GRU", "z = GRU<hidden_size=4>(x, w, r)"),
        ("RNN", "z = RNN<hidden_size=4>(x, w, r)"),
        ("Einsum", 'z = Einsum<equation="abc,dec->abe">(x, w)'),
        ("", 'a = Relu(x) z = Einsum<equation="abc,abc->abc">(x, a)'),  # no weight: nothing is left out
    ],
)
def test_a_product_with_weights_that_gets_no_pairs_is_named(op: str, body: str) -> None:
    text = f"g (float[3,1,8] x) => (float[A,B,C] z) <float[1,16,8] w, float[1,16,4] r> {{ {body} }}"
    left = [(one.site, one.rule, one.reason) for one in plan_of(text).refusals]
    assert [one[:2] for one in left] == ([("z", "weighted")] if op else []) and all(op in one[2] for one in left)
