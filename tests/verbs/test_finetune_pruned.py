# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""finetune brings a pruned model back: in float and in INT8, towards a teacher of other widths or towards labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.graph.edit import FINETUNED, get_metadata
from qdqtool.graph.model import Model
from qdqtool.passes.peel import has_qdq
from qdqtool.pruning.kept_channels import kept_of
from qdqtool.runtime.executor import Executor
from qdqtool.training.losses.options import LossOptions, parse_distill, parse_label
from qdqtool.training.losses.teacher import Teacher
from qdqtool.training.options import FLOAT_EPOCHS, FLOAT_RELATIVE_LR, FLOAT_RISE, RunOptions, UpdateOptions
from qdqtool.verbs.finetune import FinetuneOptions, FinetuneResult, finetune
from tests.graphs import SMALL_NET, model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

DATA = np.random.default_rng(3).normal(size=(20, 4, 8, 8)).astype(np.float32)
QUICK = RunOptions(steps=60, evaluate_every=10, progress=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`m.onnx`, with half of its channels `p.onnx`, that in INT8 `q.onnx`; data `d.npz`, with labels `l.npz`."""
    path = tmp_path_factory.mktemp("pruned")
    (path / "m.onnx").write_bytes(model_of(SMALL_NET, 17).SerializeToString())
    np.savez(path / "d.npz", x=DATA)
    np.savez(path / "l.npz", x=DATA, y_label=np.arange(20) % 3)
    qdqtool.prune(path / "m.onnx", options=qdqtool.PruneOptions(ratio=0.5), output=path / "p.onnx")
    how = qdqtool.InsertOptions(calibration=qdqtool.CalibrationOptions("mse"))
    qdqtool.insert(path / "p.onnx", data=path / "d.npz", options=how, output=path / "q.onnx")
    return path


def tune(folder: Path, student: str = "p.onnx", data: str = "d.npz", **more: Any) -> FinetuneResult:
    options = FinetuneOptions(run=QUICK, **{"update": UpdateOptions(relative_lr=1.0, ema_decay=0.8), **more})
    return finetune(folder / student, folder / data, options, output=folder / "t.onnx")


def off(folder: Path, model: Path) -> float:
    """How far a model's outputs lie from the original's, relative to their size."""
    ours, theirs = (Executor(Model(onnx.load(path))).run({"x": DATA})["y"] for path in (model, folder / "m.onnx"))
    return float(np.square(ours - theirs).sum() / np.square(theirs).sum())


def test_a_pruned_model_learns_from_the_original(folder: Path) -> None:
    done = tune(folder, teacher=folder / "m.onnx")
    assert done.after < 0.7 * done.before
    assert off(folder, folder / "t.onnx") < 0.7 * off(folder, folder / "p.onnx")
    made, given = onnx.load(folder / "t.onnx"), onnx.load(folder / "p.onnx")
    assert [node.SerializeToString() for node in made.graph.node] == [
        node.SerializeToString() for node in given.graph.node
    ]
    assert not has_qdq(made.graph) and get_metadata(made, FINETUNED) is not None
    assert kept_of(made).keys() == kept_of(given).keys(), "it can be trained again"


def test_a_pruned_q_dq_model_learns_from_the_original(folder: Path) -> None:
    done = tune(folder, "q.onnx", teacher=folder / "m.onnx", update=UpdateOptions(relative_lr=0.1, ema_decay=0.8))
    assert done.after < done.before and has_qdq(onnx.load(folder / "t.onnx").graph)


def test_labels_train_a_model_in_float(folder: Path) -> None:
    done = tune(folder, data="l.npz", loss=LossOptions((parse_label("y:ce"),)))
    assert done.after < done.before


def test_channels_that_differ_are_projected_where_a_pair_is_named(folder: Path) -> None:
    inside = onnx.load(folder / "m.onnx").graph.node[0].output[0]
    bound = LossOptions(distill=(parse_distill(f"{inside}:{inside}:L2"),), distill_weight=1.0)
    assert tune(folder, teacher=folder / "m.onnx", loss=bound).after > 0


def test_the_rate_of_a_float_model_is_its_own(folder: Path) -> None:
    own = tune(folder, teacher=folder / "m.onnx", update=UpdateOptions())
    update = UpdateOptions(relative_lr=FLOAT_RELATIVE_LR, rise=FLOAT_RISE)
    same = tune(folder, teacher=folder / "m.onnx", update=update)
    assert (own.before, own.after) == (same.before, same.after)


@pytest.mark.parametrize("student", ["p.onnx", "q.onnx"])
def test_a_rate_that_destroys_a_model_leaves_the_best_there_was(student: str, folder: Path) -> None:
    """Measured at the start and six times on the way: the file is the start, or better on what is held out."""
    done = tune(folder, student, teacher=folder / "m.onnx", update=UpdateOptions(relative_lr=1e5))
    assert done.after <= done.before and off(folder, folder / "t.onnx") <= off(folder, folder / student)
    assert done.step or (folder / "t.onnx").read_bytes() == (folder / student).read_bytes()


@pytest.mark.slow
def test_the_rate_of_a_pruned_model_is_searched_where_none_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a rate that destroys it: the default is lowered until it serves, for labels and a given rate it is not."""
    monkeypatch.setattr("qdqtool.verbs.finetune.FLOAT_RELATIVE_LR", 1e3)
    found = tune(folder, teacher=folder / "m.onnx", update=UpdateOptions(ema_decay=0.8))
    assert found.after < 0.95 * found.before and any("learning rate was searched" in one for one in found.notes)
    seen = []

    def train(training: Any, batches: Any, options: FinetuneOptions, identity: Any, reducer: Any) -> None:
        seen.append(options.update.rise)
        raise QdqError("training", "is not what is tested")

    monkeypatch.setattr("qdqtool.verbs.finetune.train", train)
    labels = {"data": "l.npz", "loss": LossOptions((parse_label("y:ce"),))}
    for more in ({}, {"update": UpdateOptions(relative_lr=0.1)}, labels):
        with pytest.raises(QdqError, match="not what is tested"):
            tune(folder, **{"teacher": folder / "m.onnx", "update": UpdateOptions(), **more})
    assert seen == [FLOAT_RISE, None, None]


@pytest.mark.parametrize(("asked", "most"), [(None, FLOAT_EPOCHS), (3, 3)])
def test_a_float_model_may_see_each_sample_often(
    asked: int | None, most: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def train(training: Any, batches: Any, options: FinetuneOptions, identity: Any, reducer: Any) -> None:
        seen.append(options.run.most_epochs)
        raise QdqError("training", "is not what is tested")

    monkeypatch.setattr("qdqtool.verbs.finetune.train", train)
    for student, teacher in (("p.onnx", folder / "m.onnx"), ("q.onnx", None)):
        with pytest.raises(QdqError, match="not what is tested"):
            options = FinetuneOptions(run=RunOptions(most_epochs=asked, progress=False), teacher=teacher)
            finetune(folder / student, folder / "d.npz", options, output=folder / "t.onnx")
    assert seen == [most, asked], "of a model with Q/DQ nothing changes"


PICTURES = "g (float[N,3,16,16] x) => (float[N,2,16,16] y) <float[8,3,1,1] w, float[2,8,1,1] u> { a = Conv(x, w)  r = Relu(a)  y = Conv(r, u) }"


@pytest.mark.parametrize(("data", "student", "copies"), [("d", "p", 4), ("l", "p", 0), ("d", "q", 0)])
def test_changed_pictures_are_held_out_where_a_pruned_model_learns_without_labels(
    data: str, student: str, copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten pictures, two of them held out."""
    held = []

    def train(training: Any, batches: Any, options: FinetuneOptions, identity: Any, reducer: Any) -> None:
        held.append(len(batches.held))
        raise QdqError("training", "is not what is tested")

    monkeypatch.setattr("qdqtool.verbs.finetune.train", train)
    pictures = np.random.default_rng(4).normal(size=(10, 3, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=pictures)
    np.savez(tmp_path / "l.npz", x=pictures, y_label=np.zeros((10, 2, 16, 16), np.float32))
    (tmp_path / "m.onnx").write_bytes(model_of(PICTURES, 17).SerializeToString())
    qdqtool.prune(tmp_path / "m.onnx", options=qdqtool.PruneOptions(ratio=0.5), output=tmp_path / "p.onnx")
    qdqtool.insert(tmp_path / "p.onnx", data=tmp_path / "d.npz", output=tmp_path / "q.onnx")
    loss = LossOptions((parse_label("y:mse"),)) if data == "l" else LossOptions()
    teacher = None if data == "l" else tmp_path / "m.onnx"
    options = FinetuneOptions(loss=loss, teacher=teacher, run=RunOptions(steps=2, progress=False))
    with pytest.raises(QdqError, match="not what is tested"):
        finetune(tmp_path / f"{student}.onnx", tmp_path / f"{data}.npz", options, output=tmp_path / "t.onnx")
    assert held == [2 * (1 + copies)]


def test_a_teacher_gives_the_channels_that_the_student_has(folder: Path) -> None:
    original, pruned = onnx.load(folder / "m.onnx"), onnx.load(folder / "p.onnx")
    name, kept = next(iter(kept_of(pruned).items()))
    whole, part = (Teacher(Model(original), {"x": DATA[:2]}, kept=note) for note in ({}, {name: kept}))
    for teacher in (whole, part):
        teacher.fetch([name])
    found = whole.run({"x": DATA[:2]})[name]
    assert np.array_equal(np.take(found, kept.places, kept.axis), part.run({"x": DATA[:2]})[name])
    ours = tuple(part.shapes([name])[name])
    assert part.comparable({name: ours, "elsewhere": (1,)}) == {name}
    assert whole.comparable({name: ours}) == frozenset()
