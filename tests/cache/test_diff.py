# SPDX-License-Identifier: Apache-2.0
"""Two caches side by side: each name once, scales by their bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.diff import diff
from qdqtool.cache.retarget import retarget
from qdqtool.cache.text import Cache, parse_cache, read_cache
from qdqtool.trtversion import TrtVersion

V8502 = TrtVersion(8, 5, 2)
tables = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0x3F800000, 0x3F800001, 0x3C000000]))


def cache_of(table: dict[str, int]) -> Cache:
    return Cache.of(V8502, {name: np.array(word, np.uint32).view(np.float32)[()] for name, word in table.items()})


@given(tables, tables)
def test_each_name_stands_in_one_place(a: dict[str, int], b: dict[str, int]) -> None:
    found = diff(cache_of(a), cache_of(b))
    assert set(found.only_first) == a.keys() - b.keys()
    assert set(found.only_second) == b.keys() - a.keys()
    assert {change.name for change in found.changed} == {name for name in a.keys() & b.keys() if a[name] != b[name]}
    assert set(found.same) == {name for name in a.keys() & b.keys() if a[name] == b[name]}
    assert found.differs == (a != b)
    assert found.differs == (cache_of(a) != cache_of(b))


@given(tables, tables)
def test_the_other_way_round(a: dict[str, int], b: dict[str, int]) -> None:
    one, other = diff(cache_of(a), cache_of(b)), diff(cache_of(b), cache_of(a))
    assert one.only_first == other.only_second
    assert {c.name: c.ratio for c in one.changed}.keys() == {c.name for c in other.changed}


def test_one_bit_is_a_change() -> None:
    found = diff(cache_of({"x": 0x3F800000}), cache_of({"x": 0x3F800001}))
    (change,) = found.changed
    assert change.ratio == 1 + 2**-23
    assert found.to_json()["changed"] == [{"name": "x", "a": "3f800000", "b": "3f800001", "ratio": 1 + 2**-23}]


def test_another_header_alone_differs() -> None:
    a = cache_of({"x": 0x3F800000})
    b = retarget(a, TrtVersion(7, 1, 3))
    found = diff(a, b)
    assert found.differs
    assert found.headers == ("TRT-8502-EntropyCalibration2", "TRT-7103-EntropyCalibration2")
    assert found.same == ("x",)


def test_an_unusable_entry_is_none() -> None:
    found = diff(parse_cache("1\nx: 0\ny: 1\n"), parse_cache("1\ny: 1\n"))
    assert not found.differs
    assert found.to_json()["counts"] == {"only_a": 0, "only_b": 0, "changed": 0, "same": 1}


@pytest.mark.shared
def test_a_cache_differs_from_its_retargeted_self_by_the_header_alone(shared: Path) -> None:
    compared = 0
    for path in sorted((shared / "trt" / "caches").iterdir()):
        if path.name == "MANIFEST.tsv":
            continue
        cache = read_cache(path)
        assert not diff(cache, cache).differs, path.name
        if cache.algorithm == "LegacyCalibration":
            continue
        found = diff(cache, retarget(cache, V8502))
        assert found.same == tuple(cache.entries), path.name
        assert not (found.only_first or found.only_second or found.changed), path.name
        compared += 1
    assert compared
