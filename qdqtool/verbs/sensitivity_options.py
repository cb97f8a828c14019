# SPDX-License-Identifier: Apache-2.0
"""Options of `sensitivity`. `-h` reads them: no onnx here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qdqtool.data.options import DataOptions
from qdqtool.match.options import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.options import TextOption, option
from qdqtool.progress import silent


@dataclass(frozen=True)
class SensitivityOptions:
    """How operators are ranked.

    Attributes:
        plan: target, version, heads, rules: what `insert` would be given.
        calibration: method and provider, or a method's name.
        data_options: how data is read.
        ends: whether the tenth that loses most by itself is also run end to end.
        say: is called with a line for each thing that is measured, as soon as it is; see `rank_operators`.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    calibration: TextOption[CalibrationOptions] = TextOption(CalibrationOptions, CalibrationOptions)
    data_options: DataOptions | None = None
    ends: bool = option(True, "--local", "measure each operator alone, without running the whole model")
    say: Callable[[str], None] = silent
