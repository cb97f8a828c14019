# SPDX-License-Identifier: Apache-2.0
"""Options of `build`, and shapes as they are typed. `-h` reads them: no onnx here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from qdqtool.errors import QdqError
from qdqtool.options import Option, TextOption, option
from qdqtool.target_options import MAX_BATCH
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.building.recipe import Precision

BuildTarget = Literal["gpu", "rtx"]
Shape = tuple[int, ...]
ShapeRanges = Mapping[str, tuple[Shape, Shape, Shape]]

_SIDES = r"\d{1,9}(?:x\d{1,9})*"
_RANGE = re.compile(rf"(?P<name>.+?):(?P<low>{_SIDES}):(?P<best>{_SIDES}):(?P<high>{_SIDES})", re.ASCII)
_FIXED = re.compile(rf"(?P<name>.+):(?P<best>{_SIDES})", re.ASCII)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TODO = "write x:1x3x320x320 for one shape, x:1x3x320x320:1x3x640x640:4x3x640x640 for min, opt and max"


def _workspace(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15})([KMG]?)", text, re.ASCII)
    if not found:
        raise QdqError(f"--workspace {text}", "is not a number of bytes", "write bytes, or a number with K, M or G")
    return int(found[1]) * _UNITS[found[2]]


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


@dataclass(frozen=True)
class BuildOptions:
    """How an engine is built.

    Attributes:
        shapes: input -> lowest, best and highest shape, for inputs with free sides.
        precision: None for INT8 with FP16 where there are Q/DQ or a cache, else FP32.
        workspace: bytes; None for all that there is.
        seconds: for rtx: how long the build may take.
        max_batch: the engine takes 1 to so many samples and is best for so many, for inputs whose first axis alone is
            free and that `shapes` does not name.
    """

    target: BuildTarget = option(
        "gpu",
        "--target",
        "gpu: the installed TensorRT, 8.5 to 11, on its GPU; rtx: TensorRT for RTX, on a CPU (default %(default)s)",
        choices=get_args(BuildTarget),
    )
    shapes: ShapeRanges = option(
        MISSING,
        "--shapes",
        "shapes of inputs with dynamic dimensions: x:1x3x320x320 or x:MIN:OPT:MAX, separated by commas",
        metavar="S",
        convert=parse_shape_ranges,
        default_factory=dict,
    )
    sm: tuple[str, ...] = option(
        ("89",),
        "--sm",
        "rtx: compute capabilities, such as 89,120 (default 89)",
        metavar="N",
        convert=parse_capabilities,
    )
    precision: Precision | None = option(
        None,
        "--precision",
        "gpu, up to TensorRT 10: types in which layers may run",
        choices=("fp32", "tf32", "fp16", "bf16", "int8", "best"),
    )
    cache: str | Path | None = option(
        None, "--cache", "gpu, up to TensorRT 10: the calibration cache of a plain model", metavar="C"
    )
    layer_precisions: str | Path | None = option(
        None, "--layer-precisions", "the file of peel --emit json (default: the one beside the cache)", metavar="F"
    )
    dla_core: int | None = option(None, "--dla-core", "gpu: the DLA core that runs what it can", metavar="N", read=int)
    workspace: int | None = option(
        None, "--workspace", "gpu: workspace memory at most: bytes, or 512M, 4G", metavar="B", convert=_workspace
    )
    timing_cache: str | Path | None = option(
        None, "--timing-cache", "gpu: timing cache, read if it exists, and written", metavar="F"
    )
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion, parse, Option("--trt-version", "gpu: refuse any other TensorRT than this", metavar="V")
    )
    seconds: float = 600.0
    max_batch: int | None = option(None, MAX_BATCH)


def joined_shapes(shapes: ShapeRanges) -> dict[str, list[Sequence[int]]]:
    """Shapes as JSON has them."""
    return {name: [list(one) for one in three] for name, three in sorted(shapes.items())}
