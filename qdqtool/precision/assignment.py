# SPDX-License-Identifier: Apache-2.0
"""Which operators of a model compute in FP32 and what type the rest has, as one value. Not why (choose.py)."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto


@dataclass(frozen=True)
class TypeAssignment:
    """The types of a typed model.

    Attributes:
        rest: element type of all other operators: TensorProto.FLOAT16 or TensorProto.BFLOAT16.
        float32: keys (first outputs) of the nodes that stay in FP32.
        half_io: whether float32 inputs and outputs of the graph take the type of the rest, too.
    """

    rest: int = TensorProto.FLOAT16
    float32: frozenset[str] = frozenset()
    half_io: bool = False
