# SPDX-License-Identifier: Apache-2.0
"""What `report` is asked for, and what it gives back. `-h` reads the options: no onnx here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.display import Displayed
from qdqtool.evaluation.decode_options import NAMES, POSTPROCESS
from qdqtool.options import Option, TextOption, option
from qdqtool.runtime.execution import PROVIDER
from qdqtool.target_options import TargetOptions
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataOptions
    from qdqtool.graph.io import ModelSource

PICTURES = 4


@dataclass(frozen=True)
class ReportOptions(TargetOptions):
    """What is put into a report, beside the model itself and `TargetOptions`.

    Attributes:
        reference: None for the model's own graph without its pairs.
        data: what to run; see `open_loader`. Without it nothing is run, and no histogram, loss or picture is shown.
        data_options: batch, limit, preprocessing.
        layers: these are boxed instead of the predicted ones.
        progress: whether bars are drawn on stderr; None draws them where stderr is a terminal.
        command: the command line that asks for the report, which is shown in it.
    """

    target: str = option("gpu", "--target", "whose rules predict (default %(default)s)", choices=("gpu", "rtx"))
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion,
        parse,
        Option("--trt-version", "such as 8.5.2, jp6.1 (default: the newest rules)", metavar="V"),
    )
    reference: ModelSource | None = None
    data: Data | None = None
    data_options: DataOptions | None = None
    labels: str | Path | None = option(
        None,
        "--labels",
        "labels, in a format that evaluate reads; without them a detector is compared with the FP32 model",
        metavar="L",
    )
    names: str | None = option(None, NAMES)
    decoder: str = option(
        "auto", "--decoder", "decoder of a detector's outputs (default %(default)s)", metavar="D", one_of="boxes"
    )
    postprocess: str | None = option(None, POSTPROCESS)
    cache: str | Path | None = option(
        None, "--cache", "a calibration cache, checked against the names of the model", metavar="C"
    )
    diff: ModelSource | None = option(
        None, "--diff", "another model of the same network: show the differences", metavar="B"
    )
    state: str | Path | None = option(
        None, "--state", "a state of calibrate --checkpoint, for its histograms", metavar="F"
    )
    layers: str | Path | None = option(
        None, "--layers", "layers of the built engine: OUT.layers.json, or trtexec's export", metavar="F"
    )
    sensitivity: str | Path | None = option(
        None, "--sensitivity", "the JSON that sensitivity --json printed", metavar="F"
    )
    log: str | Path | None = option(None, "--log", "a training log of finetune --log", metavar="F")
    parser: bool | None = option(
        None, "--parser", "ask NVIDIA's own parser (default: where TensorRT for RTX is installed)"
    )
    pictures: int = option(
        PICTURES, "--pictures", "number of worst images to draw (default %(default)s)", metavar="N", read=int
    )
    provider: str = option("cpu", PROVIDER)
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
