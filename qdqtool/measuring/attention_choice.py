# SPDX-License-Identifier: Apache-2.0
"""Which attentions are INT8 where `--attention auto` leaves it to data: those that cost the outputs little.

All of them are tried together, then halves of what costs too much, on few samples. There are as many runs as go
with the samples that calibration has counted, so that choosing costs a share of what calibrating did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qdqtool.formats import INT8
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring.policies import AUTO_FLOOR, AUTO_GAIN
from qdqtool.measuring.sensitivity_runner import Quantized, SensitivityRunner, reference_of
from qdqtool.progress import steps
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.measuring.keep_float import Keeping
    from qdqtool.measuring.output_loss import OutputReference
    from qdqtool.measuring.scale_choice import ChoiceSource

MOST_RUNS = 8  # forms of the model that are run, beside that with every attention in float
SAMPLES = 2  # in each run
COUNTED = 16  # samples that calibration has counted for each form that is run, that in float among them
_TOO_FEW = f"{2 * COUNTED} calibration samples or more are needed to choose; --attention int8 quantizes it without"
_UNTRIED = "beyond the time limit of the search"


def tentative(options: PlanOptions) -> PlanOptions:
    """The options with every attention in INT8 that is built so: what has to be calibrated before one can choose."""
    return replace(options, attention="int8") if options.attention == "auto" else options


def choose_attentions(
    keeping: Keeping,
    source: ChoiceSource,
    table: ScaleTable,
    options: PlanOptions,
    keys: Sequence[str],
    reference: OutputReference | None = None,
) -> dict[str, str]:
    """Key of each attention that is asked about -> why it stays in float, "" where it is to be INT8.

    An attention may be INT8 where the loss at the outputs stays within `max_output_loss`, where one was asked for;
    else within `AUTO_FLOOR`, or where less than `AUTO_GAIN` of it would go away with the attentions in float.
    """
    runs = min(table.provenance.samples // COUNTED - 1, MOST_RUNS)
    if runs < 1:
        return dict.fromkeys(keys, _TOO_FEW)
    known = reference or reference_of(source)
    few = replace(known, samples=known.samples[:SAMPLES], wanted=known.wanted[:SAMPLES])
    what = (source, tentative(options), table.decisions, table.scales, table.all_zero)
    runner = SensitivityRunner(Quantized(*what, reference=few))
    within = {name for one in runner.plan.attentions for name in one.points}
    row = next((point.format for point in runner.plan.activations if point.tensor in within), INT8)
    return _Choice(runner, keys, keeping.max_output_loss, row.title).reasons(runs)


class _Choice:
    """One search over the attentions of a model."""

    def __init__(
        self, runner: SensitivityRunner, keys: Sequence[str], most: float | None, title: str = INT8.title
    ) -> None:
        self.runner, self.keys = runner, keys
        self.every = {one.key for one in runner.plan.attentions if one.int8}
        self.title = title
        self.float_loss = self._loss(())
        floor = AUTO_FLOOR if self.float_loss is None else max(AUTO_FLOOR, self.float_loss / (1 - AUTO_GAIN))
        self.limit = floor if most is None else most

    def reasons(self, runs: int = MOST_RUNS) -> dict[str, str]:
        """Why each attention stays in float, "" for those that do not."""
        found = dict.fromkeys(self.keys, _UNTRIED)
        chosen: list[str] = []
        waiting = deque([list(self.keys)])
        for _ in steps(range(runs), "run at most"):
            if not waiting:
                break
            group = waiting.popleft()
            loss = self._loss((*chosen, *group))
            if loss is not None and loss <= self.limit:
                chosen += group
                found.update(dict.fromkeys(group, ""))
                continue
            found.update(dict.fromkeys(group, self._too_much(loss, len(group))))
            if group[1:]:
                half = (len(group) + 1) // 2
                waiting.extend((group[:half], group[half:]))
        return found

    def _loss(self, int8: Sequence[str]) -> float | None:
        """At the outputs, with some attentions in INT8."""
        return self.runner.loss(self.every - set(int8))

    def _too_much(self, loss: float | None, count: int) -> str:
        if loss is None or self.float_loss is None:
            return "its loss could not be measured"
        others = f" with {count - 1} others" if count > 1 else ""
        losses = f"from {self.float_loss:.3g} to {loss:.3g}, more than {self.limit:.3g}"
        return f"in {self.title}{others} it takes the loss at the outputs {losses}"
