# SPDX-License-Identifier: Apache-2.0
"""What candidates cost where they run: a built engine's bytes, else forecast bytes and time. Never measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from qdqtool.cache.text import read_cache
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.choice import DeployCost
from qdqtool.deploying.target import DeployTarget, dla_report
from qdqtool.errors import MissingPackageError
from qdqtool.forecasting.devices import Device
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.forecasting.model_layers import PredictedEngine, Rest, predict_engine
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.peel import peel_pairs
from qdqtool.precision.widen import as_fp32
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_opened
from qdqtool.tensorrt_rtx.cost import cost_of
from qdqtool.tensorrt_rtx.installed import require_library
from qdqtool.verbs.forecast import fix_shapes
from qdqtool.verbs.graft import graft
from qdqtool.verbs.graft_options import GraftOptions
from qdqtool.workflows.deploy_steps import MadeFiles

_IN_FLOAT = "in float"
_FORECAST = "predicted by the rules, not measured"


def cost_of_candidate(
    candidate: DeployCandidate,
    made: MadeFiles,
    target: DeployTarget,
    device: Device | None = None,
    fed: Mapping[str, Sequence[int]] | None = None,
) -> DeployCost:
    """Bytes, layers and time of the engine that a candidate's files would give; `fed` are shapes of inputs, by name.

    Where TensorRT for RTX builds it here, bytes and layers are those of its plan; the time is a forecast.

    Raises:
        QdqError: a model whose layers cannot be forecast.
    """
    if target.kind == "dla":
        return replace(_on_dla(candidate, made, target), added=_added(made))
    engine = engine_of_candidate(candidate, made, target, fed)
    found, work = engine.forecast(), engine.work
    time = None if work is None or device is None else round(LayerTimes(device).total(work), 3)
    moved = None if found.bytes_moved is None else found.bytes_moved / 1e6
    forecast = DeployCost(moved, found.layers, _FORECAST, microseconds=time, kernels=found.kernels)
    if target.kind != "rtx":
        return forecast
    try:
        return replace(_built(made), microseconds=forecast.microseconds)
    except MissingPackageError:
        return forecast


def _on_dla(candidate: DeployCandidate, made: MadeFiles, target: DeployTarget) -> DeployCost:
    """Nodes that do not run in INT8 on the DLA, which runs a subgraph as one layer: there is no more to tell."""
    opened = open_model(made.model)
    inline_products(opened)
    view = as_fp32(opened).view
    weighted = [node.key for node in view.nodes if weight_index(view, node) is not None]
    source = "weighted operators in FP16"
    told: set[str] = set()
    if candidate.is_float:
        floats = weighted
    elif made.cache is None:
        int8 = frozenset(peel_pairs(as_fp32(opened).copy(), on_conflict="max").int8_nodes)
        floats = [key for key in weighted if key not in int8]
    else:
        scales, source = read_cache(made.cache).entries, "weighted operators without a scale"
        told = {layer.node for layer in made.told_to(target.version)}.intersection(weighted, scales)
        source += ", or kept in float" if told else ""
        floats = [key for key in weighted if key not in scales or key in told]
    if target.version is None:  # `improve` needs none
        return DeployCost(None, len(floats), source, _IN_FLOAT)
    report = dla_report(target, opened, floats)
    on_gpu, fits = len(report.fallbacks), not report.too_many
    return DeployCost(None, len(floats), source, _IN_FLOAT, on_gpu=on_gpu, fits=fits, told=len(told))


def _added(made: MadeFiles) -> int:
    """The Muls that editing weights put into the model: layers of their own on a DLA."""
    nodes = open_model(made.model).proto.graph.node
    traces = [{one.key: one.value for one in node.metadata_props} for node in nodes]
    return sum(trace.get("qdqtool.origin") == "condition" for trace in traces)


def _built(made: MadeFiles) -> DeployCost:
    """Bytes and layers of the engine that TensorRT for RTX builds here."""
    built = cost_of(build_opened(open_model(made.model), RtxBuildOptions(), require_library()))
    return DeployCost(built.bytes_moved / 1e6, built.layers, f"compiler's plan of {built.source}, not measured")


def engine_of_candidate(
    candidate: DeployCandidate, made: MadeFiles, target: DeployTarget, fed: Mapping[str, Sequence[int]] | None = None
) -> PredictedEngine:
    """The engine that a GPU builds of a candidate's files, as the rules predict it."""
    if made.qdq is not None:
        model: ModelSource = made.qdq
    else:
        model = _with_pairs(made, target) if made.cache is not None else _lifted(made)
    rest: Rest = "file" if candidate.form == "as-is" else "as-built"
    opened = open_model(model)
    fix_shapes(opened, {name: 3 * (tuple(shape),) for name, shape in (fed or {}).items()})
    return predict_engine(opened, target.version, "rtx" if target.kind == "rtx" else "gpu", rest=rest)


def _lifted(made: MadeFiles) -> onnx.ModelProto:
    """A plain model, typed or not, at an opset whose shapes can be inferred, as those with pairs have it."""
    opened = open_model(made.model)
    normalize(opened)
    return opened.proto


def _with_pairs(made: MadeFiles, target: DeployTarget) -> Path:
    """A plain model with the scales of its cache as Q/DQ, of which layers can be forecast; in the cache's folder."""
    assert made.cache is not None
    plan = PlanOptions(trt_version=target.version, float_heads="none")
    placed = made.cache.with_suffix(".forecast.onnx")
    graft(made.model, made.cache, GraftOptions(plan, rest="fp32", force=True), output=placed)
    return placed
