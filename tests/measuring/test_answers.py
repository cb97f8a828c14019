# SPDX-License-Identifier: Apache-2.0
"""Answers of a model on a few samples: classes and boxes are read, anything else is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.measuring import answers
from qdqtool.measuring.answers import Answers
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
CLASSES = "g (float[N,4] x) => (float[N,3] y) <float[4,3] w> { y = MatMul(x, w) }"
DATA = [{"x": np.random.default_rng(k).standard_normal((1, 4)).astype(np.float32)} for k in range(8)]


def test_classes_lose_the_share_of_probability_that_moves() -> None:
    model = model_of(CLASSES)
    own = Answers.of(Model(model), DATA)
    assert own.reads == "classes"
    itself = own.loss(Model(model))
    assert itself is not None and (itself.metric, itself.loss.value, itself.samples) == ("nearness", 0.0, 8)
    assert itself.word == "little"
    other = model_of(CLASSES.replace("MatMul(x, w)", "MatMul(n, w)").replace("{", "{ n = Neg(x)"))
    worse = own.loss(Model(other))
    assert worse is not None and worse.loss.value > 0.1 and worse.word == "much"


def test_boxes_are_read_where_a_decoder_fits() -> None:
    pytest.importorskip("pycocotools")
    models = Path(__file__).resolve().parents[2] / "models"
    plain = open_model(models / "shapes_detr.onnx")
    image = np.random.default_rng(0).random(
        [1, *(one.dim_value for one in plain.graph.input[0].type.tensor_type.shape.dim[1:])]
    )
    found = Answers.of(plain, [{plain.graph.input[0].name: image.astype(np.float32)}])
    assert found.reads == "boxes"


def test_what_nothing_reads_and_what_is_too_large_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    features = model_of("g (float[N,6,4] x) => (float[N,6,4] y) { y = Relu(x) }")
    found = Answers.of(Model(features), [{"x": np.ones((1, 6, 4), np.float32)}])
    assert found.reads == "" and found.loss(Model(features)) is None
    monkeypatch.setattr(answers, "MOST_BYTES", 0)
    assert Answers.of(Model(model_of(CLASSES)), DATA).reads == ""
