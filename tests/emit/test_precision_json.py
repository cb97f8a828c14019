# SPDX-License-Identifier: Apache-2.0
"""The JSON of layers and scales, and the one way to every writer."""

from __future__ import annotations

import json
import struct

import pytest

from qdqtool.emit import ENDINGS, emit
from qdqtool.emit.precision_json import write_precision_json
from tests.emit.jobs import job_of, layer


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
