# SPDX-License-Identifier: Apache-2.0
"""Names that nothing else has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qdqtool.fresh_names import FreshNames

NAMES = st.sampled_from(["a", "a_1", "a_2", "a_1_1", "b", ""])


def test_the_first_free_number_is_taken() -> None:
    names = FreshNames(["a", "a_2"])
    assert [names.unique("a") for _ in range(3)] == ["a_1", "a_3", "a_4"]
    assert names.unique("b") == "b" and "b" in names and "c" not in names


def test_names_of_others_are_left_alone() -> None:
    names = FreshNames()
    names.add("a")
    names.add("a_1")
    assert names.unique("a") == "a_2"


@given(st.lists(NAMES), st.lists(NAMES))
def test_every_name_is_the_first_that_is_free(taken: list[str], bases: list[str]) -> None:
    names, used = FreshNames(taken), set(taken)
    for base in bases:
        expected = next(n for n in [base, *(f"{base}_{k}" for k in range(1, 99))] if n not in used)
        assert names.unique(base) == expected
        used.add(expected)
