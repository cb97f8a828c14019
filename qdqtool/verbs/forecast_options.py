# SPDX-License-Identifier: Apache-2.0
"""What `forecast` is asked for. `-h` reads the options: no onnx here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.options import option

FORMATS = ("fp16", "int8", "fp8", "int4")
_MOST_BATCH = 1 << 16


def _formats(word: str) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(one.strip().lower() for one in word.split(",") if one.strip()))
    unknown = [one for one in named if one not in FORMATS]
    if unknown or not named:
        raise argparse.ArgumentTypeError(f"{word!r} is not a list of formats: {', '.join(FORMATS)}")
    return named


def _batch(word: str) -> int:
    if not word.isdecimal() or len(word) > len(str(_MOST_BATCH)) or not 1 <= int(word) <= _MOST_BATCH:
        raise argparse.ArgumentTypeError(f"{word!r} is not a batch size, 1 to {_MOST_BATCH}")
    return int(word)


@dataclass(frozen=True)
class ForecastOptions:
    """Where a model is to run, and in which formats.

    Attributes:
        places: boards and versions, such as "orin-nx:jp6.1@15W"; none for every board whose figures are known.
        formats: of fp16, int8, fp8 and int4; FP16 is always among them, as the others are compared with it.
        batches: samples in one inference; none for the batch of the model, 1 where it is free.
        shapes: whole shapes of inputs with free sides, as they are typed.
        build: whether TensorRT for RTX builds the engines, whose kernels are taken in place of predicted ones.
        profile: `trtexec --exportProfile` of an engine of this model on the one board named, which calibrates times.
    """

    places: tuple[str, ...] = option(
        (),
        "--for",
        "board, version and power mode: rtx4090, orin-nx:jp6.1@15W (default: every board known)",
        metavar="BOARD",
        repeated=True,
    )
    formats: tuple[str, ...] = option(
        FORMATS,
        "--formats",
        "number formats, with commas between (default: fp16,int8,fp8,int4)",
        metavar="F,...",
        read=_formats,
    )
    batches: tuple[int, ...] = option(
        (),
        "--batch",
        "samples in one inference (default: the model's batch, or 1)",
        metavar="N",
        read=_batch,
        repeated=True,
    )
    shapes: str = option(
        "", "--shapes", "shapes of inputs with dynamic dimensions: x:1x3x320x320, separated by commas", metavar="S"
    )
    build: bool = option(
        False, "--build", "let TensorRT for RTX build the engines on this CPU, and forecast from its kernels"
    )
    profile: str | Path | None = option(
        None, "--profile", "times of an engine's layers on the board, from trtexec --exportProfile", metavar="FILE"
    )

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            QdqError: an unknown format, a batch below 1, a profile of more than one board.
        """
        for name in self.formats:
            if name not in FORMATS:
                raise QdqError(f"--formats {name}", "is not one", f"choose of {', '.join(FORMATS)}")
        if any(batch < 1 for batch in self.batches):
            raise QdqError("--batch", "is below 1", "give a positive number")
        if self.profile is not None and len(self.places) != 1:
            raise QdqError("--profile", "is of one board", "name it with --for")
