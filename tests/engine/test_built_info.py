# SPDX-License-Identifier: Apache-2.0
"""Layers that were built here, written as an export and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.engine.built_info import built_line, layers_document
from qdqtool.engine.layer_info import EngineInfo, EngineLayer, LayerTensor
from qdqtool.engine.read_info import read_layer_info

X = LayerTensor("Int8", "x", (1, 4, 8, 8), "(NHWC) Channel major format")
LAYER = EngineLayer(
    "c_myl0",
    "correlation",
    ("c", "[odd] é\n", "node_of_y"),
    (X,),
    (X,),
    "k",
    constants=(LayerTensor("Int8", "w", (4, 4)),),
)
LINE = "TensorRT for RTX 1.7.1, built on a CPU for SM89; not run"


@pytest.mark.parametrize(
    ("version", "sm", "line"),
    [
        ("1.7.1.116", ("89",), LINE),
        ("1.7.1", ("89", "120"), f"{LINE.replace('SM89', 'SM89, SM120')}; layers of one of these"),
    ],
)
def test_the_line_that_says_what_was_built(version: str, sm: tuple[str, ...], line: str) -> None:
    assert built_line("TensorRT for RTX", version, sm) == line


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    info = EngineInfo(tmp_path / "e.engine", (LAYER, EngineLayer("k", "kgen")), "built", "1.7.1.116", LINE)
    path = tmp_path / "e.engine.layers.json"
    path.write_bytes(layers_document(info, {"model": "m.onnx"}))
    found = read_layer_info(path)
    assert (found.layers, found.built, found.version, found.source) == (info.layers, LINE, "1.7.1.116", "built")
    (layer, _) = found.layers
    assert layer.inputs[0].format_type() == "INT8:HWC" and layer.product_type == "INT8"
    assert layer.metadata == LAYER.metadata and layer.bytes_moved == 256 + 16 + 256


def test_the_form_is_that_of_an_export() -> None:
    info = EngineInfo(Path("e"), (LAYER,), "built", "1.7.1.116", LINE)
    document = json.loads(layers_document(info, {"sm": ["89"]}))
    assert document["qdqtool"] == {"schema": 1, "built": LINE, "version": "1.7.1.116", "sm": ["89"]}
    (entry,) = document["Layers"]
    assert entry["LayerType"] == "correlation" and entry["TacticName"] == "k"
    assert entry["Inputs"][0] == {
        "Name": "x", "Dimensions": [1, 4, 8, 8], "Format/Datatype": "Int8", "Format": "(NHWC) Channel major format",
    }  # fmt: skip
    assert entry["Metadata"].split("\x1f") == [f"[ONNX Layer: {name}]" for name in LAYER.metadata]


def test_same_layers_same_bytes() -> None:
    made = [
        layers_document(EngineInfo(Path("e"), (LAYER,), "built", "1", LINE), {"shapes": {"b": 1, "a": 2}})
        for _ in range(2)
    ]
    assert made[0] == made[1]
