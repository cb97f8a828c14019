# SPDX-License-Identifier: Apache-2.0
"""Which of several models comes nearest to the original at its ends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.pruning.nearest_model import nearest_model
from qdqtool.pruning.probe import Array, ProbeRun
from qdqtool.pruning.scores import Float64
from tests.graphs import model_of
from tests.pruning.nets import with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

NET = """g (float[N,1] x) => (float[N,1] y, float[N,1] z) <float[1,1] a, float[1,1] b>
    { y = MatMul(x, a)  z = MatMul(x, b) }"""
FEEDS = [{"x": np.ones((2, 1), np.float32)}, {"x": np.full((1, 1), 2.0, np.float32)}]


class SquareErrors:
    """Of y, of z, and of nothing."""

    tensors = ("y", "z")

    def measure(self, whole: Mapping[str, Array], found: Mapping[str, Array]) -> Float64:
        errors = [np.square(found[name].astype(np.float64) - whole[name]).sum() for name in self.tensors]
        return np.array([*errors, 0.0])


def model(a: float, b: float) -> onnx.ModelProto:
    return with_values(model_of(NET), a=np.full((1, 1), a), b=np.full((1, 1), b))


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([(1.5, 1.0), (1.1, 1.0)], 1),
        ([(1.1, 1.0), (1.5, 1.0)], 0),
        ([(1.2, 1.2), (1.2, 1.2)], 0),  # of equals the first
        ([(1.0, 1.0), (1.0, 1.0)], 0),
        ([(1.4, 280.0), (1.0, 300.0)], 1),  # z's errors are large, and count no more for that
    ],
)
def test_the_nearest_by_all_kinds_of_ends(models: list[tuple[float, float]], expected: int) -> None:
    made = [Model(model(*one)) for one in models]
    assert nearest_model(ProbeRun(Model(model(1.0, 1.0)), FEEDS), made, FEEDS, SquareErrors()) == expected
