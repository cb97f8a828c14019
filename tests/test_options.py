# SPDX-License-Identifier: Apache-2.0
"""Options that take text in place of a value: converted when they are made, in one place."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

import qdqtool
from qdqtool import PeelOptions, PlanOptions, PtqOptions, QdqError, TrtVersion
from qdqtool.options import compile_pattern

V8502 = TrtVersion(8, 5, 2)


def test_a_version_is_its_numbers() -> None:
    assert str(V8502) == "8.5.2" and f"{TrtVersion(10, 3, 0)}" == "10.3.0"


@pytest.mark.parametrize("text", ["8502", "8.5.2", "jp5.1"])
@pytest.mark.parametrize("kind", [PlanOptions, PeelOptions, PtqOptions, qdqtool.LintOptions, qdqtool.SimulateOptions])
def test_options_take_the_text_of_a_version(kind: Any, text: str) -> None:
    assert kind(trt_version=text) == kind(trt_version=V8502)
    assert kind(trt_version=text).trt_version == V8502


def test_options_stay_values() -> None:
    options = PeelOptions("8502", target="dla")
    assert hash(PlanOptions(trt_version="8502")) == hash(PlanOptions(trt_version=V8502))
    assert replace(options, trt_version="jp4.6").trt_version == TrtVersion(8, 0, 1)
    assert replace(options, target="gpu") == PeelOptions(V8502)
    assert "trt_version=TrtVersion(major=8, minor=5, patch=2)" in repr(options)
    assert fields(PlanOptions)[1].default is None and PlanOptions().trt_version is None
    with pytest.raises(FrozenInstanceError):
        options.trt_version = V8502  # type: ignore[misc]


@pytest.mark.parametrize("kind", [PeelOptions, PtqOptions])
def test_a_version_that_is_needed_has_no_default(kind: Any) -> None:
    with pytest.raises(TypeError, match="trt_version"):
        kind()
    with pytest.raises(QdqError, match="trt_version: None is a NoneType"):
        kind(None)


def test_what_is_no_version_is_refused_at_once() -> None:
    with pytest.raises(QdqError, match=r"^tensorrt: .*8502"):
        PlanOptions(trt_version="tensorrt")
    with pytest.raises(QdqError, match=r"^trt_version: 8502 .*TrtVersion"):
        PeelOptions(8502)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        qdqtool.InsertOptions(calibration="percentile=99.9"),
        qdqtool.SensitivityOptions(calibration="percentile=99.9"),
        PeelOptions("8502", calibration="percentile=99.9"),
        PtqOptions("8502", calibration="percentile=99.9"),
    ],
)
def test_options_take_the_name_of_a_method(options: Any) -> None:
    assert options.calibration == qdqtool.CalibrationOptions("percentile=99.9")


def test_functions_take_the_text_of_a_version() -> None:
    cache = qdqtool.Cache.of("7103", {"x": np.float32(1)})
    assert cache.header == "TRT-7103-EntropyCalibration2"
    assert qdqtool.retarget(cache, "jp5.1") == qdqtool.retarget(cache, V8502)


@pytest.mark.parametrize("text", ["(", "[", "*", "x{99999999999}", "(" * 5000 + ")" * 5000, "(?<n", "a{2}{3}"])
def test_what_python_cannot_compile_is_no_pattern(text: str) -> None:
    """A repetition beyond all bounds is an OverflowError of Python's, a deep nesting one of its recursion."""
    with pytest.raises(QdqError, match="regular expression") as caught:
        compile_pattern("--heads", text)
    assert caught.value.where.startswith("--heads ") and caught.value.exit_code == 2


@pytest.mark.filterwarnings("error")
def test_a_pattern_is_searched_and_warns_of_nothing() -> None:
    assert compile_pattern("--heads", "^box[[a]").search("box[") is not None
    assert compile_pattern("--heads", "").search("anything") is not None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (qdqtool.DataOptions, {"preprocess": "imagenot"}),
        (qdqtool.DataOptions, {"batch": 0}),
        (qdqtool.DataOptions, {"limit": 0}),
        (qdqtool.DeployOptions, {"place": "orin", "effort": "much"}),
        (qdqtool.DeployOptions, {"place": "orin", "metric": "map"}),
        (qdqtool.EvaluateOptions, {"metric": "map"}),
        (qdqtool.EvaluateOptions, {"target": "rtx"}),
        (qdqtool.ImproveOptions, {"max_loss": 0.01, "effort": "much"}),
        (qdqtool.CompareOptions, {"provider": "tpu"}),
    ],
)
def test_a_word_that_means_nothing_is_refused_when_options_are_made(kind: Any, words: dict[str, Any]) -> None:
    with pytest.raises(QdqError, match=r"^--"):
        kind(**words)
