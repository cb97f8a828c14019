# SPDX-License-Identifier: Apache-2.0
"""Figures in a table: what a task says, and which latency is measured or forecast."""

from __future__ import annotations

from typing import Any

import pytest

from qdqtool.recipe.figures import figures_of, judged_text, latency_text, measured_latency, times_text

RUN = {"model": 1, "batch": 4, "runner": "onnxruntime cpu", "latency_ms": {"mean": 1.25}}
BENCH: dict[str, Any] = {"runs": [{**RUN, "model": 0, "latency_ms": {"mean": 2.5}}, RUN], "machine": "m", "more": 1}


def test_what_is_kept_of_a_bench_step() -> None:
    kept = figures_of("bench", BENCH)
    assert kept == {"runs": BENCH["runs"], "machine": "m"} and figures_of("insert", BENCH) == {}
    assert times_text(kept, 1) == "1.250 ms at batch 4 (measured, onnxruntime cpu)" and times_text(kept, 2) == "-"
    assert [measured_latency(kept, number) for number in (0, 1, 2)] == [2.5, 1.25, None]


@pytest.mark.parametrize(
    ("measured", "forecast", "text"),
    [(1.25, 300.0, "1.250 ms measured"), (None, 312.6, "0.313 ms forecast"), (None, None, "-")],
)
def test_a_latency_says_what_it_is(measured: float | None, forecast: float | None, text: str) -> None:
    assert latency_text(measured, forecast) == text


@pytest.mark.parametrize(
    ("figures", "losses", "text"),
    [
        ({"AP": {"value": 0.5}}, {"AP": {"value": 0.01}}, "AP 0.5000 (loss 0.0100)"),
        ({"AP": {"value": 0.5}}, {}, "AP 0.5000"),
        ({"AP": {"value": None}}, {}, "AP -"),
        ({}, {}, " -"),
    ],
)
def test_the_first_figure_of_a_task(figures: Any, losses: Any, text: str) -> None:
    assert judged_text({"figures": figures, "losses": losses}) == text
