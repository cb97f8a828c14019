# SPDX-License-Identifier: Apache-2.0
"""Two caches side by side: which scales are equal, one unit apart, further apart, or on one side alone."""

from __future__ import annotations

import numpy as np

from qdqtool.cache.text import Cache
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.ptq_compare import BackendComparison, compared

V10 = TrtVersion(10, 13, 3)


def side(**scales: float | np.float32) -> Cache:
    return Cache.of(V10, {name: np.float32(value) for name, value in scales.items()})


def both(ours: Cache, theirs: Cache) -> BackendComparison:
    return compared(ours, theirs, "10.13.3.9", "entropy", 6)


def test_equal_one_ulp_and_different() -> None:
    one = np.float32(0.01)
    ulp, two = np.nextafter(one, np.float32(1)), np.nextafter(np.nextafter(one, np.float32(1)), np.float32(1))
    found = both(side(a=one, b=one, c=one, d=ulp), side(a=one, b=ulp, c=two, d=one))
    assert found.equal == ("a",) and [pair.name for pair in found.near] == ["b", "d"]
    assert [(pair.name, pair.ulps) for pair in found.different] == [("c", 2)]


def test_the_largest_ratio_comes_first_up_or_down() -> None:
    found = both(side(a=1, b=1, c=1), side(a=1.5, b=0.25, c=2))
    assert [(pair.name, pair.ratio) for pair in found.different] == [("b", 0.25), ("c", 2.0), ("a", 1.5)]


def test_names_of_one_side_alone_and_the_document() -> None:
    found = both(side(a=1, b=1), side(a=2, c=1))
    assert (found.only_embedded, found.only_tensorrt) == (("b",), ("c",))
    document = found.to_json()
    assert document["counts"] == {
        "equal": 0,
        "within_1_ulp": 0,
        "different": 1,
        "only_embedded": 1,
        "only_tensorrt": 1,
    }
    change = {"tensor": "a", "embedded": "3f800000", "tensorrt": "40000000", "ratio": 2.0, "ulps": 1 << 23}
    assert document["differences"] == [change]
    assert (document["only_embedded"], document["only_tensorrt"]) == (["b"], ["c"])
