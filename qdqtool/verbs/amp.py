# SPDX-License-Identifier: Apache-2.0
"""The verb `amp`: an FP32 model, plain or with Q/DQ, to one in FP16 or BF16 with Casts, strongly typed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import onnx

from qdqtool.calibration.engine import observe_ranges
from qdqtool.data.loader import DataLoader, inputs_of, open_loader
from qdqtool.display import named
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.importable import parser_warnings
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.opset_lower import opset_warnings
from qdqtool.graph.types import float_tensors, opset_of
from qdqtool.match.sizes import made_of_sizes
from qdqtool.measuring.typed_search import search_types
from qdqtool.observers.options import CalibrationOptions
from qdqtool.output_paths import check_target, files_of, output_path
from qdqtool.passes.dead_channels import refuse_unusable_scales, repair_dead_channels
from qdqtool.passes.fold_constants import fold_constants
from qdqtool.precision.assignment import REST_TYPES, TypeAssignment, stored_precision
from qdqtool.precision.choose import TypeOptions, choose_types, recorded_choice
from qdqtool.precision.value_ranges import ValueRanges, assumed_ranges, ranges_of_table
from qdqtool.precision.widen import is_typed, widen
from qdqtool.scales import ScaleTable, load_table
from qdqtool.verbs.amp_options import AmpOptions, AmpResult
from qdqtool.verbs.typed_file import give_typed

if TYPE_CHECKING:
    from qdqtool.data.loader import Data

_CAST_OPSET = 6  # the first whose Cast has its type as a number
_GIVE = "give --data, or --scales with a table that calibrate wrote; or --assume-range N to assume the largest value"


@overload
def amp(
    model: onnx.ModelProto,
    data: Data | DataLoader | None = ...,
    scales: ScaleTable | str | Path | None = ...,
    options: AmpOptions | None = ...,
    output: str | Path | None = ...,
) -> AmpResult[onnx.ModelProto]: ...


@overload
def amp(
    model: str | os.PathLike[str],
    data: Data | DataLoader | None = ...,
    scales: ScaleTable | str | Path | None = ...,
    options: AmpOptions | None = ...,
    output: str | Path | None = ...,
) -> AmpResult[Path]: ...


@overload
def amp(
    model: ModelSource,
    data: Data | DataLoader | None = ...,
    scales: ScaleTable | str | Path | None = ...,
    options: AmpOptions | None = ...,
    output: str | Path | None = ...,
) -> AmpResult[Any]: ...


def amp(
    model: ModelSource,
    data: Data | DataLoader | None = None,
    scales: ScaleTable | str | Path | None = None,
    options: AmpOptions | None = None,
    output: str | Path | None = None,
) -> AmpResult[Any]:
    """Give a model FP16 or BF16 where its values allow that, by Casts, for a strongly typed network of TensorRT.

    No value of the data overflows in the model that is written: with data, samples are run with their roundings, and
    operators go back to FP32 until that holds. A model that has these types from `amp` already is given back as it is.

    Args:
        model: FP32, plain or with Q/DQ: a path, ModelProto, gs.Graph or a callable returning one; never changed. A
            typed model of somebody else is taken as FP32 first.
        data: what to run; see `open_loader`.
        scales: a table or its file, in place of data: nothing is run.
        options: see `AmpOptions`.
        output: file to write; for a path the default is `<name>.fp16.onnx`, or `.bf16.onnx`, beside it.

    Raises:
        QdqError: neither data nor a table, and no `assume_range`; a table that lacks tensors (named); no operator
            can have the type; see `open_model`, `observe_ranges`, `choose_types`; Q/DQ with a scale that is not
            positive, where the channel is not dead. Nothing is written then.
        MissingPackageError: data is given, and onnxruntime is not installed.
    """
    options = options or AmpOptions()
    _check_sources(data, scales, options)
    opened = open_model(model)
    target = output_path(opened, output, f".{options.to}.onnx")
    check_target(target, [*opened.files, *files_of(data, scales)])
    repaired = repair_dead_channels(opened.view)
    refuse_unusable_scales(opened.view)
    found = _choose(opened, data, scales, options)
    found.require_conversion(opened.name)
    found = replace(found, notes=(*repaired, *found.notes, *opset_warnings(opened.proto, options.trt_version)))
    types = None if found.unchanged else found.choice.assignment
    written = give_typed(found.model, opened, target, types)
    return replace(found, model=written)


def plan_types(
    model: ModelSource,
    data: Data | DataLoader | None = None,
    scales: ScaleTable | str | Path | None = None,
    options: AmpOptions | None = None,
) -> AmpResult[None]:
    """What `amp` would do; nothing is written. Takes and raises what `amp` does."""
    options = options or AmpOptions()
    _check_sources(data, scales, options)
    return replace(_choose(open_model(model), data, scales, options), model=None)  # type: ignore[arg-type, return-value]


def _check_sources(data: object, scales: object, options: AmpOptions) -> None:
    if data is not None and scales is not None:
        raise QdqError("amp", "both data and scales are given", "give one of them")
    if data is None and scales is None and options.assume_range is None:
        raise QdqError("amp", "the values of the tensors are not known", _GIVE)
    if options.assume_range is not None and not (data is None and scales is None):
        raise QdqError("--assume-range", "replaces data and a table, and one of them is given", "leave one of them out")
    if options.max_output_loss is not None and data is None:
        raise QdqError("--max-output-loss", "needs data to measure the loss", "give --data")


def _choose(
    opened: Model, data: Data | DataLoader | None, scales: ScaleTable | str | Path | None, options: AmpOptions
) -> AmpResult[onnx.ModelProto]:
    """The choice for a model, and the FP32 model that it is for."""
    if (opset := opset_of(opened.proto) or 1) < _CAST_OPSET:
        raise QdqError(opened.name, f"is of opset {opset}, whose Cast names types by words", "export it anew")
    require_finite(opened.view)
    options, said = with_known(options, opened, data, anew=True)
    inlined = inline_products(opened)
    notes = [*said, *([f"inlined local functions with products: {', '.join(inlined)}"] if inlined else [])]
    notes += [fold_constants(opened).note()] if options.fold_constants else []
    notes += parser_warnings(opened.proto, options.trt_version)
    wide = opened
    if is_typed(opened):
        record, wide = stored_precision(opened.proto), widen(opened)
        if record is not None and _is_asked_for(record.assignment, options):
            choice = recorded_choice(wide, record.assignment)
            return AmpResult(
                opened.proto, choice, ValueRanges(), (*notes, "it already has these types"), unchanged=True
            )
        notes.append("it already has FP16 or BF16 types: they are chosen again, and its weights keep their rounding")
    if data is not None:
        feed = data if isinstance(data, DataLoader) else open_loader(data, inputs_of(wide.graph), options.data_options)
        how = replace(options.calibration or CalibrationOptions(), where=wide.name)
        found = search_types(wide, feed, _types(options), how, observe_ranges, options.max_output_loss)
        messages = (*notes, *feed.notes, *found.notes)
        return AmpResult(wide.proto, found.choice, found.ranges, messages, found.output_loss, options.max_output_loss)
    ranges = _table_ranges(wide, scales) if scales is not None else assumed_ranges(options.assume_range or 0.0)
    choice = choose_types(wide, ranges, _types(options))
    return AmpResult(wide.proto, choice, ranges, tuple(notes))


def _types(options: AmpOptions) -> TypeOptions:
    return TypeOptions(REST_TYPES[options.to], options.keep_fp32, options.io == "fp16")


def _is_asked_for(assignment: TypeAssignment, options: AmpOptions) -> bool:
    """Whether types are those that are asked for, and nothing is asked for that could change them."""
    wanted = _types(options)
    plain = not options.keep_fp32 and options.max_output_loss is None
    return plain and (assignment.rest, assignment.half_io) == (wanted.rest, wanted.half_io)


def _table_ranges(model: Model, scales: ScaleTable | str | Path) -> ValueRanges:
    """The ranges of a table, which must speak of every float32 activation."""
    table = scales if isinstance(scales, ScaleTable) else load_table(scales)
    ranges = ranges_of_table(table)
    view = model.view
    known = {*ranges.tensors, *table.unscaled, *table.provenance.behind}
    sizes = made_of_sizes(view, constants=True)
    names = (name for name in float_tensors(model) if not view.is_constant(name) and name not in sizes)
    lacking = [name for name in names if name not in known and view.root(name) not in known]
    if lacking:
        where = "the table" if isinstance(scales, ScaleTable) else str(scales)
        raise QdqError(where, f"has no entry for {named(lacking)}", "calibrate this model, or give --data")
    return ranges
