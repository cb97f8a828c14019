# SPDX-License-Identifier: Apache-2.0
"""Arrays that describe a tensor moved as the tensor is: against numpy on the whole tensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.graph.channels.relayout import concatenated, padded, reshaped, taken, transposed
from qdqtool.graph.shape_values import Shape

ROW = np.arange(6).reshape(1, 6, 1, 1)
FULL = (2, 6, 4, 3)


@pytest.mark.parametrize(
    "after",
    [(2, 6, 12), (12, 4, 3), (2, 72), (2, 2, 3, 4, 3), (2, 6, 2, 2, 3), (144,), (2, 3, 2, 4, 1, 3), (2, 1, 6, 4, 3)],
)
def test_a_reshape_moves_channels_as_numpy_moves_the_tensor(after: tuple[int, ...]) -> None:
    whole = np.broadcast_to(ROW, FULL).reshape(after)
    found = reshaped(ROW, FULL, after, 1000)
    assert found is not None and (np.broadcast_to(found, after) == whole).all()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FULL, (2, 5, 12)),  # not as many places
        (FULL, None),
        (None, (2, 72)),
        ((2, 5, 4, 3), (2, 60)),  # not the shape of what is described
        ((1, 6, 0, 3), (1, 0)),
    ],
)
def test_a_reshape_that_cannot_be_described(before: Shape | None, after: Shape | None) -> None:
    assert reshaped(ROW, before, after, 1000) is None


def test_a_reshape_of_what_is_alike_everywhere_needs_no_shapes() -> None:
    assert reshaped(np.full((1, 1), 7), None, (3, None, 2), 1) == np.full((1, 1, 1), 7)


def test_no_more_elements_than_asked_for() -> None:
    assert reshaped(ROW, FULL, (2, 72), 71) is None
    assert reshaped(ROW, FULL, (2, 72), 72) is not None
    assert concatenated([ROW, ROW], 1, [6, 6], 11) is None
    assert taken(ROW, 1, np.arange(6), 5) is None


@pytest.mark.parametrize(
    ("before", "after", "exact", "loose"),
    [
        ((None, 6, 4), (None, 24), True, True),  # the batch stays the batch
        ((None, 6, 4), (None, 3, 2, 4), True, True),
        ((None, 6, 4), (24, None), False, True),  # 6 * 4 places may lie on several rows
        ((None, 6, None), (None, 6), False, True),
    ],
)
def test_free_axes_are_followed_exactly_only_where_they_are_the_batch(
    before: Shape, after: Shape, exact: bool, loose: bool
) -> None:
    row = np.arange(6).reshape(1, 6, 1)
    assert (reshaped(row, before, after, 1000, exact=True) is not None) == exact
    assert (reshaped(row, before, after, 1000) is not None) == loose


def test_a_transpose_of_fewer_axes_than_it_orders() -> None:
    found = transposed(np.arange(3), [0, 2, 1])
    assert found is not None and found.shape == (1, 3, 1)
    assert transposed(ROW, [1, 0]) is None


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([6, 2], [0, 1, 2, 3, 4, 5, 9, 9]), ([6, None], None), ([6, 0], None)],
)
def test_concatenated_widens_what_is_alike(sizes: list[int | None], expected: list[int] | None) -> None:
    found = concatenated([ROW, np.full((1, 1, 1, 1), 9)], 1, sizes, 100)
    assert (None if found is None else found.reshape(-1).tolist()) == expected


def test_concatenated_refuses_shapes_that_contradict() -> None:
    assert concatenated([np.zeros((2, 3)), np.zeros((2, 4))], 0, [2, 2], 100) is None


@pytest.mark.parametrize(
    ("axis", "index", "expected"),
    [
        (1, slice(1, None, 2), [1, 3, 5]),
        (-3, slice(-2, None), [4, 5]),
        (1, slice(None, None, -1), [5, 4, 3, 2, 1, 0]),
        (1, np.array([[5], [0]]), [5, 0]),
        (1, np.array(-1), [5]),
        (1, np.array([6]), None),
        (1, np.array([], np.int64), None),
        (4, slice(0, 1), None),
    ],
)
def test_taken_gives_the_places_asked_for(axis: int, index: np.ndarray | slice, expected: list[int] | None) -> None:
    found = taken(ROW, axis, index, 100)
    assert (None if found is None else found.reshape(-1).tolist()) == expected


def test_taken_along_an_axis_where_all_is_alike() -> None:
    assert taken(ROW, 2, slice(0, 2), 100) is ROW
    found = taken(ROW, 0, np.array([1, 1]), 100)
    assert found is not None and found.shape == (1, 6, 1, 1), "it stays alike"


def test_padded_puts_axes_in_front() -> None:
    assert padded(np.zeros((2, 3)), 4).shape == (1, 1, 2, 3)
    assert padded(np.zeros((2, 3)), 1).shape == (2, 3)


@given(st.permutations(range(4)), st.sampled_from([0, 1, 2, 3]))
def test_transposes_and_reshapes_agree_with_numpy_for_every_axis(order: list[int], axis: int) -> None:
    shape = [2, 3, 4, 5]
    row = np.arange(shape[axis]).reshape([-1 if place == axis else 1 for place in range(4)])
    turned = transposed(row, order)
    assert turned is not None
    after = [shape[place] for place in order]
    flat = reshaped(turned, tuple(after), (after[0], -1 * -after[1], after[2] * after[3]), 1000)
    whole = np.broadcast_to(row, shape).transpose(order).reshape(after[0], after[1], -1)
    assert flat is not None and (np.broadcast_to(flat, whole.shape) == whole).all()
