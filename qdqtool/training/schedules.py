# SPDX-License-Identifier: Apache-2.0
"""How the rate goes over a run: a factor by how much of it is done. Not the rate itself."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from qdqtool.errors import QdqError
from qdqtool.options import option

Shape = Literal["cosine", "soft-start", "linear", "constant"]
HOW_LONG = "how long"  # title of a group of options
SHAPES: tuple[Shape, ...] = get_args(Shape)
_SOFT_START = "soft-start"


@dataclass(frozen=True)
class Schedule:
    """A course of the rate.

    Attributes:
        shape: one of `SHAPES`, or ``step=30:60:80[,factor=0.1]``: times the factor at each of these percents of
            the run. soft-start is TAO's soft-start annealing; ``soft-start=0.1:0.7`` are the parts of the run over
            which the rate rises from `min_lr_ratio`, and after which it falls back to it, evenly in its logarithm.
        warmup: part of the steps over which the rate rises linearly from near 0, on top of the shape; soft-start rises
            by itself.
        min_lr_ratio: factor that the shape ends at (and soft-start begins at); steps do not use it.
    """

    shape: Shape | str = option(
        "cosine",
        "--schedule",
        "learning-rate schedule: cosine, soft-start[=A:B], linear, constant, step=P:P[,factor=F] (default %(default)s)",
        metavar="SHAPE",
        group=HOW_LONG,
    )
    warmup: float = option(
        0.05,
        "--warmup",
        "share of the run with a rising learning rate; soft-start has its own",
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
            QdqError: no such shape, percents of steps out of order, or a part beyond 0 to 1.
        """
        if self.shape.startswith(_SOFT_START):
            _read_soft_start(self.shape)
        elif self.shape not in SHAPES:
            _read_steps(self.shape)
        if not 0 <= self.warmup < 1:
            raise QdqError("--warmup", f"{self.warmup:g} is not a share of the steps", "give 0 or more, below 1")
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
        if self.shape.startswith(_SOFT_START) and most is None:
            return 1.0
        length = math.ceil(self.warmup * total)
        return min((step + 1) / max(length if most is None else min(length, most), 1), 1.0)

    def shaped(self, step: int, total: int) -> float:
        """The factor without its warm-up."""
        if self.shape not in SHAPES and not self.shape.startswith(_SOFT_START):
            percents, factor = _read_steps(self.shape)
            return factor ** sum(100 * step >= percent * max(total, 1) for percent in percents)
        return self._shaped(min(max(step / max(total, 1), 0.0), 1.0))

    def _shaped(self, done: float) -> float:
        if self.shape == "constant":
            return 1.0
        if self.shape == "linear":
            return 1.0 + (self.min_lr_ratio - 1.0) * done
        if self.shape == "cosine":
            return self.min_lr_ratio + (1.0 - self.min_lr_ratio) * 0.5 * (1.0 + math.cos(math.pi * done))
        risen, falling = _read_soft_start(self.shape)
        height = 1.0
        if done < risen:
            height = done / risen
        elif done > falling:
            height = (1.0 - done) / (1.0 - falling)
        return math.exp((1.0 - height) * math.log(self.min_lr_ratio))


def _read_soft_start(text: str) -> tuple[float, float]:
    """The two parts of ``soft-start[=0.1:0.7]``."""
    form = re.fullmatch(r"soft-start(?:=([^:]+):([^:]+))?", text)
    try:
        risen, falling = (float(form[1] or 0.1), float(form[2] or 0.7)) if form else (1.0, 0.0)
    except ValueError:
        risen, falling = 1.0, 0.0
    if not 0 <= risen <= falling < 1:
        raise QdqError("--schedule", f"{text!r} has not two shares of the run in order", "such as soft-start=0.1:0.7")
    return risen, falling


def _read_steps(text: str) -> tuple[tuple[float, ...], float]:
    """Percents and factor of ``step=30:60:80[,factor=0.1]``."""
    if not text.startswith("step"):
        todo = f"choose one of {', '.join(SHAPES)}, step=30:60:80"
        raise QdqError("--schedule", f"{text!r} is not one", todo)
    form = re.fullmatch(r"step=([^,=]+)(?:,factor=([^,=]+))?", text)
    todo = "give percents of the run, such as step=30:60:80 or step=30:60:80,factor=0.1"
    try:
        percents = tuple(float(word) for word in form[1].split(":")) if form else ()
        factor = float(form[2] or 0.1) if form else 0.0
    except ValueError:
        percents, factor = (), 0.0
    if not percents:
        raise QdqError("--schedule", f"{text!r} does not list steps", todo)
    if not all(low < high for low, high in pairwise((0.0, *percents, 100.0))):
        raise QdqError("--schedule", f"the percents of {text!r} do not rise between 0 and 100", todo)
    if not 0 < factor < 1:
        raise QdqError("--schedule", f"the factor {factor:g} is not between 0 and 1", todo)
    return percents, factor
