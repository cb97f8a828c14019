# SPDX-License-Identifier: Apache-2.0
"""Options of `condition`. `-h` reads them: no onnx here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qdqtool.data.options import DataOptions
from qdqtool.match.options import PlanOptions
from qdqtool.options import option
from qdqtool.runtime.execution import PROVIDER

if TYPE_CHECKING:
    from qdqtool.conditioning.predict import Rounding
    from qdqtool.conditioning.smooth_step import Muls


@dataclass(frozen=True)
class ConditionOptions:
    """How a model is conditioned.

    Attributes:
        steps: names, or text with commas between; None or "auto" for all but relu6 and shift, which are done where they
            are named: "auto" may stand beside them.
        plan: where the pairs will stand: version, heads, rules.
        data_options: how data is read.
    """

    steps: tuple[str, ...] | str | None = option(
        None,
        "--steps",
        "some of equalize,smooth,clip,correct (default auto: every step that reduces the loss); relu6 and shift "
        "only if named",
        metavar="S",
    )
    method: str = option(
        "mse",
        "--method",
        "calibration method that insert will use, needed by correct (default %(default)s)",
        metavar="M",
    )
    provider: str = option("cpu", PROVIDER)
    factors: Rounding = option(
        "float",
        "--factors",
        "factors that channels are divided by; powers of two keep the FP32 results bit for bit, and help less",
        choices=("float", "power-of-two"),
    )
    plan: PlanOptions = field(default_factory=PlanOptions)
    data_options: DataOptions | None = None
    muls: Muls = option(
        "fitting",
        "--muls",
        "Mul nodes that smooth adds, Add nodes of shift: only where INT8 still moves fewer bytes than FP16 "
        "(default), or all that reduce the loss",
        choices=("fitting", "all"),
    )
