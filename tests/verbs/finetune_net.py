# SPDX-License-Identifier: Apache-2.0
"""A little Q/DQ model with much to win back, and its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qdqtool
from qdqtool.training.options import RunOptions, UpdateOptions
from qdqtool.verbs.finetune import FinetuneOptions, FinetuneResult, finetune
from tests.graphs import SMALL_NET, model_of

DATA = np.random.default_rng(3).normal(size=(20, 4, 8, 8)).astype(np.float32)


def write_net(path: Path) -> Path:
    """A Q/DQ model with much to win back, `q.onnx`, and data for it, `d.npz`; labels in `l.npz`."""
    model = model_of(SMALL_NET, 17)
    (path / "m.onnx").write_bytes(model.SerializeToString())
    np.savez(path / "d.npz", x=DATA)
    np.savez(path / "l.npz", x=DATA, y_label=np.arange(20) % 3)
    options = qdqtool.InsertOptions(calibration=qdqtool.CalibrationOptions("mse"))
    qdqtool.insert(path / "m.onnx", data=path / "d.npz", options=options, output=path / "fine.onnx")
    coarse = onnx.load(path / "fine.onnx")
    for tensor in coarse.graph.initializer:
        if tensor.name in ("w1_scale", "w2_scale"):  # as if the weights had five bits: there is much to win back
            value = onnx.numpy_helper.to_array(tensor) * np.float32(8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    (path / "q.onnx").write_bytes(coarse.SerializeToString())
    return path


QUICK = RunOptions(steps=40, evaluate_every=10, progress=False)
BRISK = UpdateOptions(relative_lr=0.02, ema_decay=0.8)  # few weights and few steps: each must count


def tune(folder: Path, name: str = "t.onnx", data: str = "d.npz", start: str = "q.onnx", **more: Any) -> FinetuneResult:
    run = replace(QUICK, **{k: more.pop(k) for k in list(more) if hasattr(QUICK, k)})
    more.setdefault("update", BRISK)
    return finetune(folder / start, folder / data, FinetuneOptions(run=run, **more), output=folder / name)
