# SPDX-License-Identifier: Apache-2.0
"""The file of `peel --emit json` read back: what its writer wrote, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qdqtool.emit.job import EmitJob
from qdqtool.emit.layers import FloatLayer
from qdqtool.emit.precision_json import write_precision_json
from qdqtool.emit.read_precisions import LayerPrecisions, read_precisions
from qdqtool.errors import QdqError
from qdqtool.trtversion import parse

HEAD = FloatLayer("y", "head", "Conv", "fp32", ("y",), True, "a regression head")
PLAIN = FloatLayer("a", "add", "Add", "fp16", ("a",), False, "float under Q/DQ")
UNNAMED = FloatLayer("u", "", "Split", "fp16", ("u", "v"), False, "float under Q/DQ", "Split becomes several layers")


def written(folder: Path, *layers: FloatLayer) -> Path:
    job = EmitJob("m.onnx", "m.cache", "m", "gpu", parse("8502"), layers, {"x": np.float32(0.5)})
    path = folder / "m.precision.json"
    path.write_text(write_precision_json(job).text, encoding="utf-8")
    return path


def test_what_the_writer_wrote(tmp_path: Path) -> None:
    found = read_precisions(written(tmp_path, HEAD, PLAIN, UNNAMED))
    assert found == LayerPrecisions(
        {"head": "fp32", "add": "fp16"}, {"head": "fp32"}, {"y": "fp32", "a": "fp16", "u": "fp16", "v": "fp16"}
    )
    assert found and not read_precisions(written(tmp_path))


@pytest.mark.parametrize(
    ("name", "outputs", "precision", "typed"),
    [
        ("head", ("y",), "fp32", True),
        ("add", ("a",), "fp16", False),
        ("made up by TensorRT", ("v",), "fp16", True),
        ("other", ("z",), "", True),
        ("other", (), "", True),
    ],
)
def test_layers_by_name_and_by_what_they_make(
    tmp_path: Path, name: str, outputs: tuple[str, ...], precision: str, typed: bool
) -> None:
    found = read_precisions(written(tmp_path, HEAD, PLAIN, UNNAMED))
    assert found.of(name, outputs) == precision
    assert not precision or found.is_typed(name, outputs) is typed


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "is not a file of layer precisions"),
        ({"schema": 1}, "is not a file of layer precisions"),
        ({"schema": 2, "layers": {}}, "is not a file of layer precisions"),
        ({"schema": 1, "layers": {"a": "int8"}}, "neither fp16 nor fp32"),
        ({"schema": 1, "layers": {"a": []}}, "neither fp16 nor fp32"),
        ({"schema": 1, "layers": [], "output_types": {}}, "neither fp16 nor fp32"),
    ],
)
def test_what_is_none_is_one_line(tmp_path: Path, document: object, reason: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(QdqError, match=f"p.json: .*{reason}"):
        read_precisions(path)
