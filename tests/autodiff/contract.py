# SPDX-License-Identifier: Apache-2.0
"""What every gradient back end must do; each back end's tests call these. No tests by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from qdqtool.autodiff.backend import Forward
from tests.autodiff.cases import GradientCase
from tests.autodiff.running import gradients_of, oracle_of, prepared, slopes

_WAYS = 3
_FLOAT32 = 3e-5  # of the gradient's own size: float32 sums against differences in float64


def assert_slopes(backend: Any, case: GradientCase) -> None:
    """A back end's gradient, along random directions, is the slope of the loss, of the right shape and type."""
    forward, feed = prepared(case)
    found = gradients_of(backend, forward, feed)
    values = np.random.default_rng(1)
    ways = {name: [values.normal(0, 1, forward.shapes[name]) for _ in range(_WAYS)] for name in forward.parameters}
    wanted = slopes(oracle_of(case, forward), feed, ways)
    for name in forward.parameters:
        gradient = found[name]
        assert gradient.dtype == np.float32 and gradient.shape == forward.shapes[name], name
        wide = gradient.astype(np.float64)
        for way, slope in zip(ways[name], wanted[name], strict=True):
            size = np.linalg.norm(wide) * np.linalg.norm(way)
            assert abs(float((wide * way).sum()) - slope) <= _FLOAT32 * size + 1e-6, (name, slope)


def assert_in_order(backend: Any, forward: Forward) -> None:
    """Inputs are the forward's, then the parameters; outputs the loss, the auxiliaries, one gradient per parameter."""
    graph = backend.build(forward)
    own = [one.name for one in forward.proto.graph.input if one.name not in forward.parameters]
    assert [one.name for one in graph.proto.graph.input] == [*own, *forward.parameters]
    assert list(graph.gradients) == list(forward.parameters)
    outputs = [forward.loss, *forward.auxiliary, *graph.gradients.values()]
    assert [one.name for one in graph.proto.graph.output] == outputs
    assert not {one.name for one in graph.proto.graph.initializer} & set(forward.parameters)
    for one in graph.proto.graph.output[-len(forward.parameters) :]:
        assert one.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    needed = set(outputs)
    for node in reversed(graph.proto.graph.node):
        assert needed & set(node.output), f"{node.op_type} makes what nobody reads"
        needed.update(node.input)


def largest_difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, str]:
    """The largest difference of two back ends' gradients, each by the size of the gradient, and the parameter."""
    return max(
        (float(np.abs(one[name] - other[name]).max() / max(float(np.abs(other[name]).max()), 1e-12)), name)
        for name in other
    )
