# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Every guard that rules name: a node that it lets through and one that it stops."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.match.constraints import _CONSTRAINTS, constraint_named, reason_of
from qdqtool.match.site import MatchSite
from qdqtool.rulebook import load_rules
from tests.graphs import node_of, view_of

TEXT = """g (float[1,4,8,8] x, float[4,4,1,1] wc, float[4] vc, int64[2] ic, float[4,4] q) => (float[1,4,8,8] z)
 <float[4,4,1,1] w, float[4,1,1,1] c1k, float[1,1,8,8] gray, float[4] b, float[1,4,1,1] cb, float[4,1,1] c3, float[1,1,8,8] map, float[1,1,1,4] last, float one = {1}, float zero = {0},
  int64[8] pads = {0,0,0,0,0,0,1,1}, float[4] sc = {1,1,2,2}, float[4,4] m, float[4,4,2] m3, float[2,4,4] stack, float[9,4] table, int64[2] i = {0,1}, int64 whole = {2},
  int64[2] hw = {2,3}, int64[1] ch = {1}, int64[2] bh = {0,2}> {
 conv = Conv(x, w)
 conv_computed = Conv(x, wc)
 dw = Conv<group=4>(x, c1k)
 one_in = Conv(gray, c1k)
 t = Relu(x)
 add_b = Add(conv, b)
 add_cb = Add(conv, cb)
 add_c3 = Add(c3, conv)
 add_one = Add(conv, one)
 add_map = Add(conv, map)
 add_last = Add(conv, last)
 add_int = Add(conv, whole)
 add_t = Add(conv, t)
 add_self = Add(conv, conv)
 bn = BatchNormalization(conv, b, b, b, b)
 bn_computed = BatchNormalization(conv, b, b, vc, b)
 bn_training, n1, n2 = BatchNormalization<training_mode=1>(conv, b, b, b, b)
 bn_training_one = BatchNormalization<training_mode=1>(conv, b, b, b, b)
 mean_hw = ReduceMean<axes=[2,3]>(x)
 mean_h = ReduceMean<axes=[2]>(x)
 mean_all = ReduceMean(x)
 mean_batch = ReduceMean<axes=[0,2]>(x)
 mean_in = ReduceMean(x, hw)
 mean_in_one = ReduceMean(x, ch)
 mean_in_batch = ReduceMean(x, bh)
 near = Resize<mode="nearest">(x, , sc)
 default = Resize(x, , sc)
 linear = Resize<mode="linear">(x, , sc)
 cubic = Resize<mode="cubic">(x, , sc)
 take = Gather(x, i)
 look_up = Gather(table, ic)
 take_computed = Gather(x, ic)
 pad = Pad(x, pads)
 pad_turned = Transpose(pad)
 pad_read = MaxPool<kernel_shape=[1,1]>(pad_turned)
 pad_zero = Pad(x, pads, zero)
 pad_one = Pad(x, pads, one)
 pad_computed = Pad(x, pads, vc)
 pad_edge = Pad<mode="edge">(x, pads)
 pad_old = Pad<mode="constant", pads=[0,0,0,0,0,0,1,1], value=1.0>(x)
 pad_old_zero = Pad<pads=[0,0,0,0,0,0,1,1]>(x)
 ein_last = Einsum<equation="ab,bc->ac">(q, m)
 ein_first = Einsum<equation="ab,cb->ac">(q, m)
 ein_both = Einsum<equation="ab,bcd->acd">(q, m3)
 gemm = Gemm(q, m)
 gemm_t = Gemm<transB=1>(q, m)
 right = MatMul(q, m)
 left = MatMul(m, q)
 many = MatMul(q, stack)
 both = MatMul(q, q)
 of_taken = MatMul(q, taken)
 taken = Relu(q)
 bias_last = Add(right, b)
 bias_rows = Add(right, c1)
 gate = Sigmoid(right)
 gated = Mul(gate, right)
 gated_map = Mul(gate, t)
 gated_once = Mul(gate, b)
 max_pool = MaxPool<kernel_shape=[1,1]>(x)
 pool_joined = Concat<axis=1>(x, max_pool)
 none_joined = Concat<axis=1>(x, t)
 token_a = Transpose<perm=[0,2,3,1]>(x)
 token_b = Transpose<perm=[0,2,3,1]>(max_pool)
 tokens_joined = Concat<axis=1>(token_a, token_b)
 token_alone = Concat<axis=1>(token_a)
 tokens_and_more = Concat<axis=1>(token_a, x)
 z = Relu(conv)
}""".replace("float[4,4] m,", "float[4,4] m, float[4,1] c1,")  # fmt: skip

WIDE = """g (float[1,32,8,8] x, float[N,32] rows, float[1,32] row, float[32,1] column, float[1,32,8] cube) => (float[N,32] z)
<float[32,32,3,3] w3, float[32,32,7,7] w7, float[8,32,1,1] w8, float[32,32] m, float[32,8] n>
{
 w_conv = Conv(x, w3)
 w_large = Conv(x, w7)
 w_few = Conv(x, w8)
 w_rows = MatMul(rows, m)
 w_row = MatMul(row, m)
 w_column = Gemm<transA=1>(column, m)
 w_narrow = MatMul(rows, n)
 w_shares = Softmax(rows)
 w_turned = Transpose(rows)
 w_scores = MatMul(w_turned, rows)
 w_values = MatMul(w_shares, w_scores)
 w_values_t = Transpose<perm=[0,1]>(w_values)
 w_output = MatMul(w_values_t, m)
 w_of_scores = MatMul(w_scores, m)
 w_three = Transpose<perm=[0,2,1]>(cube)
 w_of_three = MatMul(w_three, m)
 w_of_two = MatMul(w_values_t, m)
 w_packed = MatMul(rows, m)
 w_queries, w_keys = Split<axis=1>(w_packed)
 w_keys_t = Transpose(w_keys)
 w_pairs = MatMul(w_queries, w_keys_t)
 z = Relu(rows)
}"""

# guard, node, tensor by which a chain comes in, start of the chain, lets through; nodes called w_ are those of WIDE
CASES = [
    ("large_kernel", "w_large", "", "", True), ("large_kernel", "w_conv", "", "", False),
    ("few_channels", "w_few", "", "", True), ("few_channels", "w_conv", "", "", False),
    ("narrow_matrix", "w_narrow", "", "", True), ("narrow_matrix", "w_rows", "", "", False),
    ("one_row", "w_row", "", "", True), ("one_row", "w_column", "", "", True), ("one_row", "w_rows", "", "", False),
    ("reads_attention", "w_output", "", "", True), ("reads_attention", "w_of_scores", "", "", False), ("reads_attention", "w_rows", "", "", False),
    ("reads_transposed_rows", "w_of_three", "", "", True), ("reads_transposed_rows", "w_of_two", "", "", False), ("reads_transposed_rows", "w_rows", "", "", False),
    ("makes_attention_operands", "w_packed", "", "", True), ("makes_attention_operands", "w_rows", "", "", False),
    ("makes_attention_operands", "w_output", "", "", False),
    ("depthwise", "dw", "", "", True), ("depthwise", "conv", "", "", False), ("depthwise", "one_in", "", "", False), ("depthwise", "t", "", "", False),
    ("weight", "conv", "", "", True), ("weight", "conv_computed", "", "", False), ("weight", "t", "", "", False),
    ("bias", "add_cb", "conv", "conv", True), ("bias", "add_c3", "conv", "conv", True), ("bias", "add_one", "conv", "conv", True),
    ("bias", "add_b", "conv", "conv", False), ("bias", "add_map", "conv", "conv", False), ("bias", "add_last", "conv", "conv", False),
    ("bias", "add_int", "conv", "conv", False), ("bias", "add_t", "conv", "conv", False), ("bias", "bias_last", "right", "right", True),
    ("bias", "bias_rows", "right", "right", False), ("per_channel", "add_cb", "conv", "conv", True), ("per_channel", "add_map", "conv", "conv", False),
    ("per_channel", "add_self", "conv", "conv", False),
    ("inference", "bn", "conv", "conv", True), ("inference", "bn_computed", "conv", "conv", False), ("inference", "bn_training", "conv", "conv", False), ("inference", "bn_training_one", "conv", "conv", False),
    ("computed", "add_t", "", "", True), ("computed", "add_cb", "", "", False), ("computed", "t", "", "", False), ("computed", "both", "", "", True),
    ("computed_from_second", "of_taken", "taken", "", True), ("computed_from_second", "of_taken", "q", "", False), ("computed_from_second", "right", "m", "", False),
    ("by_constant", "add_map", "conv", "conv", True), ("by_constant", "add_t", "conv", "conv", False),
    ("of_linears", "gated", "", "", True), ("of_linears", "gated_map", "", "", False), ("of_linears", "gated_once", "", "", False),
    ("spatial", "mean_hw", "", "", True), ("spatial", "mean_in", "", "", True), ("spatial", "mean_h", "", "", False), ("spatial", "mean_all", "", "", False),
    ("spatial", "mean_batch", "", "", False), ("spatial", "mean_in_one", "", "", False), ("spatial", "mean_in_batch", "", "", False),
    ("nearest", "near", "", "", True), ("nearest", "default", "", "", True), ("nearest", "linear", "", "", False), ("nearest", "cubic", "", "", False),
    ("interpolating", "linear", "", "", True), ("interpolating", "cubic", "", "", True), ("interpolating", "near", "", "", False),
    ("selects", "take", "", "", True), ("selects", "look_up", "", "", False), ("selects", "take_computed", "", "", False),
    ("zero_or_copy", "pad", "", "", True), ("zero_or_copy", "pad_zero", "", "", True), ("zero_or_copy", "pad_edge", "", "", True),
    ("zero_or_copy", "pad_old_zero", "", "", True), ("zero_or_copy", "pad_one", "", "", False), ("zero_or_copy", "pad_computed", "", "", False),
    ("zero_or_copy", "pad_old", "", "", False),
    ("pads_window", "pad", "", "", True), ("pads_window", "pad_edge", "", "", False), ("pads_window", "pad_one", "", "", False),
    ("transposed_weight", "gemm_t", "", "", True), ("transposed_weight", "gemm", "", "", False),
    ("plain_weight", "gemm", "", "", True), ("plain_weight", "gemm_t", "", "", False),
    ("right_matrix", "right", "", "", True), ("right_matrix", "left", "", "", False), ("right_matrix", "many", "", "", False),
    ("right_matrix", "both", "", "", False),
    ("channels_first", "ein_first", "", "", True), ("channels_first", "ein_last", "", "", False),
    ("channels_last", "ein_last", "", "", True), ("channels_last", "ein_first", "", "", False),
    ("channels_first", "ein_both", "", "", False), ("channels_last", "ein_both", "", "", False),
    ("channels_last", "gemm", "", "", False),
    ("joins_tokens", "tokens_joined", "", "", True), ("joins_tokens", "tokens_and_more", "", "", False), ("joins_tokens", "token_alone", "", "", False),
    ("joins_pools", "pool_joined", "", "", True), ("joins_pools", "none_joined", "", "", False),
    ("residual", "add_cb", "conv", "conv", False), ("residual", "add_self", "conv", "conv", False),
]  # fmt: skip


@pytest.fixture(scope="module")
def view() -> object:
    return view_of(TEXT)


@pytest.mark.parametrize(("name", "key", "entry", "start", "through"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_guard_lets_through_and_stops(name: str, key: str, entry: str, start: str, through: bool) -> None:
    view = view_of(WIDE if key.startswith("w_") else TEXT)
    site = MatchSite(view, node_of(view, key), entry, node_of(view, start) if start else None)
    assert constraint_named(name)(site) is through


def test_residual_lets_the_branch_through_that_fuses_and_stops_the_other() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w> { c = Conv(x, w) y = Add(c, x) }"
    view = view_of(text)
    add, conv = node_of(view, "y"), node_of(view, "c")
    assert constraint_named("residual")(MatchSite(view, add, "c", conv))
    assert not constraint_named("residual")(MatchSite(view, add, "x", conv))


def test_every_guard_is_tested_both_ways() -> None:
    for name in _CONSTRAINTS.keys() - {"residual"}:
        assert {case[4] for case in CASES if case[0] == name} == {True, False}, name


def test_every_guard_that_the_rules_name_exists_and_none_is_idle() -> None:
    named = {
        step.constraint
        for rules in (
            load_rules("gpu"),
            load_rules("rtx"),
            load_rules("gpu", number_format="fp8"),
            load_rules("rtx", number_format="int4"),
            load_rules("rtx", number_format="nvfp4"),
        )
        for rule in (
            *rules.fusions,
            *rules.consumers,
            *rules.commutes,
            *rules.weights,
            *rules.attentions,
            *rules.floats,
        )
        for step in rule.steps
    }
    assert named - {""} == set(_CONSTRAINTS) - {"depthwise", "zero_or_copy"}, "those are for rules of one's own"


def test_every_guard_says_in_one_line_why_it_stops() -> None:
    assert "interpolates" in reason_of("nearest")
    for name in _CONSTRAINTS:
        assert reason_of(name) and "\n" not in reason_of(name)


def test_a_guard_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(QdqError, match=r"nearst: .*known: .*nearest"):
        constraint_named("nearst")


def test_the_other_operands_are_all_but_one_entry() -> None:
    view = view_of(TEXT)
    assert MatchSite(view, node_of(view, "add_self"), "conv").others() == ["conv"]
    assert MatchSite(view, node_of(view, "add_c3"), "conv").others() == ["c3"]
