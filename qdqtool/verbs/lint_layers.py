# SPDX-License-Identifier: Apache-2.0
"""The layers part of the verb `lint`: what TensorRT would build from a model, beside what it has built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdqtool.engine.compare import LayerComparison, compare_layers, node_ops
from qdqtool.engine.cost import Forecast, forecast
from qdqtool.engine.layer_info import EngineInfo
from qdqtool.engine.predict import PredictedLayer, predict_layers
from qdqtool.engine.read_info import read_layer_info
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.view import GraphView
from qdqtool.trtversion import TrtVersion


@dataclass(frozen=True)
class LayersResult:
    """Predicted layers, and the comparison with an engine where one was given.

    Attributes:
        layers: in the order in which they can run.
        forecast: what they cost; predicted, not measured.
        info: the engine's own layers.
        comparison: the two beside each other.
    """

    layers: tuple[PredictedLayer, ...]
    forecast: Forecast
    info: EngineInfo | None = None
    comparison: LayerComparison | None = None


def lint_layers(
    model: ModelSource,
    version: TrtVersion | None = None,
    layer_info: str | Path | None = None,
    *,
    target: str = "gpu",
) -> LayersResult:
    """Say which layers TensorRT would build for a model, without TensorRT.

    Args:
        model: plain or with Q/DQ; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        version: of TensorRT; None for the newest whose rules are known.
        layer_info: a file of `trtexec --exportLayerInfo`, or a log of `trtexec --verbose`, of this model's engine.
        target: gpu; see `predict_layers`.

    Raises:
        QdqError: a model or file that cannot be read, an engine of another model, another target.
    """
    opened = open_model(model)
    view = GraphView(opened.proto.graph, opened.folder)
    layers = predict_layers(view, version, target)
    cost = forecast(view, layers)
    if layer_info is None:
        return LayersResult(layers, cost)
    info = read_layer_info(Path(layer_info))
    return LayersResult(layers, cost, info, compare_layers(layers, info, node_ops(view)))
