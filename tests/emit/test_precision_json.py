# SPDX-License-Identifier: Apache-2.0
"""The JSON of layers and scales, and the one way to every writer."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from qdqtool.emit import ENDINGS, emit
from qdqtool.emit.job import EmitJob
from qdqtool.emit.layers import FloatLayer
from qdqtool.emit.precision_json import LayerPrecisions, read_precisions, write_precision_json
from qdqtool.errors import QdqError
from qdqtool.trtversion import parse
from tests.emit.jobs import job_of, layer

HEAD = FloatLayer("y", "head", "Conv", "fp32", ("y",), True, "a regression head")
PLAIN = FloatLayer("a", "add", "Add", "fp16", ("a",), False, "float under Q/DQ")
UNNAMED = FloatLayer("u", "", "Split", "fp16", ("u", "v"), False, "float under Q/DQ", "Split becomes several layers")


def test_layers_tensors_and_version() -> None:
    lost = layer("", node="a,b", outputs=("a,b",), unnamed="its name")
    document = json.loads(write_precision_json(job_of(layers=(*job_of().layers, lost))).text)
    assert document["schema"] == 1 and document["tensorrt"] == "8.5.2" and document["target"] == "gpu"
    assert document["header"] == "TRT-8502-EntropyCalibration2"
    assert document["layers"] == {"head": "fp32", "stem": "fp16"}
    assert document["output_types"] == {"head": "fp32"}
    assert document["reasons"].keys() == document["layers"].keys()
    assert document["float_tensors"] == {"head_out": "fp32", "stem_out": "fp16", "a,b": "fp16"}
    assert document["unnamed"] == {"a,b": "its name"}


def test_a_scale_is_there_to_the_bit() -> None:
    entry = json.loads(write_precision_json(job_of()).text)["tensors"]["head_out"]
    (scale,) = struct.unpack(">f", bytes.fromhex(entry["scale"]))
    assert struct.pack(">f", scale) == struct.pack(">f", 0.1)
    assert entry["amax"] == scale * 127


def test_every_kind_has_a_writer_and_an_ending() -> None:
    texts = emit(job_of(), [*reversed(ENDINGS), "json"])
    assert list(texts) == ["trtexec", "polygraphy-script", "deepstream", "triton", "json"]
    assert len(set(ENDINGS.values())) == 5
    assert len({emitted.text for emitted in texts.values()}) == 5


@pytest.mark.parametrize("kind", ENDINGS)
def test_the_same_job_gives_the_same_text(kind: str) -> None:
    assert emit(job_of(), [kind]) == emit(job_of(), [kind])


def test_nothing_asked_for_nothing_made() -> None:
    assert emit(job_of(), []) == {}


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
