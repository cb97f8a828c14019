# SPDX-License-Identifier: Apache-2.0
"""The verb `engine`: the layers of an engine from what was written of it, beside what was predicted; two engines."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qdqtool.display import Cells, Displayed, counted, short_table, table
from qdqtool.engine.built_text import engine_json, layer_rows, layer_text, source_line
from qdqtool.engine.compare import LayerComparison, compare_layers, node_ops
from qdqtool.engine.cost import Forecast, layers_in_kernels
from qdqtool.engine.diff import AlignedLayers, align_layers, difference_lines, totals_table
from qdqtool.engine.layer_info import EngineInfo
from qdqtool.engine.layer_work import LayerWork
from qdqtool.engine.predict import PredictedLayer
from qdqtool.engine.predicted_text import (
    Ends,
    comparison_json,
    comparison_lines,
    end_types,
    forecast_lines,
    layer_lines,
    layers_json,
)
from qdqtool.engine.read_info import read_layer_info, with_profile
from qdqtool.engine.totals import EngineTotals, totals_lines, totals_of
from qdqtool.forecasting.model_layers import PredictedEngine, predict_engine
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.options import TextOption
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.trtversion import TrtVersion, parse
from qdqtool.verbs.build import built_layers
from qdqtool.verbs.build_options import BuildOptions, ShapeRanges
from qdqtool.verbs.forecast import fix_shapes

MODEL_ENDING = ".onnx"


@dataclass(frozen=True)
class ShowEngineOptions:
    """What is put beside an engine's layers.

    Attributes:
        model: the model of the engine: its predicted layers are compared with those that were built.
        profile: a file of `trtexec --exportProfile` with the time of each layer.
        trt_version: whose rules predict, a TrtVersion or its text; None for those of TensorRT for RTX where that built
            the engine, else for the newest whose rules are known.
        sm: of a model that is built: the compute capabilities.
        shapes: of a model that is built: input -> lowest, best and highest shape.
    """

    model: ModelSource | None = None
    profile: str | Path | None = None
    trt_version: TextOption[TrtVersion] = TextOption(TrtVersion, parse)
    sm: tuple[str, ...] = ("89",)
    shapes: ShapeRanges = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class ShownEngine(Displayed):
    """The layers of an engine, and what was predicted where its model is known.

    Attributes:
        info: the layers.
        totals: what they come to.
        predicted: the layers that the rules foretell; None where no model is known.
        comparison: the two beside each other; None likewise.
    """

    info: EngineInfo
    totals: EngineTotals
    predicted: PredictedLayers | None = None
    comparison: LayerComparison | None = None

    def headline(self) -> str:
        """Where the layers come from, and how many there are."""
        return f"{source_line(self.info)}: {counted(self.totals.layers, 'layer')}"

    def summary(self) -> list[str]:
        """The first layers, the sums, and how they differ from the prediction."""
        return [source_line(self.info), *short_table(self.rows()), *totals_lines(self.totals), *self.differences()]

    def lines(self) -> list[str]:
        """What `qdqtool engine show` prints: every layer."""
        return [source_line(self.info), *layer_text(self.info), *totals_lines(self.totals), *self.differences()]

    def differences(self) -> list[str]:
        """A line for each layer that is not as predicted; nothing without a model."""
        return [] if self.comparison is None else comparison_lines(self.comparison, self.info)

    def rows(self) -> Cells:
        """One row for each layer."""
        return layer_rows(self.info)

    def to_json(self) -> dict[str, Any]:
        """What `engine show --json` prints."""
        facts = {**engine_json(self.info), "totals": self.totals.to_json()}
        if self.predicted is not None and self.comparison is not None:
            facts |= layers_json(self.predicted.layers, self.predicted.ends, self.predicted.forecast)
            facts["comparison"] = comparison_json(self.comparison)
        return facts


@dataclass(frozen=True, repr=False)
class PredictedLayers(Displayed):
    """The layers that TensorRT would build for a model on a GPU, by the rules. Nothing was built.

    Attributes:
        layers: in the order in which they can run.
        forecast: what they cost; predicted, not measured.
        ends: what each layer reads and gives: INT8, or FP16, FP32 or BF16 as a strongly typed file has it; "float"
            where the builder chooses.
        work: what each kernel computes and moves; None where a shape is not known.
    """

    layers: tuple[PredictedLayer, ...]
    forecast: Forecast
    ends: tuple[Ends, ...]
    work: tuple[LayerWork, ...] | None = None

    def headline(self) -> str:
        """How many layers there are, and how many of them take INT8."""
        int8 = sum(layer.input == "int8" for layer in self.layers)
        return f"{layers_in_kernels(len(self.layers), self.forecast.kernels)} predicted, {int8} with INT8 input"

    def summary(self) -> list[str]:
        """The first layers, and what they cost."""
        return [*short_table(self.rows()), *forecast_lines(self.forecast)]

    def lines(self) -> list[str]:
        """What `qdqtool engine show --predicted` prints: every layer."""
        return layer_lines(self.layers, self.ends, self.forecast)

    def rows(self) -> Cells:
        """One row for each predicted layer."""
        rows = [(one.name, one.kind, *ends) for one, ends in zip(self.layers, self.ends, strict=True)]
        return [("layer", "kind", "input", "output"), *rows]


@dataclass(frozen=True, repr=False)
class EngineDifference(Displayed):
    """Two engines of one model beside each other.

    Attributes:
        a: the first.
        b: the second.
        aligned: their layers by the ONNX nodes in them, in the order of the first.
    """

    a: ShownEngine
    b: ShownEngine
    aligned: tuple[AlignedLayers, ...]

    @property
    def names(self) -> tuple[str, str]:
        """What messages call the two."""
        return self.a.info.path.name, self.b.info.path.name

    def headline(self) -> str:
        """How many groups of layers are the same."""
        same = sum(row.change == "same" for row in self.aligned)
        return f"{' and '.join(self.names)}: {same} of {counted(len(self.aligned), 'group')} of layers the same"

    def summary(self) -> list[str]:
        """What differs, and both sums side by side."""
        return self.lines()

    def lines(self, *, in_full: bool = False) -> list[str]:
        """What `qdqtool engine diff` prints; every group of layers, or those that differ."""
        sums = table(("", "A", "B"), totals_table(self.a.totals, self.b.totals))
        sources = [source_line(self.a.info), source_line(self.b.info)]
        return [*sources, *difference_lines(self.aligned, self.names, in_full=in_full), *sums]

    def to_json(self) -> dict[str, Any]:
        """What `engine diff --json` prints."""
        sides = {
            key: {"file": shown.info.path.name, "built": shown.info.built, "totals": shown.totals.to_json()}
            for key, shown in (("a", self.a), ("b", self.b))
        }
        return {**sides, "groups": [row.to_json() for row in self.aligned]}

    def rows(self) -> Cells:
        """One row for each group of layers."""
        head = ("change", "ONNX nodes", "A", "B")
        return [
            head,
            *(
                (row.change, ", ".join(row.nodes), *(" + ".join(one.name for one in side) for side in (row.a, row.b)))
                for row in self.aligned
            ),
        ]


def show_engine(source: ModelSource, options: ShowEngineOptions | None = None) -> ShownEngine:
    """Read the layers of an engine from what was written of it, or build a model's first; no GPU is needed.

    Args:
        source: a model, which TensorRT for RTX builds on a CPU and whose predicted layers stand beside; or what `build`
            wrote beside an engine (`OUT.layers.json`), the JSON of `trtexec --exportLayerInfo` or `--exportProfile`, or
            a verbose build log.
        options: what is put beside the layers.

    Raises:
        MissingPackageError: a model, and TensorRT for RTX is not installed.
        QdqError: a model that it does not build; a file that cannot be read, or is none of these; an engine itself,
            which only its GPU can read; the profile or the model of another engine.
    """
    options = options or ShowEngineOptions()
    if isinstance(source, (str, os.PathLike)) and not is_model(source):
        info, model = read_layer_info(Path(source)), options.model
    else:
        model = source() if callable(source) else source
        info = built_layers(model, BuildOptions("rtx", options.shapes, options.sm))
    if options.profile is not None:
        info = with_profile(info, Path(options.profile))
    if model is None:
        return ShownEngine(info, totals_of(info))
    target = RTX_TARGET if info.by_rtx and options.trt_version is None else "gpu"
    engine = predict_engine(open_model(model), options.trt_version, target)
    compared = compare_layers(engine.layers, info, node_ops(engine.view))
    return ShownEngine(info, totals_of(info), _predicted(engine), compared)


def predicted_layers(
    model: ModelSource,
    trt_version: TrtVersion | str | None = None,
    *,
    target: str = "gpu",
    shapes: ShapeRanges | None = None,
) -> PredictedLayers:
    """Say which layers TensorRT would build for a model, by the rules. Nothing is built.

    Args:
        model: plain or with Q/DQ; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        trt_version: of TensorRT, a TrtVersion or its text; None for the newest whose rules are known.
        target: gpu; or rtx, TensorRT for RTX, which has no version here.
        shapes: of inputs with free sides: input -> lowest, best and highest shape; the best one counts.

    Raises:
        QdqError: a model that cannot be read, another target, a version beside rtx, shapes that do not fit.
    """
    version = parse(trt_version) if isinstance(trt_version, str) else trt_version
    opened = open_model(model)
    if shapes:
        fix_shapes(opened, shapes)
    return _predicted(predict_engine(opened, version, target))


def diff_engines(a: ModelSource, b: ModelSource, options: ShowEngineOptions | None = None) -> EngineDifference:
    """Put two engines of one model beside each other, aligned by the ONNX nodes in their layers.

    Args:
        a: a file or a model as `show_engine` takes it.
        b: another one.
        options: of `show_engine`, for both; a profile and a model are those of one engine alone, and not taken.

    Raises:
        QdqError: as `show_engine`; the engines have no ONNX node in common.
    """
    options = replace(options or ShowEngineOptions(), model=None, profile=None)
    first, second = show_engine(a, options), show_engine(b, options)
    return EngineDifference(first, second, align_layers(first.info, second.info))


def is_model(source: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a model, by its ending: everything else is read as what was written of an engine."""
    return os.fspath(source).lower().endswith(MODEL_ENDING)


def _predicted(engine: PredictedEngine) -> PredictedLayers:
    ends = end_types(engine.file, engine.layers, engine.types)
    return PredictedLayers(engine.layers, engine.forecast(), ends, engine.work)
