# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A cache beside a Q/DQ model: every pair that has the cache's bits is counted, every other one is named."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.cache.text import Cache
from qdqtool.match.plan import PlanOptions
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.check_cache import check_cache
from qdqtool.verbs.graft import GraftOptions, graft
from tests.graphs import model_of

NET = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w1, float[4,4,1,1] w2> { c = Conv(x, w1) r = Relu(c) d = Conv(r, w2) z = Relu(d) }"


def cache_of(**scales: float) -> Cache:
    return Cache.of(TrtVersion(8, 6, 1), {name: np.float32(scale) for name, scale in scales.items()})


FULL = cache_of(x=0.011, c=0.02, r=0.033, d=0.04, z=0.05)


def grafted(version: str) -> onnx.ModelProto:
    plan = PlanOptions(trt_version=version, float_heads="none")
    return graft(model_of(NET), FULL, GraftOptions(plan)).model


@pytest.mark.parametrize("version", ["8601", "11.4.1"])
def test_a_grafted_model_has_the_cache_s_bits_and_no_tensor_more(version: str) -> None:
    """With FP16 from TensorRT 11 on, whose Casts are seen through."""
    found = check_cache(grafted(version), FULL)
    assert found.pairs is not None and set(found.pairs.same) == {"x", "r"}
    assert not found.pairs.differing and not found.pairs.lacking
    assert found.passes(100) and found.matched == ("x", "c", "r", "d", "z")


def test_one_bit_fails() -> None:
    model = grafted("8601")
    other = cache_of(**{**{name: float(scale) for name, scale in FULL.entries.items()}, "r": np.nextafter(np.float32(0.033), np.float32(1))})  # fmt: skip
    found = check_cache(model, other)
    assert found.pairs is not None and set(found.pairs.differing) == {"r"} and not found.passes()
    mine, cached = found.pairs.differing["r"]
    assert int(cached, 16) - int(mine, 16) == 1


def test_pairs_that_the_cache_lacks_are_named() -> None:
    found = check_cache(grafted("8601"), cache_of(x=0.011))
    assert found.pairs is not None and found.pairs.lacking == ("r",) and found.passes()
    assert found.to_json()["pairs"] == {"same": ["x"], "differing": {}, "lacking": ["r"]}


def test_a_plain_model_has_no_pairs_to_compare() -> None:
    found = check_cache(model_of(NET), FULL)
    assert found.pairs is None and "pairs" not in found.to_json()
