# SPDX-License-Identifier: Apache-2.0
"""Versions of TensorRT for RTX, and what is refused and said for it."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.rtxversion import NEWEST_RTX, RTX_HONESTY, refuse_trt_version, rtx_in_range
from qdqtool.trtversion import TrtVersion


@pytest.mark.parametrize(
    ("spec", "version", "holds"),
    [
        (">=1.7", (1, 7, 1), True),
        (">=1.7", (1, 6, 0), False),
        (">=1.4,<1.7", (1, 5, 0), True),
        ("==1.7.1", (1, 7, 1), True),
        (">=1.10", (1, 7, 1), False),
    ],
)
def test_ranges_are_those_of_tensorrt_with_numbers_of_rtx(
    spec: str, version: tuple[int, int, int], holds: bool
) -> None:
    assert rtx_in_range(spec, version) is holds


def test_rules_hold_for_the_newest_version_unless_another_is_named() -> None:
    assert rtx_in_range(">=" + ".".join(map(str, NEWEST_RTX))) and not rtx_in_range(">=99")
    with pytest.raises(QdqError, match="not a range"):
        rtx_in_range("new")


def test_what_is_said_of_int8_is_one_line_that_recommends_a_measurement() -> None:
    assert "\n" not in RTX_HONESTY
    for word in (
        "weight-only",
        "INT8 activations build is measured",
        "faster than FP16 is not",
        "measure both on your GPU",
    ):
        assert word in RTX_HONESTY


def test_a_version_of_tensorrt_is_refused_beside_rtx_and_none_is_not() -> None:
    refuse_trt_version(None)
    with pytest.raises(QdqError, match=r"8\.5\.2 .*--target rtx"):
        refuse_trt_version(TrtVersion(8, 5, 2))
