# SPDX-License-Identifier: Apache-2.0
"""The layers of a model's engine, and what each of its kernels computes and moves. Nothing is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qdqtool.engine.cost import Forecast, forecast
from qdqtool.engine.layer_work import LayerWork, layer_work
from qdqtool.engine.predict import PredictedLayer, predict_layers
from qdqtool.engine.predict_rtx import predict_rtx_layers
from qdqtool.graph.inline_functions import inline_products, products_in_functions
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.passes.rewrites import without_rewrites
from qdqtool.precision.element_types import infer_types, is_strongly_typed
from qdqtool.precision.widen import as_fp32
from qdqtool.rtxversion import RTX_TARGET, refuse_trt_version
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import TrtVersion

Rest = Literal["fp16", "file", "as-built"]


@dataclass(frozen=True)
class PredictedEngine:
    """The engine of one model, as the rules of a version predict it.

    Attributes:
        view: the graph that it is predicted for.
        file: the graph as the file has it.
        types: those of a strongly typed network; None where the builder chooses.
        layers: in the order in which they can run.
        kernels: what each computes and moves; fewer than the layers where an attention is fused or layers are joined.
    """

    view: GraphView
    file: GraphView
    types: Mapping[str, int] | None
    layers: tuple[PredictedLayer, ...]
    kernels: tuple[LayerWork, ...]

    @property
    def work(self) -> tuple[LayerWork, ...] | None:
        """The kernels; None where a size is not known."""
        return self.kernels if all(one.sized for one in self.kernels) else None

    def forecast(self) -> Forecast:
        """What the layers cost together."""
        return forecast(self.view, self.layers, self.types, self.file, self.kernels)


def predict_engine(
    opened: Model, version: TrtVersion | None = None, target: str = "gpu", *, rest: Rest = "as-built"
) -> PredictedEngine:
    """The engine of a model, which is not changed.

    What is not INT8 is FP16, as after `amp` or with the builder's flag; or has the types of the file; or, "as-built",
    those of the file where the version takes them from there, and else FP16. Functions with products in them are
    inlined; what only a compiler's reward put into the graph is left out.

    Raises:
        QdqError: another target than gpu and rtx, a version beside rtx.
    """
    if products_in_functions(opened.proto):
        opened = opened.copy()
        inline_products(opened)
    types = None
    if rest != "fp16":
        found = infer_types(opened.proto)
        types = found.types if rest == "file" or is_strongly_typed(found, version, target) else None
    wide = as_fp32(opened)  # its tensors have the names of the file
    view = wide.view if target == RTX_TARGET else without_rewrites(wide).view
    return predict_engine_of(view, version, target, types, opened.view)


def predict_engine_of(
    view: GraphView,
    version: TrtVersion | None = None,
    target: str = "gpu",
    types: Mapping[str, int] | None = None,
    file: GraphView | None = None,
) -> PredictedEngine:
    """The engine of a graph as it is; `types` are those of `file`, the graph itself by default."""
    if target == RTX_TARGET:
        refuse_trt_version(version)
        layers, rules = predict_rtx_layers(view), load_rules(RTX_TARGET)
    else:
        layers, rules = predict_layers(view, version, target, types), load_rules("gpu_layers", version)
    return PredictedEngine(view, file or view, types, layers, tuple(layer_work(view, layers, rules, types, file)))


def layers_in(
    opened: Model, version: TrtVersion | None, target: str, *, rest: Rest = "as-built"
) -> tuple[LayerWork, ...] | None:
    """What each kernel of a model's engine computes and moves; None where a size is not known."""
    return predict_engine(opened, version, target, rest=rest).work
