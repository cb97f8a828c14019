# SPDX-License-Identifier: Apache-2.0
"""Types by data: chosen by the ranges, run with their roundings, and taken back where that overflows or loses too much.

What is run is `precision/rounded.py` in onnxruntime, on few samples. Where a loss is asked for, the half operators are
divided into islands, in file order, each begun by a product; `ranked_search.py` finds those that go back to FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.measuring.output_loss import OutputReference, comparable_outputs
from qdqtool.measuring.ranked_search import Part, fewest, nodes_of, rank_alone
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.amp_rules import amp_rules
from qdqtool.precision.casts import apply_types
from qdqtool.precision.choose import TypeChoice, TypeOptions, choose_types
from qdqtool.precision.reasons import FloatReason
from qdqtool.precision.required import VALUE_RULES
from qdqtool.precision.rounded import rounded
from qdqtool.precision.value_ranges import ValueRanges
from qdqtool.progress import steps
from qdqtool.rule_files import operator_set
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.memory import release_freed_memory
from qdqtool.runtime.sample_pass import pass_samples
from qdqtool.simulation.weight_values import with_weight_values

SAMPLES = 4  # that are run with roundings
MOST_ISLANDS = 32
_ROUNDS = 5  # of taking back what overflows


@dataclass(frozen=True)
class TypedModel:
    """An FP32 model whose types are being found, and what it is judged by.

    Attributes:
        model: FP32, plain or with Q/DQ.
        samples: what is run.
        provider: execution provider of onnxruntime (default cpu).
        where: what messages call the model.
    """

    model: Model
    samples: tuple[Batch, ...]
    provider: str
    where: object

    def with_roundings(self, choice: TypeChoice) -> Model:
        """What a choice computes, in FP32."""
        return rounded(apply_types(self.model, choice.assignment))

    def observable(self, form: Model) -> ObservableModel:
        """A form of the model made ready for onnxruntime."""
        return with_weight_values(form, self.provider, self.where, self.model.view)


@dataclass(frozen=True)
class TypedSearch:
    """What was found.

    Attributes:
        choice: the types.
        ranges: by which they were chosen.
        output_loss: at the outputs, 0 to 1; None where there is no float output to compare.
        notes: sentences on what was taken back.
        forms: the model with the types and that with their roundings, where they were made for the last run.
    """

    choice: TypeChoice
    ranges: ValueRanges
    output_loss: float | None
    notes: tuple[str, ...]
    forms: tuple[Model, Model] | None = None


@dataclass(frozen=True)
class KnownOutputs:
    """What runs of the FP32 model have shown before a search.

    Attributes:
        ranges: of every tensor.
        reference: samples, and its outputs for them: what is chosen is run on these.
        with_loss: whether the loss at the outputs is measured where there is no reference and no limit.
    """

    ranges: ValueRanges | None = None
    reference: OutputReference | None = None
    with_loss: bool = True


NOTHING_KNOWN = KnownOutputs()
# Gives the range of every tensor: `calibration.engine.observe_ranges`.
RangeObserver = Callable[[Model, Iterable[Batch], CalibrationOptions], ValueRanges]


def search_types(
    model: Model,
    feed: Iterable[Batch],
    types: TypeOptions,
    calibration: CalibrationOptions,
    observe: RangeObserver,
    max_output_loss: float | None = None,
    known: KnownOutputs = NOTHING_KNOWN,
) -> TypedSearch:
    """Choose types by data, and run what was chosen.

    Raises:
        QdqError: what `observe` and `choose_types` refuse; a loss is asked for, and there is nothing to measure.
    """
    ranges, reference = known.ranges, known.reference
    choice = None if ranges is None else choose_types(model, ranges, types)
    if ranges is None or choice is None or not _suffice(ranges, choice):
        ranges = observe(model, feed, calibration)
        release_freed_memory()  # of the sessions that gave every tensor
        choice = choose_types(model, ranges, types)
    samples = tuple(islice(feed, SAMPLES)) if reference is None else reference.samples
    if not samples:
        if max_output_loss is not None:
            raise QdqError("--max-output-loss", "reads the data again, and they are empty then", "give a list")
        return TypedSearch(
            choice, ranges, None, ("the data can be iterated only once: the types were not tested on them",)
        )
    typed = TypedModel(model, samples, calibration.provider, calibration.where)
    choice, notes, given, forms = _without_overflow(
        typed, choice, ranges, () if reference is None else reference.outputs
    )
    release_freed_memory()
    if max_output_loss is None and not (known.with_loss and comparable_outputs(typed.observable(model))):
        loss = None if reference is None or given is None else reference.loss_of(given)
        return TypedSearch(choice, ranges, loss, tuple(notes), forms)
    reference = OutputReference.of(typed.observable(model), samples)
    loss = reference.loss(typed.with_roundings(choice))
    if max_output_loss is not None and loss > max_output_loss:
        choice, loss = _within_loss(typed, reference, choice, max_output_loss, loss)
    return TypedSearch(choice, ranges, loss, tuple(notes))


def _suffice(ranges: ValueRanges, choice: TypeChoice) -> bool:
    """Whether the range of every float tensor is known, constants apart, and derived ones keep nothing in FP32."""
    graph, view = choice.graph, choice.graph.view
    by_values = (graph.nodes[key] for key, one in choice.reasons.items() if one.rule in VALUE_RULES)
    if any(not ranges.derived.isdisjoint(graph.floats(node)) for node in by_values):
        return False
    names = (one.name for one in graph.tensors if not view.is_constant(one.name))
    return all(ranges.of(view, name) is not None for name in names)


_Given = list[list[Any]]  # per sample, an array per output
_Forms = tuple[Model, Model]  # see `TypedSearch`


def _without_overflow(
    model: TypedModel, choice: TypeChoice, ranges: ValueRanges, outputs: Sequence[str]
) -> tuple[TypeChoice, list[str], _Given | None, _Forms | None]:
    """The choice with every operator in FP32 that makes an infinity where FP32 makes none, what it gives, its forms.

    What it gives is None where no outputs are asked for; that and its forms are where the last round still took
    operators back.
    """
    notes: list[str] = []
    for _ in steps(range(_ROUNDS), "round at most"):
        found, given, forms = _overflows(model, choice, ranges, outputs)
        if not found:
            return choice, notes, given, forms
        choice = choice.with_float32(found)
        names = ", ".join(choice.operators[key][0] for key in list(found)[:3])
        notes.append(f"in FP32, since it overflows: {names}")
    return choice, notes, None, None


def _overflows(
    model: TypedModel, choice: TypeChoice, ranges: ValueRanges, outputs: Sequence[str]
) -> tuple[dict[str, FloatReason], _Given | None, _Forms | None]:
    """Operators that make an infinity, what the model gives at some outputs, and its forms."""
    float32, view = choice.assignment.float32, choice.graph.view
    half = {one.name: one for one in choice.graph.tensors if one.maker is not None and one.maker not in float32}
    infinite: set[str] = set()
    wanted = [name for name in half if not view.is_constant(name)]
    if not wanted:
        return {}, None, None
    movers = (view.producers[name] for name in wanted)
    moved = {node.key: node.inputs[0] for node in movers if node.op in operator_set("rearranging")}
    moved = {name: source for name, source in moved.items() if source in half}  # with the same values
    given: list[dict[str, Any]] = [{} for _ in model.samples]

    def take(at: int, made: Mapping[str, Any]) -> None:
        infinite.update(name for name, array in made.items() if not np.isfinite(array).all())
        given[at].update({name: array for name, array in made.items() if name in outputs})

    typed = apply_types(model.model, choice.assignment)
    form = rounded(typed)
    runs = model.observable(form)
    pass_samples(runs, runs.chosen([*(set(wanted) - moved.keys()), *outputs]), model.samples, take)
    for name in wanted:
        if moved.get(name) in infinite:
            infinite.add(name)
    found = {}
    for name in (one for one in half if one in infinite):
        seen = ranges.of(view, name)
        key = half[name].maker
        if key is not None and not (seen is not None and seen.infinite):
            found[key] = FloatReason("overflow", f"{name} overflows when simulated in the 16-bit type")
    return found, [[made[name] for name in outputs] for made in given] if outputs else None, (typed, form)


class _HalfForms:
    """The forms of a model with some half operators back in FP32: see `MeasuredForms`."""

    def __init__(self, model: TypedModel, reference: OutputReference, choice: TypeChoice, why: str) -> None:
        self._model, self._reference, self._choice, self._why = model, reference, choice, why
        self._losses: dict[frozenset[str], float] = {}

    def choice_with(self, floats: Collection[str]) -> TypeChoice:
        """The choice with some operators in FP32."""
        reason = FloatReason("loss", self._why)
        return self._choice.with_float32({key: reason for key in self._choice.operators if key in frozenset(floats)})

    def loss(self, floats: Collection[str] = ()) -> float:
        """At the outputs; each set is run once."""
        key = frozenset(floats)
        if key not in self._losses:
            self._losses[key] = self._reference.loss(self._model.with_roundings(self.choice_with(key)))
        return self._losses[key]

    def keep(self, floats: Collection[str]) -> None:
        """Every form is run whole."""


def _within_loss(
    model: TypedModel, reference: OutputReference, choice: TypeChoice, limit: float, loss: float
) -> tuple[TypeChoice, float]:
    """The choice with as few islands back in FP32 as the limit takes, those first that lose most alone."""
    why = f"the loss at the outputs was {loss:.3g} with it, and the limit is {limit:g}"
    forms = _HalfForms(model, reference, choice, why)
    islands = [Part(tuple(island)) for island in islands_of(choice)]
    every = nodes_of(islands)
    ranked = rank_alone(forms, islands, every)
    back = nodes_of(fewest(ranked, limit, forms))
    if forms.loss(back) > limit:
        back = every
    return forms.choice_with(back), forms.loss(back)


def islands_of(choice: TypeChoice, most: int = MOST_ISLANDS) -> list[list[str]]:
    """The half operators in file order, cut before products into at most so many parts."""
    rules, parts = amp_rules(), list[list[str]]()
    for key, (_, op) in choice.operators.items():
        if key in choice.reasons:
            continue
        if not parts or rules.list_of(op) == "allow":
            parts.append([])
        parts[-1].append(key)
    each = -(-len(parts) // most)
    return [[key for part in parts[at : at + each] for key in part] for at in range(0, len(parts), each or 1)]
