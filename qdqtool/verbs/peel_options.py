# SPDX-License-Identifier: Apache-2.0
"""What `peel` is asked for, and what it gives back. `-h` reads the options: no onnx here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

from qdqtool.command_lines import run_script
from qdqtool.data.options import DataOptions
from qdqtool.display import Displayed, ModelT, counted, model_name, named, written
from qdqtool.observers.options import CalibrationOptions
from qdqtool.options import RequiredTextOption, TextOption, option
from qdqtool.target_options import CacheTargetOptions
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.cache.text import Cache
    from qdqtool.data.loader import Data, DataLoader
    from qdqtool.dla.assignment import DlaReport
    from qdqtool.emit.layers import FloatLayer
    from qdqtool.graph.io import ModelSource
    from qdqtool.passes.bake_weights import Baked
    from qdqtool.passes.peel import OnConflict
    from qdqtool.passes.quant_params import OnAsymmetric
    from qdqtool.scales import ScaleTable

Fill = Literal["ptq", "propagate", "none"]

_FOUND = {  # origin of a scale -> its words
    "qdq": "from Q/DQ",
    "ptq": "calibrated",
    "equal": "copied from equal values",
    "derived": "derived from others",
    "bound": "from bounds of the operator",
    "estimated": "estimated without data",
}


@dataclass(frozen=True)
class PeelOptions(CacheTargetOptions):
    """How Q/DQ are taken out. For "gpu" scales are those of points and of what holds the same values; for "dla" of all.

    Attributes:
        on_asymmetric: with `force_ptq` it is "widen": the scales are dropped.
        lower_opset: of the clean model or the source, where it can be done exactly (`graph/opset_lower.py`); the file
            is another one then.
        fill: for "dla", where tensors get a scale that exact propagation leaves without: "ptq" from the calibrated
            table in the metadata, then from data; "propagate" also inside fused groups; "none" lets some stay without.
        shared_scales: for "dla", whether tensors of one range take the largest scale among them.
        data: what `fill` and `force_ptq` calibrate on.
        calibration: method and provider for that, or a method's name; with the method "" it is that of the table,
            `entropy` to force.
        data_options: how data is read; `emit` takes batch and preprocessing from it.
        emit: layers without a name get one in the clean model, unless `source` is given.
    """

    trt_version: RequiredTextOption[TrtVersion] = RequiredTextOption(TrtVersion, parse)
    on_conflict: OnConflict = option(
        "error", "--on-conflict", "which scale is kept where a tensor has several", choices=("error", "max")
    )
    on_asymmetric: OnAsymmetric = option(
        "error",
        "--on-asymmetric",
        "where integers are not symmetric int8: stop with an error, or take the symmetric range that contains theirs",
        choices=("error", "widen"),
    )
    bake_weights: bool = option(
        False, "--bake-weights", "adjust weights so that TensorRT quantizes them to the same integers as the Q/DQ did"
    )
    allow_estimated: bool = option(False, "--allow-estimated", "also write scales that were estimated without data")
    source: ModelSource | None = option(
        None, "--source", "the model that Q/DQ were inserted into: it is given back as it was", metavar="M"
    )
    lower_opset: bool = option(
        False,
        "--lower-opset",
        "lower the model's opset to what the version's parser reads, where its outputs stay the same bit for bit",
    )
    fill: Fill = option("ptq", "--fill", "dla: how missing scales are filled in", choices=get_args(Fill))
    shared_scales: bool = option(
        True, "--no-shared-scales", "dla: do not give one common scale to tensors that should share one range"
    )
    force_ptq: bool = option(False, "--force-ptq", "dla: ignore the scales of the Q/DQ and calibrate every tensor")
    data: Data | DataLoader | None = None
    calibration: TextOption[CalibrationOptions] = TextOption(CalibrationOptions, CalibrationOptions)
    data_options: DataOptions | None = None

    @property
    def keeps_model(self) -> bool:
        """Whether a source is given back, whose nodes keep their names."""
        return self.source is not None


@dataclass(frozen=True, repr=False)
class PeelResult(Displayed, Generic[ModelT]):
    """The clean model, of the kind that was given, its cache, and where each scale comes from.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        cache: what TensorRT reads; None where no cache holds the format of the pairs.
        table: the same scales with their origin; for "dla" also what has none, and why.
        float_outputs: for "gpu", outputs of INT8 groups without a scale: they stay in float.
        shared_scales: for "dla", tensor -> the one whose scale it took.
        origins: how many scales come from where, shared ones not counted.
        notes: warnings, a sentence each.
        emitted: kind -> the file written, or its text where the cache goes to no file.
        weights: how TensorRT quantizes the weights that had a pair.
        target: whose cache it is.
        path: the file of the cache, as it was named; None where it is in memory.
        layers: what should stay in float, which builders must be told; see `emit.layers`.
        dla: what the DLA will run, by the rules; None for a GPU.
        data: what is known of the data that calibrated it, see `DataLoader.facts`; None where nobody says.
    """

    model: ModelT
    cache: Cache | None
    table: ScaleTable
    float_outputs: tuple[str, ...]
    shared_scales: dict[str, str]
    origins: dict[str, int]
    notes: tuple[str, ...]
    weights: Baked
    emitted: dict[str, Path | str] = field(default_factory=dict)
    target: str = "gpu"
    path: str | Path | None = None
    data: Mapping[str, Any] | None = None
    layers: tuple[FloatLayer, ...] = ()
    dla: DlaReport | None = None

    def headline(self) -> str:
        """The model, the header of the cache and its scales, what has none."""
        lacking = f", {len(self.table.unscaled)} tensors without" if self.table.unscaled else ""
        header = "no cache" if self.cache is None else self.cache.header
        return f"{model_name(self.model)}: {header}, {counted(len(self.table), 'scale')}{lacking}"

    def summary(self) -> list[str]:
        """What `qdqtool peel` prints, without what to do next."""
        place = "" if self.path is None else f"wrote {self.path}: "
        scales, equal = counted(len(self.table), "scale"), self.origins.get("equal", 0)
        lines = written(self.model)
        if self.cache is None:
            return lines
        lines.append(f"{place}{self.cache.header}, {scales}, {equal} of them copied from tensors of the same values")
        if self.target == "dla":
            origins = ", ".join(f"{number} {_FOUND[origin]}" for origin, number in sorted(self.origins.items()))
            lines.append(f"origins of the scales: {origins}; {len(self.shared_scales)} raised to a shared scale")
        lines += self.table.lacking()
        if self.float_outputs:
            lines.append(
                "outputs of INT8 layers that are written in float, as no INT8 layer reads them: "
                f"{named(self.float_outputs)}"
            )
        if self.dla is not None:
            lines += self.dla.summary()
        return lines + [f"wrote {path}" for path in self.emitted.values() if isinstance(path, Path)]

    def next_lines(self) -> list[str]:
        """Run the script that builds the engine, where one was written and trtexec needs no names of layers."""
        script = self.emitted.get("trtexec")
        return [run_script(script)] if isinstance(script, Path) and not self.layers else []
