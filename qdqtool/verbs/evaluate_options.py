# SPDX-License-Identifier: Apache-2.0
"""What `evaluate` is asked for. `-h` reads it: no onnx here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import POSTPROCESS, Metric, Selection
from qdqtool.options import Option, TextOption, option
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.target_options import CACHE_TARGETS, VERSION_OF_CACHE, cache_target
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.cache.text import Cache
    from qdqtool.evaluation.detections import Array
    from qdqtool.graph.io import ModelSource

Postprocess = Callable[[Mapping[str, "Array"], Sequence[Any]], Sequence[Any]]

_MOST_CLASSES = 1 << 31
_CACHED = "simulate INT8 from a cache instead of running the model as written"  # title of the group of options


@dataclass(frozen=True)
class EvaluateOptions(ExecutionOptions):
    """How a model is judged. Figures are the reference's on the provider cpu only.

    Attributes:
        baseline: the model that losses are measured against, run on the same samples: FP32, or INT8 to compare two.
        metric: top1, coco, voc, miou or agreement; None takes what the labels are for.
        decoder: what makes boxes of a detector's outputs, see `find_decoder`.
        postprocess: instead of a decoder, ``script.py:function`` or a function; see `ScriptDecoder`.
        names: the model's classes, see `parse_names`; "coco" for its 80, "coco90" for its numbers with gaps.
        label_offset: added to the class numbers of labels, for classifiers with a background class in front.
        selection: which boxes a decoder keeps.
        seed: of the bootstrap.
        cache: what is judged is what TensorRT makes of the plain model with this calibration cache, simulated.
        target: whose INT8 that is, "gpu" or "dla"; of a Q/DQ model without a cache, by the scales that it carries.
        trt_version: whose cache it is; None for that of its header.
    """

    baseline: ModelSource | None = option(
        None, "--baseline", "what the loss is measured against: the FP32 model, or an older INT8 one", metavar="B"
    )
    metric: Metric | None = option(None, "--metric", "metric (default: by the labels)", choices=get_args(Metric))
    decoder: str = option(
        "auto",
        "--decoder",
        "auto (default), or a decoder and its settings: yolov5,anchors=10:13:16:30:...",
        metavar="D",
        one_of="boxes",
    )
    postprocess: str | Postprocess | None = option(None, POSTPROCESS)
    names: str | None = option(
        None, "--names", "classes in order: coco, coco90, a file, or car,face=masked|bare", metavar="N"
    )
    label_offset: int = option(0, "--label-offset", "number added to the labels' class numbers", metavar="N", read=int)
    selection: Selection = field(default_factory=Selection)
    seed: int = option(0, "--seed", "seed of the bootstrap (default %(default)s)", metavar="N", read=int)
    cache: Cache | str | Path | None = option(
        None, "--cache", "simulate the plain model with this calibration cache", metavar="C", group=_CACHED
    )
    target: str | None = option(
        None,
        "--target",
        "whose INT8 is simulated (default gpu with --cache)",
        choices=CACHE_TARGETS,
        read=cache_target,
        group=_CACHED,
    )
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion, parse, Option("--trt-version", VERSION_OF_CACHE, metavar="V", group=_CACHED)
    )

    def __post_init__(self) -> None:
        """Refuse a word that is none of an option's choices, and numbers that classes and seeds do not have."""
        super().__post_init__()
        if self.seed < 0:
            raise QdqError("--seed", f"{self.seed} is negative", "give 0 or more")
        if abs(self.label_offset) > _MOST_CLASSES:
            raise QdqError(
                "--label-offset", f"{self.label_offset} is not an offset of class numbers", "0 and 1 are usual"
            )
