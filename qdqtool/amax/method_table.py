# SPDX-License-Identifier: Apache-2.0
"""The calibration methods: a row each, with all that code beside the arithmetic must know. The arithmetic: methods.py.

`-h` reads this: no NumPy here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qdqtool.errors import QdqError

HistogramKind = Literal["mergeable", "entropy"]
REFERENCE = "mse"  # the method that the predicted noise of others is compared with


@dataclass(frozen=True)
class CalibrationMethod:
    """A calibration method.

    Attributes:
        name: its word in `--method`.
        histogram: what it reads: `Histogram`, or TensorRT's (`EntropyHistogram`), which needs batches in file order.
        percent: the percentage of a bare name, in (0, 100]; None for a method that takes none.
        keeps_range: whether the clipping value is the largest |x|. Tensors before an activation are then observed
            themselves, and a scale tells the range of its tensor.
        behind_silu: whether a tensor that only a SiLU reads is clipped by the squared error after the SiLU.
        starts_from: where the consumers of a tensor choose its clipping value among candidates (`measuring/`), the
            method whose scales they start from; "" where histograms suffice.
        note: what the help adds to the name, in parentheses.
    """

    name: str
    histogram: HistogramKind = "mergeable"
    percent: float | None = None
    keeps_range: bool = False
    behind_silu: bool = False
    starts_from: str = ""
    note: str = ""

    @property
    def by_consumers(self) -> bool:
        """Whether the consumers of a tensor choose its clipping value."""
        return bool(self.starts_from)

    @property
    def spelling(self) -> str:
        """How help shows it: `percentile[=99.99]`."""
        number = "" if self.percent is None else f"[={self.percent!r}]"
        return f"{self.name}{number}{f' ({self.note})' if self.note else ''}"


METHODS: Mapping[str, CalibrationMethod] = {
    one.name: one
    for one in (
        CalibrationMethod("auto", starts_from="mse"),
        CalibrationMethod("mse", behind_silu=True),
        CalibrationMethod("max", keeps_range=True),
        CalibrationMethod("percentile", percent=99.99),
        CalibrationMethod("entropy", histogram="entropy", note="TensorRT's"),
        CalibrationMethod("entropy-stable"),
    )
}
NAMES = tuple(METHODS)


@dataclass(frozen=True)
class Method:
    """A method as it was asked for: one of `METHODS`, and the percentage where it takes one."""

    name: str
    percent: float | None = None

    def __str__(self) -> str:
        """The spelling that `parse_method` reads back."""
        return self.name if self.percent is None else f"{self.name}={self.percent!r}"

    @property
    def row(self) -> CalibrationMethod:
        """Its row in `METHODS`."""
        return METHODS[self.name]

    @property
    def alone(self) -> Method:
        """The method that needs histograms alone: itself, or the one whose scales the consumers start from."""
        return Method(self.row.starts_from) if self.row.by_consumers else self


def parse_method(text: str) -> Method:
    """The method that ``--method`` names: ``mse``, ``percentile``, ``percentile=99.99``, ...

    Raises:
        QdqError: an unknown name, a percentage outside (0, 100], or a number where none belongs.
    """
    name, equals, number = text.strip().partition("=")
    if name not in METHODS:
        near = difflib.get_close_matches(name.lower(), NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(NAMES)}"
        raise QdqError(f"--method {text}", "no such method", hint)
    row = METHODS[name]
    if row.percent is None and equals:
        raise QdqError(f"--method {text}", f"{name} takes no number", f"write --method {name}")
    return Method(name, _percent(text, row, number) if equals else row.percent)


def _percent(text: str, row: CalibrationMethod, number: str) -> float:
    try:
        percent = float(number)
    except ValueError:
        percent = math.nan
    if not 0.0 < percent <= 100.0:
        hint = f"write --method {row.name}={row.percent!r}"
        raise QdqError(f"--method {text}", "the percentage must lie in (0, 100]", hint)
    return percent


def row_of_scale(method: str) -> CalibrationMethod | None:
    """The row of the method that a scale has from a calibration: of `max`, `percentile=99.9` or `auto:mse`.

    None for a scale that came about otherwise, such as one that follows from another tensor's.
    """
    return METHODS.get(method.partition(":")[0].partition("=")[0])
