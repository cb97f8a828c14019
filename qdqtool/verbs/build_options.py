# SPDX-License-Identifier: Apache-2.0
"""What the verb `build` is asked for, and what comes out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qdqtool.building.recipe import Precision
from qdqtool.display import Cells, Displayed, counted, short_table
from qdqtool.engine.built_text import layer_rows
from qdqtool.engine.layer_info import EngineInfo
from qdqtool.engine.totals import EngineTotals, totals_lines, totals_of
from qdqtool.errors import QdqError
from qdqtool.options import TextOption
from qdqtool.trtversion import TrtVersion, parse

BuildTarget = Literal["gpu", "rtx"]
Shape = tuple[int, ...]
ShapeRanges = Mapping[str, tuple[Shape, Shape, Shape]]

_SIDES = r"\d{1,9}(?:x\d{1,9})*"
_RANGE = re.compile(rf"(?P<name>.+?):(?P<low>{_SIDES}):(?P<best>{_SIDES}):(?P<high>{_SIDES})", re.ASCII)
_FIXED = re.compile(rf"(?P<name>.+):(?P<best>{_SIDES})", re.ASCII)
_TODO = "write x:1x3x320x320 for one shape, x:1x3x320x320:1x3x640x640:4x3x640x640 for min, opt and max"


@dataclass(frozen=True)
class BuildOptions:
    """How an engine is built.

    Attributes:
        target: gpu, the TensorRT that is installed beside a GPU; or rtx, TensorRT for RTX, on a CPU.
        shapes: input -> lowest, best and highest shape, for inputs with free sides.
        sm: for rtx: the compute capabilities that the engine runs on.
        precision: for gpu, up to TensorRT 10: what layers may run in; None for INT8 with FP16 where there are Q/DQ or a
            cache, else FP32.
        cache: for gpu, up to TensorRT 10: a calibration cache for a plain model.
        layer_precisions: the file of `peel --emit json`; None for the one beside the cache, where there is one.
        dla_core: for gpu: the DLA core that runs what it can; None for none.
        workspace: bytes of scratch memory; None for all that there is.
        timing_cache: a file of tactics that were timed, read where it exists and written.
        trt_version: the version that must be installed, a TrtVersion or its text; None for any.
        seconds: for rtx: how long the build may take.
        max_batch: the engine takes 1 to so many samples and is best for so many, for inputs whose first axis alone is
            free and that `shapes` does not name.
    """

    target: BuildTarget = "gpu"
    shapes: ShapeRanges = field(default_factory=dict)
    sm: tuple[str, ...] = ("89",)
    precision: Precision | None = None
    cache: str | Path | None = None
    layer_precisions: str | Path | None = None
    dla_core: int | None = None
    workspace: int | None = None
    timing_cache: str | Path | None = None
    trt_version: TextOption[TrtVersion] = TextOption(TrtVersion, parse)
    seconds: float = 600.0
    max_batch: int | None = None


@dataclass(frozen=True, repr=False)
class BuildResult(Displayed):
    """A built engine.

    Attributes:
        engine: the file.
        layers_file: what was written of its layers beside it; None where the builder tells none.
        info: the layers; None likewise.
        built: what built it, for what, and whether it was run, one line.
        engine_bytes: its size.
        notes: what the user must know of the build, a sentence each.
        cpu_seconds: of parse and build, for rtx; None elsewhere.
        peak_bytes: the most memory of the process that built, for rtx; None elsewhere.
    """

    engine: Path
    layers_file: Path | None
    info: EngineInfo | None
    built: str
    engine_bytes: int
    notes: tuple[str, ...] = ()
    cpu_seconds: float | None = None
    peak_bytes: int | None = None

    @property
    def totals(self) -> EngineTotals | None:
        """What the layers come to."""
        return None if self.info is None else totals_of(self.info)

    def headline(self) -> str:
        """What was built, and how large it is."""
        layers = "" if self.totals is None else f", {counted(self.totals.layers, 'layer')}"
        return f"{self.engine}: {self.built}{layers}, {self.engine_bytes:,} bytes"

    def summary(self) -> list[str]:
        """What `qdqtool build` prints."""
        lines = [f"wrote {self.engine} ({self.engine_bytes:,} bytes): {self.built}"]
        if self.layers_file is not None:
            lines.append(f"wrote {self.layers_file}: its layers")
        return lines if self.totals is None else [*lines, *totals_lines(self.totals)]

    def rows(self) -> Cells:
        """One row for each layer."""
        return () if self.info is None else layer_rows(self.info)

    def table(self) -> list[str]:
        """The first layers."""
        return short_table(self.rows()) if self.info is not None else []


def parse_shape_ranges(text: str) -> dict[str, tuple[Shape, Shape, Shape]]:
    """`x:1x3x320x320` or `x:MIN:OPT:MAX`, commas between several inputs.

    Raises:
        QdqError: not of that form, a side of 0, sides that do not rise from MIN over OPT to MAX, an input twice.
    """
    found: dict[str, tuple[Shape, Shape, Shape]] = {}
    for word in text.split(","):
        name, ranges = _read_range(word.strip(), text)
        if name in found:
            raise QdqError(f"--shapes {text}", f"{name!r} is named twice", _TODO)
        found[name] = ranges
    return found


def _read_range(word: str, text: str) -> tuple[str, tuple[Shape, Shape, Shape]]:
    ranged = _RANGE.fullmatch(word)
    if ranged and ranged["low"].count("x") == ranged["best"].count("x") == ranged["high"].count("x"):
        name, sides = ranged["name"], [ranged["low"], ranged["best"], ranged["high"]]
    elif fixed := _FIXED.fullmatch(word):
        name, sides = fixed["name"], [fixed["best"]] * 3
    else:
        raise QdqError(f"--shapes {text}", f"{word!r} is not an input and its shape", _TODO)
    low, best, high = (tuple(map(int, one.split("x"))) for one in sides)
    if not all(1 <= a <= b <= c for a, b, c in zip(low, best, high, strict=True)):
        raise QdqError(f"--shapes {text}", f"the sides of {name!r} do not satisfy min <= opt <= max", _TODO)
    return name, (low, best, high)


def parse_capabilities(text: str) -> tuple[str, ...]:
    """The numbers of `89,120` or `SM89`.

    Raises:
        QdqError: one is not a number.
    """
    found = tuple(dict.fromkeys(word.strip().lower().removeprefix("sm") for word in text.split(",")))
    if not all(re.fullmatch(r"\d{2,3}", word, re.ASCII) for word in found):
        raise QdqError(f"--sm {text}", "is not a list of compute capabilities", "write --sm 89 or --sm 89,120")
    return found


def joined_shapes(shapes: ShapeRanges) -> dict[str, list[Sequence[int]]]:
    """Shapes as JSON has them."""
    return {name: [list(one) for one in three] for name, three in sorted(shapes.items())}
