# SPDX-License-Identifier: Apache-2.0
"""Types and formats as TensorRT's files spell them."""

from __future__ import annotations

import pytest

from qdqtool.engine.data_types import bits_of, data_type, short_format


@pytest.mark.parametrize(
    ("text", "name", "bits"),
    [
        ("Int8", "INT8", 8),
        ("UInt8", "UINT8", 8),
        ("Thirty-two wide channel vectorized row major Int8 format", "INT8", 8),
        ("Row major linear FP16 format", "FP16", 16),
        ("Half", "FP16", 16),
        ("BFloat16", "BF16", 16),
        ("Float", "FP32", 32),
        ("Row major linear FP32", "FP32", 32),
        ("FP8", "FP8", 8),
        ("FP8UE8M0", "UE8M0", 8),
        ("FP4E2M1", "FP4", 4),
        ("Int4", "INT4", 4),
        ("Int64", "INT64", 64),
        ("Bool", "BOOL", 8),
        ("N/A", "", None),
        ("", "", None),
    ],
)
def test_types(text: str, name: str, bits: int | None) -> None:
    assert (data_type(text), bits_of(data_type(text))) == (name, bits)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Thirty-two wide channel vectorized row major Int8 format", "CHW32"),
        ("Four wide channel vectorized row major Int8 format", "CHW4"),
        ("Two wide channel vectorized row major FP16 format", "CHW2"),
        ("Channel major FP16 format where channel % 8 == 0", "HWC8"),
        ("Row major linear FP32", "CHW"),
        ("Row major Int8 format", "CHW"),
        ("(NHWC) Channel major format ", "HWC"),
        ("(Linear) Row major linear format ", "CHW"),
        ("(Arbitrary) Format with stride order = [4,1,0,3,2]", "arbitrary"),
        ("Seven wide channel vectorized row major Int8 format", "CHW"),
        ("Half", ""),
        ("", ""),
    ],
)
def test_formats(text: str, short: str) -> None:
    assert short_format(text) == short
