# SPDX-License-Identifier: Apache-2.0
"""Scales that follow the data (ranges "ema"): which they are in a training form, and the graph that watches them."""

from __future__ import annotations

import numpy as np
import onnx

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.training.averages import MovingMaxima
from qdqtool.training.student import watch_maxima, with_inputs
from qdqtool.training.training_graph import TrainingGraph


def moving_maxima(form: TrainingGraph) -> MovingMaxima:
    """The scales of activations as maxima, by what their pairs can hold."""
    levels: dict[str, int] = {}
    zeros = {tensor.name: tensor for tensor in form.proto.graph.initializer}
    for node in form.proto.graph.node:
        if node.domain == PAIR_DOMAIN and node.input[1] in form.activations:
            levels[node.input[1]] = levels_above_zero(zeros[node.input[2]])
    initial = form.initial()
    return MovingMaxima({name: initial[name] for name in form.activations}, levels)


def levels_above_zero(zero: onnx.TensorProto) -> int:
    """The most steps above the zero point that a pair's integers hold."""
    name = onnx.TensorProto.DataType.Name(zero.data_type)
    bits = int("".join(letter for letter in name if letter.isdigit()) or 8)
    most = 2**bits - 1 if name.startswith("U") else 2 ** (bits - 1) - 1
    return int(most - np.max(onnx.numpy_helper.to_array(zero).astype(np.int64), initial=0))


def with_watched_scales(
    proto: onnx.ModelProto, form: TrainingGraph, maxima: MovingMaxima | None
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The loss graph with the moving scales as inputs, and the tensors that hold the maxima these follow."""
    if maxima is None:
        return proto, ()
    watched, names = watch_maxima(proto, [form.activations[name] for name in maxima.scales])
    return with_inputs(watched, maxima.scales), tuple(names)
