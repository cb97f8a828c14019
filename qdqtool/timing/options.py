# SPDX-License-Identifier: Apache-2.0
"""How long is measured, as options have it. `-h` reads this: no numpy here."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.options import option


@dataclass(frozen=True)
class Timing:
    """How long subjects are run.

    Attributes:
        seconds: for each subject, all its turns together; at least ten runs are measured.
        warm_up: seconds for each subject before, at least one run.
        runs: measured runs of each, in the place of seconds; None for as many as fit.
    """

    seconds: float = option(2.0, "--seconds", "seconds measured for each row (default 2)", metavar="S", read=float)
    warm_up: float = option(
        0.5, "--warm-up", "seconds of warm-up before that (default %(default)s)", metavar="S", read=float
    )
    runs: int | None = option(None, "--runs", "runs measured for each row, instead of --seconds", metavar="N", read=int)
