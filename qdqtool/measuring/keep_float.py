# SPDX-License-Identifier: Apache-2.0
"""What `insert` keeps in float for accuracy, and what is lost all the same: what may be asked for, and who measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from qdqtool.display import finite_only
from qdqtool.engine.layer_work import find_products
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import UNKNOWN, Interval
from qdqtool.evaluation.loss_scale import WORDS, Word, word_of
from qdqtool.evaluation.metrics import Figure, certain
from qdqtool.graph.model import Model
from qdqtool.graph.shapes import sample_shapes
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.propagate_scales import borrowed_scales
from qdqtool.measuring import policies
from qdqtool.measuring.answers import AnswerLoss, Answers, Reads
from qdqtool.measuring.auto_scales import SHADOW_SAMPLES, source_of
from qdqtool.measuring.output_loss import LARGE_LOSS, FloatOutputs, OutputReference, comparable_outputs
from qdqtool.measuring.sensitivity_runner import OUTPUT_SAMPLES, reference_of
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.data.loader import DataLoader
    from qdqtool.measuring.scale_choice import ChoiceSource
    from qdqtool.measuring.search_result import SearchResult
    from qdqtool.measuring.sensitivity_runner import QuantizedForm
    from qdqtool.runtime.activations import ObservableModel

# Multiply-adds of all samples that a loss is measured on; SHADOW_SAMPLES at least, whose answers are compared anyway.
_JUDGED_MACS, _MOST_JUDGED = 1e9, 32


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
        interval: of `value`, 95 %; NaN where it was not measured.
        searched: the loss on the samples of a search, by which `--max-output-loss` is met; None where none was asked.
    """

    value: float | None
    samples: int = 0
    reason: str = ""
    answers: AnswerLoss | None = None
    reads: Reads = ""
    interval: Interval = UNKNOWN
    searched: float | None = None

    @property
    def word(self) -> Word:
        """How much that is for the task, by the answers where there are any (`evaluation/loss_scale.py`)."""
        if self.answers is not None:
            return self.answers.word
        return "" if self.value is None else word_of("outputs", Figure(self.value, self.interval))

    @property
    def sentence(self) -> str:
        """The word in a sentence."""
        return WORDS[self.word]

    @property
    def large(self) -> bool:
        """Whether the model may lose much."""
        return self.word == "much"

    def smaller(self) -> float:
        """A loss at the outputs to ask for, at most half of this one; 0 where there is none to lower."""
        return float(f"{min(LARGE_LOSS, (self.value or 0.0) / 2):.1g}")

    def hint(self) -> list[str]:
        """What to say of a loss that a task may feel; empty for less, and for a large one."""
        return [self.sentence] if self.word == "some" else []

    def warning(self, form: str) -> list[str]:
        """What to say of a large loss in a number format: first the figure that makes it large."""
        answers = [] if self.answers is None else [self.answers.summary()]
        return [f"may lose much in {form}", *answers, self.summary()]

    def summary(self) -> str:
        """The figure at the outputs in a line."""
        if self.value is None:
            return f"loss at the outputs: not measured, {self.reason}"
        some = "1 calibration sample" if self.samples == 1 else f"{self.samples} calibration samples"
        line = f"loss at the outputs: {self.value:.4g} (0: none, 1: all signal lost; {self.interval.phrase()}{some})"
        if self.searched is None or self.searched == self.value:
            return line
        return f"{line}; {self.searched:.4g} on the samples of the search, for which the limit holds"

    def lines(self) -> list[str]:
        """All that was measured, a line each."""
        return [*([self.answers.summary()] if self.answers is not None else []), self.summary(), *self.hint()]

    def to_json(self) -> dict[str, object]:
        """What JSON tells of it."""
        facts: dict[str, object] = {
            "output_loss": self.value,
            **finite_only({"output_loss_low": self.interval.low, "output_loss_high": self.interval.high}),
            "output_loss_samples": self.samples,
            "output_loss_large": self.large,
            "loss": None if self.answers is None else self.answers.to_json(),
            "loss_word": self.word or None,
        }
        return facts if self.value is not None else {**facts, "output_loss_reason": self.reason}


@dataclass(frozen=True)
class LossMeter:
    """What the float model gives for a few samples; without them, why not.

    Attributes:
        reference: what a search runs.
        judged: what the loss of the written model is measured on; None for the same samples.
    """

    reference: OutputReference | None
    reason: str = ""
    answers: Answers = field(default_factory=Answers)
    judged: OutputReference | None = None

    @classmethod
    def of(cls, source: ChoiceSource | None) -> LossMeter:
        """Run the float model.

        The outputs are compared on all samples where their answers are, or where they are cheap; else on those that a
        search would run, whose loss is then known.
        """
        if source is None:
            return cls(None, "the data can be iterated only once")
        if not is_measurable(source.model):
            return cls(None, "no float32 output is made by what onnxruntime can run")
        try:
            model = source.model
            reference, samples = reference_of(source), source.judged
            taken = FloatOutputs(reference.outputs, len(samples))
            answers = Answers.of(model.model, samples, model.where, model.provider, taken)
            all_of_them = answers.task is not None or len(samples) > SHADOW_SAMPLES
            judged = OutputReference.of(model, samples, taken) if all_of_them else None
            return cls(reference, answers=answers, judged=judged)
        except QdqError as error:  # the model is written anyway, and this is said
            return cls(None, error.reason)

    def measure(
        self,
        model: Model,
        form: QuantizedForm | None = None,
        search: SearchResult | None = None,
        known: float | None = None,
        *,
        limited: bool = False,
    ) -> OutputLoss:
        """The loss of a model with Q/DQ.

        Args:
            model: as it is written.
            form: its pairs and scales, beside a search.
            search: what chose it; its loss is taken where nothing is compared on more samples than it ran.
            known: the loss on the samples of a search, where it was measured.
            limited: whether a limit was asked for, which holds on the samples of a search.
        """
        if self.reference is None:
            return OutputLoss(None, reason=self.reason)
        if known is None and search is not None and search.form == form:
            known = search.loss
        judged = self.judged or self.reference
        made = FloatOutputs(judged.outputs, len(judged.samples))
        answers = self.answers.loss(model, made)
        try:
            known = self.reference.loss(model) if known is None and limited else known
            figure = judged.figure(model, made) if known is None or self.judged is not None else certain(known)
        except QdqError as error:
            return OutputLoss(None, reason=error.reason, reads=self.answers.reads)
        searched, count = known if limited else None, len(judged.samples)
        return OutputLoss(figure.value, count, "", answers, self.answers.reads, figure.interval, searched)


def is_measurable(model: ObservableModel, plan: Plan | None = None) -> bool:
    """Whether a model has outputs that a loss can be measured at, and, as far as a plan tells, anything in INT8.

    Raises:
        QdqError: what `comparable_outputs` refuses.
    """
    return (plan is None or bool(plan.weights)) and bool(comparable_outputs(model))


def samples_of(model: ObservableModel, loader: DataLoader) -> ChoiceSource | None:
    """A plain model with a few samples for a search, and those that the loss of what is written is measured on.

    Walks the data once; None where it can be walked only once altogether.
    """
    if loader.once:
        return None
    shapes = loader.facts().get("shapes", {})
    batched = {one.name for one in loader.inputs if one.shape and one.batched}
    fed = {name: (1, *shape[1:]) for name, shape in shapes.items() if name in batched}
    source = source_of(model, loader, judged_samples(model.view, fed))
    return replace(source, outputs=FloatOutputs(comparable_outputs(model), OUTPUT_SAMPLES))


def judged_samples(view: GraphView, fed: Mapping[str, Sequence[int]] | None = None) -> int:
    """How many samples the loss of a written model is measured on: as many as cost few multiply-adds.

    `fed` is as `sample_shapes` takes it: samples of several sizes are taken to cost as much as the first one.

    Of a classifier's losses at the outputs, the standard deviation is 0.12 to 0.20 by 4 samples, 0.1 by 8, 0.05 by 32.
    """
    products = [product for _, product in find_products(view, sample_shapes(view, fed))]
    if None in products:
        return SHADOW_SAMPLES
    macs = sum(one.macs for one in products if one is not None)
    return int(min(max(_JUDGED_MACS / max(macs, 1), SHADOW_SAMPLES), _MOST_JUDGED))


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
