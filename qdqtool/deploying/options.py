# SPDX-License-Identifier: Apache-2.0
"""What `deploy` and `improve` are asked for alike: what models are judged by. `-h` reads this: no onnx here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from qdqtool.data.options import DataOptions
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import NAMES, POSTPROCESS, Metric
from qdqtool.options import option
from qdqtool.progress import silent

if TYPE_CHECKING:
    from qdqtool.data.loader import Data

Effort = Literal["fast", "default", "best"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
METRICS = ("top1", "coco", "voc", "miou")
MAX_LOSS = "largest accepted loss of the metric, absolute: 0.01 allows 0.75 to become 0.74"  # help of --max-loss


@dataclass(frozen=True, kw_only=True)
class JudgingOptions:
    """The base of options of what chooses between models; its fields are given by name.

    Attributes:
        labels: the truth of the data, or of `eval_data` where that is given; None judges by agreement with FP32.
        eval_labels: the truth of `eval_data`, where `labels` is that of the data.
        eval_data: separate samples for the reported figures; None for a part of the data.
        max_loss: the most that the task's metric may lose against FP32, in absolute points (0.01 is one point in a
            hundred).
        metric: top1, coco, voc or miou; None takes what the labels are for.
        data_options: batch, preprocessing.
        decoder: what makes boxes of a detector's outputs; see `find_decoder`.
        postprocess: ``script.py:function`` that makes boxes of a detector's outputs, instead of a decoder.
        names: the model's classes; see `parse_names`.
        warn: is called with what makes the figures worthless, as soon as it is known: FP32 itself fails by labels.
    """

    labels: str | Path | None = option(
        None,
        "--labels",
        "labels of --data, or of --eval-data if given, in a format that evaluate reads (default: compare with the "
        "FP32 model)",
        metavar="L",
    )
    eval_labels: str | Path | None = option(
        None, "--eval-labels", "labels of --eval-data; --labels are those of --data then", metavar="L"
    )
    eval_data: Data | None = option(None, "--eval-data", "separate samples for the reported figures", metavar="E")
    max_loss: float | None = option(
        None, "--max-loss", f"{MAX_LOSS} (default: INT8 at its best)", metavar="X", read=float
    )
    metric: Metric | None = option(None, "--metric", "metric (default: by the labels)", choices=METRICS)
    data_options: DataOptions = option(
        MISSING,
        "--preprocess",
        "image preprocessing; see calibrate -h",
        metavar="P",
        convert=DataOptions,
        default_factory=DataOptions,
    )
    decoder: str = option(
        "auto", "--decoder", "decoder of a detector's outputs; see evaluate -h", metavar="D", one_of="boxes"
    )
    postprocess: str | None = option(None, POSTPROCESS)
    names: str | None = option(None, NAMES)
    warn: Callable[[str], None] = silent

    def check_for(self, verb: str) -> None:
        """Refuse what means nothing.

        Raises:
            QdqError: such an option, named.
        """
        if self.max_loss is not None and not 0 <= self.max_loss <= 1:
            raise QdqError(f"--max-loss {self.max_loss:g}", "is not between 0 and 1", "0.01 is one point in a hundred")
        if self.eval_labels is not None and self.eval_data is None:
            reason = "is the truth of --eval-data, which is not given"
            raise QdqError("--eval-labels", reason, "give it, or --labels alone")
        if self.data_options.part is not None:
            raise QdqError("--part", f"is chosen by {verb}", "leave it out")
        if self.data_options.limit is not None:
            reason = f"is not for {verb}, which parts the samples"
            raise QdqError("--limit", reason, "leave it out, or give fewer samples")
