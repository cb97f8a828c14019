# SPDX-License-Identifier: Apache-2.0
"""New names for those with a `:`: unlike any other, the same in every order, and scales that stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.sanitize import renamed, sanitized
from qdqtool.cache.text import Cache, parse_cache
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion

names = st.lists(st.text("ab:_1", min_size=1, max_size=5), unique=True)


@given(names, st.randoms(use_true_random=False))
def test_names_stay_apart_in_any_order(given_names: list[str], random: object) -> None:
    new = sanitized(given_names)
    assert set(new) == {name for name in given_names if ":" in name}
    assert not any(":" in name for name in new.values())
    after = [new.get(name, name) for name in given_names]
    assert len(set(after)) == len(given_names)
    assert not set(new.values()) & set(given_names)
    assert sanitized(reversed(given_names)) == new
    assert sanitized(after) == {}


@pytest.mark.parametrize(
    ("given_names", "new"),
    [
        (["conv1/Relu:0", "x"], {"conv1/Relu:0": "conv1/Relu_0"}),
        (["a:0", "a_0"], {"a:0": "a_0_1"}),
        (["a:0", "a_0", "a_0_1"], {"a:0": "a_0_2"}),
        (["a:b_", "a_b:"], {"a:b_": "a_b_", "a_b:": "a_b__1"}),
        (["::"], {"::": "__"}),
    ],
)
def test_which_names(given_names: list[str], new: dict[str, str]) -> None:
    assert sanitized(given_names) == new


@given(names)
def test_scales_and_order_stay(given_names: list[str]) -> None:
    entries = {name: np.float32(index + 1) for index, name in enumerate(given_names)}
    cache = Cache.of(TrtVersion(8, 5, 2), entries)
    after = renamed(cache, sanitized(given_names))
    assert list(after.entries.values()) == list(entries.values())
    assert after.colon_names == ()
    assert after.header == cache.header
    assert list(cache.entries) == given_names


def test_dropped_entries_are_renamed_too() -> None:
    cache = renamed(parse_cache("1\nx: 1\na:0: 0\n"), {"a:0": "a_0"})
    assert cache.dropped == (("a_0", "0", "zero"),)


def test_two_entries_never_become_one() -> None:
    with pytest.raises(QdqError, match="the same name"):
        renamed(parse_cache("1\nx: 1\ny: 2\n"), {"x": "y"})
