# SPDX-License-Identifier: Apache-2.0
"""The last step of `insert` and `graft`: what is not INT8 gets its float type, by the values that scales tell of."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qdqtool.calibration.engine import observe_ranges
from qdqtool.data.loader import DataLoader, inputs_of, open_loader
from qdqtool.display import counted
from qdqtool.engine.predicted_text import format_products
from qdqtool.engine.products import FORMAT_TITLES, count_products
from qdqtool.formats import INT8
from qdqtool.graph.model import Model
from qdqtool.graph.weighted import is_product
from qdqtool.measuring.typed_search import KnownOutputs, search_types
from qdqtool.observers.options import with_method
from qdqtool.precision.assignment import TypeAssignment, rest_name
from qdqtool.precision.casts import apply_types
from qdqtool.precision.choose import TypeOptions, choose_types
from qdqtool.precision.fixed_types import INT8_PATH
from qdqtool.precision.islands import format_of_weight_alone
from qdqtool.precision.rest import RestType
from qdqtool.precision.value_ranges import ranges_of_table
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataOptions
    from qdqtool.measuring.output_loss import OutputReference
    from qdqtool.observers.options import CalibrationOptions
    from qdqtool.precision.choose import TypeChoice
    from qdqtool.precision.value_ranges import ValueRanges

_BY_CLIPPING = (
    "the float types were chosen from clipping values, with a margin of 8 for values beyond them; "
    "--data measures the values"
)
_NAMED = 4  # operators in FP32 that a line names


@dataclass(frozen=True)
class DataRun:
    """Data that types are chosen by.

    Attributes:
        feed: the batches.
        calibration: provider, workers and name of the model.
        ranges: the values of all data in the model without pairs, where they were counted: it is not run for them then.
        reference: what the float model gives for some samples, where it was run.
    """

    feed: DataLoader
    calibration: CalibrationOptions
    ranges: ValueRanges | None = None
    reference: OutputReference | None = None


@dataclass(frozen=True)
class TypedRest:
    """What is not INT8, with the types that its values allow.

    Attributes:
        choice: the type of every operator, and why some stay FP32.
        notes: sentences on what was found when it was run.
        output_loss: what it loses at the outputs, where it was run on the samples of a reference (`DataRun`).
        forms: the model with the types and that with their roundings, where it was run.
    """

    choice: TypeChoice
    notes: tuple[str, ...] = ()
    output_loss: float | None = None
    forms: tuple[Model, Model] | None = None

    def apply(self, model: Model) -> Model:
        """The model with these types, held in memory; `model` is that of which they were chosen."""
        return apply_types(model, self.assignment) if self.forms is None else self.forms[0]

    @property
    def assignment(self) -> TypeAssignment:
        """What `apply_types` takes."""
        return self.choice.assignment

    @property
    def name(self) -> str:
        """The float type, as users write it."""
        return rest_name(self.assignment.rest)

    @functools.cached_property
    def products(self) -> dict[str, int]:
        """How many convolutions and matrix products multiply in number formats, in half precision and in FP32."""
        found = count_products(self.choice.graph.view, self.choice.float_type)
        formats = [title for title in FORMAT_TITLES if title in found] or [INT8.title]
        return {kind: found.get(kind, 0) for kind in (*formats, self.name.upper(), "FP32")}

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        keys = ("node", "operator", "rule", "reason")
        stays = [dict(zip(keys, row, strict=True)) for row in self.choice.rows()[1:]]
        counts = {"operators": self.choice.half, "int8": self.choice.int8, "casts": self.choice.casts}
        return {"type": self.name, **counts, "products": self.products, "fp32": stays}

    def summary(self) -> str:
        """How many operators have which type, and which stay FP32."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The same, a line for each rule, with the reason of its first operator."""
        kinds: dict[tuple[str, bool], list[tuple[str, str]]] = {}
        for name, _, rule, reason in self.choice.rows()[1:]:
            kinds.setdefault((rule, reason.endswith(INT8_PATH)), []).append((name, reason))
        listed = []
        for (_, in_int8), stays in kinds.items():
            names, reasons = [name for name, _ in stays], len({reason for _, reason in stays})
            like = f" (and {counted(reasons - 1, 'reason')} like it: --json)" if reasons > 1 else ""
            place = " in the file, and run in INT8" if in_int8 else ""
            stay = f"{len(names)} operators ({_first(names)})" if names[1:] else names[0]
            listed.append(f"in FP32{place}: {stay}: {stays[0][1]}{like}")
        view = self.choice.graph.view
        codes = Counter(
            found for node in view.every if is_product(node) and (found := format_of_weight_alone(view, node))
        )
        held = [f"{count} of them with weights in {title}" for title, count in codes.items()]
        counts = ", ".join([f"{self.choice.headline()}; {format_products(self.products)}", *held])
        return [counts, *listed]


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def choose_rest(model: Model, rest: RestType, table: ScaleTable, run: DataRun | None = None) -> TypedRest | None:
    """The types of a Q/DQ model in FP32; None where the rest is FP32.

    They are those that `amp` chooses for it: by the same data, where they can be walked again, else by the table. Where
    the values without pairs are known, they are taken: margins cover what rounding to INT8 changes in most of them, and
    what is chosen is run on some samples in any case.
    """
    if not rest.is_half:
        return None

    types = TypeOptions(rest.kind, for_dla=rest.for_dla)
    if run is None or run.feed.once:
        ranges = ranges_of_table(table)
        notes = (_BY_CLIPPING,) if any(one.clipped for one in ranges.tensors.values()) else ()
        return TypedRest(choose_types(model, ranges, types), notes)

    known = KnownOutputs(run.ranges, run.reference, with_loss=False)
    found = search_types(model, run.feed, types, run.calibration, observe_ranges, known=known)
    return TypedRest(found.choice, found.notes, found.output_loss, found.forms)


def data_run(opened: Model, data: Data | DataLoader | None, options: DataOptions | None, how: Any) -> DataRun | None:
    """The data of a verb for `choose_rest`; None where there are none."""
    if data is None:
        return None

    feed = data if isinstance(data, DataLoader) else open_loader(data, inputs_of(opened.proto.graph), options)
    return DataRun(feed, replace(with_method(how), where=opened.name))
