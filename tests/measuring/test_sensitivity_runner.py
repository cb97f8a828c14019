# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds against counts by hand; where shapes need a run."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.graph.model import Model
from qdqtool.measuring.sensitivity_runner import work_of
from qdqtool.runtime.activations import ObservableModel
from tests.graphs import model_of


@pytest.mark.parametrize(
    ("text", "shape", "macs"),
    [
        ("g (float[N,4,8,8] x) => (float[N,6,3,3] y) <float[6,4,3,3] w> { y = Conv<strides=[2,2]>(x, w) }",
         (1, 4, 8, 8), 6 * 9 * 4 * 9),
        ("g (float[N,4,8,8] x) => (float[N,4,8,8] y) <float[4,1,3,3] w> { y = Conv<group=4,pads=[1,1,1,1]>(x, w) }",
         (1, 4, 8, 8), 4 * 64 * 9),
        ("g (float[N,4,8,8] x) => (float[N,6,16,16] y) <float[4,6,2,2] w> { y = ConvTranspose<strides=[2,2]>(x, w) }",
         (1, 4, 8, 8), 4 * 64 * 6 * 4),
        ("g (float[N,7] x) => (float[N,5] y) <float[5,7] w> { y = Gemm<transB=1>(x, w) }", (3, 7), 3 * 35),
        ("g (float[N,7] x) => (float[N,5] y) <float[7,5] w> { y = Gemm(x, w) }", (3, 7), 3 * 35),
        ("g (float[N,3,7] x) => (float[N,3,5] y) <float[7,5] w> { y = MatMul(x, w) }", (2, 3, 7), 2 * 3 * 35),
        ("g (float[N,7,3] x) => (float[N,5,3] y) <float[5,7] w> { y = MatMul(w, x) }", (2, 7, 3), 2 * 3 * 35),
    ],
)  # fmt: skip
def test_multiply_adds_are_counted(text: str, shape: tuple[int, ...], macs: int) -> None:
    work = work_of(ObservableModel(Model(model_of(text))), {"x": np.ones(shape, np.float32)}, ["y"])["y"]
    assert work.macs == macs and work.read == np.prod(shape)


@pytest.mark.parametrize(("batch", "runs"), [("2", 0), ("N", 1)])
def test_shapes_that_inference_finds_need_no_run(batch: str, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from qdqtool.measuring import sensitivity_runner

    made = []
    real = sensitivity_runner.OrtActivations.of
    monkeypatch.setattr(sensitivity_runner.OrtActivations, "of", lambda *a, **k: made.append(a) or real(*a, **k))
    text = f"g (float[{batch},4,8,8] x) => (float[{batch},6,8,8] y) <float[6,4,1,1] w> {{ a = Relu(x) y = Conv(a, w) }}"
    work = work_of(ObservableModel(Model(model_of(text))), {"x": np.ones((2, 4, 8, 8), np.float32)}, ["y"])["y"]
    assert (work.macs, work.read, work.grid, len(made)) == (2 * 64 * 24, 512, (8, 8), runs)
