# SPDX-License-Identifier: Apache-2.0
"""Gradients in FP16 and BF16 against FP32: near, of FP32 masters, infinite where FP16 is; whole runs with workers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.training.loss_scale import LOSS_SCALE
from qdqtool.training.options import UpdateOptions

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
from qdqtool.autodiff.backends import Builtin
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.graph.model import Model
from qdqtool.training.batches import Batches, BatchOptions
from qdqtool.training.losses.options import LossOptions, parse_label
from qdqtool.training.objective import make_objective
from qdqtool.training.options import TrainingOptions
from qdqtool.training.prepare import prepare
from qdqtool.training.training_graph import make_form
from qdqtool.training.training_run import TrainingRun
from tests.verbs.finetune_net import BRISK, DATA, tune, write_net


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_net(tmp_path_factory.mktemp("mixed"))


def prepared(folder: Path, start: str = "q.onnx", **more: Any) -> TrainingRun:
    model = Model(onnx.load(folder / start))
    form = make_form(model)
    data = {"x": DATA, "y_label": np.arange(20) % 3}
    inputs = (*inputs_of(model.graph), Input("y_label", (None,), np.dtype(np.int64)))
    batches = Batches(
        open_loader([{name: a[i : i + 1] for name, a in data.items()} for i in range(20)], inputs), BatchOptions(2)
    )
    loss = LossOptions((parse_label("y:ce"),)) if start == "m.onnx" else LossOptions()
    options = TrainingOptions(loss, UpdateOptions(**more))
    return prepare(form, make_objective(form, batches, options, None, "d"), batches, Builtin(), options)


def gradients(run: TrainingRun, scale: float | None = None) -> dict[str, Any]:
    values = run.values() if scale is None else {**run.values(), LOSS_SCALE: np.array(scale, np.float32)}
    found = run.student.compute(next(iter(run.batches.from_batch(0))), values)
    return {"loss": np.array(found.loss), **found.gradients}


@pytest.mark.parametrize(("precision", "apart"), [("fp16", 2e-3), ("bf16", 4e-2)])
def test_gradients_are_those_of_fp32_but_for_roundings(folder: Path, precision: Any, apart: float) -> None:
    """In a float model: a rounding may tip a code of a pair over."""
    exact, half = gradients(prepared(folder, "m.onnx")), prepared(folder, "m.onnx", precision=precision)
    found = gradients(half, 1024.0)
    assert found["loss"] == pytest.approx(float(exact["loss"]), rel=apart)
    assert found["loss"] != exact["loss"]
    for name in ("w1", "b1", "w2", "fc"):
        assert found[name].dtype == np.float32, "a master"
        off = np.linalg.norm(found[name] / 1024 - exact[name]) / np.linalg.norm(exact[name])
        assert 0 < off < 5 * apart, name
    assert any(note.startswith("training graph: ") for note in half.notes)


@pytest.mark.slow
def test_a_gradient_beyond_fp16_is_infinite_and_one_of_bf16_is_not(folder: Path) -> None:
    half, wide = (prepared(folder, precision=one) for one in ("fp16", "bf16"))
    assert not np.isfinite(gradients(half, 2.0**30)["w1"]).all()
    assert np.isfinite(gradients(wide, 2.0**30)["w1"]).all()


@pytest.mark.slow
def test_a_run_overflows_at_first_and_ends_near_fp32(folder: Path) -> None:
    log = folder / "log.jsonl"
    exact = tune(folder, "fp32.onnx", backend="builtin")
    half = tune(folder, "fp16.onnx", update=replace(BRISK, precision="fp16"), log=log)
    assert half.after < 0.8 * half.before and half.steps == exact.steps == 40
    assert half.backend == "builtin" and half.before == exact.before, "measured in FP32"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    scales = [line["loss_scale"] for line in lines if line["event"] in ("step", "overflow")]
    assert scales[0] == 2**16 and scales == sorted(scales, reverse=True) and scales[-1] < 2**16
    assert {t.data_type for t in onnx.load(half.model).graph.initializer} <= {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.INT8,
    }
    again = tune(folder, "again.onnx", update=replace(BRISK, precision="fp16"))
    assert again.model.read_bytes() == half.model.read_bytes()


@pytest.mark.slow
def test_scales_that_learn_or_follow_go_with_it(folder: Path) -> None:
    for ranges in ("learn", "ema"):
        found = tune(folder, update=replace(BRISK, precision="fp16"), ranges=ranges)
        assert found.after < found.before


def test_the_training_wheel_has_no_half(folder: Path) -> None:
    with pytest.raises(QdqError, match=r"--backend ort-training: .*--precision"):
        tune(folder, update=replace(BRISK, precision="fp16"), backend="ort-training")
