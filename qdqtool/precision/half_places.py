# SPDX-License-Identifier: Apache-2.0
"""Which inputs and outputs of an operator can be FP16 or BF16, by ONNX's schemas. Not which ones should be."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from onnx import TensorProto, defs

from qdqtool.graph.nodes import DYNAMIC_FP4
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, Node

# What reads a tensor whatever its type is, and gives the same for each: input number of the operator.
_ANY_TYPE = {"Shape": 0, "Size": 0, "Cast": 0, "CastLike": 0}
# Operators whose type an attribute says that `casts.py` does not edit.
_TYPED = ("dtype", "output_datatype")
_SPELLED = {int(TensorProto.FLOAT16): "tensor(float16)", int(TensorProto.BFLOAT16): "tensor(bfloat16)"}


@dataclass(frozen=True)
class HalfPlaces:
    """Where an operator can read and give out tensors of a type of 16 bits.

    Attributes:
        inputs, outputs: one value for each formal parameter.
        repeats: whether the last input, the last output stands for any number of them.
        typed: whether an attribute of the operator names the element type of what it gives.
    """

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    repeats: tuple[bool, bool]
    typed: bool

    def reads(self, index: int) -> bool:
        """Whether input number `index` can be of the type."""
        return _at(self.inputs, index, repeats=self.repeats[0])

    def gives(self, index: int) -> bool:
        """Whether output number `index` can be of the type."""
        return _at(self.outputs, index, repeats=self.repeats[1])


def _at(places: tuple[bool, ...], index: int, *, repeats: bool) -> bool:
    if index < len(places):
        return places[index]
    return bool(places) and repeats and places[-1]


def half_places(node: Node, opset: int, rest: int) -> HalfPlaces | None:
    """Where an operator of ONNX can have a type of 16 bits; None for what ONNX has no schema for.

    FP16 goes by the schema of the model's opset, or by the newest where that opset does not have the operator yet.
    BF16 came late to most schemas (opset 22 for Conv) and TensorRT's parser does not look at the opset: it goes by the
    newest schema. One that ONNX took away before, such as Upsample, has BF16 where it has FP16.
    """
    if node.op == DYNAMIC_FP4:
        return HalfPlaces((True, False), (False, False), (False, False), typed=False)
    if "::" in node.op:
        return None
    return _by_schema(node.op, opset if rest == TensorProto.FLOAT16 else 0, rest)


@functools.cache
def _by_schema(op: str, opset: int, rest: int) -> HalfPlaces | None:
    if not defs.has(op):
        return None
    try:
        schema = defs.get_schema(op, opset, "") if opset else defs.get_schema(op, "")
    except defs.SchemaError:  # newer than the opset: neither TensorRT's parser nor onnxruntime minds
        schema = defs.get_schema(op, "")
    repeats = [
        bool(places) and places[-1].option == defs.OpSchema.FormalParameterOption.Variadic
        for places in (schema.inputs, schema.outputs)
    ]
    pair = op in (QUANTIZE, DEQUANTIZE)  # scales stay the float32 numbers that they are, and so does what stands beside
    spelled = _SPELLED[int(TensorProto.FLOAT16) if schema.deprecated else rest]
    typed = any(name in schema.attributes for name in _TYPED)
    return HalfPlaces(
        tuple(not pair and spelled in place.types for place in schema.inputs),
        tuple(not pair and spelled in place.types for place in schema.outputs),
        (repeats[0], repeats[1]),
        typed,
    )


def reads_any_type(node: Node, index: int) -> bool:
    """Whether an operator gives the same whatever the element type of this input is."""
    return _ANY_TYPE.get(node.op) == index
