# SPDX-License-Identifier: Apache-2.0
"""What `insert` may be asked for. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from qdqtool.match.plan import PlanOptions
from qdqtool.mixed_precision.keep_float import Keeping

if TYPE_CHECKING:
    from qdqtool.calibration.engine import CalibrationOptions
    from qdqtool.data.loader import DataOptions


@dataclass(frozen=True)
class InsertOptions:
    """How Q/DQ are inserted.

    Attributes:
        plan: target, version, heads, rules.
        calibration: method and provider, where data is given. Without a method: `auto`; `mse` for weights that
            `condition` edited (`default_method`).
        feed: how data is read.
        fold_bn: fold BatchNormalization into the weights first, where exact.
        requantize: take out the pairs that are there and begin anew.
        input_range: smallest and largest value of the network's input, for estimation without data.
        keep_float: how many operators accuracy may keep in float, or "auto": few, where the loss is concentrated. None
            is "auto" where pairs are placed in a plain model for the GPU by data, else 0; also 0 where `condition`
            has corrected biases already, which would be off in float.
        max_output_loss: the largest loss at the outputs (`calibration/loss.py`); the cheapest operators that bring it
            there are kept in float. Goes with no `keep_float` of its own. The model is written where it is missed, too:
            see `InsertResult.misses`.
        condition: edit weights first: "auto", or steps as `condition` takes them; "" for not at all.
        whole_table: whether every float tensor is calibrated, for the table in the metadata; False does the points
            alone, in about half the time, and `peel --target dla` then wants data.
        advise: whether a note says what conditioning is predicted to win, where it is much; takes a look at the data.
        allow_empty: whether a model in which nothing can be quantized is written all the same, without Q/DQ.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    calibration: CalibrationOptions | None = None
    feed: DataOptions | None = None
    fold_bn: bool = False
    requantize: bool = False
    input_range: tuple[float, float] | None = None
    keep_float: int | Literal["auto"] | None = None
    max_output_loss: float | None = None
    condition: str = ""
    advise: bool = False
    whole_table: bool = True
    allow_empty: bool = False

    def keeping(self, *, by_default: bool) -> Keeping:
        """What may stay in float for accuracy; `by_default`: whether a model and its data allow it."""
        if self.keep_float is None:
            allowed = by_default and self.max_output_loss is None and self.plan.target == "gpu"
            return Keeping("auto" if allowed else 0, self.max_output_loss)
        return Keeping(self.keep_float, self.max_output_loss)
