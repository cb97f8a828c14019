# SPDX-License-Identifier: Apache-2.0
"""Two models of one network beside each other: which scales, types and findings differ. `report --diff`."""

from __future__ import annotations

import math
from collections.abc import Callable

from qdqtool.linting.finding import by_code
from qdqtool.reporting.differences import DifferingScale, DifferingType, differences_section
from qdqtool.reporting.layer_boxes import product_counts
from qdqtool.reporting.page import Section
from qdqtool.workflows.report_look import LookedModel, boxes_of


def differences(found: LookedModel, other: LookedModel, names: tuple[str, str]) -> Section:
    """The section that says what differs."""
    return differences_section(names, _sums(found, other), _scales(found, other), _types(found, other))


def _sums(found: LookedModel, other: LookedModel) -> list[tuple[str, str, str]]:
    """What the two come to: words, here, there."""
    ways: tuple[tuple[str, Callable[[LookedModel], str]], ...] = (
        ("Convolutions and matrix products", _products),
        ("Pairs on activations", lambda one: str(len(one.pairs))),
        ("Bytes moved, forecast", _bytes),
        ("Findings of lint", _findings),
    )
    return [(title, each(found), each(other)) for title, each in ways]


def _products(one: LookedModel) -> str:
    counts = product_counts(one.view, boxes_of(one), one.context.typed.types, one.context.file_view)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


def _bytes(one: LookedModel) -> str:
    moved = one.forecast.bytes_moved
    return "not known" if moved is None else f"{moved / 1e6:.2f} MB"


def _findings(one: LookedModel) -> str:
    codes = by_code(one.findings)
    return ", ".join(f"{len(each)} of {code}" for code, each in codes.items()) or "none"


def _scales(found: LookedModel, other: LookedModel) -> list[DifferingScale]:
    """Tensors whose scale differs, or that have a pair in one model alone; what differs most first."""
    rows = []
    for name in dict.fromkeys((*found.pairs, *other.pairs)):
        here, there = found.pairs.get(name), other.pairs.get(name)
        if here is None or there is None or not here.same_bits(there):
            rows.append(DifferingScale(name, here, there))
    return sorted(rows, key=lambda row: -abs(math.log(row.ratio)) if row.ratio is not None else -math.inf)


def _types(found: LookedModel, other: LookedModel) -> list[DifferingType]:
    """Operators that run in another type: by name, in the order of the graph."""
    sides = [
        {name: box for box in boxes_of(one) if box.look not in ("converts", "ends") for name in box.nodes}
        for one in (found, other)
    ]
    rows = []
    for node in found.view.nodes:
        here, there = (side.get(node.name) for side in sides)
        if here is not None and there is not None and here.type != there.type:
            reason = here.reason if here.type != "INT8" else there.reason
            rows.append(DifferingType(node.name, node.op, here.type, there.type, reason))
    return rows
