# SPDX-License-Identifier: Apache-2.0
"""How the rate goes over a run: a factor by how much of it is done. Not the rate itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from qdqtool.errors import QdqError
from qdqtool.options import option

Shape = Literal["cosine", "soft-start", "linear", "constant"]
HOW_LONG = "how long"  # title of a group of options
SHAPES: tuple[Shape, ...] = get_args(Shape)


@dataclass(frozen=True)
class Schedule:
    """A course of the rate.

    Attributes:
        shape: soft-start is TAO's soft-start annealing.
        warmup: part of the steps over which the rate rises linearly from near 0, on top of the shape.
        soft_start: for soft-start, the part over which the rate rises from `min_lr_ratio`, evenly in its logarithm.
        annealing: for soft-start, the part after which it falls back to `min_lr_ratio` in the same way.
        min_lr_ratio: factor that the shape ends at (and soft-start begins at).
    """

    shape: Shape = option(
        "cosine", "--schedule", "learning-rate schedule (default %(default)s)", choices=SHAPES, group=HOW_LONG
    )
    warmup: float = option(
        0.05, "--warmup", "share of the run with a rising learning rate", metavar="P", read=float, group=HOW_LONG
    )
    soft_start: float = option(
        0.1,
        "--soft-start",
        "soft-start: share of the run until the rate is full (default %(default)s)",
        metavar="P",
        read=float,
        group=HOW_LONG,
    )
    annealing: float = option(
        0.7,
        "--annealing",
        "soft-start: share of the run after which the rate falls (default %(default)s)",
        metavar="P",
        read=float,
        group=HOW_LONG,
    )
    min_lr_ratio: float = option(
        0.01,
        "--min-lr-ratio",
        "final learning rate as a share of the full one (default %(default)s)",
        metavar="P",
        read=float,
        group=HOW_LONG,
    )

    def check(self) -> None:
        """Refuse numbers that make no course.

        Raises:
            QdqError: no such shape, or a part beyond 0 to 1.
        """
        if self.shape not in SHAPES:
            raise QdqError("--schedule", f"{self.shape!r} is not one", f"choose one of {', '.join(SHAPES)}")
        if not 0 <= self.warmup < 1:
            raise QdqError("--warmup", f"{self.warmup:g} is not a share of the steps", "give 0 or more, below 1")
        if not 0 <= self.soft_start <= self.annealing < 1:
            reason = f"{self.soft_start:g} and {self.annealing:g} are not in order between 0 and 1"
            raise QdqError("--soft-start and --annealing", reason, "such as 0.1 and 0.7")
        if not 0 < self.min_lr_ratio <= 1:
            raise QdqError(
                "--min-lr-ratio",
                f"{self.min_lr_ratio:g} is not a share of the learning rate",
                "give more than 0, 1 at most",
            )

    def factor(self, step: int, total: int) -> float:
        """The factor of the rate for step `step` (from 0) of `total`."""
        return self.rising(step, total) * self.shaped(step, total)

    def rising(self, step: int, total: int, most: int | None = None) -> float:
        """The warm-up's part of the factor, 1 at most."""
        length = math.ceil(self.warmup * total)
        return min((step + 1) / max(length if most is None else min(length, most), 1), 1.0)

    def shaped(self, step: int, total: int) -> float:
        """The factor without its warm-up."""
        return self._shaped(min(max(step / max(total, 1), 0.0), 1.0))

    def _shaped(self, done: float) -> float:
        if self.shape == "constant":
            return 1.0
        if self.shape == "linear":
            return 1.0 + (self.min_lr_ratio - 1.0) * done
        if self.shape == "cosine":
            return self.min_lr_ratio + (1.0 - self.min_lr_ratio) * 0.5 * (1.0 + math.cos(math.pi * done))
        height = 1.0
        if done < self.soft_start:
            height = done / self.soft_start
        elif done > self.annealing:
            height = (1.0 - done) / (1.0 - self.annealing)
        return math.exp((1.0 - height) * math.log(self.min_lr_ratio))
