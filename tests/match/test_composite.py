# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Patterns in ONNX text: how they are read, bound and refused (the spellings of real activations are in test_trie)."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.match.composite import Found, compile_composite, find_composite
from qdqtool.rule_kinds import Composite
from qdqtool.rulebook import load_rules
from tests.graphs import view_of

HEADER = "g (float[N] x) => (float[N] y)"
NET = "g (float[4] x, float[4] v) => (float[4] z{}) <float two = {{2}}, float[1] twos = {{2}}, float nearly = {{2.001}}, float off = {{2.01}}, float[2] pair = {{2,2}}> {{ a = Relu(x) {} z = Exp(y) }}"
TWICE = f"{HEADER} {{ two = Constant<value_float = 2.0>() m = Mul(x, two) y = Sub(m, x) }}"


def composite(*text: str) -> Composite:
    return Composite("test", ">=7.0", "why", "see", "guess", text=text)


def find(body: str, pattern: str = TWICE, outputs: str = "") -> Found | None:
    return find_composite(view_of(NET.format(outputs, body)), compile_composite(composite(pattern)), "a")


def test_a_pattern_has_operators_in_order_and_constants_by_value() -> None:
    (pattern,) = compile_composite(composite(TWICE))
    assert pattern.nodes == (("Mul", ("x", "two"), "m"), ("Sub", ("m", "x"), "y"))
    assert pattern.constants == {"two": 2.0} and pattern.output == "y"
    assert pattern.first_ops == ("Mul", "Sub"), "an operator that reads x stands there as often as it does"


def test_all_nodes_and_the_output_are_found() -> None:
    found = find("m = Mul(a, two) y = Sub(m, a)")
    assert found is not None
    assert [node.key for node in found.nodes] == ["m", "y"] and found.output == "y"


CASES = {
    "operands of a commutative operator turned": ("m = Mul(two, a) y = Sub(m, a)", True),
    "operands of another one turned": ("m = Mul(a, two) y = Sub(a, m)", False),
    "a constant of one element": ("m = Mul(a, twos) y = Sub(m, a)", True),
    "a constant of few digits": ("m = Mul(a, nearly) y = Sub(m, a)", True),
    "a constant that is off": ("m = Mul(a, off) y = Sub(m, a)", False),
    "a constant of two elements": ("m = Mul(a, pair) y = Sub(m, a)", False),
    "no constant": ("m = Mul(a, v) y = Sub(m, a)", False),
    "another tensor in place of x": ("m = Mul(a, two) y = Sub(m, v) o = Sub(a, v)", False),
    "a node more": ("m = Mul(a, two) e = Abs(m) y = Sub(e, a)", False),
    "x read elsewhere": ("m = Mul(a, two) y = Sub(m, a) o = Sub(a, v)", False),
    "an inner tensor read elsewhere": ("m = Mul(a, two) y = Sub(m, a) o = Abs(m)", False),
}


@pytest.mark.parametrize(("high", "there"), [(6, True), (5, False)])
def test_limits_that_an_old_clip_has_as_attributes_match(high: int, there: bool) -> None:
    pattern = f"{HEADER} {{ lo = Constant<value_float = 0.0>() hi = Constant<value_float = 6.0>() c = Clip(x, lo, hi) y = Exp(c) }}"
    view = view_of(
        f"g (float[4] x) => (float[4] z) {{ a = Relu(x) c = Clip<min=0.0, max={high}.0>(a) y = Exp(c) z = Abs(y) }}", 9
    )
    assert (find_composite(view, compile_composite(composite(pattern)), "a") is not None) is there


@pytest.mark.parametrize(("body", "there"), CASES.values(), ids=CASES)
def test_what_matches(body: str, there: bool) -> None:
    assert (find(body) is not None) is there


@pytest.mark.parametrize("name", ["a", "m"])
def test_an_inner_tensor_may_not_be_given_out(name: str) -> None:
    body = "m = Mul(a, two) y = Sub(m, a)"
    assert find(body) is not None
    assert find(body, outputs=f", float[4] {name}") is None


def test_the_output_may_be_read_by_anyone() -> None:
    assert find("m = Mul(a, two) y = Sub(m, a) o = Abs(y)", outputs=", float[4] y") is not None


@pytest.mark.parametrize("captured", ["a", "m"])
def test_a_body_that_reads_an_inner_tensor_stops_it(captured: str) -> None:
    branch = f"t () => (float[4] q) {{ q = Tanh({captured}) }}"
    text = NET.format(
        "", f"m = Mul(a, two) y = Sub(m, a) o = If<then_branch = {branch}, else_branch = {branch}>(c)"
    ).replace("float[4] v)", "float[4] v, bool c)")
    assert find_composite(view_of(text), compile_composite(composite(TWICE)), "a") is None


def test_the_first_spelling_that_fits_is_taken() -> None:
    patterns = compile_composite(composite(f"{HEADER} {{ y = Abs(x) }}", TWICE))
    assert find_composite(view_of(NET.format("", "m = Mul(a, two) y = Sub(m, a)")), patterns, "a") is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no graph", "test: its text is not valid ONNX"),
        ("g (float[N] a) => (float[N] y) { y = Relu(a) }", "the input x and the output y"),
        ("g (float[N] x) => (float[N] z) { z = Relu(x) }", "the input x and the output y"),
        ("g (float[N] x, float[N] v) => (float[N] y) { y = Add(x, v) }", "the input x and the output y"),
    ],
)
def test_a_text_that_is_no_composite_is_refused(text: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        compile_composite(composite(text))


def test_every_composite_of_ours_computes_something_from_x_alone() -> None:
    for rule in load_rules("gpu").composites:
        for pattern in compile_composite(rule):
            made = {"x", *pattern.constants}
            for _, inputs, output in pattern.nodes:
                assert set(inputs) <= made, (rule.name, inputs)
                made.add(output)
            assert pattern.nodes[-1][2] == "y"
