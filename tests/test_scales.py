# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Scales keep their bits through json and are refused where they are no scales."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.decisions import Provenance
from qdqtool.errors import QdqError
from qdqtool.scales import Scale, ScaleTable

POSITIVE = st.floats(width=32, min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)


@given(value=POSITIVE)
def test_a_scale_keeps_its_bits_through_json(value: float) -> None:
    scale = Scale.of(np.float32(value), origin="qdq", method="entropy", rule="r", samples=3)
    text = ScaleTable({"t": scale}).to_json()
    back = ScaleTable.from_json(text)["t"]
    assert back.bits.tobytes() == np.float32(value).tobytes()
    assert (back.origin, back.method, back.rule, back.samples, back.axis) == ("qdq", "entropy", "r", 3, None)


@given(values=st.lists(POSITIVE, min_size=1, max_size=5), axis=st.integers(-2, 3))
def test_scales_per_channel_keep_their_bits_and_axis(values: list[float], axis: int) -> None:
    scale = Scale.of(np.array(values, np.float32), axis=axis)
    back = ScaleTable.from_json(ScaleTable({"t": scale}).to_json(indent=None))["t"]
    assert back.same_bits(scale) and back.bits.shape == (len(values),)


def test_hex_is_the_pattern_that_caches_hold() -> None:
    assert Scale.of(np.array(0x3CFF9724, np.uint32).view(np.float32)).hex() == "3cff9724"
    assert Scale.of(1.0).hex() == "3f800000", "1.0 is sign 0, exponent 127, mantissa 0"
    assert Scale.of([0.5, 2.0], axis=0).hex() == ["3f000000", "40000000"]
    assert Scale.of(np.float32(1e-45)).hex() == "00000001", "the smallest denormal"


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, -np.inf, 1e-60, 1e60, [], [1, 0], [1, np.nan], [[1.0]]])
def test_what_is_no_scale_is_refused(value: object) -> None:
    with pytest.raises(QdqError, match="not a finite positive number"), np.errstate(over="ignore"):
        Scale.of(value)


def test_bits_are_read_only_and_the_callers_array_is_not_touched() -> None:
    mine = np.array([1, 2], np.float32)
    scale = Scale.of(mine, axis=0)
    with pytest.raises(ValueError, match="read-only"):
        scale.bits[0] = 5
    mine[0] = 9
    assert scale.bits.tolist() == [1, 2]


def test_same_bits_looks_at_bits_and_axis_alone() -> None:
    one = Scale.of(0.1, origin="ptq")
    assert one.same_bits(Scale.of(np.float32(0.1), origin="qdq", method="m"))
    assert not one.same_bits(Scale.of(np.nextafter(np.float32(0.1), np.float32(1))))
    assert not Scale.of([1, 2], axis=0).same_bits(Scale.of([1, 2], axis=1))


def test_the_form_of_the_file() -> None:
    table = ScaleTable({"a": Scale.of(0.5, method="mse")}, {"b": "all zero"}, provenance=Provenance(samples=4))
    assert json.loads(table.to_json()) == {
        "schema": 1,
        "tensors": {"a": {"scale": "3f000000", "value": 0.5, "origin": "ptq", "method": "mse"}},
        "unscaled": {"b": "all zero"},
        "facts": {"samples": 4},
    }
    assert table.to_json().endswith("\n") and "\n" not in table.to_json(indent=None)
    assert ScaleTable.from_json(table.to_json()).to_json() == table.to_json()
    assert set(json.loads(ScaleTable().to_json())) == {"schema", "tensors"}


def test_the_value_is_for_reading_only() -> None:
    text = ScaleTable({"a": Scale.of(0.5)}).to_json().replace('"value": 0.5', '"value": 7')
    assert float(ScaleTable.from_json(text)["a"].bits) == 0.5


def test_a_table_is_a_mapping_in_its_order() -> None:
    table = ScaleTable({"b": Scale.of(1), "a": Scale.of(2)})
    assert list(table) == ["b", "a"] and len(table) == 2
    assert "a" in table and "c" not in table and table.get("c") is None
    assert table.get("a") is table["a"]


def test_names_of_any_kind_pass() -> None:
    names = ['a "quoted" name', "with: colon", "ünïcode/层", "back\\slash", ""]
    table = ScaleTable({name: Scale.of(1) for name in names})
    assert list(ScaleTable.from_json(table.to_json())) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100000, "JSON nested too deeply"),
        ("[]", "not a scale table of schema 1"),
        ('{"schema": 2, "tensors": {}}', "not a scale table of schema 1"),
        (
            '{"schema": 1, "header": "TRT-8201-EntropyCalibration2", "entries": {}}',
            "is a calibration cache, .*graft --cache",
        ),
        ('{"schema": 1}', "must be objects"),
        ('{"schema": 1, "tensors": []}', "must be objects"),
        ('{"schema": 1, "tensors": {}, "facts": 3}', "must be objects"),
        ('{"schema": 1, "tensors": {}, "largest": []}', "must be objects"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_its_name(text: str, message: str) -> None:
    with pytest.raises(QdqError, match=f"^scales.json: .*{message}"):
        ScaleTable.from_json(text, "scales.json")


@pytest.mark.parametrize(
    "entry",
    ["3", "null", "{}", '{"scale": 1.5}', '{"scale": "xyz"}', '{"scale": "-1"}', '{"scale": "1ffffffff"}', '{"scale": "7f800000"}', '{"scale": "00000000"}', '{"scale": []}',
     '{"scale": ["3f800000", "zz"]}', '{"scale": "3f800000", "origin": "guess"}', '{"scale": "3f800000", "axis": "x"}', '{"scale": "3f800000", "samples": "many"}', '{"scale": "3f800000", "origin": []}'],
)  # fmt: skip
def test_a_malformed_entry_is_refused_by_the_tensors_name(entry: str) -> None:
    with pytest.raises(QdqError, match=r"^conv1_out: ") as error:
        ScaleTable.from_json(f'{{"schema": 1, "tensors": {{"conv1_out": {entry}}}}}')
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


def test_a_fact_of_another_kind_is_refused_by_its_name() -> None:
    with pytest.raises(QdqError, match=r"^s.json: fact cuts ") as error:
        ScaleTable.from_json('{"schema": 1, "tensors": {}, "facts": {"cuts": 3}}', "s.json")
    assert error.value.exit_code == 2


def test_the_largest_values_come_back_as_they_were_to_the_bit() -> None:
    seen = {"a": float(np.float32(0.1)), "b": 0.0, "c": 3.4e38}
    table = ScaleTable({"a": Scale.of(1)}, largest=seen)
    assert ScaleTable.from_json(table.to_json()).largest == seen
    assert "largest" not in ScaleTable({"a": Scale.of(1)}).to_json()


@pytest.mark.parametrize("value", ['"1"', "-1", "null", "true", "1e999", "NaN"])
def test_a_largest_value_that_is_none_is_refused_by_the_tensors_name(value: str) -> None:
    with pytest.raises(QdqError) as error:
        ScaleTable.from_json(f'{{"schema": 1, "tensors": {{}}, "largest": {{"conv1_out": {value}}}}}', "s.json")
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


def test_a_models_metadata_does_without_the_largest_values() -> None:
    from qdqtool.metadata import store_table, stored_table

    model = onnx.ModelProto()
    store_table(model, ScaleTable({"a": Scale.of(1)}, largest={"a": 90.0}))
    stored = stored_table(model)
    assert stored is not None and list(stored) == ["a"] and not stored.largest
