# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The walk across operators that hand values on: what it crosses, where it ends, up and down, and each read once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.match.flow import Flow, commuting, joins, value_inputs, value_names, walk
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import load_rules
from tests.graphs import view_of

# Two branches of one Split, one of them moved, joined again; after that a computing operator and an output that holds the values.
TEXT = """g (float[4,4,4] x, float[4,4,4] z, int64[4] where) => (float[8,4,4] y, float[8,16] out) <int64[2] halves = {2, 2}, int64[2] rows = {8, 16}> {
  r = Relu(x) p, q = Split<axis=0>(r, halves) t = Transpose(q) n = Neg(p)
  c = Concat<axis=0>(p, t, z) out = Reshape(c, rows) y = Relu(c) s = Shape(c) k = Gather(where, s) }"""


def moving(view: GraphView, **more: Callable[..., object]) -> Flow:
    ops = operator_set("moving")
    return Flow(view, lambda node: node.op in ops, **more)  # type: ignore[arg-type]


def shown(uses: list[Use]) -> list[str]:
    return [f"{use.node.key}.{use.index}" for use in uses]


@pytest.mark.parametrize(
    ("node", "indices"),
    [
        ("y = Concat<axis=0>(x, x)", [0, 1]),
        ("y = Gather(x, w)", [0]),
        ("y = Reshape(x, w)", [0]),
        ("y = MaxPool<kernel_shape=[1]>(x)", [0]),
        ("y = Resize(x, , w)", [0]),
        ("y = my.Concat(x, x)", [0]),  # of another domain: nobody knows
        ("y = RandomNormal<shape=[1]>()", []),
    ],
)
def test_the_inputs_whose_values_an_operator_hands_on(node: str, indices: list[int]) -> None:
    view = view_of(f"g (float[4] x, int64[1] w) => (y) {{ {node} }}")
    found = view.nodes[0]
    assert value_inputs(found) == indices and value_names(found) == ["x"] * len(indices)
    assert joins(found) is (len(indices) > 1)


def test_down_crosses_what_moves_and_ends_at_what_computes() -> None:
    view = view_of(TEXT)
    flow = moving(view)
    met = list(flow.down(view.consumers("r")))
    assert shown([use for use, across in met if across]) == ["p.0", "c.0", "out.0", "t.0", "c.1"]
    assert shown([use for use, across in met if not across]) == ["n.0", "y.0", "s.0"]
    assert shown(list(flow.ends(view.consumers("r")))) == ["n.0", "y.0", "s.0"]


def test_an_input_that_says_where_is_an_end() -> None:
    view = view_of(TEXT)
    flow = moving(view)
    gather = view.producers["k"]
    assert not flow.crosses(Use(gather, 1)) and flow.crosses(Use(gather, 0))
    assert shown(list(flow.ends(view.consumers("s")))) == ["k.1"]


def test_the_tensors_that_hold_the_values_of_one() -> None:
    assert set(moving(view_of(TEXT)).tensors("r")) == {"r", "p", "q", "t", "c", "out"}
    assert list(moving(view_of(TEXT)).tensors("out")) == ["out"]


@pytest.mark.parametrize(
    ("name", "stop", "found"),
    [
        ("out", (), ["r", "z"]),
        ("c", (), ["r", "z"]),
        ("out", ("q",), ["r", "q", "z"]),
        ("out", ("out",), ["out"]),
        ("y", (), ["y"]),
        ("x", (), ["x"]),
        ("rows", (), ["rows"]),
    ],
)
def test_where_values_come_from(name: str, stop: tuple[str, ...], found: list[str]) -> None:
    assert sorted(set(moving(view_of(TEXT)).origins(name, stop.__contains__))) == sorted(found)


def test_up_gives_every_read_on_the_way_once() -> None:
    view = view_of(TEXT)
    reads = list(moving(view).up([Use(view.producers["y"], 0), Use(view.producers["out"], 0)]))
    assert shown([use for use, _ in reads]) == ["y.0", "c.0", "p.0", "c.1", "t.0", "c.2", "out.0"]
    assert [across for _, across in reads] == [True, True, False, True, True, False, True]


def test_constants_are_where_values_come_from() -> None:
    view = view_of("g (float[2] x) => (float[4] y) <float[2] w> { t = Identity(w) y = Concat<axis=0>(x, t) }")
    assert list(moving(view).origins("y")) == ["x", "t"]


PAIRED = """g (float[2,2] x) => (float[2,2] y) <float s = {0.1}, int8 z = {0}> {
  t = Transpose(x) t_q = QuantizeLinear(t, s, z) t_dq = DequantizeLinear(t_q, s, z) u = Transpose(t_dq) y = Relu(u) }"""


def test_pairs_are_seen_through_or_end_a_walk_as_the_caller_says() -> None:
    view = view_of(PAIRED)
    assert list(moving(view).origins("u")) == ["x"]
    assert list(moving(view).origins("u", lambda name: name == "t_dq")) == ["t_dq"]
    assert list(moving(view, producer=view.producers.get).origins("u")) == ["t_dq"]
    assert shown(list(moving(view).ends(view.consumers("x")))) == ["y.0"]
    none: Callable[[str], list[Use]] = lambda name: []  # noqa: E731 - a table of no readers
    assert shown([use for use, _ in moving(view, consumers=none).down(view.consumers("x"))]) == ["t.0"]


def test_each_operator_is_judged_once() -> None:
    view, asked = view_of(TEXT), list[str]()

    def moves(node: Node) -> bool:
        asked.append(node.key)
        return node.op in operator_set("moving")

    flow = Flow(view, moves)
    assert [node.key for node in flow.nodes()] == ["p", "t", "c", "out", "k"]
    assert flow.nodes() == flow.nodes() and len(asked) == len(set(asked)) == len(view.nodes)


def test_long_chains_and_diamonds_are_walked_in_one_go() -> None:
    links = " ".join(
        f"a{i} = Identity(d{i}) b{i} = Identity(d{i}) d{i + 1} = Concat<axis=0>(a{i}, b{i})" for i in range(60)
    )
    view = view_of(f"g (float[1] d0) => (float[N] y) {{ {links} y = Relu(d60) }}")
    flow = moving(view)
    assert set(flow.origins("d60")) == {"d0"}
    assert sum(1 for _ in flow.up([Use(view.producers["y"], 0)])) == 4 * 60 + 1
    assert shown(list(flow.ends(view.consumers("d0")))) == ["y.0"]


def test_a_walk_asks_what_follows_as_it_goes() -> None:
    view, stopped = view_of(TEXT), set[str]()
    flow = moving(view)
    seen = []
    for use, across in walk(
        [Use(view.producers["y"], 0)],
        lambda use: None if use.node.key in stopped else flow.sources(view.producers["c"]),
    ):
        stopped.add("c")  # from now on
        seen.append((use.node.key, across))
    assert seen == [("y", True), ("c", False), ("c", False), ("c", False)]


@pytest.mark.parametrize(
    ("node", "crossed"),
    [
        ("y = Transpose(x)", True),
        ("y = MaxPool<kernel_shape=[1,1]>(x)", True),
        ("y = Pad(x, p) q = MaxPool<kernel_shape=[1,1]>(y)", True),
        ("y = Pad(x, p)", False),
        ("y = Pad(x, p, one)", False),
        ('y = Resize<mode="nearest">(x, , h)', True),
        ('y = Resize<mode="linear">(x, , h)', False),
        ("y = Gather(x, i)", True),
        ("y = Gather(x, j)", False),
        ("y = AveragePool<kernel_shape=[1,1]>(x)", False),
        ("y = Cast<to=1>(x)", False),
    ],
)
def test_what_the_rules_let_a_pair_be_moved_across(node: str, crossed: bool) -> None:
    constants = "int64[8] p = {0,0,1,1,0,0,1,1}, float one = {1}, float[4] h = {1,1,2,2}, int64[1] i = {0}"
    view = view_of(f"g (float[1,4,4,4] x, int64[1] j) => (y) <{constants}> {{ {node} }}")
    for target in ("gpu", "dla"):
        assert commuting(view, load_rules(target)).moves(view.nodes[0]) is crossed
