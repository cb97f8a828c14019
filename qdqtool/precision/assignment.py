# SPDX-License-Identifier: Apache-2.0
"""Which operators of a float model compute in FP16 or BF16, and which stay in FP32, as a value. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import TensorProto

# How users write the element types that a model's rest can have.
REST_TYPES: dict[str, int] = {
    "fp16": int(TensorProto.FLOAT16),
    "bf16": int(TensorProto.BFLOAT16),
    "fp32": int(TensorProto.FLOAT),
}
_NAMES = {kind: name for name, kind in REST_TYPES.items()}


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
    """

    rest: int
    float32: frozenset[str] = frozenset()
    half_io: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def rest_name(self) -> str:
        """The element type of the rest, as users write it."""
        return rest_name(self.rest)

    def __post_init__(self) -> None:
        if self.rest not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
            raise ValueError(f"rest is FLOAT16 ({TensorProto.FLOAT16}) or BFLOAT16 ({TensorProto.BFLOAT16})")
