# SPDX-License-Identifier: Apache-2.0
"""The table of a run, from steps that are generated: which figures stand after which file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from qdqtool.recipe.plan_steps import CommandWord, PlannedStep
from qdqtool.recipe.run_steps import DoneStep
from qdqtool.recipe.values import RecipeStep
from qdqtool.workflows.recipe_result import RecipePlan, RecipeResult

RUN = Path("r.run")
MODEL = {"model": {"file_bytes": 1234567, "parameters": 300, "macs": None, "bytes_moved": 4000}}


def planned(name: str, verb: str, models: tuple[Path, ...] = (), output: str = "", cache: str = "") -> PlannedStep:
    words = [CommandWord(verb, verb), *(CommandWord(str(path), path.name, (path,)) for path in models)]
    if cache:
        words += [CommandWord("--cache", "--cache"), CommandWord(cache, cache, (RUN / cache,))]
    outputs = {"": output} if output else {}
    return PlannedStep(RecipeStep(name, verb), tuple(words), models, outputs, f"{name}.json", bool(output))


def judged(value: float) -> dict[str, Any]:
    return {"figures": {"figures": {"AP": {"value": value}}, "losses": {"AP": {"value": 0.01}}}}


def timed(*means: float) -> dict[str, Any]:
    runs = [{"model": n, "batch": 1, "runner": "cpu", "latency_ms": {"mean": one}} for n, one in enumerate(means)]
    return {"figures": {"runs": runs, "machine": "m"}}


def result(*steps: DoneStep, model: str | None = "m.onnx") -> RecipeResult:
    return RecipeResult(RUN, None if model is None else Path(model), MODEL, steps)


QUANTIZED = DoneStep(planned("q", "insert", (Path("m.onnx"),), "q.onnx"), True, MODEL)
CACHE = DoneStep(planned("c", "ptq", (Path("m.onnx"),), "c.cache"), False, {"bytes": 99})


def test_files_with_sizes_and_what_is_not_known() -> None:
    rows = result(QUANTIZED, CACHE).rows()
    assert rows[0] == ("step", "file", "bytes", "parameters", "MACs", "bytes moved", "latency")
    assert rows[1] == ("-", "m.onnx", "1,234,567", "300", "-", "4,000", "-")
    assert rows[3] == ("c", "c.cache", "99", "-", "-", "-", "-")
    assert result(QUANTIZED, model=None).rows()[1][:2] == ("q", "q.onnx")


def test_an_evaluation_stands_behind_the_model_that_it_judges() -> None:
    own = DoneStep(planned("judge", "evaluate", (RUN / "q.onnx",)), True, judged(0.5))
    first = DoneStep(planned("plain", "evaluate", (Path("m.onnx"),)), True, judged(0.6))
    rows = result(QUANTIZED, own, first).rows()
    assert [row[-1] for row in rows[1:]] == ["plain: AP 0.6000 (loss 0.0100)", "judge: AP 0.5000 (loss 0.0100)"]


def test_an_evaluation_of_a_cache_stands_behind_the_cache() -> None:
    own = DoneStep(planned("judge", "evaluate", (Path("m.onnx"),), cache="c.cache"), True, judged(0.5))
    rows = result(CACHE, own).rows()
    assert [row[-1] for row in rows[1:]] == ["", "judge: AP 0.5000 (loss 0.0100)"]


def test_an_evaluation_of_a_cache_stands_behind_the_model_that_was_written_with_it() -> None:
    made = planned("gpu", "peel", (RUN / "q.onnx",), "gpu.onnx")
    made = PlannedStep(made.step, made.words, made.models, {**made.outputs, "cache": "gpu.cache"}, made.report, True)
    own = DoneStep(planned("judge", "evaluate", (RUN / "gpu.onnx",), cache="gpu.cache"), True, judged(0.5))
    other = DoneStep(planned("other", "evaluate", (RUN / "gpu.onnx",), cache="c.cache"), True, judged(0.4))
    rows = result(QUANTIZED, DoneStep(made, True, MODEL), CACHE, own, other).rows()
    assert [row[-1] for row in rows[1:]] == ["", "", "judge: AP 0.5000 (loss 0.0100)", "other: AP 0.4000 (loss 0.0100)"]


def test_times_stand_behind_each_of_the_models_in_their_order() -> None:
    bench = DoneStep(planned("b", "bench", (RUN / "q.onnx", Path("m.onnx"))), True, timed(1.0, 2.5))
    rows = result(QUANTIZED, bench).rows()
    assert [row[-1] for row in rows[1:]] == [
        "b: 2.500 ms at batch 1 (measured, cpu)",
        "b: 1.000 ms at batch 1 (measured, cpu)",
    ]


def test_the_headline_counts_what_ran_and_the_end_says_what_is_predicted() -> None:
    own = DoneStep(planned("judge", "evaluate", (RUN / "q.onnx",)), True, judged(0.5))
    assert re.match("2 steps, 1 .* in r.run$", result(QUANTIZED, CACHE).headline())
    assert "bench step" in result(QUANTIZED, CACHE).summary()[-1]
    assert "bench step" not in result(QUANTIZED, own).summary()[-1]
    assert result(QUANTIZED, CACHE).path("c") == RUN / "c.cache"


def test_commands_are_typed_as_a_shell_reads_them() -> None:
    plan = RecipePlan(Path("a b"), (planned("q", "insert", (Path("my model's.onnx"),), "q.onnx"),))
    (line,) = plan.commands()
    assert shlex.split(line) == ["qdqtool", "insert", "my model's.onnx", ">", "a b/q.json"]
    assert plan.headline() == "1 step, to a b"


def test_the_scripts_that_build_are_named_in_the_order_of_the_steps(tmp_path: Path) -> None:
    """`run` ended without a next step, though its last steps had written the scripts for the board."""
    steps = [DoneStep(planned(name, "peel", (), f"{name}.onnx"), True, MODEL) for name in ("gpu", "q", "dla")]
    for name in ("dla.trtexec.sh", "gpu.trtexec.sh", "other.trtexec.sh"):
        (tmp_path / name).touch()
    found = RecipeResult(tmp_path, None, {}, tuple(steps))
    assert found.scripts() == [tmp_path / "gpu.trtexec.sh", tmp_path / "dla.trtexec.sh"]
    assert found.next_lines() == [f"next: sh {path}" for path in found.scripts()]
    assert result(QUANTIZED).next_lines() == []


def test_a_model_that_guesses_is_told_below_the_table() -> None:
    figures = judged(0.0)
    figures["figures"]["reference_warning"] = "m.onnx has a top-1 of 0.0000"
    own = DoneStep(planned("judge", "evaluate", (RUN / "q.onnx",)), False, figures)
    old = DoneStep(planned("old", "evaluate", (RUN / "q.onnx",)), False, judged(0.0))
    assert result(QUANTIZED, own, old).summary()[-1] == "warning: judge: m.onnx has a top-1 of 0.0000"
    assert not any("warning" in line for line in result(QUANTIZED, old).summary())
