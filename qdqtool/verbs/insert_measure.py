# SPDX-License-Identifier: Apache-2.0
"""What `insert` finds out by running data: conditioning, scales, what stays in float, the loss. It places no pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qdqtool.calibration.engine import WantedScales, calibrate_scales, default_method
from qdqtool.conditioning.before_insert import advice_for, condition_first, corrected
from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.decisions import Decisions
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.formats import MIXED, formats_of
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.match.attention import with_fixed_weights
from qdqtool.match.plan import Plan
from qdqtool.match.planner import named_layers
from qdqtool.match.target_points import rounds_everywhere
from qdqtool.measuring.attention_choice import choose_attentions, tentative
from qdqtool.measuring.keep_float import Keeping, LossMeter, OutputLoss, choose_kept, is_measurable, samples_of
from qdqtool.measuring.output_loss import NOTABLE_LOSS
from qdqtool.measuring.weight_search import counted_moments, search_scales, tensor_scales
from qdqtool.observers.options import with_method
from qdqtool.observers.table import read_ranges
from qdqtool.passes.peel import is_plain, peel_pairs
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.passes.unsupported_quant_ops import quantizes_by_operators
from qdqtool.precision.rest import rest_type
from qdqtool.precision.rounded import as_run
from qdqtool.precision.widen import as_fp32, is_typed
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.memory import release_freed_memory
from qdqtool.scales import Scale, ScaleTable

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader
    from qdqtool.measuring.output_loss import OutputReference
    from qdqtool.measuring.search_result import SearchResult
    from qdqtool.measuring.sensitivity_runner import QuantizedForm
    from qdqtool.observers.state_file import State
    from qdqtool.passes.integer_operators import FloatInput
    from qdqtool.precision.value_ranges import ValueRanges
    from qdqtool.verbs.insert_costs import CostBuilder, Int8Costs
    from qdqtool.verbs.insert_options import InsertOptions
    from qdqtool.verbs.typed_rest import TypedRest

_BEYOND = 0.5  # of a range: values farther outside of it were made for another one


@dataclass(frozen=True)
class InsertMeasurement:
    """What was found out about a model by running data: by conditioning first, then by calibrating.

    Attributes:
        notes: sentences.
        search: what was tried in float; None where that was not asked for.
        meter: of the loss at the outputs, against the float model as it was given.
        same_model: whether the search ran the model that the meter runs.
        ranges: the values of every tensor, where float types are to be chosen by them.
        weights: weight -> scales of its blocks; they are too many for a table.
    """

    notes: tuple[str, ...] = ()
    search: SearchResult | None = None
    meter: LossMeter | None = None
    same_model: bool = False
    ranges: ValueRanges | None = None
    weights: Mapping[str, Scale] = field(default_factory=dict)

    @property
    def reference(self) -> OutputReference | None:
        """What the float model gives for the samples of the meter; None where it could not be run."""
        return None if self.meter is None else self.meter.reference

    @property
    def float_layers(self) -> dict[str, str]:
        """First outputs of the operators that the search keeps in float -> the reason."""
        return self.search.reasons if self.search is not None else {}


def keeping_of(options: InsertOptions, *, by_default: bool) -> Keeping:
    """What may stay in float for accuracy; `by_default`: whether a model and its data allow it."""
    if options.keep_float is not None:
        return Keeping(options.keep_float, options.max_output_loss)
    allowed = by_default and options.max_output_loss is None and not rounds_everywhere(options.plan)
    return Keeping("auto" if allowed else 0, options.max_output_loss)


def check_data(model: ModelSource, data: Data, options: DataOptions | None) -> None:
    """Refuse data that a model cannot be calibrated with, by their outside and the first batch.

    Raises:
        QdqError: see `open_loader`.
    """
    opened = open_model(model)
    known = [known_preprocess(opened.proto)]
    reading, _ = apply_known(opened.name, data, options or DataOptions(), known, anew=True)
    next(iter(open_loader(data, inputs_of(as_fp32(opened).graph), reading)))


def check_float_inputs(
    taken: Sequence[FloatInput], model: Model, data: Data | DataLoader, options: DataOptions | None
) -> None:
    """Refuse data that are far beyond the floats which inputs take in place of integers, by the first batch.

    Data that can be iterated only once are not looked at.

    Raises:
        QdqError: values that were made for the integers; see `open_loader`.
    """
    known = {one.name: (one, *one.span) for one in taken if one.span is not None}
    loader = open_loader(data, inputs_of(model.graph), options) if known else None
    if loader is None or loader.once:
        return
    batch = next(iter(loader))
    for name, (one, low, high) in known.items():
        least, most = float(batch[name].min()), float(batch[name].max())
        if max(low - least, most - high) > _BEYOND * (high - low):
            reason = f"feeds values from {least:.6g} to {most:.6g}, but {one.note}"
            raise QdqError("--data", reason, f"for images give --preprocess {one.preprocess}, and resize= as before")


def measure_conditioned(opened: Model, data: Data | DataLoader | None, options: InsertOptions) -> InsertMeasurement:
    """Edit the weights of an opened model, and keep what its float outputs were before.

    Raises:
        QdqError: no data, and what `condition_first` refuses.
    """
    if data is None:
        raise QdqError("--condition", "needs data for a measurement, and no data is given", "give --data")
    loader = open_loader(data, inputs_of(opened.proto.graph), options.data_options)
    row = formats_of(options.plan.format)[0]
    method = default_method(opened.proto, once=True, number_format=row)  # `auto` is for models that are not edited
    how = replace(with_method(options.calibration, method), where=opened.name)
    model = ObservableModel(Model(opened.proto, opened.folder), how.provider, how.where)
    searches = not loader.once and not row.blocks
    keeping = keeping_of(options, by_default=searches and is_measurable(model))
    meter = LossMeter.of(samples_of(model, loader)) if is_plain(opened.proto) else None
    del model
    notes, search = condition_first(opened, loader, options.condition, options.plan, how, keeping)
    return InsertMeasurement(tuple(notes), search, meter)


def measure_scales(
    planned: PlannedModel,
    opened: Model,
    decided: Plan,
    data: Data | DataLoader,
    options: InsertOptions,
    first: InsertMeasurement,
    formats: Mapping[str, tuple[str, str]] | None = None,
) -> tuple[ScaleTable, InsertMeasurement]:
    """Scales of every float tensor of the plain model, in its decisions what stays in float; and advice.

    `formats`: as `Decisions` have them.

    Raises:
        QdqError: a search for what stays in float in a model that has Q/DQ, and what `calibrate_scales` refuses.
    """
    plain = _plain_form(planned.base, opened, options)
    loader = open_loader(data, inputs_of(plain.graph), options.data_options)
    keeping_of(options, by_default=False).check_data(loader)
    row = next((point.format for point in decided.activations), formats_of(options.plan.format)[0])
    method = default_method(plain.proto, once=loader.once or bool(options.condition), number_format=row)
    how = replace(with_method(options.calibration, method), where=opened.name)
    model = ObservableModel(plain, how.provider, how.where)
    may_keep = first.search is not None or not corrected(plain.proto)
    allowed = plain is planned.base and not loader.once and may_keep
    allowed = allowed and is_measurable(model, decided)
    keeping, placing = keeping_of(options, by_default=allowed), options.plan
    unmeasured = [one.key for one in decided.attentions if one.is_open and keeping and not loader.once]
    before = Decisions(float_layers=first.float_layers, formats=formats)
    if unmeasured:
        placing = tentative(options.plan)
        decided = plan_pairs(plain, placing, decisions=before, everywhere=False)
    source = samples_of(model, loader)
    keep = _RangeKeeper(loader) if _asks_for_ranges(planned, loader, options) else None
    points = frozenset(point.tensor for point in decided.activations)
    counted = replace(placing, format=row.name)  # the method's trials are of one format
    wanted = WantedScales(None if options.whole_table else points, points, counted, source, keep)
    table = calibrate_scales(model, loader, how, wanted)
    table = replace(table, decisions=replace(table.decisions, formats=formats))
    table = replace(table, scales=with_fixed_weights(table.scales, decided.attentions))
    blocks = replace(decided, points=tuple(point for point in decided.weights if point.block))
    weights = search_scales(model, blocks, *counted_moments(model, loader, blocks)) if blocks.points else {}
    release_freed_memory()
    meter = first.meter or LossMeter.of(source)
    if unmeasured and source is not None:
        informed = replace(table, decisions=table.decisions.then(before))
        chosen = choose_attentions(keeping, source, informed, options.plan, unmeasured, meter.reference)
        table = replace(table, decisions=replace(table.decisions, attention=chosen))
    search = first.search
    if keeping and source is not None:
        if search is None and decided.weights:
            outputs = meter.reference if first.meter is None else None
            searched = replace(table, scales={**table.scales, **weights})
            search = choose_kept(keeping, source, searched, options.plan, outputs)
        kept = search.reasons if search is not None else {}
        table = replace(table, decisions=replace(table.decisions, float_layers=kept))
    if named := named_layers(plain.view, options.plan.keep_float):
        kept = {**(table.decisions.float_layers or {}), **named}
        table = replace(table, decisions=replace(table.decisions, float_layers=kept))
    advised: tuple[str, ...] = ()
    if (
        options.advise
        and not options.condition
        and options.plan.format != MIXED
        and (search is None or search.before >= NOTABLE_LOSS)
    ):
        advised = tuple(advice_for(plain, loader, options.plan, had_pairs=options.requantize))
    same_model = first.meter is None and first.search is None
    ranges = None if keep is None else keep.ranges
    return table, InsertMeasurement(advised, search, meter, same_model, ranges, weights)


def measure_weights(
    planned: PlannedModel,
    opened: Model,
    decided: Plan,
    data: Data | DataLoader,
    options: InsertOptions,
    first: InsertMeasurement,
) -> tuple[ScaleTable, InsertMeasurement]:
    """Scales of the blocks of weights, and of the activations that have blocks beside them.

    Raises:
        QdqError: what stays in float for accuracy is asked for, and what `counted_moments` refuses.
    """
    if keeping := keeping_of(options, by_default=False):
        reason = f"tries one scale per tensor, and --format {options.plan.format} has one per block"
        raise QdqError(keeping.option, reason, "name operators: --keep-float NAMES")
    plain = _plain_form(planned.base, opened, options)
    loader = open_loader(data, inputs_of(plain.graph), options.data_options)
    how = replace(with_method(options.calibration), where=opened.name)
    model = ObservableModel(plain, how.provider, how.where)
    moments, samples = counted_moments(model, loader, decided, progress=how.progress)
    found = search_scales(model, decided, moments, samples)
    release_freed_memory()
    meter = first.meter or LossMeter.of(samples_of(model, loader))
    return tensor_scales(decided, moments, samples), InsertMeasurement(meter=meter, weights=found)


def judge_typed(
    model: Model,
    typed: TypedRest | None,
    form: QuantizedForm,
    measured: InsertMeasurement,
    builder: CostBuilder | None,
    *,
    limited: bool = False,
) -> tuple[OutputLoss | None, Int8Costs | None]:
    """What the model with its types loses at its outputs, and what its engine costs; before it is written.

    `limited`: whether `--max-output-loss` was asked for.
    """
    meter = measured.meter
    if meter is None and builder is None:
        return None, None
    known = None if typed is None or builder is not None else typed.output_loss
    judged = model if typed is None else typed.apply(model)
    searched = measured.search if measured.same_model and not is_typed(judged) else None
    run = typed.forms[1] if typed is not None and typed.forms is not None else as_run(judged)
    lost = None if meter is None else meter.measure(run, form, searched, known, limited=limited)
    return lost, None if builder is None else builder.costs(judged)


def _plain_form(model: Model, opened: Model, options: InsertOptions) -> Model:
    """The model without pairs: itself, or a copy that they are taken out of.

    A model that operators of TensorRT quantize has none to be taken out: it is observed as it stands.
    """
    if is_plain(model.proto) or quantizes_by_operators(model.view):
        return model
    if keeping_of(options, by_default=False):
        raise QdqError(opened.name, "already has Q/DQ", "add --requantize")
    plain = model.copy()
    peel_pairs(plain, on_conflict="max", on_asymmetric="widen", drop_scales=True)
    return plain


def _asks_for_ranges(planned: PlannedModel, loader: DataLoader, options: InsertOptions) -> bool:
    """Whether float types will be chosen by the values of all data, and those of all tensors are counted."""
    asked = rest_type(options.rest, options.plan.target, options.plan.trt_version, has_values=True)
    half = not planned.typed and asked.is_half
    return half and options.whole_table and not loader.once


class _RangeKeeper:
    """Keeps the range of every tensor that a calibration has counted; `ranges` is None until then."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self.ranges: ValueRanges | None = None

    def __call__(self, state: State) -> None:
        """Look at what was counted: histograms of TensorRT's own form have no ends."""
        if not state.plan.ordered:
            first = next(self._loader.tasks()).load()
            self.ranges = read_ranges(state, {name: array.shape for name, array in first.items()})
