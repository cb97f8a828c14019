# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A cache against what the constants of a model hold: exports of other numbering are told, sound caches are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cache.other_export import ConstantFact
from qdqtool.cache.text import Cache, read_cache
from qdqtool.graph.io import open_model
from qdqtool.graph.view import GraphView
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.export_evidence import constant_facts, export_evidence
from tests.graphs import model_of

NET = """g (float[1,2,4,4] x) => (float[1,2,4,4] z) <float[2,2,1,1] w, float[2] zeros = {0, 0}, float[2] k = {-3, 1}, int64[1] axis = {2}, float[0] none>
 { c = Conv(x, w) n = InstanceNormalization(c, k, zeros) s = Shape(n) r = Relu(n) j = Concat<axis=0>(k, zeros) u = Unsqueeze(j, axis) z = Relu(r) }"""


def cache_of(**amax: float) -> Cache:
    return Cache.of(TrtVersion(8, 0, 1), {name: np.float32(value / 127) for name, value in amax.items()})


def test_what_constants_hold() -> None:
    view = GraphView(model_of(NET).graph)
    facts, integers = constant_facts(view, ["zeros", "k", "axis", "c", "none", "absent"])
    assert facts["zeros"].amax == 0 and facts["k"].amax == 3
    assert "none" not in facts or facts["none"] == ConstantFact(None)
    assert integers == {"axis"} and "c" not in facts
    assert {"c", "n", "k", "j"} <= set(facts["zeros"].neighbors)


def test_a_cache_with_ranges_of_zeros_is_of_another_export() -> None:
    found = export_evidence(open_model(model_of(NET)), cache_of(x=1, c=2, zeros=0.2, k=2.5, s=4, axis=2))
    assert found.is_proof and found.empty == ("zeros",)
    assert set(found.integers) == {"s", "axis"}


def test_a_sound_cache_is_taken() -> None:
    found = export_evidence(open_model(model_of(NET)), cache_of(x=1, c=2, n=3, zeros=1e-7, k=2.9, s=4))
    assert not found and found.integers == ()


@pytest.mark.shared
def test_the_published_pair_is_of_two_exports_and_eight_off(shared: Path) -> None:
    folder = shared / "trt" / "pairs" / "lannyyip_share"
    for name in ("model.onnx", "my_model.onnx"):
        found = export_evidence(open_model(folder / name), read_cache(folder / "calibration.cache"))
        assert found.is_proof and found.shift == -8
        assert found.fits == (74, 35, 74)
        held = {
            node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t)
            for node in onnx.load(folder / name).graph.node
            if node.op_type == "Constant"
        }
        assert all(not held[key].size or not held[key].any() for key in found.empty)
        assert len(found.empty) == 10 and len(found.constants) == 17
