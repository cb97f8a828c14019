# SPDX-License-Identifier: Apache-2.0
"""The last step of `insert` and `graft`: what is not INT8 gets its float type, by the values that scales tell of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from qdqtool.files import FileSet, joined
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.io import Opened, give_back
from qdqtool.graph.tensors import is_external, location_of
from qdqtool.precision.assignment import type_name
from qdqtool.precision.casts import apply_types
from qdqtool.precision.choose import TypeChoice, TypeOptions, choose_types
from qdqtool.precision.rest import RestType
from qdqtool.precision.stored_weights import WeightFile
from qdqtool.precision.value_ranges import ranges_of_table
from qdqtool.scales import Scale, ScaleTable

_NAMED = 4  # operators in FP32 that a note names


@dataclass(frozen=True)
class TypedRest:
    """What is not INT8, with the types that its values allow.

    Attributes:
        choice: the type of every operator, and why some stay FP32.
    """

    choice: TypeChoice

    @property
    def name(self) -> str:
        """The float type, as users write it."""
        return type_name(self.choice.assignment.rest)

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        keys = ("node", "operator", "rule", "reason")
        stays = [dict(zip(keys, row, strict=True)) for row in self.choice.rows()[1:]]
        return {"type": self.name, "operators": self.choice.half, "casts": self.choice.casts, "fp32": stays}

    def summary(self) -> str:
        """How many operators have which type, and which stay FP32."""
        rows = self.choice.rows()[1:]
        if not rows:
            return self.choice.headline()
        few = ", ".join(f"{name} ({reason})" for name, _, _, reason in rows[:_NAMED])
        more = f" and {len(rows) - _NAMED} more" if rows[_NAMED:] else ""
        return f"{self.choice.headline()}; in FP32: {few}{more}"


def choose_rest(
    proto: onnx.ModelProto, opened: Opened, tables: Iterable[ScaleTable | None], rest: RestType
) -> TypedRest | None:
    """The types of a Q/DQ model in FP32; None where the rest is FP32.

    Args:
        proto: the model with its pairs.
        opened: where it comes from.
        tables: the scales that are known of its tensors, the later ones win; of several the largest values, too.
        rest: the type.
    """
    if not rest.is_half:
        return None
    ranges = ranges_of_table(_joined(tables))
    return TypedRest(choose_types(proto, ranges, TypeOptions(rest.kind), opened.folder))


def _joined(tables: Iterable[ScaleTable | None]) -> ScaleTable:
    scales: dict[str, Scale] = {}
    largest: dict[str, float] = {}
    last = ScaleTable()
    for table in tables:
        if table is not None:
            scales |= table.scales
            largest |= table.largest
            last = table
    return replace(last, scales=scales, largest=largest)


def give_typed(
    proto: onnx.ModelProto, opened: Opened, target: Path | None, typed: TypedRest | None, files: FileSet | None = None
) -> tuple[Any, onnx.ModelProto]:
    """Write a model with its types, or as it is; what `give_back` gives, and the model that was written.

    Constants that lie in external data are rounded block by block into a data file beside the output.

    Args:
        proto: the model in FP32.
        opened: where it comes from.
        target: the file to write; None for kinds that live in memory.
        typed: the types; None for FP32.
        files: the set of files that it is written with.
    """
    external = target is not None and any(map(is_external, proto.graph.initializer))
    if typed is None or target is None or not external:
        made = proto if typed is None else apply_types(proto, typed.choice.assignment, opened.folder)
        return give_back(made, opened, target, files), made
    with FileSet(opened.files) if files is None else joined(files) as both:
        location = _free_location(proto, f"{target.name}.data")
        with both.open(target.with_name(location)) as file:
            weights = WeightFile(file, location, opened.folder)
            made = apply_types(proto, typed.choice.assignment, opened.folder, weights.round)
            weights.settle(made)
        return give_back(made, opened, target, both, {location}), made


def _free_location(proto: onnx.ModelProto, name: str) -> str:
    """A name for a data file that the model's own data files do not have."""
    return FreshNames(location_of(one, name) for one in proto.graph.initializer if is_external(one)).unique(name)
