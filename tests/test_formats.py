# SPDX-License-Identifier: Apache-2.0
"""Rows of rules/formats.toml: codes, zero points, scales and clipping values, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.formats import INT8, number_format, number_formats
from qdqtool.scales import Scale


def test_int8_is_symmetric_with_one_more_negative_code() -> None:
    assert INT8.codes == (-128, 127)
    assert INT8.weight_codes == (-127, 127)
    assert INT8.dtype == np.int8


def test_every_row_has_a_zero_point_of_its_own_type() -> None:
    for one in number_formats().values():
        zero = one.zero_point(3)
        assert zero.shape == (3,)
        assert one.has_zero_point(zero)
        assert not one.has_zero_point(None)
        assert not one.has_zero_point(np.zeros((), np.float32))
    assert not INT8.has_zero_point(np.ones((), np.int8))


def test_a_scale_is_divided_once_in_float32_and_its_clipping_value_is_exact() -> None:
    amax = np.float32(3.7)
    scale = INT8.scale_of(amax)
    assert scale.tobytes() == (amax / np.float32(127)).tobytes()
    assert INT8.amax_of(scale[()]) == float(scale) * 127
    assert Scale.of(np.array([scale, scale * 2])).amax == float(np.float32(float(scale * 2) * 127))


def test_a_scale_without_a_word_on_its_format_is_int8_and_none_is_written() -> None:
    entry = Scale.of(1.0).to_json()
    assert "format" not in entry
    assert Scale.from_json("x", entry).format is INT8


def test_an_unknown_format_is_named_with_those_there_are() -> None:
    with pytest.raises(QdqError, match=r"int3.*choose int8"):
        number_format("int3")
    with pytest.raises(QdqError, match="int3"):
        Scale.from_json("x", {**Scale.of(1.0).to_json(), "format": "int3"})
