# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which branch of a residual Add fuses, which gets the pair: identity, projection, tie, and by version."""

from __future__ import annotations

import pytest

from qdqtool.match import residual
from qdqtool.match.residual import branch_weights
from qdqtool.trtversion import TrtVersion
from tests.graphs import V8_4, V8_5, V8_6, V10, plan_of, points_of, readers_of, view_of

WEIGHTS = ", ".join(f"float[4,4,3,3] w{i}" for i in range(1, 7)) + ", float[4] b, float[1,1,8,8] map, float[1,4,1,1] cb"


def net(body: str, more: str = "", outputs: str = "") -> str:
    text = body.replace("Conv(", "Conv<pads=[1,1,1,1]>(")
    return f"g (float[1,4,8,8] x) => (float[1,4,8,8] z{outputs}) <{WEIGHTS}{more}> {{ {text} z = Conv<pads=[1,1,1,1]>(y, w6) }}"


# body, the convolution that the Add t fuses with, the pair on the other branch
BRANCHES = {
    "identity": ("a = Conv(x, w1) r = Relu(a) b1 = Conv(r, w2) t = Add(b1, x) y = Relu(t)", "b1", "x"),
    "identity first": ("a = Conv(x, w1) r = Relu(a) b1 = Conv(r, w2) t = Add(x, b1) y = Relu(t)", "b1", "x"),
    "identity, norm, no activation": ("a = Conv(x, w1) r = Relu(a) b1 = Conv(r, w2) n = BatchNormalization(b1, b, b, b, b) y = Add(n, x)", "b1", "x"),
    "projection": ("a = Conv(x, w1) r = Relu(a) b1 = Conv(r, w2) p = Conv(x, w3) t = Add(b1, p) y = Relu(t)", "b1", "p"),
    "projection first": ("a = Conv(x, w1) r = Relu(a) b1 = Conv(r, w2) p = Conv(x, w3) t = Add(p, b1) y = Relu(t)", "b1", "p"),
    "projection with norms": ("a = Conv(x, w1) r = Relu(a) b1 = Conv(r, w2) n = BatchNormalization(b1, b, b, b, b) p = Conv(x, w3) q = BatchNormalization(p, b, b, b, b) t = Add(q, n) y = Relu(t)", "b1", "q"),
    "projection and identity deep down": ("c = Conv(x, w4) e = Relu(c) a = Conv(e, w1) b1 = Conv(a, w2) p = Conv(e, w3) y = Add(p, b1)", "b1", "p"),
    "tie": ("a = Conv(x, w1) p = Conv(x, w2) t = Add(a, p) y = Relu(t)", "a", "p"),
    "tie turned": ("a = Conv(x, w1) p = Conv(x, w2) t = Add(p, a) y = Relu(t)", "p", "a"),
    "longer branch read elsewhere": ("a = Conv(x, w1) b1 = Conv(a, w2) p = Conv(x, w3) o = Erf(b1) y = Add(b1, p)", "p", "b1"),
    "skip with an activation": ("a = Conv(x, w1) b1 = Conv(a, w2) p = Conv(x, w3) q = Relu(p) y = Add(q, b1)", "b1", "q"),
    "bias Add inside a branch": ("a = Conv(x, w1) b0 = Conv(a, w2) b1 = Add(b0, cb) y = Add(x, b1)", "b0", "x"),
}  # fmt: skip


@pytest.mark.parametrize("version", [V8_6, V10])
@pytest.mark.parametrize(("body", "fused", "pair"), BRANCHES.values(), ids=BRANCHES)
def test_the_skip_gets_the_pair(body: str, fused: str, pair: str, version: TrtVersion) -> None:
    plan = plan_of(net(body), trt_version=version)
    with_add = [group for group in plan.groups if group.residual is not None]
    assert [group.start.key for group in with_add] == [fused]
    add = with_add[0].residual
    assert add is not None
    assert (add.node.key, add.index) in readers_of(plan, pair), "the skip comes in as INT8"
    inside = {node.key for node in with_add[0].nodes} - {"y"}
    assert not inside & {point.tensor for point in plan.activations}, "no pair between the convolution and the Add"


NOT_FUSED = {
    "x plus x": "c = Conv(x, w1) a = Add(c, c) y = Relu(a)",
    "both read elsewhere": "a = Conv(x, w1) p = Conv(x, w2) o1 = Erf(a) o2 = Erf(p) y = Add(a, p)",
    "neither made by a convolution": "a = Erf(x) e = Exp(x) y = Add(a, e)",
    "a product, no sum": "a = Conv(x, w1) p = Conv(x, w2) y = Mul(a, p)",
}


@pytest.mark.parametrize("body", NOT_FUSED.values(), ids=NOT_FUSED)
def test_an_add_that_fuses_with_no_branch(body: str) -> None:
    assert all(group.residual is None for group in plan_of(net(body)).groups)


def test_an_add_of_two_group_outputs_that_cannot_fuse_is_int8_on_both_sides() -> None:
    assert points_of(net(NOT_FUSED["both read elsewhere"])) == {"x", "a", "p", "y"}


def test_a_branch_that_is_given_out_does_not_fuse() -> None:
    body = "a = Conv(x, w1) b1 = Conv(a, w2) y = Add(b1, x)"
    assert plan_of(net(body)).groups[1].residual is not None
    plan = plan_of(net(body, outputs=", float[1,4,8,8] b1"))
    assert all(group.residual is None for group in plan.groups)
    assert {point.tensor for point in plan.activations} == {"x", "a", "b1", "y"}


def test_the_skip_of_a_float_head_has_no_pair() -> None:
    body = "a = Conv(x, w1) b1 = Conv(a, w2) e = Erf(x) y = Add(b1, e)"
    assert points_of(net(body)) == {"x", "a", "e", "y"}
    assert points_of(net(body), heads=("^b1$",)) == {"x", "y"}


SILU = "a = Conv(x, w1) s = Sigmoid(a) m = Mul(a, s) y = Add(m, x)"


@pytest.mark.parametrize(
    ("version", "pairs"), [(V8_4, {"x", "m", "y"}), (V8_5, {"x", "y"}), (V10, {"x", "y"}), (None, {"x", "y"})]
)
def test_conv_silu_add_by_version(version: TrtVersion | None, pairs: set[str]) -> None:
    assert points_of(net(SILU), trt_version=version) == pairs


def test_before_8_5_1_both_inputs_of_an_add_behind_a_silu_or_none() -> None:
    body = "a = Conv(x, w1) s = Sigmoid(a) m = Mul(a, s) e = Erf(x) y = Add(m, e)"
    assert points_of(net(body), trt_version=V8_4) == {"x", "y"}
    assert readers_of(plan_of(net(SILU), trt_version=V8_4), "x") == {("a", 0), ("y", 1)}


ACTIVATIONS = {
    "Relu": "m = Relu(a)",
    "HardSwish by a gate": "s = HardSigmoid(a) m = Mul(s, a)",
    "Mish": "s = Softplus(a) t = Tanh(s) m = Mul(a, t)",
}


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_an_add_behind_other_activations_from_8_5_1_on(activation: str) -> None:
    body = f"a = Conv(x, w1) {activation} y = Add(x, m)"
    assert points_of(net(body), trt_version=V8_5) == {"x", "y"}
    assert points_of(net(body), trt_version=V8_4) == {"x", "m", "y"}


@pytest.mark.parametrize("given", ["a", "s", "m"])
def test_a_silu_branch_that_is_given_out_leaves_the_add_to_the_other(given: str) -> None:
    body = "a = Conv(x, w1) s = Sigmoid(a) m = Mul(a, s) p = Conv(x, w2) y = Add(m, p)"
    assert [group.start.key for group in plan_of(net(body)).groups if group.residual] == ["a"], (
        "a tie: the first operand"
    )
    plan = plan_of(net(body, outputs=f", float[1,4,8,8] {given}"))
    assert [group.start.key for group in plan.groups if group.residual] == ["p"]
    assert "m" in {point.tensor for point in plan.activations}


@pytest.mark.parametrize("inside", ["s", "t"])
def test_a_mish_that_is_read_inside_leaves_the_add_to_the_other(inside: str) -> None:
    body = "a = Conv(x, w1) s = Softplus(a) t = Tanh(s) m = Mul(t, a) p = Conv(x, w2) y = Add(m, p)"
    assert [group.start.key for group in plan_of(net(body)).groups if group.residual] == ["a"]
    other = f"{body} o = Exp({inside})"
    assert [group.start.key for group in plan_of(net(other)).groups if group.residual] == ["p"]


@pytest.mark.parametrize("first", ["a", "p"])
def test_a_transposed_convolution_leaves_the_add_to_the_other_branch(first: str) -> None:
    """No document or engine shows one that takes a residual Add."""
    other = "p" if first == "a" else "a"
    body = f"a = Conv(x, w1) p = ConvTranspose<pads=[1,1,1,1]>(x, w2) y = Add({first}, {other})"
    (group,) = [group for group in plan_of(net(body)).groups if group.residual]
    assert group.start.key == "a" and points_of(net(body)) == {"x", "p", "y"}


def test_a_gate_over_another_tensor_is_no_activation() -> None:
    body = "a = Conv(x, w1) s = Sigmoid(x) m = Mul(a, s) y = Add(m, x)"
    assert all(group.residual is None for group in plan_of(net(body), trt_version=V10).groups)


def test_weights_are_counted_back_to_the_nearest_common_ancestor() -> None:
    view = view_of(net("c = Conv(x, w1) a = Conv(c, w2) d = Conv(a, w3) e = Relu(d) p = Conv(c, w4) y = Add(e, p)"))
    assert branch_weights(view, "e", "p") == (2, 1)
    assert branch_weights(view, "p", "e") == (1, 2)
    assert branch_weights(view, "e", "c") == (2, 0), "the ancestor itself counts on neither side"
    assert branch_weights(view, "d", "x") == (3, 0)


def test_a_far_ancestor_does_not_make_the_search_long(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = " ".join(f"c{i} = Conv(c{i - 1}, w1)" for i in range(1, 30))
    view = view_of(net(f"c0 = Relu(x) {chain} y = Add(c29, c0)"))
    assert branch_weights(view, "c29", "c0") == (29, 0)
    monkeypatch.setattr(residual, "_REACH", 5)
    assert branch_weights(view, "c29", "c0") == (5, 0)
