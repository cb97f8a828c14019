# SPDX-License-Identifier: Apache-2.0
"""Which operators of a float model compute in FP16 or BF16, and which stay in FP32, as a value. It decides nothing.

A typed model's metadata keep a record of it, so that the way back knows what was put in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.edit import get_metadata, set_metadata

# How users write the element types that a model's rest can have.
REST_TYPES: dict[str, int] = {
    "fp16": int(TensorProto.FLOAT16),
    "bf16": int(TensorProto.BFLOAT16),
    "fp32": int(TensorProto.FLOAT),
}
_NAMES = {kind: name for name, kind in REST_TYPES.items()}
PRECISION = "precision"  # the entry in which a typed model tells its assignment
_WHERE = "metadata qdqtool.precision"


def rest_name(kind: int) -> str:
    """How users write an element type: "fp16", "bf16" or "fp32"."""
    return _NAMES[kind]


@dataclass(frozen=True)
class TypeAssignment:
    """Element types for the operators of a float model, plain or with Q/DQ pairs.

    Attributes:
        rest: of all operators but those below: FLOAT16 or BFLOAT16 of onnx.TensorProto.
        float32: first outputs of the operators that stay FP32, as the model with FP32 alone names them.
        half_io: whether float inputs and outputs of the graph have the type `rest`, too; else they stay FP32.
        reasons: first output -> why it stays FP32, as far as it is known; for readers, and no part of the choice.
        for_dla: whether the types are for a DLA, which has no FP32: an operator between pairs has the type `rest`, too.
    """

    rest: int
    float32: frozenset[str] = frozenset()
    half_io: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)
    for_dla: bool = False

    @property
    def rest_name(self) -> str:
        """The element type of the rest, as users write it."""
        return rest_name(self.rest)

    def __post_init__(self) -> None:
        if self.rest not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
            raise ValueError(f"rest is FLOAT16 ({TensorProto.FLOAT16}) or BFLOAT16 ({TensorProto.BFLOAT16})")


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
    if record.assignment.for_dla:
        made["dla"] = True
    made["float32"] = sorted(record.assignment.float32)
    if record.assignment.reasons:
        # Reason -> what it holds for: many operators have the same
        found: dict[str, list[str]] = {}
        for key, text in sorted(record.assignment.reasons.items()):
            found.setdefault(text, []).append(key)
        made["why"] = dict(sorted(found.items()))
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
        half_io, for_dla = (made.get(key, False) is True for key in ("half_io", "dla"))
        assignment = TypeAssignment(rest, frozenset(float32), half_io, reasons, for_dla)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        reason = "is not a record of element types as qdqtool writes it"
        raise QdqError(_WHERE, reason, "take the entry out of the model's metadata") from None
    return PrecisionRecord(assignment, twins)
