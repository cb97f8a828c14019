# SPDX-License-Identifier: Apache-2.0
"""How many parts of a graph the DLA gets, and which fallbacks cut it. Exp stands for whatever falls back."""

from __future__ import annotations

import pytest

from qdqtool.dla.subgraphs import Subgraphs, find_subgraphs
from tests.graphs import view_of

GPU = frozenset({"Exp", "Log"})


def parts(body: str, outputs: str = "float[N] z") -> Subgraphs:
    view = view_of(f"g (float[N] x) => ({outputs}) <float[1] unused> {{ {body} }}")
    reported = {
        node.key: "gpu" if node.op in GPU else "none" if node.op == "Identity" else "dla" for node in view.nodes
    }
    return find_subgraphs(view, reported)


CHAIN = "a = Relu(x) b = Exp(a) z = Relu(b)"


@pytest.mark.parametrize(
    ("body", "members"),
    [
        ("a = Relu(x) z = Relu(a)", [("a", "z")]),
        (CHAIN, [("a",), ("z",)]),
        ("a = Exp(x) z = Log(a)", []),
        ("a = Relu(x) b = Exp(a) c = Relu(a) z = Add(b, c)", [("a", "c"), ("z",)]),  # the way over b waits for a
        ("a = Relu(x) b = Exp(x) z = Add(a, b)", [("a", "z")]),  # a can wait for b
        ("a = Relu(x) b = Exp(a) c = Relu(x) d = Add(b, c) z = Relu(d)", [("a",), ("c", "d", "z")]),
        ("a = Relu(x) i = Identity(a) z = Relu(i)", [("a", "z")]),
        ("a = Relu(x) i = Identity(a) b = Exp(i) j = Identity(b) z = Relu(j)", [("a",), ("z",)]),
        ("a = Relu(x) b = Exp(a) c = Log(a) z = Add(b, c)", [("a",), ("z",)]),
    ],
)
def test_contiguous_parts(body: str, members: list[tuple[str, ...]]) -> None:
    assert list(parts(body).members) == members


def test_parts_without_a_common_tensor_are_apart() -> None:
    assert parts("y = Relu(x) z = Relu(x)", "float[N] y, float[N] z").members == (("y",), ("z",))


def test_which_fallback_cuts() -> None:
    (saving,) = parts(CHAIN).savings
    assert (saving.nodes, saving.left) == (("b",), 1)
    assert parts("a = Relu(x) b = Relu(a) z = Exp(b)").savings == ()  # at the end nothing is saved


def test_fallbacks_in_a_row_are_one_change() -> None:
    (saving,) = parts("a = Relu(x) b = Exp(a) c = Log(b) z = Relu(c)").savings
    assert saving.nodes == ("b", "c")


def test_the_change_that_saves_most_comes_first() -> None:
    body = "a = Relu(x) b = Exp(a) c = Relu(b) d = Exp(c) e = Relu(d) f = Relu(d) z = Add(e, f)"
    found = parts(body)
    assert len(found.members) == 3 and [one.nodes for one in found.savings] == [("b",), ("d",)]
    two = parts("a = Exp(x) b = Relu(a) c = Relu(a) y = Exp(b) z = Relu(c)", "float[N] y, float[N] z")
    assert [one.left for one in two.savings] == [1]  # a reads x and is read by both


def test_the_order_of_the_file_is_nothing() -> None:
    mixed = "z = Relu(b) b = Exp(a) a = Relu(x)"
    assert {frozenset(part) for part in parts(mixed).members} == {frozenset({"a"}), frozenset({"z"})}


def test_very_many_fallbacks_are_not_all_tried() -> None:
    body = " ".join(f"t{i} = {'Exp' if i % 2 else 'Relu'}({'x' if not i else f't{i - 1}'})" for i in range(140))
    found = parts(f"{body} z = Relu(t139)")
    assert found.untried == 70 - 64 and len(found.members) == 71


def test_fallbacks_side_by_side_are_one_change() -> None:
    found = parts("a = Relu(x) b = Exp(a) c = Log(a) d = Relu(b) e = Relu(c) z = Add(d, e)")
    assert [(one.nodes, one.left) for one in found.savings] == [(("b", "c"), 1)], "either alone leaves the other's cut"
