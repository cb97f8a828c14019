# SPDX-License-Identifier: Apache-2.0
"""finetune --blocks: nearer to the float model, laws of peel, what it says of scales, what it does not go with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.cli.main import main
from qdqtool.errors import QdqError
from qdqtool.graph.edit import FINETUNED, get_metadata
from qdqtool.training.losses.options import LossOptions, parse_label
from qdqtool.training.options import RunOptions
from qdqtool.verbs.evaluate_options import EvaluateOptions
from qdqtool.verbs.finetune import FinetuneOptions, FinetuneResult, finetune
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from qdqtool.verbs.validation_metric import TaskMetric
from tests.graphs import model_of
from tests.training.blocks.nets import DATA, RESIDUAL, quantized

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

SHORT = RunOptions(steps=40, progress=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`m.onnx`, `q.onnx` made of it, data in `d.npz`, and `t.onnx`, trained block by block with its scales."""
    path = tmp_path_factory.mktemp("blocks")
    (path / "m.onnx").write_bytes(model_of(RESIDUAL, 17).SerializeToString())
    (path / "q.onnx").write_bytes(quantized().SerializeToString())
    np.savez(path / "d.npz", x=DATA)
    tune(path, "t.onnx", ranges="learn")
    return path


def tune(folder: Path, name: str, start: str = "q.onnx", **more: Any) -> FinetuneResult[Path]:
    options = FinetuneOptions(run=more.pop("run", SHORT), blocks=True, **more)
    return finetune(folder / start, folder / "d.npz", options, output=folder / name)


def initializers(path: Path) -> dict[str, bytes]:
    return {tensor.name: tensor.SerializeToString() for tensor in onnx.load(path).graph.initializer}


def test_outputs_come_nearer_and_the_report_says_what_changed(folder: Path) -> None:
    result = tune(folder, "again.onnx", ranges="learn")
    (gain,) = result.outputs
    assert gain.after > gain.before + 0.3 and result.after < result.before
    assert result.measure == "error of blocks" and result.reason == "1 of 1 blocks improved"
    assert (result.steps, result.samples, result.held_samples) == (40, 16, 4)
    assert any("calibration caches made before" in note for note in result.notes)
    assert (folder / "again.onnx").read_bytes() == (folder / "t.onnx").read_bytes()
    facts = json.loads(get_metadata(onnx.load(folder / "t.onnx"), FINETUNED) or "{}")
    assert facts["blocks"] and facts["ranges"] == "learn" and facts["steps"] == 40


def test_outputs_that_would_lose_leave_the_file_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.training.blocks.block_run._worse", lambda *_: "worse")
    result = tune(folder, "worse.onnx", ranges="learn", run=RunOptions(steps=4, progress=False), equalize=False)
    assert result.reason.endswith("but not the outputs") and "worse" in result.notes
    assert not any("calibration cache" in note for note in result.notes)


def test_what_was_trained_wants_the_model_from_before(folder: Path) -> None:
    run = RunOptions(steps=2, progress=False)
    found = r"t.onnx: cannot be its own teacher, as its FP32 results were changed \(finetune\); "
    with pytest.raises(QdqError, match=found + "give the original FP32 model as --teacher"):
        finetune(folder / "t.onnx", folder / "d.npz", FinetuneOptions(run=run), output=folder / "twice.onnx")
    with pytest.raises(QdqError, match=found + "use --blocks "):
        tune(folder, "twice.onnx", "t.onnx")
    options = FinetuneOptions(run=run, teacher=folder / "m.onnx")
    assert finetune(folder / "t.onnx", folder / "d.npz", options, output=folder / "twice.onnx").steps == 2


def test_only_weights_and_scales_of_activations_change(folder: Path) -> None:
    before, after = initializers(folder / "q.onnx"), initializers(folder / "t.onnx")
    changed = {name for name in before if before[name] != after[name]}
    assert changed >= {"w1", "b1", "w2", "w3"} and any(name.endswith("_scale") for name in changed)
    assert before.keys() == after.keys()
    nodes = [onnx.load(folder / name).graph.node for name in ("q.onnx", "t.onnx")]
    assert [one.SerializeToString() for one in nodes[0]] == [one.SerializeToString() for one in nodes[1]]


def test_fixed_scales_keep_every_bit_of_the_cache(folder: Path) -> None:
    result = tune(folder, "fixed.onnx", equalize=False)
    assert result.step == 40 and not any("calibration cache" in note for note in result.notes)
    caches = []
    for name in ("q.onnx", "fixed.onnx"):
        peeled = peel(onnx.load(folder / name), PeelOptions(qdqtool.trtversion.parse("8602")))
        caches.append(str(peeled.cache))
    assert caches[0] == caches[1]


def test_peel_gives_the_trained_model_and_the_source_its_weights(folder: Path, tmp_path: Path) -> None:
    words = ["peel", str(folder / "t.onnx"), "--target", "gpu", "--trt-version", "8602", "-q"]
    assert main([*words, "--source", str(folder / "m.onnx"), "-o", str(tmp_path / "p.onnx")]) == 0
    made, plain = onnx.load(tmp_path / "p.onnx"), onnx.load(folder / "m.onnx")
    assert [n.SerializeToString() for n in made.graph.node] == [n.SerializeToString() for n in plain.graph.node]
    trained = initializers(folder / "t.onnx")
    for tensor in made.graph.initializer:
        assert tensor.SerializeToString() == trained[tensor.name]


def test_from_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", str(folder / "q.onnx"), "--data", str(folder / "d.npz"), "--blocks", "--steps", "8"]
    log = tmp_path / "log.jsonl"
    assert main([*words, "--ranges", "learn", "--log", str(log), "-o", str(tmp_path / "c.onnx")]) == 0
    said = capsys.readouterr()
    assert "of 1 blocks improved" in said.out and "the scales of" in said.err
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["step"] for one in lines] == list(range(1, 9)) and lines[0]["block"] == "y"
    assert main([*words, "--ranges", "ema"]) == 2
    assert "--ranges ema: cannot be combined with --blocks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"run": RunOptions(max_minutes=1)}, "--max-minutes: cannot be combined with --blocks"),
        ({"run": RunOptions(grad_accum=2)}, "--grad-accum: cannot be combined with --blocks"),
        ({"run": RunOptions(checkpoint=Path("c"))}, "--checkpoint: cannot be combined with --blocks"),
        ({"loss": LossOptions((parse_label("y:mse"),))}, "--blocks: trains towards the model's own FP32 outputs"),
        ({"teacher": "m.onnx"}, "--blocks: trains towards the model's own FP32 outputs"),
    ],
)
def test_what_does_not_go_with_it(folder: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(QdqError, match=message):
        tune(folder, "never.onnx", **more)
    assert not (folder / "never.onnx").exists()


def test_a_task_is_not_measured(folder: Path) -> None:
    task = TaskMetric(folder / "d.npz", None, EvaluateOptions(progress=False))
    with pytest.raises(QdqError, match=r"--eval-data: .*--blocks"):
        tune(folder, "never.onnx", task=task)


def test_a_model_whose_biases_were_corrected_is_refused_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    options = qdqtool.InsertOptions(condition="auto", calibration=qdqtool.CalibrationOptions("percentile=95"))
    qdqtool.insert(folder / "m.onnx", data=folder / "d.npz", options=options, output=tmp_path / "c.onnx")
    with pytest.raises(QdqError, match="--condition equalize,smooth: "):
        finetune(tmp_path / "c.onnx", folder / "d.npz", FinetuneOptions(run=SHORT, blocks=True))


def test_the_start_comes_back_where_outputs_would_lose(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qdqtool.training.blocks import block_run
    from qdqtool.training.finished_model import OutputGain

    monkeypatch.setattr(block_run, "output_gains", lambda *_: (OutputGain("y", 30.0, 20.0),))
    result = tune(folder, "lost.onnx", equalize=False)
    assert result.step == 0 and any(re.search("SQNR .* from 30.0 to 20.0 dB", note) for note in result.notes)
    assert (folder / "lost.onnx").read_bytes() == (folder / "q.onnx").read_bytes()


def test_scales_that_a_dla_wants_equal_stay_equal(tmp_path: Path) -> None:
    net = """net (float[1,4,8,8] x) => (float[1,8,4,4] y) <float[4,4,3,3] w1, float[8,4,1,1] w2>
    { c1 = Conv<pads=[1,1,1,1]>(x, w1) r1 = Relu(c1) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r1)
      c2 = Conv(p, w2) y = Relu(c2) }"""
    data = tmp_path / "d.npz"
    np.savez(data, x=np.random.default_rng(0).normal(size=(20, 4, 8, 8)).astype(np.float32))
    onnx.save(model_of(net), tmp_path / "m.onnx")
    placed = qdqtool.PlanOptions("dla")
    qdqtool.insert(tmp_path / "m.onnx", data=data, output=tmp_path / "q.onnx", options=qdqtool.InsertOptions(placed))
    options = FinetuneOptions(run=SHORT, blocks=True, ranges="learn")
    assert finetune(tmp_path / "q.onnx", data, options, output=tmp_path / "t.onnx").step == 40
    before, after = initializers(tmp_path / "q.onnx"), initializers(tmp_path / "t.onnx")
    assert any(before[name] != after[name] for name in before if name.endswith("_scale"))
    found = qdqtool.lint(tmp_path / "t.onnx", options=qdqtool.LintOptions(target="dla"))
    assert not [one for one in found.findings if one.code == "Q020"]
