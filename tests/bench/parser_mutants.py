# SPDX-License-Identifier: Apache-2.0
"""Q/DQ graphs with one fault or oddity each: axis, type, zero point, scale, opset, rank, form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from tests.bench import mutant_edits as edit
from tests.bench.mutant_edits import Change
from tests.bench.mutant_nets import base

_BASES = ("conv", "depthwise", "transposed", "gemm", "matmul", "residual", "concat", "pool")


@dataclass(frozen=True)
class Mutant:
    """A model and what was done to it.

    Attributes:
        family: axis, type, zero-point, scale, opset, rank, form or block.
        name: of the mutant, with its base.
        model: the graph.
    """

    family: str
    name: str
    model: onnx.ModelProto


def mutants() -> Iterator[Mutant]:
    """Every mutation of every base that it can be done to."""
    for kind in _BASES:
        yield Mutant("form", f"{kind}: sound", base(kind))
        for family, name, change in _changes(kind):
            model = base(kind)
            change(model)
            yield Mutant(family, f"{kind}: {name}", model)


def _changes(kind: str) -> Iterator[tuple[str, str, Change]]:
    yield from _axes(kind)
    yield from _types()
    yield from _zero_points(kind)
    yield from _scales()
    yield from (
        ("opset", f"opset {number}", edit.opset(number)) for number in (9, 10, 11, 12, 13, 19, 20, 21, 22, 23, 24)
    )
    yield from _ranks(kind)
    yield from _forms(kind)
    if kind == "matmul":
        yield from _blocks()


def _axes(kind: str) -> Iterator[tuple[str, str, Change]]:
    for axis in (0, 1, 2, -1, 7, None):
        yield "axis", f"w along axis {axis}", lambda model, axis=axis: edit.set_axis(model, "w", axis, resize=True)
        yield (
            "axis",
            f"w along axis {axis}, scales as they were",
            lambda model, axis=axis: edit.set_axis(model, "w", axis),
        )
    yield "axis", "axis of the Q alone", lambda model: edit.set_axis(model, "w", 1, ops=(QUANTIZE,))
    yield "axis", "x along axis 1", lambda model: edit.set_axis(model, "x", 1, resize=True)
    yield "axis", "x along axis 0", lambda model: edit.set_axis(model, "x", 0, resize=True)


def _types() -> Iterator[tuple[str, str, Change]]:
    kinds = {
        "uint8": TensorProto.UINT8,
        "int16": TensorProto.INT16,
        "uint16": TensorProto.UINT16,
        "int32": TensorProto.INT32,
        "int4": TensorProto.INT4,
        "uint4": TensorProto.UINT4,
        "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
        "float8e5m2": TensorProto.FLOAT8E5M2,
    }
    for name, kind in kinds.items():
        yield "type", f"{name} on x", lambda model, kind=kind: edit.set_type(model, "x", kind)
        yield "type", f"{name} on w", lambda model, kind=kind: edit.set_type(model, "w", kind)
        yield (
            "type",
            f"{name} on both",
            lambda model, kind=kind: (edit.set_type(model, "x", kind), edit.set_type(model, "w", kind)),
        )
    yield "type", "FP16 scale of x", lambda model: edit.cast_scale(model, "x", np.float16)
    yield "type", "FP16 scale of w", lambda model: edit.cast_scale(model, "w", np.float16)
    yield "type", "FP64 scale of x", lambda model: edit.cast_scale(model, "x", np.float64)


def _zero_points(kind: str) -> Iterator[tuple[str, str, Change]]:
    for value in (1, -3):
        yield "zero-point", f"{value} on x", lambda model, value=value: edit.fill(model, "x_z", value)
        yield "zero-point", f"{value} on w", lambda model, value=value: edit.fill(model, "w_z", value)
    for value in (5, 128):
        yield (
            "zero-point",
            f"uint8 {value} on x",
            lambda model, value=value: (edit.set_type(model, "x", TensorProto.UINT8), edit.fill(model, "x_z", value)),
        )
    yield "zero-point", "none on x", lambda model: edit.drop_zero_point(model, "x", (QUANTIZE, DEQUANTIZE))
    yield "zero-point", "none on the Q of x", lambda model: edit.drop_zero_point(model, "x", (QUANTIZE,))
    yield "zero-point", "none on w", lambda model: edit.drop_zero_point(model, "w", (QUANTIZE, DEQUANTIZE))
    yield "zero-point", "of shape [1] on x", lambda model: edit.put(model, "x_z", np.zeros(1, np.int8))
    yield "zero-point", "of another length on w", lambda model: edit.put(model, "w_z", np.zeros(3, np.int8))


def _scales() -> Iterator[tuple[str, str, Change]]:
    for value in (0.0, -0.5, np.nan, np.inf, 1e-41, 1e30):
        yield "scale", f"{value} of x", lambda model, value=value: edit.fill(model, "x_s", value)
        yield "scale", f"{value} of w", lambda model, value=value: edit.fill(model, "w_s", value)
    yield "scale", "of shape [1] of x", lambda model: edit.put(model, "x_s", np.full(1, 0.02, np.float32), zero="x_z")
    yield (
        "scale",
        "of shape [1,1] of x",
        lambda model: edit.put(model, "x_s", np.full((1, 1), 0.02, np.float32), zero="x_z"),
    )
    yield "scale", "of w with every axis", edit.full_rank_scale
    yield "scale", "of w too long", lambda model: edit.put(model, "w_s", np.full(33, 0.02, np.float32), zero="w_z")
    yield "scale", "of w empty", lambda model: edit.put(model, "w_s", np.zeros(0, np.float32), zero="w_z")
    yield "scale", "of x after an Identity", lambda model: edit.behind(model, "x_s", "Identity")
    yield "scale", "of x computed", lambda model: edit.computed(model, "x_s")
    yield "scale", "of x an input of the graph", edit.scale_input
    yield "scale", "of Q and DQ differ", edit.two_scales


def _ranks(kind: str) -> Iterator[tuple[str, str, Change]]:
    if kind in ("gemm", "matmul"):
        shapes = ((16,), (1, 4, 16), (1, 1, 4, 16), ("N", 16))
    else:
        shapes = ((8, 16, 16), (1, 8, 16), (1, 8, 4, 16, 16), ("N", 8, "H", "W"), (1, 4, 16, 16))
    for shape in shapes:
        yield "rank", f"x is {'x'.join(map(str, shape))}", lambda model, shape=shape: edit.set_shape(model, shape)
    yield "rank", "w has an axis more", lambda model: edit.reshape_weight(model, 1)
    yield "rank", "w has an axis less", lambda model: edit.reshape_weight(model, -1)


def _blocks() -> Iterator[tuple[str, str, Change]]:
    """Scales in blocks along the inner side of a matrix product, 16 long, and formats of 4 and 8 bits."""
    kinds = {"int4": TensorProto.INT4, "int8": TensorProto.INT8, "float8e4m3fn": TensorProto.FLOAT8E4M3FN}
    for name, kind in kinds.items():
        for size in (5, 8, 16, 32):
            yield "block", f"{name} in blocks of {size}", lambda m, kind=kind, size=size: edit.set_blocks(m, kind, size)
    for name, kind in kinds.items():
        yield "block", f"{name} with the zero point 1", lambda m, kind=kind: edit.set_kind(m, "w", kind, 1)
    yield "block", "one block too few", lambda m: edit.set_blocks(m, TensorProto.INT8, 8, count=1)
    yield "block", "FP8 on x, INT8 on w", lambda m: edit.set_kind(m, "x", TensorProto.FLOAT8E4M3FN, 0)


def _forms(kind: str) -> Iterator[tuple[str, str, Change]]:
    yield "form", "com.microsoft", edit.contrib
    yield "form", "the Q of x is an output", lambda model: edit.output(model, "x_q", TensorProto.INT8)
    yield "form", "no DQ after the Q of x", lambda model: edit.drop(model, "x_dq", "x_q")
    yield "form", "no Q before the DQ of x", edit.integer_input
    yield "form", "two pairs on x", edit.second_pair
    yield "form", "stored integers in w", lambda model: edit.store(model, np.int8)
    yield "form", "stored uint8 in w", lambda model: edit.store(model, np.uint8)
    yield "form", "stored int32 in w", lambda model: edit.store(model, np.int32)
    yield (
        "form",
        "Identity between Q and DQ",
        lambda model: edit.between(model, helper.make_node("Identity", ["x_q"], ["m"], "m")),
    )
    yield (
        "form",
        "Relu between Q and DQ",
        lambda model: edit.between(model, helper.make_node("Relu", ["x_q"], ["m"], "m")),
    )
    yield "form", "shared node names", edit.one_name
    if kind not in ("gemm", "matmul"):
        pool = helper.make_node("MaxPool", ["x_q"], ["m"], "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        yield "form", "MaxPool between Q and DQ", lambda model: edit.between(model, pool)
    if kind in ("conv", "residual", "concat", "pool"):
        for name in ("int32", "int8"):
            yield "form", f"{name} bias after a DQ", lambda model, name=name: edit.stored_bias(model, np.dtype(name))
        yield "form", "bias after a pair", edit.pair_on_bias
    for op in ("DynamicQuantizeLinear", "ConvInteger", "QLinearConv"):
        yield "form", op, lambda model, op=op: edit.integer_operator(model, op)
