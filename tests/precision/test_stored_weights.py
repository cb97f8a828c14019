# SPDX-License-Identifier: Apache-2.0
"""Weights in 16 bits: how they are rounded, and that a data file holds the same as the model would."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from qdqtool.graph.tensors import array_of, read_as
from qdqtool.precision import stored_weights
from qdqtool.precision.stored_weights import WeightFile, rounded_tensor, rounded_values
from tests.precision.typed import BF16, FP16, FP32

TINY = 2.0**-24


@pytest.mark.parametrize(
    ("value", "fp16", "bf16"),
    [
        (1.0, 1.0, 1.0),
        (1 + 2**-11, 1.0, 1.0),  # a tie: to even
        (1 + 3 * 2**-11, 1 + 2**-9, 1.0),
        (65519.0, 65504.0, 65536.0),
        (65520.0, 65504.0, 65536.0),  # the nearest would be infinity
        (-1e30, -65504.0, float(np.float32(-1e30).view("u4") and -1.0012e30)),
        (TINY / 2, 0.0, TINY / 2),
        (TINY * 0.75, TINY, TINY * 0.75),
        (np.inf, np.inf, np.inf),
    ],
)
def test_values_are_rounded_to_the_nearest_and_stay_finite(value: float, fp16: float, bf16: float) -> None:
    one = np.float32([value])
    assert float(rounded_values(one, FP16)[0]) == fp16
    assert float(rounded_values(one, BF16)[0]) == pytest.approx(bf16, rel=1e-3)


def test_the_largest_float32_is_the_largest_bfloat16() -> None:
    top = np.float32([np.finfo(np.float32).max, -np.finfo(np.float32).max, np.nan])
    made = rounded_values(top, BF16).astype(np.float32)
    assert np.isfinite(made[:2]).all()
    assert np.isnan(made[2])


def test_a_tensor_keeps_its_name_shape_and_text() -> None:
    tensor = numpy_helper.from_array(np.float32([[1, 2], [3, 4]]), "w")
    tensor.doc_string = "learned"
    made = rounded_tensor(tensor, FP16, None)
    assert (made.name, list(made.dims), made.data_type, made.doc_string) == ("w", [2, 2], FP16, "learned")
    assert len(made.raw_data) == 8
    assert not rounded_tensor(numpy_helper.from_array(np.float32([1]), "w"), FP16, None).doc_string


@pytest.fixture
def external(tmp_path: Path) -> TensorProto:
    """A weight of 3,000 values in a data file, behind 64 other bytes."""
    values = np.random.default_rng(0).normal(size=(30, 100)).astype("<f4")
    (tmp_path / "w.data").write_bytes(bytes(64) + values.tobytes())
    tensor = TensorProto(name="w", data_type=FP32, dims=[30, 100], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.data"), ("offset", "64"), ("length", str(values.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.parametrize("kind", [FP16, BF16])
@pytest.mark.parametrize("block", [7, 1 << 22])
def test_a_data_file_holds_what_the_model_would(
    tmp_path: Path, external: TensorProto, kind: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_weights, "_BLOCK", block)
    inside = rounded_tensor(external, kind, tmp_path)
    with (tmp_path / "new.data").open("wb") as file:
        store = WeightFile(file, "new.data", tmp_path)
        made = [store.round(external, kind), store.round(external, kind)]
    onnx.external_data_helper.load_external_data_for_tensor(made[1], str(tmp_path))
    assert made[1].raw_data == inside.raw_data
    assert {entry.key: entry.value for entry in made[0].external_data}["offset"] == "0"
    assert made[1].data_type == kind


def test_the_second_weight_begins_at_a_page(tmp_path: Path, external: TensorProto) -> None:
    store = WeightFile(io.BytesIO(), "new.data", tmp_path)
    store.round(external, FP16)
    second = store.round(external, FP16)
    assert {entry.key: entry.value for entry in second.external_data} == {
        "location": "new.data",
        "offset": "8192",
        "length": "6000",
    }


def test_small_weights_and_those_inside_stay_in_the_model(tmp_path: Path) -> None:
    store = WeightFile(io.BytesIO(), "new.data", tmp_path)
    made = store.round(numpy_helper.from_array(np.ones(2000, np.float32), "w"), FP16)
    assert made.data_location == TensorProto.DEFAULT
    assert len(made.raw_data) == 4000


@pytest.mark.parametrize("kind", [FP16, FP32])
def test_what_has_its_type_where_it_lies_is_not_stored_again(tmp_path: Path, external: TensorProto, kind: int) -> None:
    if kind == FP16:  # as `widen` leaves a weight that is stored as FP16
        half = WeightFile(file := (tmp_path / "h.data").open("wb"), "h.data", tmp_path).round(external, FP16)
        file.close()
        read_as(half, FP32)
    else:
        half = external
    data = io.BytesIO()
    made = WeightFile(data, "new.data", tmp_path).round(half, kind)
    assert made.data_type == kind
    assert {entry.key for entry in made.external_data} == {"location", "offset", "length"}
    assert not data.getvalue()
    assert rounded_tensor(half, kind, tmp_path).external_data[0].value == made.external_data[0].value != "new.data"


def test_weights_that_are_read_in_another_type_than_their_file_has_are_settled(
    tmp_path: Path, external: TensorProto
) -> None:
    with (tmp_path / "h.data").open("wb") as file:
        half = WeightFile(file, "h.data", tmp_path).round(external, FP16)
    read_as(half, FP32)
    model = onnx.ModelProto(graph=onnx.GraphProto(initializer=[half, external]))
    with (tmp_path / "new.data").open("wb") as file:
        WeightFile(file, "new.data", tmp_path).settle(model)
    places = [{entry.key: entry.value for entry in one.external_data} for one in model.graph.initializer]
    assert places[0] == {"location": "new.data", "offset": "0", "length": "12000"}
    assert places[1]["location"] == "w.data"
    onnx.external_data_helper.load_external_data_for_model(model, str(tmp_path))
    one, other = map(numpy_helper.to_array, model.graph.initializer)
    assert one.dtype == np.float32
    assert np.array_equal(one, other.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (1e-12, TensorProto.FLOAT16, 2.0**-24),
        (-1e-12, TensorProto.FLOAT16, -(2.0**-24)),
        (0.0, TensorProto.FLOAT16, 0.0),
        (1e-5, TensorProto.FLOAT16, float(np.float16(1e-5))),
        (1e-42, TensorProto.BFLOAT16, 2.0**-133),
    ],
)
def test_a_single_value_is_not_rounded_to_zero(value: float, kind: int, stored: float) -> None:
    tensor = numpy_helper.from_array(np.float32(value).reshape(1), "c")
    made = rounded_tensor(tensor, kind, None)
    assert float(array_of(made, None).astype(np.float32)[0]) == stored


def test_several_values_are_rounded_as_they_are() -> None:
    made = rounded_tensor(numpy_helper.from_array(np.full(2, 1e-12, np.float32), "c"), TensorProto.FLOAT16, None)
    assert not array_of(made, None).any()
