# SPDX-License-Identifier: Apache-2.0
"""What `insert` keeps in float for accuracy, and what is lost all the same: what may be asked for, and who measures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from qdqtool.errors import QdqError
from qdqtool.evaluation.loss_scale import WORDS, Word, word_of
from qdqtool.evaluation.metrics import certain
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.propagate_scales import borrowed_scales
from qdqtool.measuring import policies
from qdqtool.measuring.answers import AnswerLoss, Answers, Reads
from qdqtool.measuring.auto_scales import source_of
from qdqtool.measuring.output_loss import LARGE_LOSS, FloatOutputs, comparable_outputs
from qdqtool.measuring.sensitivity_runner import OUTPUT_SAMPLES, reference_of
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.data.loader import DataLoader
    from qdqtool.measuring.output_loss import OutputReference
    from qdqtool.measuring.scale_choice import ChoiceSource
    from qdqtool.measuring.search_result import SearchResult
    from qdqtool.measuring.sensitivity_runner import QuantizedForm
    from qdqtool.runtime.activations import ObservableModel


@dataclass(frozen=True)
class Keeping:
    """What may stay in float for accuracy.

    Attributes:
        count: how many operators, or "auto": few, where the loss is concentrated.
        max_output_loss: the largest loss at the outputs (`measuring/output_loss.py`); the cheapest operators
            that bring it there.
    """

    count: int | Literal["auto"] = 0
    max_output_loss: float | None = None

    def __bool__(self) -> bool:
        return bool(self.count) or self.max_output_loss is not None

    @property
    def option(self) -> str:
        """How the command line asks for it."""
        return "--keep-float" if self.max_output_loss is None else "--max-output-loss"

    def check(self, *, has_data: bool) -> None:
        """Refuse what contradicts itself.

        Raises:
            QdqError: no data to measure on, both a count and a loss, a loss that is none.
        """
        if not self:
            return
        if not has_data:
            raise QdqError(self.option, "needs data for a measurement, and no data is given", "give --data")
        if self.max_output_loss is not None and self.count:
            raise QdqError(self.option, "decides how many operators stay in float", "leave --keep-float out")
        if self.max_output_loss is not None and not 0.0 <= self.max_output_loss < 1.0:
            raise QdqError(self.option, f"{self.max_output_loss} is not a loss from 0 to 1", "write it like 0.05")

    def check_data(self, loader: DataLoader) -> None:
        """Refuse data that can be walked only once, before they are.

        Raises:
            QdqError: the outputs are measured once the data were walked.
        """
        if self and loader.once:
            reason = "reads the data again to measure the outputs, and these data can be iterated only once"
            raise QdqError(self.option, reason, "give a list, a file or a folder")


@dataclass(frozen=True)
class OutputLoss:
    """The loss at the outputs of a written model.

    Attributes:
        value: from 0 to 1 (`measuring/output_loss.py`); None where it could not be measured.
        samples: how many it was measured on.
        reason: why it could not be measured, or "".
        answers: what the best classes or the boxes lose; None where the outputs are not read as such.
        reads: what the outputs are read as; "" where nothing reads them, and `evaluate` refuses them.
    """

    value: float | None
    samples: int = 0
    reason: str = ""
    answers: AnswerLoss | None = None
    reads: Reads = ""

    @property
    def word(self) -> Word:
        """How much that is for the task, by the answers where there are any (`evaluation/loss_scale.py`)."""
        if self.answers is not None:
            return self.answers.word
        return "" if self.value is None else word_of("outputs", certain(self.value))

    @property
    def large(self) -> bool:
        """Whether the model may lose much."""
        return self.word == "much"

    def smaller(self) -> float:
        """A loss at the outputs to ask for, at most half of this one; 0 where there is none to lower."""
        return float(f"{min(LARGE_LOSS, (self.value or 0.0) / 2):.1g}")

    def hint(self) -> list[str]:
        """What to say of a loss that a task may feel; empty for less, and for a large one."""
        if self.word != "some":
            return []
        return [WORDS[self.word]]

    def warning(self, form: str) -> list[str]:
        """What to say of a large loss in a number format: first the figure that makes it large."""
        answers = [] if self.answers is None else [self.answers.summary()]
        return [f"may lose much in {form}", *answers, self.summary()]

    def summary(self) -> str:
        """The figure at the outputs in a line."""
        if self.value is None:
            return f"loss at the outputs: not measured, {self.reason}"
        some = "1 calibration sample" if self.samples == 1 else f"{self.samples} calibration samples"
        return f"loss at the outputs: {self.value:.4g} (0: none, 1: all signal lost; {some})"

    def lines(self) -> list[str]:
        """All that was measured, a line each."""
        return [*([self.answers.summary()] if self.answers is not None else []), self.summary(), *self.hint()]

    def to_json(self) -> dict[str, object]:
        """What JSON tells of it."""
        facts: dict[str, object] = {
            "output_loss": self.value,
            "output_loss_samples": self.samples,
            "output_loss_large": self.large,
            "loss": None if self.answers is None else self.answers.to_json(),
            "loss_word": self.word or None,
        }
        return facts if self.value is not None else {**facts, "output_loss_reason": self.reason}


@dataclass(frozen=True)
class LossMeter:
    """What the float model gives for a few samples; without them, why not."""

    reference: OutputReference | None
    reason: str = ""
    answers: Answers = field(default_factory=Answers)

    @classmethod
    def of(cls, source: ChoiceSource | None) -> LossMeter:
        """Run the float model: for the outputs on the samples that a search would run, for the answers on all."""
        if source is None:
            return cls(None, "the data can be iterated only once")
        if not is_measurable(source.model):
            return cls(None, "no float32 output is made by what onnxruntime can run")
        try:
            model = source.model
            answers = Answers.of(model.model, source.samples, model.where, model.provider)
            return cls(reference_of(source), answers=answers)
        except QdqError as error:  # the model is written anyway, and this is said
            return cls(None, error.reason)

    def measure(
        self, model: Model, form: QuantizedForm, search: SearchResult | None = None, known: float | None = None
    ) -> OutputLoss:
        """The loss of a model with Q/DQ; at the outputs that of the search, or the known one, where there is one."""
        if self.reference is None:
            return OutputLoss(None, reason=self.reason)
        samples = len(self.reference.samples)
        if known is None and search is not None and search.form == form:
            known = search.loss
        try:
            value = self.reference.loss(model) if known is None else known
        except QdqError as error:
            return OutputLoss(None, reason=error.reason, reads=self.answers.reads)
        return OutputLoss(value, samples, "", self.answers.loss(model), self.answers.reads)


def is_measurable(model: ObservableModel, plan: Plan | None = None) -> bool:
    """Whether a model has outputs that a loss can be measured at, and, as far as a plan tells, anything in INT8.

    Raises:
        QdqError: what `comparable_outputs` refuses.
    """
    return (plan is None or bool(plan.weights)) and bool(comparable_outputs(model))


def samples_of(model: ObservableModel, loader: DataLoader) -> ChoiceSource | None:
    """A plain model with a few samples, the same ones for a search and for the loss of what is written.

    Walks the data once; None where it can be walked only once altogether.
    """
    if loader.once:
        return None
    return replace(source_of(model, loader), outputs=FloatOutputs(comparable_outputs(model), OUTPUT_SAMPLES))


def choose_kept(
    keeping: Keeping,
    source: ChoiceSource,
    table: ScaleTable,
    plan: PlanOptions,
    reference: OutputReference | None = None,
) -> SearchResult:
    """The operators that stay in float."""
    run = table.provenance
    source = replace(source, counted=run.samples)
    known = run.operator_losses
    quantized = policies.Quantized(source, plan, table.decisions, table.scales, table.all_zero, known, reference)
    if keeping.max_output_loss is not None:
        return policies.keep_within_loss(quantized, keeping.max_output_loss)
    if keeping.count == "auto":
        return policies.keep_where_concentrated(quantized)
    return policies.keep_most_harmful(quantized, keeping.count)


def with_borrowed_scales(table: ScaleTable, view: GraphView, options: PlanOptions, plan: Plan) -> ScaleTable:
    """The table, with scales for the points that operators kept in float moved to tensors that were not calibrated."""
    rules = options.rule_book()
    found = borrowed_scales(view, rules, table.scales, [point.tensor for point in plan.activations])
    return replace(table, scales={**table.scales, **found}) if found else table
