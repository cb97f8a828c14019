# SPDX-License-Identifier: Apache-2.0
"""Caches put together: every name once, conflicts refused by name or settled as asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.merge import OnConflict, merge
from qdqtool.cache.text import Cache, format_cache, parse_cache
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion

V8502 = TrtVersion(8, 5, 2)
tables = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4))


def cache_of(table: dict[str, int]) -> Cache:
    return Cache.of(V8502, {name: np.float32(value) for name, value in table.items()})


def named(tables: Sequence[dict[str, int]]) -> list[tuple[str, Cache]]:
    return [(f"{index}.cache", cache_of(table)) for index, table in enumerate(tables)]


@pytest.mark.parametrize(
    ("how", "pick"), [("first", lambda values: values[0]), ("last", lambda values: values[-1]), ("max", max)]
)
@given(several=st.lists(tables, min_size=1, max_size=4))
def test_every_name_with_the_scale_asked_for(
    how: OnConflict, pick: Callable[[list[int]], int], several: list[dict[str, int]]
) -> None:
    merged = merge(named(several), how)
    names = dict.fromkeys(name for table in several for name in table)
    assert list(merged.cache.entries) == list(names)
    for name in names:
        values = [table[name] for table in several if name in table]
        assert merged.cache.entries[name] == np.float32(pick(values))
        assert several[merged.chosen[name]][name] == pick(values)
        assert (name in merged.conflicts) == (len(set(values)) > 1)
    assert parse_cache(format_cache(merged.cache)) == merged.cache


@given(st.lists(tables, min_size=1, max_size=4))
def test_without_conflicts_nothing_needs_settling(several: list[dict[str, int]]) -> None:
    conflicts = {n for a in several for b in several for n in a.keys() & b.keys() if a[n] != b[n]}
    if conflicts:
        with pytest.raises(QdqError) as raised:
            merge(named(several))
        shown = [name for name in conflicts if f" {name} (" in raised.value.line()]
        assert len(shown) == min(3, len(conflicts))
    else:
        assert merge(named(several)).cache == merge(named(several), "max").cache
        assert merge(named(several)).conflicts == {}


def test_a_conflict_is_named_with_bits_and_files() -> None:
    with pytest.raises(QdqError) as raised:
        merge(named([{"x": 1, "y": 3}, {"x": 2, "y": 3}]))
    line = raised.value.line()
    assert line.startswith("merge: 1 tensor ") and ": x (3f800000 in 0.cache, 40000000 in 1.cache); " in line
    assert line.endswith(" --on-conflict first, last or max")


@pytest.mark.parametrize("header", ["TRT-7103-EntropyCalibration2", "TRT-8502-MinMaxCalibration", "1"])
def test_other_versions_and_algorithms_are_refused(header: str) -> None:
    with pytest.raises(QdqError, match=f"^b: .* {header}, a .*TRT-8502-EntropyCalibration2") as raised:
        merge([("a", cache_of({"x": 1})), ("b", parse_cache(f"{header}\ny: 1\n"))])
    assert "retarget" in raised.value.todo


def test_the_next_bit_is_a_conflict() -> None:
    a, b = parse_cache("1\nx: 3f800000\n"), parse_cache("1\nx: 3f800001\n")
    with pytest.raises(QdqError, match=r"1 tensor .*: x \(3f800000 in a, 3f800001 in b\)"):
        merge([("a", a), ("b", b)])
    assert merge([("a", a), ("b", b)], "max").cache == b


def test_unusable_entries_give_way() -> None:
    a, b = parse_cache("1\nx: 0\ny: 0\nz: 7f800000\n"), parse_cache("1\nx: 3f800000\ny: 0\n")
    merged = merge([("a", a), ("b", b)])
    assert list(merged.cache.entries) == ["x"]
    assert [name for name, *_ in merged.cache.dropped] == ["y", "z"]
