# SPDX-License-Identifier: Apache-2.0
"""How results are shown: every public result by `repr`, `str` and HTML."""

from __future__ import annotations

import inspect
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqtool
from qdqtool.autodiff.backends import BackendName
from qdqtool.deploying.candidates import DeployCandidate, candidate_step
from qdqtool.deploying.choice import CandidateTrial, DeployCost
from qdqtool.display import (
    ROWS,
    Displayed,
    counted,
    figure,
    finite_only,
    model_name,
    named,
    short_table,
    table,
    written,
)
from qdqtool.engine.diff import align_layers
from qdqtool.engine.layer_info import EngineInfo, EngineLayer
from qdqtool.engine.layer_work import LayerWork
from qdqtool.engine.totals import totals_of
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure
from qdqtool.forecasting.devices import load_device
from qdqtool.forecasting.formats import time_of
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.recipe.plan_steps import CommandWord, PlannedStep
from qdqtool.recipe.run_steps import DoneStep
from qdqtool.recipe.values import RecipeStep
from qdqtool.timing.latency import Latency
from qdqtool.training.finished_model import OutputGain
from qdqtool.verbs.bench import BenchRun
from qdqtool.verbs.forecast import BoardForecast
from qdqtool.verbs.infer import ImageResult
from qdqtool.verbs.ptq_compare import ScalePair
from tests.graphs import SMALL_NET, model_of

LONGEST = 400  # characters of a repr
BACKEND: BackendName = "builtin"


def results_of_values() -> list[Any]:
    """Results of verbs that take long, built from values."""
    found = qdqtool.Detections(
        np.array([[1, 2, 30, 40]], np.float32), np.array([0.875], np.float32), np.array([7], np.int64)
    )
    pair = ScalePair("c1", np.float32(0.5), np.float32(0.25))
    info = EngineInfo(Path("e.json"), (EngineLayer("c1", "CaskConvolution"),), "json")
    shown = qdqtool.ShownEngine(info, totals_of(info))
    one = Figure(0.75, Interval(0.5, 1.0))
    step = PlannedStep(
        RecipeStep("q", "insert"), (CommandWord("insert", "insert"),), (), {"": "q.onnx"}, "q.json", True
    )
    work = [LayerWork("c", "convolution", ("c",), "half", (), {"x": 8}, {"y": 8})]
    row = time_of("fp16", work, LayerTimes(load_device("t4")))
    board = BoardForecast("t4", "T4", load_device("t4"), None, (row,), "fp16", ("Use FP16.",))
    candidate = DeployCandidate("insert-auto", "qdq", (candidate_step("insert"),), "the default")
    trial = CandidateTrial(candidate, one, DeployCost(1.5, 9, "forecast"))
    return [
        qdqtool.BuildResult(Path("e.engine"), None, info, "TensorRT 10.7.0.23, built here", 38),
        shown,
        qdqtool.EngineDifference(shown, shown, align_layers(shown.info, shown.info)),
        found,
        qdqtool.InferResult(Path("out"), "boxes by yolov8", (ImageResult("a.png", "a.jpg", (64, 64), found),)),
        qdqtool.DrawnDifferences((Path("out/1.jpg"), Path("out/differences.json")), "boxes by yolov8", 2, 9, 1, 3),
        qdqtool.Project(Path("qdqtool.toml"), {"model": "m.onnx", "data": "images"}, ("boards",)),
        qdqtool.ReportResult(Path("r.html"), 70_000, "3 of 3 products in INT8.", ("Verdict", "Graph")),
        qdqtool.DeployResult(
            Path("out"), ("m.onnx", "m.trtexec.sh"), ("TensorRT 8.6.1",), (trial,), candidate, "the cheapest",
            "top1", "labels", {"choose": 4, "report": 4}, one, "little", True, "", (), "m.trtexec.sh",
        ),
        qdqtool.ImproveResult(
            Path("m.onnx"), (trial,), trial, "top1", "agreement", {"choose": 4, "report": 4}, one, 0.01, False, ("c2",),
            {"c1": 0.5}, (),
        ),
        qdqtool.BackendComparison("8.6.1.6", "entropy", 8, ("x",), (), (pair,), ("y",), ()),
        qdqtool.Evaluation("top1", "m.onnx", "", 8, {"top1": (one,)}, {}, {}),
        qdqtool.BenchResult((BenchRun(0, "m.onnx", "FP32", "onnxruntime", 1, Latency.of([0.001])),), "a CPU", "x"),
        qdqtool.ForecastResult("m.onnx", (board,), ("not a measurement",)),
        qdqtool.RecipePlan(Path("r.run"), (step,)),
        qdqtool.RecipeResult(Path("r.run"), Path("m.onnx"), {}, (DoneStep(step, True, {}),)),
        qdqtool.FinetuneResult(
            Path("t.onnx"), "loss", 0.5, 0.25, 3, 4, 4, 1.0, "all steps", 100, 8, 2, (OutputGain("y", 20.0, 30.0),),
            (0.0, 0.0), BACKEND, (),
        ),
    ]  # fmt: skip


@cache
def results() -> dict[str, Any]:
    """One result of each public kind, by the name of its class; those that take long are made of values."""
    model = model_of(SMALL_NET)
    data = np.random.default_rng(0).normal(size=(8, 4, 8, 8)).astype(np.float32)
    placed = qdqtool.insert(model, data=data)
    peeled = qdqtool.peel(placed.model, qdqtool.PeelOptions("8502"))
    simulated = qdqtool.simulate(placed.model, data)
    linted = qdqtool.lint(placed.model)
    made = [
        placed,
        placed.plan,
        placed.table,
        placed.table["x"],
        peeled,
        peeled.cache,
        qdqtool.ptq(model, data, qdqtool.PtqOptions("jp5.1", calibration="max")),
        qdqtool.graft(model, peeled.cache),
        qdqtool.amp(model, data),
        qdqtool.prune(model, None, qdqtool.PruneOptions(ratio=0.5)),
        qdqtool.condition(model, data, qdqtool.ConditionOptions("equalize")),
        qdqtool.compare(model, placed.model, data),
        simulated,
        simulated.simulated,
        qdqtool.sensitivity(model, data, qdqtool.SensitivityOptions(calibration="mse")),
        linted,
        linted.findings[0],
        qdqtool.predicted_layers(placed.model, "8502"),
        qdqtool.diagnose(),
    ]
    return {type(result).__name__: result for result in (*made, *results_of_values())}


NAMES = sorted(name for name in qdqtool.__all__ if isinstance(getattr(qdqtool, name), type))
SHOWN = [name for name in NAMES if issubclass(getattr(qdqtool, name), Displayed)]


def test_every_public_class_is_an_option_or_is_displayed() -> None:
    plain = {"Geometry", "QdqError", "Selection", "TrtVersion"}  # their own line is short already
    assert {name for name in NAMES if not name.endswith("Options")} - plain == set(SHOWN) == set(results())


@pytest.mark.parametrize("name", SHOWN)
def test_repr_is_one_short_line_that_names_the_class(name: str) -> None:
    line = repr(results()[name])
    assert line.startswith(f"<{name}: ") and line.endswith(">")
    assert line.isprintable() and len(line) < LONGEST
    assert "array(" not in line and "ir_version" not in line


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_str_is_the_printed_summary(name: str) -> None:
    result = results()[name]
    text = str(result)
    assert text == "\n".join([*result.summary(), *result.next_lines()]) and text
    assert "array(" not in text and "ir_version" not in text
    assert len(text.splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_html_is_one_table_that_parses(name: str) -> None:
    tree = ET.fromstring(results()[name]._repr_html_())
    assert tree.tag == "table" and (tree.findtext("caption") or "").startswith(f"{name}: ")
    rows = tree.findall("tr")
    assert rows and len(rows) <= ROWS + 2
    assert all(len(row) for row in rows)


@pytest.mark.parametrize("name", SHOWN)
def test_a_class_has_no_repr_of_its_own(name: str) -> None:
    """One mechanism: what `dataclass` writes would dump arrays and models."""
    assert inspect.getattr_static(getattr(qdqtool, name), "__repr__") is Displayed.__repr__


def test_lines_say_what_one_wants_to_know() -> None:
    assert repr(results()["Detections"]) == "<Detections: 1 box, labels [7], best score 0.875>"
    assert repr(results()["Cache"]).startswith("<Cache: TRT-8502-EntropyCalibration2, ")
    assert repr(results()["Evaluation"]) == "<Evaluation: m.onnx: top1 0.7500, 8 samples>"
    assert repr(results()["FinetuneResult"]) == "<FinetuneResult: t.onnx: held-out loss 0.5 -> 0.25, 4 of 4 steps>"
    assert "method auto, 8 samples" in repr(results()["ScaleTable"])
    assert "loss at the outputs" in repr(results()["InsertResult"])
    assert "1 lost" not in repr(results()["DrawnDifferences"]) and "1 are lost" in repr(results()["DrawnDifferences"])


def test_a_model_in_memory_is_never_printed() -> None:
    assert not any(line.startswith("wrote") for line in str(results()["InsertResult"]).splitlines())
    assert str(results()["FinetuneResult"]).endswith("wrote t.onnx")


def test_hostile_names_are_escaped() -> None:
    cache_ = qdqtool.Cache.of("8502", {"<b>\x1b[31m\n&": np.float32(1)})
    assert "\x1b" not in str(cache_) and r"<b>\x1b[31m\n&" in str(cache_)
    html = cache_._repr_html_()
    assert "<b>" not in html and r"&lt;b&gt;\x1b[31m\n&amp;" in html
    finding = qdqtool.Finding("Q001", "error", "a\nb", "is <odd>")
    assert repr(finding) == r"<Finding: Q001 error: a\nb: is <odd>>"


def test_long_tables_are_cut() -> None:
    cache_ = qdqtool.Cache.of("8502", {f"t{number}": np.float32(1) for number in range(50)})
    assert str(cache_).splitlines()[-1] == "and 30 more"
    assert "<td>t19</td>" in cache_._repr_html_() and "<td>t20</td>" not in cache_._repr_html_()
    assert "and 30 more" in cache_._repr_html_()


def test_an_empty_result_has_a_line() -> None:
    assert repr(qdqtool.ScaleTable()) == "<ScaleTable: 0 scales>" and str(qdqtool.ScaleTable()) == "0 scales"
    assert repr(qdqtool.LintResult((), ())) == "<LintResult: nothing found>"
    nothing = qdqtool.Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    assert repr(nothing) == "<Detections: 0 boxes>" and ET.fromstring(nothing._repr_html_()) is not None


def test_the_words() -> None:
    assert (counted(1, "pair"), counted(2, "pair")) == ("1 pair", "2 pairs")
    assert [figure(value) for value in (1.234, np.inf, -np.inf, np.nan)] == ["1.23", "exact", "-inf", "-"]
    assert finite_only({"a": 1.5, "b": np.inf, "c": np.nan}) == {"a": 1.5, "b": None, "c": None}
    assert named("abc", 2) == "a, b and 1 more" and named(["a"]) == "a"
    assert table(("name", "n"), [("a", "10")]) == ["name   n", "a     10"]
    assert short_table([("n",), *[("x",)] * (ROWS + 1)])[-1] == "and 1 more"
    assert written(Path("m.onnx")) == ["wrote m.onnx"] and written(model_of(SMALL_NET)) == []
    assert model_name(model_of(SMALL_NET)) == "ModelProto net" and model_name(Path("m.onnx")) == "m.onnx"
