# SPDX-License-Identifier: Apache-2.0
"""The layers that the rules predict for a model, and what each of its kernels computes and moves. Nothing is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from qdqtool.engine.layer_work import LayerWork, layer_work
from qdqtool.engine.predict import PredictedLayer, predict_layers
from qdqtool.engine.predict_rtx import predict_rtx_layers
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.passes.rewrites import without_rewrites
from qdqtool.precision.element_types import infer_types, is_strongly_typed
from qdqtool.precision.widen import as_fp32
from qdqtool.rtxversion import RTX_TARGET, refuse_trt_version
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import TrtVersion

Rest = Literal["fp16", "file", "as-built"]


def layers_in(
    opened: Model, version: TrtVersion | None, target: str, *, rest: Rest = "as-built"
) -> list[LayerWork] | None:
    """What each kernel of a model's engine computes and moves; None where a size is not known.

    What is not INT8 is FP16, as after `amp` or with the builder's flag; or has the types of the file; or, "as-built",
    those of the file where the version takes them from there, and else FP16. Functions with products in them are
    inlined.
    """
    inline_products(opened)
    types = infer_types(opened.proto).types if rest == "file" else None
    types = types_as_built(opened, version, target) if rest == "as-built" else types
    view, layers = predict_view(opened, version, target, types)
    return work_of_layers(view, layers, version, target, types, opened.view)


def types_as_built(opened: Model, version: TrtVersion | None, target: str) -> Mapping[str, int] | None:
    """The types of a strongly typed network; None where the builder chooses."""
    inline_products(opened)
    found = infer_types(opened.proto)
    return found.types if is_strongly_typed(found, version, target) else None


def predict_view(
    opened: Model, version: TrtVersion | None, target: str, types: Mapping[str, int] | None
) -> tuple[GraphView, tuple[PredictedLayer, ...]]:
    """The graph that layers are predicted for, without what only a compiler's reward put there, and its layers."""
    inline_products(opened)
    wide = as_fp32(opened)  # its tensors have the names of the file
    if target == RTX_TARGET:
        refuse_trt_version(version)
        return wide.view, predict_rtx_layers(wide.view)
    view = without_rewrites(wide).view
    return view, predict_layers(view, version, target, types)


def work_of_layers(
    view: GraphView,
    layers: Sequence[PredictedLayer],
    version: TrtVersion | None,
    target: str,
    types: Mapping[str, int] | None,
    file: GraphView,
) -> list[LayerWork] | None:
    """The work of layers by the rules of a version; None where a size is not known."""
    rules = load_rules("rtx" if target == RTX_TARGET else "gpu_layers", version)
    return layer_work(view, layers, rules, types, file)
