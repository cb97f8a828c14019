# SPDX-License-Identifier: Apache-2.0
"""Runs of `finetune`: labels, a task metric, time, the log, and work that is taken up again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import insert
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.graph.model_file import is_unread
from qdqtool.graph.view import GraphView
from qdqtool.runtime.executor import Executor
from qdqtool.training.losses.options import LossOptions, parse_label
from qdqtool.training.options import UpdateOptions
from qdqtool.training.schedules import Schedule
from qdqtool.verbs.evaluate_options import EvaluateOptions
from qdqtool.verbs.finetune import FinetuneOptions, finetune
from qdqtool.verbs.validation_metric import TaskMetric, task_gain

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
from tests.graphs import SMALL_NET, model_of
from tests.verbs.finetune_net import BRISK, DATA, QUICK, tune, write_net


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_net(tmp_path_factory.mktemp("finetune"))


# ------------------------------------------------------------------------------------------------ labels, task, time


def test_labels_lower_the_loss_on_labels(folder: Path) -> None:
    result = tune(folder, data="l.npz", loss=LossOptions((parse_label("y:ce"),)), update=UpdateOptions(lr=0.01))
    assert result.after <= result.before
    assert result.outputs == ()
    with pytest.raises(QdqError, match=r"holds no array 'y_lable'"):
        tune(folder, data="l.npz", loss=LossOptions((parse_label("y:ce:1:y_lable"),)))


def test_a_loss_on_logits_of_a_model_that_ends_in_probabilities_is_noted(tmp_path: Path) -> None:
    text = SMALL_NET.replace("y = Gemm(f, fc)", "logits = Gemm(f, fc) y = Softmax(logits)")
    np.savez(tmp_path / "l.npz", x=DATA, y_label=np.arange(20) % 3)
    insert(model_of(text), data=tmp_path / "l.npz", output=tmp_path / "q.onnx")
    asked = LossOptions((parse_label("y:ce"), parse_label("logits:ce:1:y_label")))
    result = tune(tmp_path, data="l.npz", loss=asked, steps=4, log=tmp_path / "log")
    said = [note for note in result.notes if "takes logits" in note]
    assert len(said) == 1 and re.match("y is .* Softmax .*logits is used$", said[0])


def test_labels_of_a_wrong_shape_are_refused_in_one_line(folder: Path) -> None:
    np.savez(folder / "wrong.npz", x=DATA, y_label=np.zeros((20, 3), np.int64))
    with pytest.raises(QdqError, match=r"'y_label' of --label y:ce takes \[1\], the data has \[1, 3\]"):
        tune(folder, data="wrong.npz", loss=LossOptions((parse_label("y:ce"),)))


@pytest.mark.slow
def test_classes_of_a_file_train_as_their_array_does(folder: Path) -> None:
    np.save(folder / "train.npy", np.arange(20) % 3)
    array = tune(folder, "array.onnx", data="l.npz", loss=LossOptions((parse_label("y:ce"),)))
    found = tune(folder, "file.onnx", labels=folder / "train.npy")
    assert found.model.read_bytes() == array.model.read_bytes()
    smoothed = LossOptions((parse_label("y:ce=smoothing=0.2:2:classes"),))
    other = tune(folder, "smoothed.onnx", labels=folder / "train.npy", loss=smoothed)
    assert other.before > 1.8 * found.before and other.model.read_bytes() != array.model.read_bytes()


def test_a_plain_classifier_is_quantized_and_learns_its_classes(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=DATA, y=np.arange(20) % 3)
    options = FinetuneOptions(run=replace(QUICK, steps=20), update=BRISK, labels="folders")
    found = finetune(folder / "m.onnx", tmp_path / "d.npz", options, output=tmp_path / "t.onnx")
    assert any("as qdqtool insert does" in note for note in found.notes)
    assert found.after < found.before and not found.in_float
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(found.model).graph.node}


@pytest.mark.parametrize("classes", [1, 3])
def test_an_output_of_sigmoids_learns_by_binary_cross_entropy(tmp_path: Path, classes: int) -> None:
    text = f"""net (float[N,4,8,8] x) => (float[N,{classes}] y) <float[{classes},4,1,1] w>
    {{ c = Conv(x, w)  p = GlobalAveragePool(c)  f = Flatten(p)  y = Sigmoid(f) }}"""
    model, truth = model_of(text, 17), np.arange(20) % max(classes, 2)
    np.savez(tmp_path / "d.npz", x=DATA)
    np.save(tmp_path / "c.npy", truth)
    onnx.save(model, tmp_path / "m.onnx")
    run = replace(QUICK, steps=2, log=tmp_path / "log")
    found = finetune(tmp_path / "m.onnx", tmp_path / "d.npz", FinetuneOptions(run=run, labels=tmp_path / "c.npy"))
    held = [4, 9, 14, 19]
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0])[:, :, 0, 0]
    logits = np.einsum("oc,nchw->no", weights, DATA[held]) / 64
    wanted = truth[held, None] if classes == 1 else truth[held, None] == np.arange(3)
    expected = np.mean(np.logaddexp(0, logits) - logits * wanted)
    assert found.before == pytest.approx(expected, rel=0.02)  # there are pairs
    assert any("is the output of a Sigmoid" in note for note in found.notes)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("few.npy", "has 3 classes, the data has 20 samples"),
        ("high.npy", "is the number of the first class 0"),
        ("boxes.json", "lists boxes by image file, and the data has no image files"),
        ("none.csv", "does not exist"),
        ("folders", "does not have the classes of its samples"),
    ],
)
def test_labels_that_do_not_fit_are_refused(folder: Path, labels: str, message: str) -> None:
    np.save(folder / "few.npy", np.arange(3))
    np.save(folder / "high.npy", np.arange(20))
    (folder / "boxes.json").write_text("{}")
    with pytest.raises(QdqError, match=message):
        tune(folder, labels=labels if labels == "folders" else folder / labels)


def test_a_gain_on_the_task_is_told_with_its_interval(folder: Path) -> None:
    after = onnx.load(folder / "m.onnx")
    found = Executor(Model(after), ["y"]).run({"x": DATA})["y"].argmax(1)
    np.save(folder / "all.npy", found)
    before = onnx.load(folder / "m.onnx")
    weight = next(tensor for tensor in before.graph.initializer if tensor.name == "fc")
    weight.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weight), "fc"))
    task = TaskMetric(folder / "d.npz", folder / "all.npy", EvaluateOptions(metric="top1"))
    said = [task_gain(task, *pair) for pair in ((before, after), (before, before))]
    figures = [re.match(r"top1 (.+), (.+) before training \((.+) to (.+), 20 samples\)", one) for one in said]
    gained, same = ([float(number) for number in one.groups()] for one in figures if one is not None)
    assert gained[0] == 1 and 0 < gained[2] <= gained[0] - gained[1] <= gained[3]
    assert same[0] == same[1] == gained[1] and same[2:] == [0, 0]
    assert [one.endswith(": no gain is shown, keep the model from before") for one in said] == [False, True]
    labels = LossOptions((parse_label("y:ce"),))
    tuned = tune(folder, data="l.npz", task=task, start="fine.onnx", steps=4, evaluate_every=2, loss=labels)
    assert any(note.startswith("top1 ") for note in tuned.notes) == bool(tuned.step)


def test_a_task_metric_decides(folder: Path) -> None:
    np.savez(folder / "eval.npz", x=DATA[:8])
    np.save(folder / "classes.npy", np.zeros(8, np.int64))
    task = TaskMetric(folder / "eval.npz", folder / "classes.npy", EvaluateOptions(metric="top1"))
    result = tune(folder, task=task, steps=20)
    assert result.measure == "1 - top1"
    assert 0 <= result.after <= result.before <= 1


@pytest.mark.slow
def test_a_task_metric_judges_large_weights_of_the_file_and_refuses_those_beside_it(tmp_path: Path) -> None:
    text = SMALL_NET.replace(
        "[4,4,3,3] w1, float[4] b1, float[4,4,3,3] w2, float[4,3]",
        "[32,4,3,3] w1, float[32] b1, float[32,32,3,3] w2, float[32,3]",
    )
    onnx.save(model_of(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=DATA)
    np.save(tmp_path / "classes.npy", np.arange(20) % 3)
    insert(tmp_path / "m.onnx", data=tmp_path / "d.npz", output=tmp_path / "q.onnx")
    assert is_unread(GraphView(open_model(tmp_path / "q.onnx").proto.graph).initializers["w2"])
    task = TaskMetric(tmp_path / "d.npz", tmp_path / "classes.npy", EvaluateOptions(metric="top1"))
    result = tune(tmp_path, task=task, steps=4, evaluate_every=2)
    assert result.measure == "1 - top1"
    whole = finetune(
        onnx.load(tmp_path / "q.onnx"),
        tmp_path / "d.npz",
        FinetuneOptions(run=replace(QUICK, steps=4, evaluate_every=2), update=BRISK, task=task),
    )
    assert (result.before, result.after) == (whole.before, whole.after)
    onnx.save(onnx.load(tmp_path / "q.onnx"), tmp_path / "beside.onnx", save_as_external_data=True, location="w.data")
    with pytest.raises(QdqError, match=r"beside.onnx: .*external files"):
        tune(tmp_path, start="beside.onnx", task=task)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d.npz", "l.npz"])
def test_evaluation_data_without_labels_measure_the_loss(folder: Path, name: str) -> None:
    labels = LossOptions((parse_label("y:ce"),)) if name == "l.npz" else LossOptions()
    kept = np.load(folder / name)
    np.savez(folder / f"other_{name}", **{key: kept[key][:5] for key in kept.files})
    task = TaskMetric(folder / f"other_{name}")
    result = tune(folder, data=name, task=task, steps=4, evaluate_every=2, loss=labels, batch=4)
    assert result.measure == "loss"
    assert any(re.match("--eval-data has no labels: .* 5 samples", note) for note in result.notes)
    assert result.before != tune(folder, data=name, steps=4, evaluate_every=2, loss=labels, batch=4).before
    with pytest.raises(QdqError, match="needs --baseline to compare with"):
        tune(folder, task=replace(task, options=EvaluateOptions(metric="agreement")))


@pytest.mark.slow
@pytest.mark.parametrize("ranges", ["fixed", "ema"])
def test_time_is_laid_out_and_ends_it(folder: Path, ranges: Any) -> None:
    result = tune(folder, steps=None, max_minutes=0.005, evaluate_every=None, ranges=ranges)
    assert 20 <= result.planned <= 2000
    assert result.seconds < 5


def test_the_log_has_a_line_for_each_step(folder: Path) -> None:
    tune(folder, log=folder / "log", steps=12, evaluate_every=5)
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, 13))
    assert [line["step"] for line in lines if line["event"] == "measure"] == [0, 5, 10, 12]
    assert all(line["images_per_second"] > 0 for line in lines if line["event"] == "step")


# ------------------------------------------------------------------------------------------------------- taken up again

RESUMABLE = """
import sys
from pathlib import Path
from qdqtool.training.options import RunOptions
from qdqtool.verbs.finetune import FinetuneOptions, finetune
folder, name = Path(sys.argv[1]), sys.argv[2]
often = dict(evaluate_every=50, checkpoint_every=3)
run = RunOptions(steps=400, **often, checkpoint=folder / f"{name}.ck", resume=True, progress=False)
finetune(folder / "q.onnx", folder / "d.npz", FinetuneOptions(run=run), output=folder / f"{name}.onnx")
"""


@pytest.mark.slow
def test_kill_9_and_resume_end_with_the_same_bytes(folder: Path) -> None:
    script = folder / "resumable.py"
    script.write_text(RESUMABLE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, script, folder, name], env=env)

    killed = start("killed")
    deadline = time.monotonic() + 60
    while not (folder / "killed.ck").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (folder / "killed.onnx").exists()
    assert (folder / "killed.ck").exists()
    assert start("killed").wait() == 0
    assert start("whole").wait() == 0
    assert (folder / "killed.onnx").read_bytes() == (folder / "whole.onnx").read_bytes()
    assert not (folder / "killed.ck").exists()


@pytest.mark.slow
def test_a_run_goes_on_from_the_newest_checkpoint_of_a_folder(folder: Path) -> None:
    kept = folder / "kept"
    whole = tune(folder, "undisturbed.onnx", steps=20)
    often = {"checkpoint": kept, "keep": 2, "checkpoint_every": 5, "steps": 20}
    tune(folder, "kept.onnx", **often)
    names = [f"step-{step:010}.npz" for step in (15, 20)]
    assert sorted(one.name for one in kept.iterdir()) == names, "they stay"
    (kept / names[1]).unlink()
    with pytest.raises(QdqError, match="continue it with --resume"):
        tune(folder, "resumed.onnx", **often)
    tune(folder, "resumed.onnx", resume=True, **often)
    for name in ("kept.onnx", "resumed.onnx"):
        assert (folder / name).read_bytes() == whole.model.read_bytes()


@pytest.mark.slow
def test_a_finished_run_is_lengthened(folder: Path) -> None:
    """With a constant rate it ends with the bytes of a run that was as long from the beginning."""
    slow = UpdateOptions(relative_lr=0.005, ema_decay=0.8)
    level = {"evaluate_every": 5, "schedule": Schedule("constant", warmup=0.0), "update": slow}
    whole = tune(folder, "long.onnx", steps=20, **level)
    often = {"checkpoint": folder / "short.ck", "keep_checkpoint": True, **level}
    short = tune(folder, "short.onnx", steps=10, **often)
    assert short.model.read_bytes() != whole.model.read_bytes()
    longer = tune(folder, "short.onnx", steps=20, resume=True, **often)
    assert longer.model.read_bytes() == whole.model.read_bytes()
    assert longer.planned == 20
    assert "the checkpoint is of 10 steps: the run now ends at 20, as does its learning rate" in longer.notes
    again = tune(folder, "short.onnx", steps=20, resume=True, **often)
    assert again.model.read_bytes() == whole.model.read_bytes() and not any("now ends" in one for one in again.notes)


@pytest.mark.slow
def test_a_checkpoint_of_other_options_is_refused(folder: Path) -> None:
    path = folder / "other.ck"

    def stopped(**more: Any) -> None:
        tune(folder, checkpoint=path, checkpoint_every=5, steps=12, equalize=False, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qdqtool.verbs.finetune.finished_model", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stopped()
    with pytest.raises(QdqError, match="continue it with --resume"):
        stopped()
    with pytest.raises(QdqError, match="different set of options"):
        stopped(resume=True, seed=1)
    np.savez(folder / "other.npz", x=DATA[:15])
    with pytest.raises(QdqError, match="different data"):
        stopped(resume=True, data="other.npz")
    stopped(resume=True)
    assert not path.exists()
