# SPDX-License-Identifier: Apache-2.0
"""Laws of `engine`: what is written is read back; an engine is equal to itself; every layer stands in one group."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.engine.built_info import layers_document
from qdqtool.engine.diff import align_layers
from qdqtool.engine.layer_info import EngineInfo, EngineLayer, LayerTensor
from qdqtool.engine.read_info import info_in, read_layer_info
from qdqtool.engine.totals import totals_of
from qdqtool.verbs.show_engine import show_engine
from tests.conftest import shared_folder

_SEPARATORS = "\x1e\x1f\n"
NAMES = st.text(st.characters(exclude_characters=_SEPARATORS, exclude_categories=["Cs"]), min_size=1, max_size=8)
TENSORS = st.builds(
    LayerTensor,
    st.sampled_from(["Int8", "Half", "Float", "FP8", "Int32", "Bool"]),
    NAMES,
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.sampled_from(["(NHWC) Channel major format", "(Linear) Row major linear format", ""]),
)
SOME = st.lists(TENSORS, max_size=3).map(tuple)
KINDS = st.sampled_from(["correlation", "gemm", "kgen", "maxpool", "Move"])
LAYERS = st.lists(
    st.builds(
        EngineLayer,
        NAMES,
        KINDS,
        st.lists(NAMES, max_size=3, unique=True).map(tuple),
        SOME,
        SOME,
        NAMES,
        constants=SOME,
    ),
    min_size=1,
    max_size=6,
)
_ENGINES = sorted((shared_folder() or Path()).glob("trt/engines/*/*.json"))


@given(LAYERS)
def test_layers_that_are_written_are_read_back(layers: list[EngineLayer]) -> None:
    info = EngineInfo(Path("e"), tuple(layers), "built", "1.7.1.116", "built")
    path = Path("e.layers.json")
    found = info_in(path, json.loads(layers_document(info, {})))
    assert found.layers == info.layers
    assert totals_of(found) == totals_of(info)
    assert totals_of(info).bytes_moved == sum(layer.bytes_moved or 0 for layer in layers)


@given(LAYERS)
def test_every_layer_stands_in_one_group(layers: list[EngineLayer]) -> None:
    info = EngineInfo(Path("e"), tuple(layers), "built", "1.7.1.116", "built")
    if not any(layer.metadata for layer in info.layers):
        return
    groups = align_layers(info, info)
    for side in ("a", "b"):
        counts = Counter(id(layer) for row in groups for layer in getattr(row, side))
        assert set(counts.values()) <= {1}
    assert all(row.a == row.b for row in groups)
    assert not {row.change for row in groups} & {"types", "split", "merged", "only A", "only B"}


@pytest.mark.shared
@pytest.mark.parametrize("path", _ENGINES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_published_engine_is_equal_to_itself(path: Path) -> None:
    info = read_layer_info(path)
    groups = align_layers(info, info)
    assert {row.change for row in groups} <= {"same", "regrouped"} and all(row.a == row.b for row in groups)
    assert show_engine(path).totals == totals_of(info) and isinstance(info, EngineInfo)
