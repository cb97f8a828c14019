# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which nodes run as one layer, chain by chain, and that each guard of a chain lets through and stops."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.groups import Group, find_groups
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import TrtVersion
from tests.graphs import V8_4, V8_5, V8_6, V10, model_of, plan_of, points_of, shuffled, view_of

WEIGHTS = """<float[4,3,3,3] w, float[4,4,3,3] w2, float[4,4,2,2] wt, float[4] b, float[1,4,1,1] cb, float[1,1,8,8] map,
 float[4] s, float[4] m, float[4] v, float[4,1,1] slope, float zero = {0}, float six = {6}, float three = {3}, float sixth = {0.16666667}, float one = {1},
 float half = {0.5}, float root = {1.4142135}, float cube = {3}, float k = {0.044715}, float pi = {0.7978845608}, float two = {2}>"""


def groups_of(text: str, version: TrtVersion | None = None) -> list[Group]:
    rules = load_rules("gpu", version)
    return find_groups(view_of(text), rules)


def first_group(body: str, version: TrtVersion | None = None) -> tuple[str, ...]:
    """First outputs of the nodes that the Conv `c` takes with it."""
    return tuple(node.key for node in groups_of(graph(body), version)[0].nodes)


def graph(body: str, start: str = "c = Conv<pads=[1,1,1,1]>(x, w)") -> str:
    """`body` goes on from the convolution's output c and ends in y, which a second convolution reads."""
    return f"g (float[1,3,8,8] x) => (float[1,4,8,8] z) {WEIGHTS} {{ {start} {body} z = Conv<pads=[1,1,1,1]>(y, w2) }}"


ONE_NODE = ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu", "Softplus", "Mish"]
ACTIVATIONS = {
    **{op: f"y = {op}(c)" for op in ONE_NODE},
    "Clip": "y = Clip(c, zero, six)",
    "PRelu": "y = PRelu(c, slope)",
    "silu": "a = Sigmoid(c) y = Mul(c, a)",
    "silu turned": "a = Sigmoid(c) y = Mul(a, c)",
    "hard-sigmoid, divided": "a = Add(c, three) d = Clip(a, zero, six) y = Div(d, six)",
    "hard-sigmoid, multiplied": "a = Add(three, c) d = Clip(a, zero, six) y = Mul(sixth, d)",
    "hard-swish, gate": "a = HardSigmoid(c) y = Mul(c, a)",
    "hard-swish, divided last": "a = Add(c, three) d = Clip(a, zero, six) e = Mul(c, d) y = Div(e, six)",
    "hard-swish, divided first": "a = Add(three, c) d = Clip(a, zero, six) e = Div(d, six) y = Mul(c, e)",
    "hard-swish, multiplied last": "a = Add(c, three) d = Clip(a, zero, six) e = Mul(d, c) y = Mul(e, sixth)",
    "hard-swish, multiplied first": "a = Add(c, three) d = Clip(a, zero, six) e = Mul(d, sixth) y = Mul(e, c)",
    "mish": "a = Softplus(c) d = Tanh(a) y = Mul(c, d)",
    "gelu by erf, half last": "a = Div(c, root) d = Erf(a) e = Add(d, one) f = Mul(c, e) y = Mul(f, half)",
    "gelu by erf, half first": "a = Div(c, root) d = Erf(a) e = Add(d, one) h = Mul(c, half) y = Mul(h, e)",
    "gelu by erf, half of the sum": "a = Div(c, root) d = Erf(a) e = Add(one, d) h = Mul(e, half) y = Mul(c, h)",
    "gelu by tanh, half first": "p = Pow(c, cube) a = Mul(p, k) d = Add(c, a) e = Mul(d, pi) t = Tanh(e) f = Add(t, one) h = Mul(c, half) y = Mul(h, f)",
    "gelu by tanh, half last": "p = Pow(c, cube) a = Mul(k, p) d = Add(a, c) e = Mul(pi, d) t = Tanh(e) f = Add(one, t) h = Mul(c, f) y = Mul(half, h)",
}  # fmt: skip


def keys(body: str) -> set[str]:
    return {"c", *(word for word, sign in zip(body.split(), body.split()[1:], strict=False) if sign == "=")}


@pytest.mark.parametrize("body", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_a_convolution_takes_its_activation_with_it(body: str) -> None:
    plan = plan_of(graph(body))
    assert {node.key for node in plan.groups[0].nodes} == keys(body)
    assert plan.groups[0].output == "y"
    assert {point.tensor for point in plan.activations} == {"x", "y"}, (
        "a pair in front of each Conv, none inside a group"
    )


@pytest.mark.parametrize("body", [ACTIVATIONS["silu"], ACTIVATIONS["gelu by erf, half last"]], ids=["silu", "gelu"])
@pytest.mark.parametrize("order", range(3))
def test_a_composite_is_found_in_any_order_of_the_node_list(body: str, order: int) -> None:
    assert points_of(shuffled(model_of(graph(body)), order)) == {"x", "y"}


def test_constants_of_a_composite_may_come_from_constant_nodes_and_old_clip_from_attributes() -> None:
    body = "t = Constant<value_float=3.0>() a = Add(c, t) d = Clip<min=0.0, max=6.0>(a) e = Mul(c, d) u = Constant<value=float[1] {6}>() y = Div(e, u)"
    assert points_of(graph(body)) == {"x", "y"}


WRONG = {
    "hard-swish with 2": "a = Add(c, two) d = Clip(a, zero, six) e = Mul(c, d) y = Div(e, six)",
    "hard-swish clipped at 3": "a = Add(c, three) d = Clip(a, zero, three) e = Mul(c, d) y = Div(e, six)",
    "hard-swish over 3": "a = Add(c, three) d = Clip(a, zero, six) e = Mul(c, d) y = Div(e, three)",
    "hard-swish without limits": "a = Add(c, three) d = Clip(a) e = Mul(c, d) y = Div(e, six)",
    "hard-swish upside down": "a = Add(c, three) d = Clip(a, zero, six) e = Mul(c, d) y = Div(six, e)",
    "hard-swish per channel": "a = Add(c, slope) d = Clip(a, zero, six) e = Mul(c, d) y = Div(e, six)",
    "gelu over 2": "a = Div(c, two) d = Erf(a) e = Add(d, one) f = Mul(c, e) y = Mul(f, half)",
    "gelu with another tanh": "p = Pow(c, cube) a = Mul(p, half) d = Add(c, a) e = Mul(d, pi) t = Tanh(e) f = Add(t, one) h = Mul(c, half) y = Mul(h, f)",
    "silu squared": "a = Sigmoid(c) y = Mul(a, a)",
}  # fmt: skip


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_composite_with_another_constant_is_none(body: str) -> None:
    assert first_group(body) in (("c",), ("c", "a")), "nothing but what fuses by itself"


READ_ELSEWHERE = {
    "the gate of a silu": ("a = Sigmoid(c) y = Mul(c, a) o = Tanh(a)", ("c",)),
    "x of a silu": ("a = Sigmoid(c) y = Mul(c, a) o = Tanh(c)", ("c",)),
    "inside of a hard-swish": ("a = Add(c, three) d = Clip(a, zero, six) e = Mul(c, d) y = Div(e, six) o = Tanh(d)", ("c",)),
    "a convolution": ("y = Relu(c) o = Tanh(c)", ("c",)),
    "a BatchNormalization": ("n = BatchNormalization(c, s, b, m, v) y = Relu(n) o = Tanh(n)", ("c", "n")),
}  # fmt: skip


@pytest.mark.parametrize(("body", "group"), READ_ELSEWHERE.values(), ids=READ_ELSEWHERE)
@pytest.mark.parametrize("way", ["node", "output", "body"])
def test_nothing_fuses_across_a_tensor_that_is_read_elsewhere(body: str, group: tuple[str, ...], way: str) -> None:
    text = graph(body)
    inner = body[body.rindex("(") + 1 : -1]
    if way == "output":
        text = text.replace("[1,4,8,8] z)", f"[1,4,8,8] z, float[1,4,8,8] {inner})").replace(f" o = Tanh({inner})", "")
    if way == "body":
        branch = f"<graph> () => (float[1,4,8,8] q) {{ q = Tanh({inner}) }}".replace("<graph>", "t")
        text = text.replace(f"o = Tanh({inner})", f"o = If<then_branch = {branch}, else_branch = {branch}>(yes)")
        text = text.replace("float[1,3,8,8] x)", "float[1,3,8,8] x, bool yes)", 1)
    assert tuple(node.key for node in groups_of(text)[0].nodes) == group


CHAINS = {
    "bias": ("a = Add(c, cb) y = Relu(a)", "c a y"),
    "bias on the left": ("a = Add(cb, c) y = Relu(a)", "c a y"),
    "bias per pixel": ("a = Add(c, map) y = Relu(a)", "c"),
    "batch norm": ("n = BatchNormalization(c, s, b, m, v) y = Relu(n)", "c n y"),
    "bias and batch norm": ("a = Add(c, cb) n = BatchNormalization(a, s, b, m, v) y = Relu(n)", "c a n y"),
    "batch norm of computed statistics": ("q = ReduceMean<axes=[0,2,3], keepdims=0>(x0) n = BatchNormalization(c, s, b, q, v) y = Relu(n)", "c"),
    "batch norm in training": ("n, q1, q2 = BatchNormalization<training_mode=1>(c, s, b, m, v) y = Relu(n)", "c"),
    "scale and shift": ("a = Mul(c, slope) d = Add(a, cb) y = Relu(d)", "c a d y"),
    "scale per pixel": ("a = Mul(c, map) y = Relu(a)", "c"),
    "hard-sigmoid with 2": ("a = Add(c, two) d = Clip(a, zero, six) y = Div(d, six)", "c a d"),
    "hard-sigmoid upside down": ("a = Add(c, three) d = Clip(a, zero, six) y = Div(six, d)", "c a d"),
    "two activations": ("a = Relu(c) y = Tanh(a)", "c a"),
    "activation before batch norm": ("a = Relu(c) y = BatchNormalization(a, s, b, m, v)", "c a"),
    "slope computed by the convolution": ("y = PRelu(x0, c)", "c"),
    "no rule": ("y = Erf(c)", "c"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "nodes"), CHAINS.values(), ids=CHAINS)
def test_what_stands_behind_a_convolution(body: str, nodes: str) -> None:
    text = graph(body).replace("float[1,3,8,8] x)", "float[1,3,8,8] x, float[1,4,8,8] x0)", 1)
    assert tuple(node.key for node in groups_of(text)[0].nodes) == tuple(nodes.split())


STARTS = {
    "depthwise": ("c0 = Conv(x, w1) c = Conv<group=4,pads=[1,1,1,1]>(c0, wx)", "float[4,1,3,3] wx, float[4,3,1,1] w1"),
    "grouped": ("c0 = Conv(x, w1) c = Conv<group=2,pads=[1,1,1,1]>(c0, wx)", "float[4,2,3,3] wx, float[4,3,1,1] w1"),
}


@pytest.mark.parametrize(("start", "weight"), STARTS.values(), ids=STARTS)
def test_every_kind_of_convolution_has_its_bias_norm_and_activation(start: str, weight: str) -> None:
    body = "a = Add(c, cb) n = BatchNormalization(a, s, b, m, v) e = Sigmoid(n) y = Mul(n, e)"
    text = graph(body, start).replace("<float[4,3,3,3] w", f"<{weight}, float[4,3,3,3] w")
    group = next(group for group in groups_of(text) if group.start.key == "c")
    assert [node.key for node in group.nodes] == ["c", "a", "n", "e", "y"]
    assert points_of(text) == {"x", "y"} | ({"c0"} if "c0" in start else set())


@pytest.mark.parametrize(
    ("body", "nodes"),
    [
        ("a = Add(c, cb) y = Relu(a)", ["c", "a", "y"]),
        ("e = Sigmoid(c) y = Mul(c, e)", ["c", "e", "y"]),
        ("n = BatchNormalization(c, s, b, m, v) y = Relu(n)", ["c"]),
        ("n = Mul(c, cb) y = Relu(n)", ["c"]),
    ],
)
def test_a_transposed_convolution_takes_its_bias_and_activation_alone(body: str, nodes: list[str]) -> None:
    """NVIDIA/TensorRT issue 3412: BatchNormalization stays out where there are Q/DQ."""
    text = graph(body, "c = ConvTranspose<pads=[1,1,1,1]>(x, wx)")
    (group, *_) = groups_of(text.replace("<float[4,3,3,3] w", "<float[3,4,3,3] wx, float[4,3,3,3] w"))
    assert [node.key for node in group.nodes] == nodes


PRODUCTS = {
    "Gemm": ("c = Gemm(x, w) y = Relu(c)", "c y"),
    "Gemm, transposed, with bias": ("c = Gemm<transB=1>(x, w, b) y = Tanh(c)", "c y"),
    "MatMul and bias": ("c = MatMul(x, w) a = Add(b, c) y = Relu(a)", "c a y"),
    "MatMul and gelu": ("c = MatMul(x, w) a = Div(c, root) d = Erf(a) e = Add(d, one) f = Mul(c, e) y = Mul(f, half)", "c a d e f y"),
    "MatMul and a bias per row": ("c = MatMul(x, w) a = Add(c, rows) y = Relu(a)", "c"),
    "MatMul and residual": ("c = MatMul(x, w) a = Add(c, x) y = Relu(a)", "c a y"),
    "MatMul of two computed": ("c = MatMul(x, x) y = Relu(c)", ""),
    "constant on the left": ("c = MatMul(w, x) y = Relu(c)", "c y"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "nodes"), PRODUCTS.values(), ids=PRODUCTS)
def test_matrix_products(body: str, nodes: str) -> None:
    text = f"g (float[4,4] x) => (float[4,4] z) <float[4,4] w, float[4,4] w2, float[4] b, float[4,1] rows, float root = {{1.41421356}}, float one = {{1}}, float half = {{0.5}}> {{ {body} z = Gemm(y, w2) }}"
    assert tuple(node.key for node in groups_of(text)[0].nodes) == (tuple(nodes.split()) or ("z",))


def test_a_weight_that_is_computed_or_not_float32_starts_no_group() -> None:
    text = "g (float[1,3,8,8] x, float[4,3,1,1] w, float16[1,3,8,8] h) => (float[1,4,8,8] y, float16[1,4,8,8] z) <float16[4,3,1,1] wh> { y = Conv(x, w) z = Conv(h, wh) }"
    model = model_of(text)
    wh = next(tensor for tensor in model.graph.initializer if tensor.name == "wh")
    wh.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(wh).astype("float16"), "wh"))
    plan = plan_of(model)
    assert not plan.groups and not plan.points
    assert [(r.site, r.rule) for r in plan.refusals] == [("z", "weighted")]


def test_the_longest_chain_wins_over_the_order_of_the_rules() -> None:
    assert first_group("n = BatchNormalization(c, s, b, m, v) a = Sigmoid(n) y = Mul(n, a)") == ("c", "n", "a", "y")


@pytest.mark.parametrize(("version", "nodes"), [(V8_4, "c a d"), (V8_5, "c a d y"), (None, "c a d y")])
def test_an_add_behind_a_silu_fuses_from_8_5_1_on(version: TrtVersion | None, nodes: str) -> None:
    text = graph("a = Sigmoid(c) d = Mul(c, a) y = Add(d, x)", "c = Conv<pads=[1,1,1,1]>(x, w2)").replace(
        "[1,3,8,8] x", "[1,4,8,8] x"
    )
    group = groups_of(text, version)[0]
    assert [node.key for node in group.nodes] == nodes.split()
    assert (group.residual is not None) == ("y" in nodes)


def test_rules_of_ones_own_make_longer_chains_and_bad_names_in_them_are_reported(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    rule = '[[fusion]]\nname = "mine"\nmatch = "{}"\nwhy = "w"\nsee = "s"\nstatus = "guess"\n'
    own.write_text('schema = 1\nextends = "gpu"\n' + rule.format("Conv:weight > Erf > act"))
    text = graph("a = Erf(c) y = Relu(a)")
    assert [node.key for node in plan_of(text, rules=own).groups[0].nodes] == ["c", "a", "y"]
    assert points_of(text, rules=own) == {"x", "y"}
    for match, message in (
        ("conf:weight > Erf", "'conf' is neither a set nor a composite"),
        ("Conv:wait", "no such constraint"),
    ):
        own.write_text("schema = 1\n" + rule.format(match))
        with pytest.raises(QdqError, match=message):
            plan_of(text, rules=own)


RESIDUAL = """g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,3,3] w1, float[4,4,3,3] w2, float[4,4,1,1] wp, float[4,8,1,1] w3> {
 a = Conv<pads=[1,1,1,1]>(x, w1) r = Relu(a) b = Conv<pads=[1,1,1,1]>(r, w2) p = Conv(x, wp) t = Add(b, p) s = Sigmoid(t) u = Mul(t, s)
 q = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(u) n = Concat<axis=1>(q, r) z = Conv(n, w3) }"""


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    text=st.sampled_from(
        [RESIDUAL, graph(ACTIVATIONS["hard-swish, gate"]), graph(ACTIVATIONS["gelu by tanh, half first"])]
    ),
)
def test_groups_and_points_do_not_depend_on_the_order_of_the_node_list(seed: int, text: str) -> None:
    model = model_of(text)
    plan, other = plan_of(model), plan_of(shuffled(model, seed))
    assert {group.key for group in plan.groups} == {group.key for group in other.groups}
    assert set(plan.points) == set(other.points)
    assert {(head.key, head.label) for head in plan.heads} == {(head.key, head.label) for head in other.heads}


def test_each_node_is_in_one_group_at_most() -> None:
    for version in (V8_6, V10):
        nodes = [node.key for group in groups_of(RESIDUAL, version) for node in group.nodes]
        assert len(nodes) == len(set(nodes))
        assert GraphView(model_of(RESIDUAL).graph).nodes
