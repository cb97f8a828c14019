# SPDX-License-Identifier: Apache-2.0
"""What `ptq` is asked for, and what it gives back. `-h` reads the options: no onnx here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.command_lines import run_script
from qdqtool.data.options import DataOptions
from qdqtool.display import Displayed, counted
from qdqtool.observers.options import CalibrationOptions
from qdqtool.options import RequiredTextOption, TextOption, option
from qdqtool.target_options import CacheTargetOptions
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.cache.text import Cache
    from qdqtool.calibration.tensorrt.input_shapes import Shapes
    from qdqtool.dla.assignment import DlaReport
    from qdqtool.emit.layers import FloatLayer
    from qdqtool.measuring.keep_float import OutputLoss
    from qdqtool.scales import ScaleTable

_BACK_END = "back end"


@dataclass(frozen=True)
class PtqOptions(CacheTargetOptions):
    """How a cache is made from a plain model.

    Attributes:
        calibration: method (default `entropy`, TensorRT's) and provider, or a method's name.
        data_options: how data is read.
        shared_scales: whether tensors that the target gives one range take the largest of theirs.
        shapes: input -> the shape it is fed at, for those that the model leaves open; "tensorrt" needs every one.
    """

    trt_version: RequiredTextOption[TrtVersion] = RequiredTextOption(TrtVersion, parse)
    calibration: TextOption[CalibrationOptions] = TextOption(CalibrationOptions, CalibrationOptions)
    data_options: DataOptions | None = None
    shared_scales: bool = option(
        True, "--no-shared-scales", "do not give one common scale to tensors that should share one range"
    )
    backend: str = option(
        "embedded",
        "--backend",
        "embedded: onnxruntime and our own search; tensorrt: NVIDIA's calibrator, 8.5 to 10.16, on a GPU",
        choices=("embedded", "tensorrt"),
        group=_BACK_END,
    )
    cuda: str = option(
        "cudart", "--cuda", "how batches reach the GPU for TensorRT", choices=("cudart", "pycuda"), group=_BACK_END
    )
    shapes: Shapes | None = option(
        None, "--shapes", "fix inputs at one shape: x:1x3x224x224, commas between several", metavar="S", group=_BACK_END
    )

    @property
    def keeps_model(self) -> bool:
        """The model is never written, so that its nodes have the names that they have."""
        return True


@dataclass(frozen=True, repr=False)
class PtqResult(Displayed):
    """A cache over every float tensor, and where each scale comes from.

    Attributes:
        cache: what TensorRT reads.
        table: the same scales with origin; tensors without one and why; the run.
        shared_scales: tensor -> the one whose scale it took.
        path: the file written, if one was.
        backend: "embedded" or "tensorrt".
        notes: warnings, a sentence each.
        warnings: sentences on operators that TensorRT's parser does not import.
        layers: what should stay in float, which builders must be told; see `emit.layers`.
        emitted: kind -> the file, or its text where the cache stays in memory.
        dla: what the DLA will run, by the rules; None for a GPU.
        output_loss: what is lost at the outputs with every scale in use, simulated on a few of the samples; None where
            TensorRT calibrated.
    """

    cache: Cache
    table: ScaleTable
    shared_scales: dict[str, str]
    path: Path | None
    backend: str = "embedded"
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    layers: tuple[FloatLayer, ...] = ()
    emitted: Mapping[str, Path | str] = field(default_factory=dict)
    dla: DlaReport | None = None
    output_loss: OutputLoss | None = None

    def headline(self) -> str:
        """The header of the cache, its scales, method and samples."""
        return f"{self.cache.header}, {self.table.headline()}"

    def summary(self) -> list[str]:
        """What `qdqtool ptq` prints, without what to do next."""
        run, tensorrt = self.table.provenance, self.backend == "tensorrt"
        place = "" if self.path is None else f"wrote {self.path}: "
        shared = "" if tensorrt else f", {len(self.shared_scales)} of them shared"
        lines = [f"{place}{self.cache.header}, {counted(len(self.cache), 'scale')}{shared}"]
        lines.append(f"method {run.method}, {counted(run.samples, 'sample')}")
        if tensorrt:
            lines.append(f"calibrated by TensorRT {run.tensorrt}, its cache byte for byte; the engine was discarded")
        if predicted := self.predicted():
            lines.append(
                f"predicted SQNR of the rounding, median over tensors: {predicted['chosen_db']:.1f} dB,"
                f" with {predicted['beside']} {predicted['beside_db']:.1f} dB"
            )
        if self.output_loss is not None:
            lines += self.output_loss.lines()
        lines += self.table.lacking()
        lines += self.dla.summary() if self.dla is not None else []
        return lines + [f"wrote {path} ({kind})" for kind, path in self.emitted.items() if isinstance(path, Path)]

    def next_lines(self) -> list[str]:
        """Run the script that builds the engine, where one was written and trtexec needs no names of layers."""
        script = self.emitted.get("trtexec")
        return [run_script(script)] if isinstance(script, Path) and not self.layers else []

    def predicted(self) -> dict[str, Any] | None:
        """Medians over the tensors of the predicted signal to noise in dB, with the chosen method and the other."""
        run = self.table.provenance
        if run.predicted is None or not run.predicted.decibel:
            return None
        decibel = run.predicted.decibel
        chosen, other = zip(*decibel.values(), strict=True)
        worse = sorted(decibel, key=lambda name: decibel[name][0] - decibel[name][1])
        return {
            "method": run.method,
            "beside": run.predicted.beside,
            "chosen_db": statistics.median(chosen),
            "beside_db": statistics.median(other),
            "largest_loss": worse[0],
            "largest_loss_db": list(decibel[worse[0]]),
        }
