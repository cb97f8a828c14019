# SPDX-License-Identifier: Apache-2.0
"""The layers part of the verb `lint`: what TensorRT would build from a model, beside what it has built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdqtool.display import Cells, Displayed, counted, short_table
from qdqtool.engine.compare import LayerComparison, compare_layers, node_ops
from qdqtool.engine.cost import Forecast, forecast
from qdqtool.engine.layer_info import EngineInfo
from qdqtool.engine.predict import PredictedLayer, predict_layers
from qdqtool.engine.read_info import read_layer_info
from qdqtool.engine.text import comparison_lines, forecast_lines, layer_lines
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.view import GraphView
from qdqtool.options import converted
from qdqtool.trtversion import TrtVersion, parse


@dataclass(frozen=True, repr=False)
class LayersResult(Displayed):
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

    def headline(self) -> str:
        """How many layers there are, and how many of them take INT8."""
        int8 = sum(layer.input == "int8" for layer in self.layers)
        beside = "" if self.info is None else f", beside {len(self.info.layers)} of an engine"
        return f"{counted(len(self.layers), 'layer')} predicted, {int8} with INT8 input{beside}"

    def summary(self) -> list[str]:
        """The first layers, what they cost, how they differ from the engine's."""
        return [*short_table(self.rows()), *forecast_lines(self.forecast), *self.differences()]

    def lines(self) -> list[str]:
        """What `qdqtool lint --layers` prints: every layer, marked by the engine's where there is one."""
        return layer_lines(self.layers, self.forecast, self.comparison)

    def differences(self) -> list[str]:
        """What `qdqtool lint --layer-info` prints; nothing without an engine."""
        if self.info is None or self.comparison is None:
            return []
        return comparison_lines(self.comparison, self.info)

    def rows(self) -> Cells:
        """One row for each predicted layer."""
        rows = [(one.name, one.kind, str(one.input), str(one.output)) for one in self.layers]
        return [("layer", "kind", "input", "output"), *rows]


def lint_layers(
    model: ModelSource,
    version: TrtVersion | str | None = None,
    layer_info: str | Path | None = None,
    *,
    target: str = "gpu",
) -> LayersResult:
    """Say which layers TensorRT would build for a model, without TensorRT.

    Args:
        model: plain or with Q/DQ; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        version: of TensorRT, a TrtVersion or its text; None for the newest whose rules are known.
        layer_info: a file of `trtexec --exportLayerInfo`, or a log of `trtexec --verbose`, of this model's engine.
        target: gpu; see `predict_layers`.

    Raises:
        QdqError: a model or file that cannot be read, an engine of another model, another target.
    """
    version = None if version is None else converted(version, TrtVersion, parse, "version")
    opened = open_model(model)
    view = GraphView(opened.proto.graph, opened.folder)
    layers = predict_layers(view, version, target)
    cost = forecast(view, layers)
    if layer_info is None:
        return LayersResult(layers, cost)
    info = read_layer_info(Path(layer_info))
    return LayersResult(layers, cost, info, compare_layers(layers, info, node_ops(view)))
