# SPDX-License-Identifier: Apache-2.0
"""`insert --attention`: what data decide, what is written down of it, and that it can be taken out again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import InsertOptions, PeelOptions, insert, peel, plan
from qdqtool.errors import QdqError
from qdqtool.graph import shapes
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring import attention_choice
from qdqtool.metadata import stored_table
from qdqtool.observers.options import CalibrationOptions
from tests.cli.command import run
from tests.conditioning.nets import SILU, spread
from tests.graphs import model_of
from tests.match.test_attention import PAIRS, net

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

OPTIONS = InsertOptions(
    plan=PlanOptions(float_heads="none"), calibration=CalibrationOptions("mse", progress=False), keep_float="auto"
)
DATA = [{"x": np.random.default_rng(seed).standard_normal((1, 12, 32)).astype(np.float32)} for seed in range(32)]


def placed(options: InsertOptions = OPTIONS, model: onnx.ModelProto | None = None) -> set[str]:
    """The tensors of the attention that have a pair."""
    done = insert(model or model_of(net()), data=DATA, options=options)
    return {point.tensor for point in done.plan.activations} & PAIRS


def test_auto_quantizes_an_attention_that_loses_little_and_writes_that_down() -> None:
    done = insert(model_of(net()), data=DATA, options=OPTIONS)
    table = stored_table(done.model)
    assert table is not None and table.decisions.attention == {"f": ""}
    assert {point.tensor for point in done.plan.activations} >= PAIRS and done.plan.attentions[0].int8
    assert float(done.inserted.scales["e"].bits) == pytest.approx(1 / 127)
    assert plan(done.model, OPTIONS.plan).attentions[0].int8, "the file says so"


def test_auto_leaves_an_attention_in_float_that_loses_much_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "AUTO_FLOOR", 0.0)
    monkeypatch.setattr(attention_choice, "AUTO_GAIN", -0.9)
    done = insert(model_of(net()), data=DATA, options=OPTIONS)
    assert {point.tensor for point in done.plan.activations} & PAIRS == {"f"}
    assert "loss at the outputs" in done.plan.attentions[0].reason


def test_without_a_measured_loss_auto_leaves_it_in_float() -> None:
    assert placed(replace(OPTIONS, keep_float=0)) == {"f"}
    undecided = insert(model_of(net()), options=replace(OPTIONS, keep_float=None))
    assert {point.tensor for point in undecided.plan.activations} & PAIRS == {"f"}


@pytest.mark.parametrize("attention", ["int8", "float"])
def test_what_is_asked_for_needs_no_measurement(attention: str) -> None:
    asked = replace(OPTIONS, plan=replace(OPTIONS.plan, attention=attention), keep_float=0)  # type: ignore[arg-type]
    assert placed(asked) == (PAIRS if attention == "int8" else {"f"})


def test_a_free_number_of_tokens_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice._Choice, "reasons", lambda _: pytest.fail("nothing to choose"))
    assert placed(model=model_of(net(tokens="N"))) == {"f"}


def test_peel_gives_the_model_back(tmp_path: Path) -> None:
    plain = model_of(net())
    source = tmp_path / "m.onnx"
    source.write_bytes(plain.SerializeToString())
    written = insert(source, data=DATA, options=OPTIONS).model
    clean = peel(written, options=PeelOptions("10.3"), output=tmp_path / "clean.onnx").model
    assert onnx.load(clean).graph == plain.graph
    options = replace(OPTIONS, keep_float=None)
    again = insert(clean, options=options, output=tmp_path / "again.onnx", scales=stored_table(onnx.load(written)))
    assert {point.tensor for point in again.plan.activations} >= PAIRS


def test_the_command_line_takes_it_and_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(model_of(net()).SerializeToString())
    words = ["insert", str(source), "--float-heads", "none"]
    shown = run(capsys, *words, "--attention", "int8", "--dry-run")
    assert shown.code == 0 and "1 of 1 attention in INT8" in shown.out
    told = run(capsys, *words, "--explain", "f")
    assert told.code == 0 and re.search("left in float: .*--data", told.out)
    assert run(capsys, *words, "--attention", "all").code == 2


def test_a_word_that_is_none_is_refused() -> None:
    with pytest.raises(QdqError, match="--attention"):
        PlanOptions(attention="none")  # type: ignore[arg-type]


def test_shapes_are_inferred_once_for_each_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = shapes.followed_shapes
    monkeypatch.setattr(shapes, "followed_shapes", lambda view, **how: asked.append(view) or real(view, **how))
    options = replace(OPTIONS, calibration=CalibrationOptions("auto", progress=False))
    assert insert(model_of(net()), data=DATA, options=options).plan.attentions[0].int8
    assert len(asked) == 2, "of the model, and of the one with pairs, whose kernels are forecast"


def test_attentions_that_int8_cannot_hold_are_named_where_it_was_asked_for() -> None:
    asked = InsertOptions(plan=replace(OPTIONS.plan, attention="int8"))
    small = model_of(net().replace("{0,0,2,16}", "{0,0,4,8}"))
    (note,) = [one for one in insert(small, options=asked).notes if "--attention int8" in one]
    assert "1 of 1 attention in float" in note and "heads of 8 values: INT8 needs 16" in note
    assert not any("--attention int8" in one for one in insert(model_of(net()), options=asked).notes)
    (note,) = [one for one in insert(spread(SILU), options=asked).notes if "--attention int8" in one]
    assert "no attention was found" in note
