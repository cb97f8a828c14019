# SPDX-License-Identifier: Apache-2.0
"""What `insert` gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from qdqtool.display import Displayed, counted, model_name, written
from qdqtool.emit.job import Tensor
from qdqtool.graph.io import ModelT
from qdqtool.match.plan import Plan
from qdqtool.mixed_precision.keep_float import OutputLoss
from qdqtool.passes.insert import Inserted
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.mixed_precision.search_result import SearchResult
    from qdqtool.verbs.insert_costs import Int8Costs
    from qdqtool.verbs.typed_rest import TypedRest

_SHOWN = 6  # heads that are named


@dataclass(frozen=True, repr=False)
class InsertResult(Displayed, Generic[ModelT]):
    """A Q/DQ model, of the kind that was given (a path for a path), and how it came about.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        plan: what was decided.
        inserted: what was added, what was there.
        table: the scales that were calibrated, given or estimated.
        notes: sentences on what was lifted, folded or guessed.
        output_loss: of the model as it is written, against the float model as it was given; None without data.
        search: what was tried in float for accuracy; None where nothing was to be.
        max_output_loss: what the loss at the outputs was to be at most.
        conditioned: whether `condition` edited the weights, now or before.
        warnings: sentences on operators that TensorRT's parser does not import, and on an opset that it does not read.
        costs: of the engines before and after, where `build` asked for them: the compiler's plan, not measured.
        rest: which operators have which float type, where what is not INT8 is FP16 or BF16; else None.
        rest_note: a sentence on what another float type would give; empty where there is nothing to say.
        inputs: of the model, as it declares them.
        requantized: whether pairs that were there were taken out first.
        overwrites: what the file of that name held so far, where that was better: scales that came from data or
            training, in place of which estimated ones were written; else empty.
        has_pairs: whether the model has any Q/DQ, those that no point needs among them.
    """

    model: ModelT
    plan: Plan
    inserted: Inserted
    table: ScaleTable
    notes: tuple[str, ...]
    output_loss: OutputLoss | None = None
    search: SearchResult | None = None
    max_output_loss: float | None = None
    conditioned: bool = False
    warnings: tuple[str, ...] = ()
    costs: Int8Costs | None = None
    rest: TypedRest | None = None
    rest_note: str = ""
    inputs: tuple[Tensor, ...] = ()
    requantized: bool = False
    overwrites: str = ""
    has_pairs: bool = True

    def headline(self) -> str:
        """What was quantized, what stays in float, the loss at the outputs where it was measured."""
        loss = self.output_loss.value if self.output_loss is not None else None
        phrases = [self.plan.headline()] + ([f"loss at the outputs {loss:.4g}"] if loss is not None else [])
        return f"{model_name(self.model)}: {'; '.join(phrases)}"

    def summary(self) -> list[str]:
        """What `qdqtool insert` prints, without what to do next."""
        lines = self.plan.counts()
        as_heads = {one.site for one in self.plan.refusals if one.rule == "float-head"}
        unnamed = {"regression": "unbounded"} if self.plan.head_noun == "output layer" else {}
        labels = {head.name: unnamed.get(head.label, head.label) for head in self.plan.heads}
        floats = [f"{name} ({label})" for name, label in labels.items() if name in as_heads]
        if floats:
            more = f" and {len(floats) - _SHOWN} more" if floats[_SHOWN:] else ""
            lines.append(f"{self.plan.head_noun}s in float: {', '.join(floats[:_SHOWN])}{more}")
        if self.inserted.kept:
            lines.append(f"kept {counted(len(self.inserted.kept), 'pair')} that were there before")
        if self.rest is not None:
            lines += self.rest.lines()
        if self.rest_note:
            lines.append(self.rest_note)
        if self.output_loss is not None:
            lines += [self.output_loss.summary(), *self.output_loss.hint()]
        if self.costs is not None:
            lines += self.costs.lines()
        return lines + written(self.model)

    def format_loss(self) -> str:
        """What the model loses at its outputs, what was tried in float, and what would reach what was asked for."""
        if self.output_loss is None or self.output_loss.value is None:
            return f"the loss at the outputs was not measured: {self.output_loss.reason if self.output_loss else ''}"
        phrases = ["may lose much in INT8"] if self.output_loss.large else []
        phrases.append(self.output_loss.summary())
        return "; ".join([*phrases, *(self.search.summary() if self.search is not None else ())])

    @property
    def misses(self) -> bool:
        """Whether the loss at the outputs is larger than was asked for, or was not measured though it was asked for."""
        if self.max_output_loss is None:
            return False
        loss = self.output_loss.value if self.output_loss is not None else None
        return loss is None or loss > self.max_output_loss

    @property
    def estimated(self) -> int:
        """How many points have a scale that no data was seen for."""
        fresh = sum(scale.origin == "estimated" for scale in self.inserted.scales.values())
        return fresh + len(self.inserted.estimated)
