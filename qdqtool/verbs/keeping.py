# SPDX-License-Identifier: Apache-2.0
"""What `insert` keeps in float for accuracy: what may be asked for, and who chooses (`calibration/keep.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import onnx

from qdqtool.errors import QdqError
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.calibration.feed import Feed
    from qdqtool.calibration.options import CalibrationOptions


@dataclass(frozen=True)
class Keeping:
    """What may stay in float for accuracy.

    Attributes:
        count: how many operators, or "auto": few, where the loss is concentrated.
        budget: the largest loss at the outputs (`calibration/loss.py`); the cheapest operators that bring it there.
    """

    count: int | Literal["auto"] = 0
    budget: float | None = None

    def __bool__(self) -> bool:
        return bool(self.count) or self.budget is not None

    def check(self, *, has_data: bool) -> None:
        """Refuse what contradicts itself.

        Raises:
            QdqError: no data to measure on, both a count and a budget, a budget that is no loss.
        """
        if not self:
            return
        if not has_data:
            raise QdqError("--keep-float", "is decided by a measurement, and there is no data", "give --data")
        if self.budget is not None and self.count:
            raise QdqError("--budget", "decides how many operators stay in float", "leave --keep-float out")
        if self.budget is not None and not 0.0 <= self.budget < 1.0:
            raise QdqError("--budget", f"{self.budget} is no loss from 0 to 1", "write it like 0.05")


def is_measurable(proto: onnx.ModelProto, folder: Path | None, plan: Plan | None = None) -> bool:
    """Whether a model has outputs that a loss can be told of, and, as far as a plan tells, anything in INT8.

    Raises:
        QdqError: what `comparable_outputs` refuses.
    """
    from qdqtool.calibration.loss import comparable_outputs

    return (plan is None or bool(plan.weights)) and bool(comparable_outputs(proto, folder))


def choose_kept(
    keeping: Keeping,
    plain: onnx.ModelProto,
    folder: Path | None,
    table: ScaleTable,
    feed: Feed,
    how: CalibrationOptions,
    plan: PlanOptions,
) -> dict[str, str]:
    """The operators that stay in float (their first outputs), and why each does.

    Args:
        keeping: how many, or how much may be lost.
        plain: a model without Q/DQ, opset 13 or later; not changed.
        folder: where its external data lie.
        table: scales of every point.
        feed: what is fed, walked once.
        how: the provider, and what to call the model.
        plan: where the pairs stand.
    """
    from qdqtool.calibration import keep
    from qdqtool.calibration.auto import source_of

    source = source_of(plain, folder, feed, {}, how)
    quantised = keep.Quantised(source, plan, tuple(table.facts.get("cuts", ())), table.scales, table.all_zero)
    if keeping.budget is not None:
        kept = keep.keep_within_budget(quantised, keeping.budget)
    elif keeping.count == "auto":
        kept = keep.keep_where_concentrated(quantised)
    else:
        kept = keep.keep_most_harmful(quantised, keeping.count)
    return {one.finding.node: one.reason for one in kept}
