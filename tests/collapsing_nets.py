# SPDX-License-Identifier: Apache-2.0
"""Little networks that INT8 destroys where no single operator is to blame, and data for them. No tests here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.calibration.engine import CalibrationOptions, WantedScales, calibrate_scales
from qdqtool.decisions import Decisions
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring.scale_choice import ChoiceSource
from qdqtool.measuring.sensitivity_runner import Quantized
from qdqtool.runtime.activations import ObservableModel
from tests.graphs import model_of

Float32 = npt.NDArray[np.float32]
CHANNELS, SIZE = 8, 12
# Of the channels of a tensor from the largest to the smallest: so many times.
SPREAD = 3000.0


def samples(count: int = 4) -> Float32:
    """[count, 8, 12, 12], seeded."""
    return np.random.default_rng(7).standard_normal((count, CHANNELS, SIZE, SIZE)).astype(np.float32)


def residual_net(blocks: int, spread_from: int = 0, spread: float = SPREAD) -> onnx.ModelProto:
    """A residual stream, `blocks` times relu(x + conv(relu(conv(x)))), whose channels lie far apart from a block on.

    The float function is that of the network with even channels: what writes the stream multiplies, what reads it
    divides. The stream passes a 1x1 convolution where its channels change.
    """
    rng = np.random.default_rng(3)
    nodes = ["s0 = Conv<pads=[1,1,1,1]>(x, w_s0)", "r0 = Relu(s0)"]
    weights = {"w_s0": rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) * 0.2}
    scale = np.ones(CHANNELS)
    far = np.geomspace(1.0 / spread, 1.0, CHANNELS)
    for k in range(1, blocks + 1):
        stream = f"r{k - 1}"
        if k == spread_from + 1:
            nodes += [f"t{k} = Conv({stream}, w_t{k})", f"u{k} = Relu(t{k})"]
            weights[f"w_t{k}"] = np.eye(CHANNELS)[:, :, None, None] * far[:, None, None, None]
            stream, scale = f"u{k}", far
        nodes += [
            f"a{k} = Conv<pads=[1,1,1,1]>({stream}, w_a{k})",
            f"b{k} = Relu(a{k})",
            f"c{k} = Conv(b{k}, w_c{k})",
            f"d{k} = Add(c{k}, {stream})",
            f"r{k} = Relu(d{k})",
        ]
        weights[f"w_a{k}"] = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) * 0.1 / scale[:, None, None]
        weights[f"w_c{k}"] = rng.standard_normal((CHANNELS, CHANNELS, 1, 1)) * 0.2 * scale[:, None, None, None]
    nodes.append(f"y = Conv(r{blocks}, w_y)")
    weights["w_y"] = rng.standard_normal((CHANNELS, CHANNELS, 1, 1)) * 0.3 / scale[:, None, None]
    return _model(nodes, weights, ["y"])


def headed_net(heads: int, spread: float = SPREAD) -> onnx.ModelProto:
    """A trunk whose last tensor has channels far apart, read by `heads` heads that each give an output."""
    rng = np.random.default_rng(4)
    far = np.geomspace(1.0 / spread, 1.0, CHANNELS)
    nodes = ["a0 = Conv<pads=[1,1,1,1]>(x, w_a)", "a = Relu(a0)", "t0 = Conv<pads=[1,1,1,1]>(a, w_t)", "t = Relu(t0)"]
    weights = {
        "w_a": rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) * 0.2,
        "w_t": rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) * 0.2 * far[:, None, None, None],
    }
    outputs = [f"y{k}" for k in range(heads)]
    for k, name in enumerate(outputs):
        nodes.append(f"{name} = Conv(t, w_h{k})")
        weights[f"w_h{k}"] = rng.standard_normal((4, CHANNELS, 1, 1)) * 0.3 / far[:, None, None]
    return _model(nodes, weights, outputs)


def _model(nodes: list[str], weights: dict[str, Float32], outputs: list[str]) -> onnx.ModelProto:
    declared = ", ".join(f"float[{','.join(map(str, value.shape))}] {name}" for name, value in weights.items())
    given = ", ".join(f"float[N,{C}] {name}" for name, C in ((name, "C,H,W") for name in outputs))
    model = model_of(f"g (float[N,8,12,12] x) => ({given}) <{declared}> {{ {' '.join(nodes)} }}")
    for tensor in model.graph.initializer:
        value = np.ascontiguousarray(weights[tensor.name], np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


def quantized(model: onnx.ModelProto, *, points_only: bool = False) -> Quantized:
    """The model, its scales by the largest value, and its samples; every head in INT8."""
    from qdqtool.graph.view import GraphView
    from qdqtool.match.planner import make_plan

    data = [{"x": row[None]} for row in samples()]
    options = PlanOptions(float_heads="none")
    points = frozenset(p.tensor for p in make_plan(GraphView(model.graph), options).activations)
    how = CalibrationOptions("max", progress=False)
    table = calibrate_scales(Model(model), data, how, WantedScales(points if points_only else None, points, options))
    return Quantized(ChoiceSource(ObservableModel(Model(model)), data, {}), options, Decisions(), table.scales)
