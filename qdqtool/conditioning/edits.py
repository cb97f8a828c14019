# SPDX-License-Identifier: Apache-2.0
"""What was done to a model, as values: shown to the user, and kept in the model's metadata to be replayed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import onnx

from qdqtool.conditioning.prediction import ErrorPrediction
from qdqtool.errors import QdqError
from qdqtool.graph.edit import CONDITIONED, FINETUNED, edits_of, recorded_edits, trained_in_int8
from qdqtool.graph.model import Model
from qdqtool.measures import OutputChange

STEPS = ("equalize", "smooth", "clip", "correct")
ASKED = ("relu6", "shift")  # what is done only where it is asked for by name
ORDER = ("relu6", "equalize", "smooth", "shift", "clip", "correct")
CHANGING = frozenset({"relu6", "clip", "correct"})  # the steps that change the float function
METADATA = CONDITIONED
AUTO = "auto"
_FOUR_BITS = frozenset(
    number for name, number in onnx.TensorProto.DataType.items() if name in ("INT4", "UINT4", "FLOAT4E2M1")
)


class NoReferenceError(QdqError):
    """A model that its own form without pairs cannot be compared with."""


def changing_steps(proto: onnx.ModelProto) -> list[str]:
    """What changed a model's float function, by its metadata: steps of `condition`, and training with Q/DQ.

    Without its pairs such a model is not the FP32 model, and no reference for a loss.
    """
    steps = {edit["step"] for edit in edits_of(proto)} & CHANGING
    return sorted(steps | ({FINETUNED} if trained_in_int8(proto) else set()))


def require_reference(model: Model, option: str) -> None:
    """Refuse a model that its own form without pairs cannot be compared with; `option` takes the FP32 model.

    Raises:
        QdqError: its FP32 results were changed, or its weights are stored in 4 bits, whose rounding is the loss.
    """
    moved = changing_steps(model.proto)
    reason = f"its FP32 results were changed ({', '.join(moved)})" if moved else ""
    if any(one.data_type in _FOUR_BITS for one in model.proto.graph.initializer):
        reason = "its weights are stored in 4 bits"
    if reason:
        told = f"is no reference without its Q/DQ, as {reason}"
        raise NoReferenceError(model.name, told, f"give the original FP32 model as {option}")


@dataclass(frozen=True)
class Edit:
    """One edit.

    Attributes:
        step: one of `STEPS` or `ASKED`.
        site: the tensor that is divided or shifted, or the operator (its first output) that changes, or its weight or
            bias.
        decibel: what it was predicted to win, at the outputs of the operators that it concerns; 0 for `ASKED`.
        reason: one sentence.
        added: a tensor or input that was not there: the output of a Mul or an Add, or a bias; "" where nothing was
            added, as by `smooth` without a Mul.
    """

    step: str
    site: str
    decibel: float
    reason: str
    added: str = ""

    def to_json(self) -> dict[str, Any]:
        """The edit for --json and the metadata."""
        entry: dict[str, Any] = {"step": self.step, "site": self.site, "decibel": round(self.decibel, 2)}
        entry["reason"] = self.reason
        return {**entry, "added": self.added} if self.added else entry


@dataclass(frozen=True)
class Conditioned:
    """What `condition_model` did.

    Attributes:
        edits: in the order in which they were made.
        left: tensor or operator -> why it was left alone.
        before, after: the prediction without and with the edits that divide channels.
        kept: how far the float outputs moved by dividing, at most 1e-5 of their range.
        moved: how far they moved by all edits.
        samples: how many samples were seen.
        method: how the scales came about that the correction used; "" where there was none.
        notes: sentences on steps that were done otherwise than asked, since they changed the float function.
    """

    edits: tuple[Edit, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    before: ErrorPrediction | None = None
    after: ErrorPrediction | None = None
    kept: dict[str, OutputChange] = field(default_factory=dict)
    moved: dict[str, OutputChange] = field(default_factory=dict)
    samples: int = 0
    method: str = ""
    notes: tuple[str, ...] = ()

    def count(self, step: str) -> int:
        """How many edits of one step there are."""
        return sum(edit.step == step for edit in self.edits)

    def metadata(self, earlier: str | None = None) -> str:
        """JSON for the model's metadata: every edit, what was added by it, and the method of the correction."""
        before = recorded_edits(earlier)
        document = {"schema": 1, "method": self.method, "edits": [*before, *(edit.to_json() for edit in self.edits)]}
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def parse_steps(steps: tuple[str, ...] | str | None, option: str = "--steps") -> tuple[str, ...]:
    """The steps asked for, in the order in which they are done.

    Raises:
        QdqError: an unknown step, or none.
    """
    names = steps.split(",") if isinstance(steps, str) else list(steps or (AUTO,))
    asked = {name.strip() for name in names}
    unknown = sorted(asked - {*ORDER, AUTO})
    if unknown:
        raise QdqError(f"{option} {unknown[0]}", "no such step", f"choose some of {', '.join(ORDER)}, or auto")
    if AUTO in asked:
        asked |= set(STEPS)
    return tuple(step for step in ORDER if step in asked)
