# SPDX-License-Identifier: Apache-2.0
"""The minimum cut: small networks by hand, random ones against every cut there is, and how the work grows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from qdqtool.precision.min_cut import INFINITE, FlowNetwork
from tests.steps import assert_linear

SOURCE, SINK = "s", "t"
Edges = list[tuple[str, str, int]]


def network_of(edges: Edges) -> FlowNetwork:
    network = FlowNetwork()
    for one, other, capacity in edges:
        if one == SOURCE:
            network.from_source(other, capacity)
        elif other == SINK:
            network.to_sink(one, capacity)
        else:
            network.add(one, other, capacity)
    return network


def side(edges: Edges) -> set[str]:
    return {name for name in network_of(edges).source_side() if isinstance(name, str)}


def test_an_edge_below_zero_carries_nothing() -> None:
    network = FlowNetwork()
    network.from_source("a", 3)
    network.to_sink("a", -1)
    assert "a" in network.source_side()


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        pytest.param([("s", "a", 3), ("a", "t", 1)], {"a"}, id="the cheaper of two edges"),
        pytest.param([("s", "a", 1), ("a", "t", 3)], set(), id="the other one"),
        pytest.param([("s", "a", 2), ("a", "t", 2)], set(), id="of two that cost the same the smaller side"),
        pytest.param(
            [("s", "a", INFINITE), ("a", "b", 1), ("b", "c", 5), ("c", "t", INFINITE)], {"a"}, id="in a chain"
        ),
        pytest.param(
            [
                ("s", "a", INFINITE),
                ("a", "m", 2),
                ("m", "b", INFINITE),
                ("m", "c", INFINITE),
                ("b", "t", 9),
                ("c", "t", 9),
            ],
            {"a"},
            id="one edge for two readers",
        ),
        pytest.param(
            [("s", "a", 10), ("s", "b", 10), ("a", "b", 1), ("a", "t", 4), ("b", "t", 12)],
            {"a"},
            id="what fills up is on the other side",
        ),
        pytest.param([("s", "a", 1), ("b", "t", 1)], {"a"}, id="parts that do not meet"),
    ],
)
def test_the_source_side_of_a_small_network(edges: Edges, expected: set[str]) -> None:
    assert side(edges) == expected


@pytest.mark.parametrize("seed", range(30))
def test_no_cut_is_cheaper(seed: int) -> None:
    values = random.Random(seed)
    names = list("abcdef")
    places = [(one, other) for one in [SOURCE, *names] for other in [*names, SINK] if one != other]
    places.remove((SOURCE, SINK))
    edges = [(one, other, values.randint(0, 9)) for one, other in places if values.random() < 0.4]

    def cost(chosen: set[str]) -> int:
        inside = {SOURCE, *chosen}
        return sum(capacity for one, other, capacity in edges if one in inside and other not in inside)

    subsets = [set(some) for count in range(7) for some in itertools.combinations(names, count)]
    found = side(edges)
    least = min(map(cost, subsets))
    assert cost(found) == least
    assert all(len(found) <= len(one) for one in subsets if cost(one) == least)


def test_work_grows_with_the_network() -> None:
    def make(size: int) -> Callable[[], object]:
        edges: Edges = []
        for at in range(size):
            edges += [("s", f"d{at}", INFINITE), (f"d{at}", f"m{at}", 3), (f"m{at}", f"n{at}", INFINITE)]
            edges += [(f"n{at}", "t", 2), (f"n{at}", f"d{at + 1}", 3)]
        network = network_of(edges)
        return network.source_side

    assert_linear(make, 40)
