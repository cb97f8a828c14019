# SPDX-License-Identifier: Apache-2.0
"""How outputs are read as boxes or classes, as options have it. `-h` reads this: no numpy here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from qdqtool.errors import QdqError
from qdqtool.options import Option, option

Metric = Literal["top1", "coco", "voc", "miou", "agreement"]  # what a model is judged by
DRAWN_SCORE = 0.3  # the score above which a box is drawn

POSTPROCESS = Option(
    "--postprocess",
    "script.py:function that turns the outputs into boxes, instead of --decoder",
    metavar="F",
    one_of="boxes",
)
NAMES = Option("--names", "class names: coco, coco90, a file with one a line, or a,b,c", metavar="N")


@dataclass(frozen=True)
class Selection:
    """What becomes of the candidates of one image.

    Attributes:
        score: only candidates above it stay. About 0.01 to measure AP, which wants the weak ones too; 0.3 for pictures.
        iou: of two boxes of one class that overlap more than this, the weaker goes; None for the family's own.
        most: boxes kept for one image, the best ones; 100 is COCO's rule.
        candidates: boxes that enter the suppression, the best ones.
    """

    score: float = option(
        0.01, "--score", "lowest score of a box that counts (default %(default)s)", metavar="S", read=float
    )
    iou: float | None = option(
        None, "--iou", "IoU threshold of NMS (default: that of the decoder)", metavar="I", read=float
    )
    most: int = 100
    candidates: int = 1000

    def __post_init__(self) -> None:
        for name, value in (("score", self.score), ("iou", self.iou)):
            if value is not None and not 0 <= value <= 1:
                raise QdqError(name, f"{value} is not a threshold", "give a number from 0 to 1")
        for name, count in (("most", self.most), ("candidates", self.candidates)):
            if count < 1:
                raise QdqError(name, f"{count} leaves no boxes", "give 1 or more")


@dataclass(frozen=True)
class DecodeOptions:
    """How outputs are read.

    Attributes:
        decoder: see `find_decoder`; "auto" takes a single output of (batch, classes) for a classifier's.
        postprocess: ``script.py:function`` or a function instead; see `ScriptDecoder`.
        selection: which boxes are kept.
    """

    decoder: str = option(
        "auto",
        "--decoder",
        "auto (default), or a decoder and its settings: yolox, ssd,decoded=no, yolov5,anchors=10:13:...",
        metavar="F",
        one_of="boxes",
    )
    postprocess: str | Callable[..., Any] | None = option(
        None, "--postprocess", "script.py[:function] that turns the outputs into boxes", metavar="F", one_of="boxes"
    )
    selection: Selection = field(default_factory=lambda: Selection(score=DRAWN_SCORE))
