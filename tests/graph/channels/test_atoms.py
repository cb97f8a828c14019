# SPDX-License-Identifier: Apache-2.0
"""Atoms of tensors and their union-find: what is one channel stays one, in whatever order that is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.graph.channels.atoms import MOST, NONE, PINNED, ChannelAtoms
from qdqtool.graph.shape_values import Shape
from tests.graphs import view_of

TEXT = "g (float[1,4,2,2] x) => (float[1,4,2,2] y) <float[4] c> { a = Relu(x)  y = Relu(a) }"


def atoms_of(shape: Shape = (1, 4, 2, 2)) -> ChannelAtoms:
    return ChannelAtoms(view_of(TEXT), {"x": shape, "a": shape})


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_atoms_are_new_for_each_index_of_an_axis() -> None:
    atoms = atoms_of()
    first, second = atoms.mark("x", 1), atoms.mark("a", 2)
    assert first is not None and second is not None
    assert (first.tolist(), second.tolist(), atoms.size) == ([2, 3, 4, 5], [6, 7], 8)
    assert (atoms.of("x").shape, atoms.of("a").shape) == ((1, 4, 1, 1), (1, 1, 2, 1))


@pytest.mark.parametrize(("shape", "axis"), [((1, None, 2, 2), 1), ((1, 4), 2), ((), -1)])
def test_an_axis_of_unknown_size_has_no_atoms(shape: Shape, axis: int) -> None:
    atoms = atoms_of(shape)
    assert atoms.mark("x", axis) is None and atoms.row("x", axis) is None
    assert atoms.mark("y", 1) is None, "a tensor of unknown shape"


def test_what_nothing_was_said_of_is_pinned_and_constants_are_none() -> None:
    atoms = atoms_of()
    assert (atoms.of("a") == PINNED).all() and atoms.of("a").shape == (1, 1, 1, 1)
    assert (atoms.of("c") == NONE).all() and (atoms.of("") == NONE).all()
    assert not atoms.has("a")


@pytest.mark.parametrize(
    ("values", "row", "mixed"),
    [
        ([[2, 2], [3, 3], [4, 0], [0, 0]], [2, 3, 4, 0], []),
        ([[2, 3], [3, 3], [4, 4], [5, 5]], [3, 3, 4, 5], [2, 3, 4, 5]),
        ([[2, 1], [3, 3], [4, 4], [5, 5]], [2, 3, 4, 5], [1, 2, 3, 4, 5]),
    ],
)
def test_a_row_says_where_several_channels_meet(values: list[list[int]], row: list[int], mixed: list[int]) -> None:
    atoms = atoms_of()
    atoms.mark("x", 1)
    atoms.set("a", np.array(values).reshape(1, 4, 2, 1))
    found = atoms.row("a", 1)
    assert found is not None
    assert (found.atoms.tolist(), found.mixed.tolist()) == (row, mixed)


def test_a_row_of_what_is_alike_has_the_size_of_the_axis() -> None:
    row = atoms_of().row("a", 1)
    assert row is not None and row.atoms.tolist() == [PINNED] * 4


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9)), max_size=12), st.randoms())
def test_unions_do_not_depend_on_their_order(pairs: list[tuple[int, int]], random: st.DataObject) -> None:
    mixed = list(pairs)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    found = []
    for one in (pairs, mixed):
        atoms = atoms_of((1, 8, 2, 2))
        marked = atoms.mark("x", 1)
        assert marked is not None
        for left, right in one:
            atoms.union(array(left), array(right))
        found.append(atoms.find(marked).tolist())
        assert all(atoms.find(array(a)) == atoms.find(array(b)) for a, b in one)
        assert (atoms.find(marked) <= marked).all(), "the least atom stands for its class"
    assert found[0] == found[1]


def test_what_is_one_with_a_pinned_channel_is_pinned_and_none_goes_with_any() -> None:
    atoms = atoms_of()
    atoms.mark("x", 1)
    atoms.union(array(2, 3, NONE), array(3, NONE, 4))
    atoms.pin(array(2))
    assert atoms.pinned(array(2, 3, 4, 5)).tolist() == [True, True, False, False]
    assert atoms.find(array(NONE)).tolist() == [NONE]


def test_what_stands_at_one_place_is_united() -> None:
    atoms = atoms_of()
    atoms.mark("x", 1)
    found = atoms.united([array(2, NONE, 4), array(3), array(NONE, NONE, 5)])
    assert found is not None and found.tolist() == [2, 3, 4]
    assert atoms.find(array(2, 3, 4, 5)).tolist() == [2] * 4, "a channel that is broadcast joins all"
    assert atoms.united([array(2, 3), array(2, 3, 4)]) is None
    assert atoms.united([np.zeros((MOST, 1), np.int64), array(2, 3)]) is None


def test_what_was_joined_and_pinned_can_be_taken_back() -> None:
    atoms = ChannelAtoms(view_of("g (float[1] x) => (float[1] y) { y = Relu(x) }"), {})
    made = atoms.fresh(4)
    atoms.union(made[:1], made[1:2])
    saved = atoms.saved()
    atoms.pin(made[2:3], "because")
    atoms.union(made[:1], made[3:])
    later = atoms.fresh(1)
    atoms.restore(saved)
    assert atoms.find(made).tolist() == [2, 2, 4, 5] and atoms.find(later).tolist() == later.tolist()
    assert not atoms.pinned(made).any() and atoms.reason(4) == ""
