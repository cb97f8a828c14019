# SPDX-License-Identifier: Apache-2.0
"""A Q/DQ network with a residual stream, its training form, and data. No tests here."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx

import qdqtool
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.training.batches import Batches, BatchOptions
from qdqtool.training.shapes import SeenTensor, run_once
from qdqtool.training.trainable_scales import Ranges
from qdqtool.training.training_graph import TrainingGraph, make_form
from tests.graphs import model_of

RESIDUAL = """net (float[N,4,8,8] x) => (float[N,4,8,8] y)
<float[4,4,3,3] w1, float[4] b1, float[4,4,3,3] w2, float[4] b2, float[4,4,3,3] w3, float[4] b3, float[4,4,1,1] w4>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1, b1)
 r1 = Relu(c1)
 c2 = Conv<pads=[1,1,1,1]>(r1, w2, b2)
 a1 = Add(c2, r1)
 r2 = Relu(a1)
 c3 = Conv<pads=[1,1,1,1]>(r2, w3, b3)
 a2 = Add(c3, r2)
 r3 = Relu(a2)
 y = Conv(r3, w4)
}"""
DATA = np.random.default_rng(3).normal(size=(20, 4, 8, 8)).astype(np.float32)


@cache
def quantized() -> onnx.ModelProto:
    """The network with pairs that clip much: there is something to win back."""
    options = qdqtool.InsertOptions(
        plan=PlanOptions(float_heads="none"), calibration=qdqtool.CalibrationOptions("percentile=98"), keep_float=0
    )
    made = qdqtool.insert(model_of(RESIDUAL, 17), data=({"x": row[None]} for row in DATA), options=options).model
    assert isinstance(made, onnx.ModelProto)
    return made


def form_of(ranges: Ranges = "learn") -> TrainingGraph:
    return make_form(Model(quantized()), ranges)


def seen_in(form: TrainingGraph) -> dict[str, SeenTensor]:
    return run_once(Model(form.proto), {"x": DATA[:1]})


def batches_of(count: int = len(DATA)) -> Batches:
    loader = open_loader(lambda: [{"x": row[None]} for row in DATA[:count]], inputs_of(quantized().graph))
    return Batches(loader, BatchOptions())
