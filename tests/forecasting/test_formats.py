# SPDX-License-Identifier: Apache-2.0
"""Formats beside FP16: ratios, intervals and verdicts by hand."""

from __future__ import annotations

import pytest

from qdqtool.engine.layer_work import LayerWork, Product, Unit
from qdqtool.forecasting.formats import Verdict, compared, deciding_layers, in_format, time_of
from tests.toy_device import toy_times

TIMES = toy_times(int8=2e3, half=1e3)


def product(name: str, unit: Unit, size: int = 64, kind: str = "product") -> LayerWork:
    return LayerWork(name, kind, (name,), unit, (Product(1, size, size, size),), {}, {}, 1000)


def convert(name: str) -> LayerWork:
    return LayerWork(name, "quantize", (name,), "half", (), {"x": 10}, {}, 0)


@pytest.mark.parametrize(
    ("quantized", "kept", "verdict"),
    [(8, 0, "pays"), (1, 7, "equal"), (0, 8, "does not pay")],
)
def test_the_verdict_goes_by_the_share_of_layers_that_change(quantized: int, kept: int, verdict: Verdict) -> None:
    fp16 = [product(f"l{place}", "half") for place in range(8)]
    work = [product(f"l{place}", "int8" if place < quantized else "half") for place in range(quantized + kept)]
    row = compared(time_of("int8", work, TIMES), time_of("fp16", fp16, TIMES), work, fp16, TIMES)
    assert row.verdict == verdict and row.ratio_low <= row.ratio <= row.ratio_high
    assert row.ratio == pytest.approx(8 / (kept + quantized / 2))


def test_an_interval_is_wide_where_all_changes_and_narrow_where_little_does() -> None:
    fp16 = [product(f"l{place}", "half") for place in range(8)]
    widths = []
    for changed in (0, 1, 8):
        work = [product(f"l{place}", "int8" if place < changed else "half") for place in range(8)]
        row = compared(time_of("int8", work, TIMES), time_of("fp16", fp16, TIMES), work, fp16, TIMES)
        widths.append(row.ratio_high / row.ratio_low)
    assert widths[0] == pytest.approx(1.03**2), "two builds of one network differ, too"
    assert widths[0] < widths[1] < widths[2]


def test_fp8_has_the_placement_of_int8_and_int4_the_layers_of_fp16() -> None:
    fp16, int8 = [product("a", "half"), product("c", "half", kind="convolution")], [product("a", "int8"), convert("q")]
    assert [layer.unit for layer in in_format("fp8", fp16, int8)] == ["fp8", "half"]
    int4 = in_format("int4", fp16, int8)
    assert [layer.unit for layer in int4] == ["half", "half"]
    assert [layer.weights for layer in int4] == [1000 * (4 + 1 / 8) // 16, 1000], "weights of convolutions stay"


def test_layers_stand_side_by_side_and_what_is_new_stands_alone() -> None:
    fp16 = [product("a", "half"), product("b", "half", 128)]
    work = [convert("q"), product("a", "int8"), product("b", "int8", 128)]
    found = deciding_layers(work, fp16, TIMES)
    assert [one.name for one in found] == ["b", "a", "q"] and found[2].fp16 == 0
    assert sum(one.saved for one in found) == pytest.approx((TIMES.total(fp16) - TIMES.total(work)) / 1e3)


def test_shares_say_what_the_time_goes_to() -> None:
    times = toy_times(int8=2e3, half=1e3, memory=1.0, launch=100.0)
    work = [convert("q"), product("a", "int8"), product("b", "half", kind="attention")]
    shares = time_of("int8", work, times).shares
    total = times.total(work)
    assert shares["conversion"] == pytest.approx(110 / total) and shares["launch"] == pytest.approx(300 / total)
    assert shares["attention"] == pytest.approx(times.of(work[2]) / total) and shares["depthwise"] == 0
