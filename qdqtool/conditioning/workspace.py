# SPDX-License-Identifier: Apache-2.0
"""One model while it is edited: as it will be written, as it is decided about, and what has been done so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qdqtool.conditioning.check import Outputs, compare, moved_most
from qdqtool.conditioning.condition_context import ConditionContext, look
from qdqtool.conditioning.edits import Edit
from qdqtool.conditioning.predict import Rounding
from qdqtool.data.single_samples import SingleSamples
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import opset_of
from qdqtool.match.plan import PlanOptions
from qdqtool.measures import OutputChange
from qdqtool.quantizing.prepare import opset_for
from qdqtool.runtime.memory import release_freed_memory

# Decides and edits with factors of one kind; gives back the edits, none where nothing was done.
Attempt = Callable[[Rounding], Sequence[Edit]]


class Workspace:
    """A model on its way.

    Attributes:
        model: as it will be written, edited in place.
        lifted: the same in an opset in which Q/DQ can be placed; `model` itself where it is one.
        plan: where the pairs will be placed.
        samples: the data, one by one.
        exact: the outputs before any edit.
        base: the outputs that dividing must keep.
        edits, left, notes: see `Conditioned`.
        kept: how far the outputs moved by dividing.
    """

    def __init__(self, model: Model, samples: SingleSamples, plan: PlanOptions) -> None:
        self.model, self.samples, self.plan = model, samples, plan
        self.exact = self.base = Outputs(model)
        self.lifted = model
        if (opset_of(model.proto) or 0) < (opset := opset_for(plan)):
            self.lifted = model.copy()
            normalize(self.lifted, opset)
        self.edits: list[Edit] = []
        self.left: dict[str, str] = {}
        self.notes: list[str] = []
        self.kept: dict[str, OutputChange] = {}

    @property
    def models(self) -> list[Model]:
        """Both forms of the model, or the one."""
        return [self.model] if self.lifted is self.model else [self.model, self.lifted]

    def look(self) -> ConditionContext:
        """The model as it is now, with its plan."""
        return look(self.lifted, self.plan)

    def keeping_function(self, step: str, factors: Rounding, attempt: Attempt) -> Sequence[Edit]:
        """Run a step; if the float function changes, run it with powers of two, and then not at all."""
        first = ""
        what = "shifting" if step == "shift" else "dividing"
        for kind in dict.fromkeys((factors, "power-of-two")):
            plain, left = [model.copy() for model in self.models], dict(self.left)
            for model in self.models:
                model.changed()  # edits change an index of their own, not that of a context
            edits = attempt(kind)
            kept, why = self._kept() if edits else ({}, "")
            if not why:
                self._note(first, "factors are powers of two, which help less" if edits else f"{step} left out", what)
                self.kept = kept or self.kept
                self.edits += edits
                return edits
            first = first or why
            self.left = left
            for model, copy in zip(self.models, plain, strict=True):
                model.proto.CopyFrom(copy.proto)
                model.changed()
        self._note(first, f"{step} left out", what)
        return ()

    def _note(self, why: str, instead: str, what: str) -> None:
        if why:
            self.notes.append(f"{what} channels changed the FP32 results ({why}): {instead}")

    def _kept(self) -> tuple[dict[str, OutputChange], str]:
        """How far the outputs moved by dividing, and what to say where that is too far."""
        release_freed_memory(cycles=True)  # of the forms that were judged
        try:
            (kept,) = compare(self.base, [Outputs(self.model)], self.samples)
        except QdqError as error:  # an output of another shape
            return {}, f"the output {error.where} {error.reason}"
        return kept, moved_most(kept)
