# SPDX-License-Identifier: Apache-2.0
"""What a typed model's metadata say of its element types, so that the way back knows what was put in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.edit import get_metadata, set_metadata
from qdqtool.precision.assignment import REST_TYPES, TypeAssignment, rest_name

PRECISION = "precision"  # the entry in which a typed model tells its assignment
_WHERE = "metadata qdqtool.precision"


@dataclass(frozen=True)
class PrecisionRecord:
    """The types that `apply_types` gave a model.

    Attributes:
        assignment: what it was asked for.
        twins: constants that it stored a second time, in 16 bits -> the FP32 constant.
    """

    assignment: TypeAssignment
    twins: Mapping[str, str] = field(default_factory=dict)


def store_precision(model: onnx.ModelProto, record: PrecisionRecord) -> None:
    """Keep the record in a model's metadata; the same record makes the same text."""
    made: dict[str, Any] = {"rest": rest_name(record.assignment.rest)}
    if record.assignment.half_io:
        made["half_io"] = True
    made["float32"] = sorted(record.assignment.float32)
    if record.assignment.reasons:
        made["why"] = _by_reason(record.assignment.reasons)
    if record.twins:
        made["twins"] = dict(sorted(record.twins.items()))
    set_metadata(model, PRECISION, json.dumps(made, separators=(",", ":")))


def stored_precision(model: onnx.ModelProto) -> PrecisionRecord | None:
    """The record in a model's metadata; None where there is none.

    Raises:
        QdqError: an entry that is not such a record.
    """
    text = get_metadata(model, PRECISION)
    if text is None:
        return None
    try:
        made = json.loads(text)
        rest, float32, twins = REST_TYPES[made["rest"]], made["float32"], made.get("twins", {})
        reasons = {key: text for text, keys in made.get("why", {}).items() for key in keys}
        texts = [*float32, *twins, *twins.values(), *reasons]
        if not isinstance(float32, list) or not all(isinstance(name, str) for name in texts):
            raise TypeError
        assignment = TypeAssignment(rest, frozenset(float32), made.get("half_io", False) is True, reasons)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        reason = "is not a record of element types as qdqtool writes it"
        raise QdqError(_WHERE, reason, "take the entry out of the model's metadata") from None
    return PrecisionRecord(assignment, twins)


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Reason -> what it holds for: many operators have the same."""
    found: dict[str, list[str]] = {}
    for key, text in sorted(reasons.items()):
        found.setdefault(text, []).append(key)
    return dict(sorted(found.items()))
