# SPDX-License-Identifier: Apache-2.0
"""What `report` is asked for, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.display import Displayed
from qdqtool.graph.io import ModelSource
from qdqtool.options import TextOption
from qdqtool.target_options import TargetOptions
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataOptions

PICTURES = 4


@dataclass(frozen=True)
class ReportOptions(TargetOptions):
    """What is put into a report, beside the model itself and `TargetOptions`.

    Attributes:
        reference: the FP32 model that losses are measured against; None for the model's own graph without its pairs.
        data: what to run; see `open_loader`. Without it nothing is run, and no histogram, loss or picture is shown.
        data_options: batch, limit, preprocessing.
        labels: the truth, as `evaluate` takes it.
        names: class names, as `evaluate` takes them.
        decoder: what makes boxes of a detector's outputs.
        postprocess: ``script.py:function`` that does so instead.
        cache: a calibration cache to hold against the model.
        diff: another model of the same network: which scales, types and findings differ.
        state: a state of `calibrate --checkpoint`: its histograms, without running data again.
        layers: what was written of the built engine: its layers are boxed instead of the predicted ones.
        sensitivity: what `sensitivity --json` printed.
        log: a training log of `finetune --log`.
        parser: whether NVIDIA's own parser is asked; None for where TensorRT for RTX is installed.
        pictures: how many of the worst images are drawn at most.
        provider: execution provider of onnxruntime (default cpu).
        progress: whether bars are drawn on stderr; None draws them where stderr is a terminal.
        command: the command line that asks for the report, which is shown in it.
    """

    trt_version: TextOption[TrtVersion] = TextOption(TrtVersion, parse)
    reference: ModelSource | None = None
    data: Data | None = None
    data_options: DataOptions | None = None
    labels: str | Path | None = None
    names: str | None = None
    decoder: str = "auto"
    postprocess: str | None = None
    cache: str | Path | None = None
    diff: ModelSource | None = None
    state: str | Path | None = None
    layers: str | Path | None = None
    sensitivity: str | Path | None = None
    log: str | Path | None = None
    parser: bool | None = None
    pictures: int = PICTURES
    provider: str = "cpu"
    progress: bool | None = None
    command: str = ""


@dataclass(frozen=True, repr=False)
class ReportResult(Displayed):
    """What was written.

    Attributes:
        path: the file.
        size: its bytes.
        verdict: the sentence below its title.
        sections: their titles.
        notes: what could not be shown, and why, a sentence each.
    """

    path: Path
    size: int
    verdict: str
    sections: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """The verdict."""
        return self.verdict

    def summary(self) -> list[str]:
        """What `qdqtool report` prints."""
        return [self.verdict, f"wrote {self.path}: {self.size / 1e6:.2f} MB, {', '.join(self.sections)}"]

    def to_json(self) -> dict[str, object]:
        """What `qdqtool report --json` prints."""
        return {
            "schema": 1,
            "report": str(self.path),
            "bytes": self.size,
            "verdict": self.verdict,
            "sections": list(self.sections),
            "notes": list(self.notes),
        }
