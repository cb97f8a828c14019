# SPDX-License-Identifier: Apache-2.0
"""What `deploy` is asked for. `-h` reads it: no onnx here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass

from qdqtool.deploying.options import EFFORTS, Effort, JudgingOptions
from qdqtool.options import option
from qdqtool.progress import silent
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.target_options import MAX_BATCH


@dataclass(frozen=True)
class DeployOptions(JudgingOptions, ExecutionOptions):
    """How a model is deployed: what `JudgingOptions` lists, and a place.

    Without `max_loss` the best INT8 candidate is kept, or a cheaper one that is as good, unless it is of no use or no
    faster than the model without INT8.

    Attributes:
        place: board and version, such as "xavier-nx:jp4.6.1", or a version alone, such as "11.4".
        dla: whether it is built for the DLA of the board.
        effort: how much is tried: fast, default or best.
        force: whether the folder may hold files.
        max_batch: the most samples in one run of the engine, where the model leaves the batch open; None for one.
        say: is called with each line of what the place runs, before anything is tried.
        tried: is called with a line for each candidate, as soon as it is measured.
    """

    place: str = option(
        MISSING,
        "--for",
        "a board and its software (xavier-nx:jp4.6.1, orin:jp6, rtx4090, rtx4090:rtx), or a version alone (8.6, jp6.1)",
        metavar="BOARD",
        required=True,
    )
    dla: bool = option(False, "--dla", "build for the DLA of the board")
    effort: Effort = option("default", "--effort", "how many ways are tried; best also fine-tunes", choices=EFFORTS)
    max_batch: int | None = option(None, MAX_BATCH)
    force: bool = option(False, "--force", "write into a folder that is not empty")
    say: Callable[[str], None] = silent
    tried: Callable[[str], None] = silent

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        super().__post_init__()
        self.check_for("deploy")
