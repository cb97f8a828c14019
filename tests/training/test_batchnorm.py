# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""BatchNormalization as an affine map has onnxruntime's own bits, and its scale and bias stay initializers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.batchnorm import lower_batch_norms
from tests.graphs import model_of

STATISTICS = "float[3] g, float[3] b, float[3] m, float[3] v = {0.3, 1.7, 2.2}"


def lowered(model: onnx.ModelProto, **how: object) -> tuple[onnx.ModelProto, int]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy, lower_batch_norms(GraphBuilder(copy), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ["5,3", "2,3,7", "2,3,4,5"])
@pytest.mark.parametrize("epsilon", ["", "<epsilon=0.001>"])
def test_not_a_bit_differs(shape: str, epsilon: str) -> None:
    model = model_of(
        f"net (float[{shape}] x) => (float[{shape}] y) <{STATISTICS}> {{ y = BatchNormalization{epsilon}(x, g, b, m, v) }}"
    )
    copy, count = lowered(model)
    feed = {"x": np.random.default_rng(1).standard_normal([int(n) for n in shape.split(",")]).astype(np.float32)}
    assert count == 1 and "BatchNormalization" not in {node.op_type for node in copy.graph.node}
    assert Executor(Model(copy)).run(feed)["y"].tobytes() == Executor(Model(model)).run(feed)["y"].tobytes()
    assert {"g", "b"} <= {tensor.name for tensor in copy.graph.initializer}


def test_scale_and_bias_are_what_it_computes_with() -> None:
    model = model_of(
        f"net (float[2,3,4,5] x) => (float[2,3,4,5] y) <{STATISTICS}> {{ y = BatchNormalization(x, g, b, m, v) }}"
    )
    copy, _ = lowered(model)
    for one in (model, copy):
        for tensor in one.graph.initializer:
            if tensor.name in ("g", "b"):
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([0.5, -2, 3], np.float32), tensor.name))
    feed = {"x": np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    assert Executor(Model(copy)).run(feed)["y"].tobytes() == Executor(Model(model)).run(feed)["y"].tobytes()


def test_without_a_known_rank_it_stays_until_a_run_tells() -> None:
    model = model_of(
        f"net (float[2,3,4] x, int64[K] s) => (y) <{STATISTICS}> {{ r = Reshape(x, s) n = BatchNormalization(r, g, b, m, v) y = Relu(n) }}"
    )
    copy, count = lowered(model)
    assert count == 0 and copy == model
    copy, count = lowered(model, shapes={"r": (2, 3, 2, 2)})
    assert count == 1
    feed = {"x": np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32), "s": np.array([2, 3, 2, 2])}
    assert Executor(Model(copy)).run(feed)["y"].tobytes() == Executor(Model(model)).run(feed)["y"].tobytes()


def test_training_form_and_computed_statistics_are_refused() -> None:
    how = "<training_mode=1>"
    model = model_of(
        f"net (float[2,3,4] x) => (float[2,3,4] y) <{STATISTICS}> {{ y, m2, v2 = BatchNormalization{how}(x, g, b, m, v) }}"
    )
    with pytest.raises(QdqError, match="training mode"):
        lowered(model)
    model = model_of(
        "net (float[2,3,4] x, float[3] m) => (float[2,3,4] y) <float[3] g, float[3] b, float[3] v> { y = BatchNormalization(x, g, b, m, v) }"
    )
    with pytest.raises(QdqError, match="not float32 constants"):
        lowered(model)
