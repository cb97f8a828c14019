# SPDX-License-Identifier: Apache-2.0
"""What `improve` is asked for. `-h` reads it: no onnx here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from qdqtool.deploying.options import EFFORTS, MAX_LOSS, Effort, JudgingOptions
from qdqtool.errors import QdqError
from qdqtool.options import Option, TextOption, check_choices, option
from qdqtool.progress import silent
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.target_options import TARGETS, TargetOptions
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.graph.io import ModelSource


@dataclass(frozen=True)
class ImproveOptions(TargetOptions, JudgingOptions, ExecutionOptions):
    """How a Q/DQ model is improved: what `JudgingOptions` lists, `max_loss` required, and `TargetOptions`.

    Attributes:
        source: the FP32 model; None for the model itself without its pairs.
        effort: how much is tried: fast, default or best, which also trains all weights.
        max_minutes: CPU minutes after which no further attempt begins; None for no limit.
        say: is called with a line for each attempt, as soon as it is judged; where progress is shown, it ends with the
            seconds that the attempt took.
    """

    target: str = option("gpu", "--target", "target (default %(default)s)", choices=TARGETS)
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion,
        parse,
        Option(
            "--trt-version", "TensorRT version whose rules place the pairs (default: the newest known)", metavar="V"
        ),
    )
    source: ModelSource | None = option(
        None, "--source", "the FP32 model (default: MODEL without its Q/DQ)", metavar="M"
    )
    effort: Effort = option("default", "--effort", "how much is tried; best also trains all weights", choices=EFFORTS)
    max_minutes: float | None = option(
        None, "--max-minutes", "CPU minutes after which no further attempt begins", metavar="N", read=float
    )
    say: Callable[[str], None] = silent
    _: KW_ONLY
    max_loss: float | None = option(None, "--max-loss", MAX_LOSS, metavar="X", read=float, required=True)

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        super().__post_init__()
        check_choices(self)
        if self.max_loss is None:
            raise QdqError("--max-loss", "says when it is enough, and is not given", "give it, such as 0.01")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise QdqError(f"--max-minutes {self.max_minutes:g}", "is no time", "give more than 0, or leave it out")
        self.check_for("improve")
