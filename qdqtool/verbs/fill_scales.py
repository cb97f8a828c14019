# SPDX-License-Identifier: Apache-2.0
"""A scale for every float tensor of a clean model, as the DLA wants: what is exact first, then what was calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from qdqtool.calibration.engine import CalibrationOptions, WantedScales, calibrate_scales
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.full_scale_table import Complete, complete_scales
from qdqtool.match.plan import Plan
from qdqtool.match.sizes import made_of_sizes
from qdqtool.rulebook import RuleBook
from qdqtool.runtime.float_tensors import FloatTensors, find_float_tensors, on_gpu_alone
from qdqtool.scales import Scale, ScaleTable

if TYPE_CHECKING:
    from qdqtool.verbs.peel_options import PeelOptions

_SHOWN = 6


def fill_every_tensor(
    clean: Model, rules: RuleBook, decided: Plan, points: dict[str, Scale], table: ScaleTable, options: PeelOptions
) -> Complete:
    """Find a scale for every float tensor of the clean model.

    Raises:
        QdqError: tensors left without a scale where `fill` does not allow it, named; no data where it is needed.
    """
    view = clean.view
    found = find_float_tensors(clean, [table], points)
    tensors = [*found.names, *found.unknown]
    if options.force_ptq:
        points, table = {}, _calibrated(clean, tensors, ScaleTable(), options, "entropy")
    groups = decided.groups if options.fill == "propagate" else ()
    complete = complete_scales(view, rules, points, tensors, table, groups, shared_scales=options.shared_scales)
    missing = _missing(view, complete, found)
    if missing and options.fill == "ptq" and options.data is not None and not options.force_ptq:
        table = _calibrated(clean, missing, table, options, table.provenance.method or "mse")
        complete = complete_scales(view, rules, points, tensors, table, groups, shared_scales=options.shared_scales)
        missing = _missing(view, complete, found)
    why = {**found.unknown, **{name: table.unscaled[name] for name in missing if name in table.unscaled}}
    if missing and options.fill != "none":
        raise _without_scale(clean, missing, why, len(tensors), hopeless=missing[0] in table.provenance.behind)
    return replace(complete, exempt={**why, **on_gpu_alone(view, found.unknown), **complete.exempt})


def _missing(view: GraphView, complete: Complete, found: FloatTensors) -> list[str]:
    """The tensors that want a scale and have none.

    Left out are what TensorRT computes while it builds, and tensors of unknown type that only plugins touch.
    """
    spared = {*complete.exempt, *made_of_sizes(view), *on_gpu_alone(view, found.unknown)}
    return [name for name in complete.left if name not in spared]


def _without_scale(clean: Model, missing: list[str], why: Mapping[str, str], total: int, *, hopeless: bool) -> QdqError:
    listed = [f"{name} ({why[name]})" if name in why else name for name in missing[:_SHOWN]]
    shown = ", ".join(listed) + (f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else "")
    none = "--fill none to write the cache without them"
    todo = f"add {none}" if hopeless else f"give --data, or {none}"
    return QdqError(clean.name, f"{len(missing)} of {total} tensors have no scale: {shown}", todo)


def _calibrated(clean: Model, wanted: list[str], table: ScaleTable, options: PeelOptions, method: str) -> ScaleTable:
    """The table with scales of the wanted tensors from the clean model and the user's data."""
    if options.data is None:
        raise QdqError(clean.name, "--force-ptq calibrates every tensor, and there is no data", "give --data")
    data = options.data
    loader = open_loader(data, inputs_of(clean.proto.graph), options.data_options)
    how = options.calibration or CalibrationOptions(method="")
    how = replace(how, method=how.method or method, where=clean.name)
    found = calibrate_scales(clean, loader, how, WantedScales(wanted))
    return replace(found, scales={**table.scales, **found.scales}, unscaled={**table.unscaled, **found.unscaled})
