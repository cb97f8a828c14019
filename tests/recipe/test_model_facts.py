# SPDX-License-Identifier: Apache-2.0
"""Figures of model files, and hashes of what files hold."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from qdqtool import predicted_layers
from qdqtool.engine.layer_work import LayerWork, Product
from qdqtool.errors import QdqError
from qdqtool.forecasting.devices import load_device
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.match.plan import PlanOptions
from qdqtool.recipe.content_hash import ContentHashes
from qdqtool.recipe.model_facts import forecast_device, model_facts
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import model_of

CONV = """g (float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) <float[4, 3, 3, 3] w, float[4] b> { y = Conv(x, w, b) }"""


def test_pairs_change_neither_parameters_nor_products(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(model_of(CONV, 13, ir=8).SerializeToString())
    plain = model_facts(tmp_path / "m.onnx", load_device())
    assert (plain.parameters, plain.macs) == (4 * 27 + 4, 36 * 4 * 27)
    assert plain.file_bytes == (tmp_path / "m.onnx").stat().st_size
    options = InsertOptions(PlanOptions(float_heads="none"))
    insert(tmp_path / "m.onnx", options=options, output=tmp_path / "q.onnx")
    quantized = model_facts(tmp_path / "q.onnx", load_device())
    assert (quantized.parameters, quantized.macs) == (plain.parameters, plain.macs)
    assert quantized.bytes_moved is not None and plain.bytes_moved is not None
    beside_a_cache = model_facts(tmp_path / "m.onnx", load_device(), whole=False)
    assert (
        beside_a_cache.macs == plain.macs and beside_a_cache.bytes_moved is beside_a_cache.forecast_microseconds is None
    )
    times = LayerTimes(load_device())
    product, ends = Product(1, 36, 4, 27, 9), ({"x": 4 * 3 * 64}, {"y": 4 * 4 * 36})  # FP32 at the ends, FP16 weights
    time = times.total([LayerWork("", "convolution", (), "half", (product,), *ends, 2 * 112)])
    assert plain.forecast_microseconds == pytest.approx(time, abs=1e-3)
    assert quantized.forecast_microseconds is not None
    assert quantized.forecast_microseconds > time + times.launch / 2, "a layer that quantizes comes before it"


def test_a_forecast_is_for_the_device_that_is_named_or_for_none(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(CONV, 13, ir=8).SerializeToString())
    named, none = model_facts(path, load_device("rtx4090")), model_facts(path, None)
    assert (named.forecast_for, none.forecast_for, none.forecast_microseconds) == ("rtx4090", "none", None)
    assert named.forecast_microseconds is not None and named.bytes_moved == none.bytes_moved
    assert forecast_device("none") is None and forecast_device(None) == load_device()
    with pytest.raises(QdqError, match="no such device"):
        forecast_device("abacus")


def test_an_unknown_shape_gives_no_products(tmp_path: Path) -> None:
    text = CONV.replace("float[N, 3, 8, 8]", "float[N, 3, H, 8]").replace("float[N, 4, 6, 6]", "float[N, 4, K, 6]")
    (tmp_path / "m.onnx").write_bytes(model_of(text, 13, ir=8).SerializeToString())
    facts = model_facts(tmp_path / "m.onnx", load_device())
    assert (facts.macs, facts.bytes_moved, facts.parameters) == (None, None, 112)
    assert facts.forecast_microseconds is None


def test_hashes_are_of_content(tmp_path: Path) -> None:
    hashes = ContentHashes(tmp_path / "memory.json")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("1")
    assert hashes.of(tmp_path / "a") == hashes.of(tmp_path / "b") != hashes.of(tmp_path / "a" / "x")
    (tmp_path / "b" / "x").rename(tmp_path / "b" / "y")
    assert hashes.of(tmp_path / "a") != hashes.of(tmp_path / "b")
    with pytest.raises(QdqError, match="cannot be read"):
        hashes.of(tmp_path / "c")


def test_an_old_file_is_not_read_again(tmp_path: Path) -> None:
    memory, path = tmp_path / "memory.json", tmp_path / "x"
    path.write_text("1")
    hashes = ContentHashes(memory)
    known = hashes.of(path)
    hashes.save()
    entry = ContentHashes(memory)._known
    assert entry == {}, "a file that has just changed may change again within one tick"
    hashes._known[os.path.realpath(path)] = {"stat": [*_stat(path)], "sha256": "kept"}
    assert hashes.of(path) == "kept"
    path.write_text("2")
    assert hashes.of(path) not in ("kept", known)


def _stat(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def test_data_beside_a_model_count(tmp_path: Path) -> None:
    model = model_of(CONV, 13, ir=8)
    convert_model_to_external_data(model, location="w.bin", size_threshold=0)
    onnx.save(model, tmp_path / "m.onnx")
    hashes = ContentHashes(tmp_path / "memory.json")
    before = hashes.of(tmp_path / "m.onnx")
    data = bytearray((tmp_path / "w.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "w.bin").write_bytes(data)
    assert hashes.of(tmp_path / "m.onnx") != before


def test_where_the_file_decides_the_types_floats_count_as_it_has_them(tmp_path: Path) -> None:
    """One table had a row in the types of its file and others with floats as FP16, all for TensorRT 11."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(CONV, 13, ir=8).SerializeToString())
    chosen, typed = model_facts(path, load_device()), model_facts(path, load_device(), typed=True)
    assert typed.bytes_moved == predicted_layers(path, "11.1.0").forecast.bytes_moved
    assert chosen.bytes_moved == predicted_layers(path).forecast.bytes_moved
    assert (chosen.typed, typed.typed) == (False, True)
    assert typed.bytes_moved - chosen.bytes_moved == 2 * 112, "the weights; input and output are FP32 either way"  # type: ignore[operator]
