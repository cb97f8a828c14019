# SPDX-License-Identifier: Apache-2.0
"""What the table takes from what verbs print."""

from __future__ import annotations

from typing import Any

import pytest

from qdqtool.recipe.figures import figures_of, judged_text, latency_text, measured_latency, times_text

JUDGED: dict[str, Any] = {
    "metric": "AP",
    "samples": 12,
    "figures": {"AP": {"value": 0.51304}, "AP50": {"value": 0.7}},
    "losses": {"AP": {"value": 0.00416}},
    "baseline_figures": {},
    "executor": "simulated",
    "reference_warning": None,
    "file": "m.onnx",
}
RUNS = [
    {"model": 0, "batch": 1, "runner": "onnxruntime cpu", "latency_ms": {"mean": 0.4216}},
    {"model": 1, "batch": 1, "runner": "onnxruntime cpu", "latency_ms": {"mean": 12.0}},
    {"model": 1, "batch": 8, "runner": "onnxruntime cpu", "latency_ms": {"mean": 80.0}},
]


def test_a_record_keeps_the_figures_and_not_the_file() -> None:
    kept = figures_of("evaluate", JUDGED)
    assert kept == {key: value for key, value in JUDGED.items() if key != "file"}
    assert figures_of("bench", {"runs": RUNS, "machine": "m", "schema": 1}) == {"runs": RUNS, "machine": "m"}
    assert figures_of("insert", {"file": "m.onnx"}) == {}


@pytest.mark.parametrize(
    ("figures", "losses", "text"),
    [
        (JUDGED["figures"], JUDGED["losses"], "AP 0.5130 (loss 0.0042)"),
        (
            JUDGED["figures"],
            {"AP": {"value": 0.00416, "low": -0.00001, "high": 0.01}},
            "AP 0.5130 (loss 0.0042, 0.0000 to 0.0100)",
        ),
        (JUDGED["figures"], {"AP": {"value": 0.00416, "low": None, "high": None}}, "AP 0.5130 (loss 0.0042)"),
        (JUDGED["figures"], {}, "AP 0.5130"),
        (JUDGED["figures"], {"AP": {"value": -0.001}}, "AP 0.5130 (loss -0.0010)"),
        (JUDGED["figures"], {"AP": {"value": None}}, "AP 0.5130"),
        ({"AP": {"value": None}}, {}, "AP -"),
        ({}, {}, " -"),
    ],
)
def test_an_evaluation_in_a_cell(figures: dict[str, Any], losses: dict[str, Any], text: str) -> None:
    assert judged_text({"figures": figures, "losses": losses}) == text


def test_a_latency_is_that_of_the_first_batch_of_its_model() -> None:
    assert times_text({"runs": RUNS}, 0) == "0.422 ms at batch 1 (measured, onnxruntime cpu)"
    assert times_text({"runs": RUNS}, 1) == "12.000 ms at batch 1 (measured, onnxruntime cpu)"
    assert times_text({"runs": RUNS}, 2) == "-"


def test_a_measured_latency_is_that_of_its_model() -> None:
    assert [measured_latency({"runs": RUNS}, number) for number in (0, 1, 2)] == [0.4216, 12.0, None]


@pytest.mark.parametrize(
    ("measured", "forecast", "text"),
    [(1.25, 300.0, "1.250 ms measured"), (None, 312.6, "0.313 ms forecast"), (None, None, "-")],
)
def test_a_latency_says_what_it_is(measured: float | None, forecast: float | None, text: str) -> None:
    assert latency_text(measured, forecast) == text
