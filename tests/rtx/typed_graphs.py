# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a row reads best on one line
"""One operator with every element type at each of its inputs: what rules/types.toml was measured with.

A row is the text of a node. Its inputs tell themselves what they are: `x4` is a network's input of four axes, `k` a
constant of one value, `k8` one of eight; these take the types that are tried. `i:1,2` is a constant in INT64, `l:1,2` one in
INT32, `f:1,2` one in FP32, `b` an input in BOOL, `n` one in INT64.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

TYPES = {
    "f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "f64": TensorProto.DOUBLE, "i32": TensorProto.INT32,
    "i64": TensorProto.INT64, "bool": TensorProto.BOOL, "i8": TensorProto.INT8, "u8": TensorProto.UINT8, "i16": TensorProto.INT16,
}  # fmt: skip
# One input of another type than the rest: (the rest, the one).
MIXED = (
    ("f16", "f32"),
    ("f32", "f16"),
    ("f16", "bf16"),
    ("f32", "i32"),
    ("i64", "i32"),
    ("f32", "i64"),
    ("f32", "f64"),
)
_SHAPES = {
    "x": (1, 8, 16, 16), "m": (4, 16), "q": (4, 4), "v": (4, 8), "h": (1, 2, 8, 16), "g": (1, 4, 4, 2), "s": (5, 1, 8), "t": (1, 64, 1),
    "bx": (1, 10, 4), "sc": (1, 2, 10), "u": (2, 8), "e": (2, 2), "up": (1, 2, 1, 16), "bw": (8, 1, 1), "mask": (8, 8), "r": (4, 2, 8), "nn": (8, 3),
}  # fmt: skip
_UNARY = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish Identity LeakyRelu Log Neg Reciprocal Relu
 Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Mish Gelu Shrink LogSoftmax Softmax Hardmax
 GlobalAveragePool GlobalMaxPool IsInf IsNaN Dropout Flatten Shape Size Not LpNormalization MeanVarianceNormalization GlobalLpPool"""
_BINARY = "Add Sub Mul Div Max Min Mean Sum Equal Greater Less GreaterOrEqual LessOrEqual PRelu And Or Xor Pow"
_REDUCING = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
# Operator, inputs, attributes, opset, number of outputs.
_ROWS: tuple[tuple[str, str, dict[str, object], int, int], ...] = (
    *((op, "x", {}, 20, 1) for op in _UNARY.split()),
    *((op, inputs, {}, 20, 1) for op in _BINARY.split() for inputs in ("x x", "x k:bw")),
    *((f"Reduce{op}", "x i:1", {}, 20, 1) for op in _REDUCING.split()),
    ("Clip", "x k: k:", {}, 20, 1),
    ("Clip", "x k:", {}, 20, 1),
    ("Conv", "x k:8,8,3,3", {}, 20, 1),
    ("Conv", "x k:8,8,3,3 k:8", {}, 20, 1),
    ("ConvTranspose", "x k:8,8,3,3 k:8", {}, 20, 1),
    ("MatMul", "m k:16,8", {}, 20, 1),
    ("Gemm", "m k:16,8 k:8", {}, 20, 1),
    ("Einsum", "v nn", {"equation": "ij,jk->ik"}, 20, 1),
    ("BatchNormalization", "x k:8 k:8 k:8 k:8", {}, 20, 1),
    ("InstanceNormalization", "x k:8 k:8", {}, 20, 1),
    ("LayerNormalization", "m k:16 k:16", {}, 20, 1),
    ("GroupNormalization", "x k:8 k:8", {"num_groups": 2}, 21, 1),
    ("RMSNormalization", "m k:16", {}, 23, 1),
    ("LRN", "x", {"size": 3}, 20, 1),
    ("LpPool", "x", {"kernel_shape": [2, 2]}, 20, 1),
    ("AveragePool", "x", {"kernel_shape": [2, 2]}, 20, 1),
    ("MaxPool", "x", {"kernel_shape": [2, 2]}, 20, 1),
    ("ArgMax", "x", {"axis": 1}, 20, 1),
    ("ArgMin", "x", {"axis": 1}, 20, 1),
    ("Concat", "x x", {"axis": 1}, 20, 1),
    ("Concat", "x k:x", {"axis": 1}, 20, 1),
    ("DepthToSpace", "x", {"blocksize": 2}, 20, 1),
    ("SpaceToDepth", "x", {"blocksize": 2}, 20, 1),
    ("Gather", "x i:0,1", {"axis": 1}, 20, 1),
    ("Gather", "u v", {}, 20, 1),
    ("GatherElements", "v i2:0,1,1,0", {}, 20, 1),
    ("GatherND", "v i2:0,1,1,0", {}, 20, 1),
    ("ScatterElements", "v i2:0,1,1,0 e", {"axis": 0}, 20, 1),
    ("ScatterND", "v i1:0,1 u", {}, 20, 1),
    ("Pad", "x i:0,0,1,1,0,0,1,1", {}, 20, 1),
    ("Pad", "x i:0,0,1,1,0,0,1,1 k:", {}, 20, 1),
    ("Reshape", "x i:1,-1", {}, 20, 1),
    ("Slice", "x i:0 i:4 i:1", {}, 20, 1),
    ("Split", "x i:4,4", {"axis": 1}, 20, 2),
    ("Squeeze", "x i:0", {}, 20, 1),
    ("Unsqueeze", "x i:0", {}, 20, 1),
    ("Transpose", "x", {"perm": [0, 2, 3, 1]}, 20, 1),
    ("Tile", "x i:1,1,2,2", {}, 20, 1),
    ("Expand", "bw i:8,16,16", {}, 20, 1),
    ("TopK", "m i:3", {}, 20, 2),
    ("CumSum", "v i0:1", {}, 20, 1),
    ("Upsample", "x f:1,1,2,2", {}, 9, 1),
    ("Resize", "x - f:1,1,2,2", {}, 20, 1),
    ("Resize", "x - k:4", {"mode": "linear"}, 20, 1),
    ("Resize", "x - - i:1,8,32,32", {}, 20, 1),
    *(("Cast", "x", {"to": kind}, 20, 1) for kind in (1, 2, 3, 5, 6, 7, 9, 10, 11, 16)),
    ("CastLike", "x k:1", {}, 20, 1),
    ("ConstantOfShape", "i:2,3", {}, 20, 1),
    ("EyeLike", "q", {}, 20, 1),
    ("EyeLike", "q", {"dtype": 10}, 20, 1),
    ("GridSample", "x g", {}, 20, 1),
    ("GRU", "s k:1,12,8 k:1,12,4 k:1,24", {"hidden_size": 4}, 20, 2),
    ("LSTM", "s k:1,16,8 k:1,16,4 k:1,32", {"hidden_size": 4}, 20, 3),
    ("RNN", "s k:1,4,8 k:1,4,4 k:1,8", {"hidden_size": 4}, 20, 2),
    ("GRU", "s k:1,12,8 k:1,12,4 - l:5", {"hidden_size": 4}, 20, 2),
    ("LSTM", "s k:1,16,8 k:1,16,4 - l:5", {"hidden_size": 4}, 20, 3),
    ("RNN", "s k:1,4,8 k:1,4,4 - i:5", {"hidden_size": 4}, 20, 2),
    ("OneHot", "n i0:5 k:2", {"axis": -1}, 20, 1),
    ("Range", "k0: k6: k:", {}, 20, 1),
    ("ReverseSequence", "r i:4,3", {"batch_axis": 1, "time_axis": 0}, 20, 1),
    ("Where", "b x x", {}, 20, 1),
    ("Where", "x x x", {}, 20, 1),
    ("Trilu", "q", {}, 20, 1),
    ("NonMaxSuppression", "bx sc i0:3", {}, 20, 1),
    ("NonMaxSuppression", "bx sc i0:3 k: k:", {}, 20, 1),
    ("Attention", "h h h", {}, 23, 1),
    ("Attention", "h h h mask", {}, 23, 1),
    ("RotaryEmbedding", "h k:16,8 k:16,8 n2", {}, 23, 1),
    ("TensorScatter", "h up i:3", {}, 24, 1),
    ("RandomUniform", "", {"shape": [2, 3]}, 20, 1),
    ("RandomNormal", "", {"shape": [2, 3], "dtype": 10}, 20, 1),
    ("RandomUniformLike", "q", {}, 20, 1),
    ("RandomNormalLike", "q", {"dtype": 10}, 20, 1),
    ("BlackmanWindow", "i0:8", {}, 20, 1),
    ("STFT", "t i0:16 k:16 i0:16", {}, 20, 1),
    ("Mod", "x x", {}, 20, 1),
    ("Swish", "x", {}, 24, 1),
    ("QuantizeLinear", "x k:", {}, 21, 1),
    ("QuantizeLinear", "x k: z8", {}, 21, 1),
    ("QuantizeLinear", "x k: zf8", {}, 21, 1),
    ("DequantizeLinear", "w8 k:", {}, 21, 1),
    ("DequantizeLinear", "w8 k:", {"output_dtype": 10}, 23, 1),
    ("DequantizeLinear", "w8 k: z8", {}, 21, 1),
    ("TRT_FP8QuantizeLinear", "x k:", {}, 21, 1),
    ("TRT_INT4QuantizeLinear", "m k:", {}, 21, 1),
)


@dataclass(frozen=True)
class TypedGraph:
    """One operator, the types of its inputs, and the graph."""

    name: str
    types: str
    model: onnx.ModelProto


def typed_graphs(full: bool = True) -> Iterator[TypedGraph]:
    """Every row with every type at all inputs, and with each input of another type than the rest.

    Args:
        full: whether all types are tried, or FP32, FP16 and BF16 and their mixtures alone.
    """
    for number, (op, inputs, attributes, opset, outputs) in enumerate(_ROWS):
        places = [word for word in inputs.split() if _takes_types(word)]
        for types in dict.fromkeys(_combinations(len(places), full)):
            model = _model(op, inputs.split(), types, attributes, opset, outputs)
            yield TypedGraph(f"{op} {number}", " ".join(types), model)


def _combinations(count: int, full: bool) -> Iterator[tuple[str, ...]]:
    if not count:
        yield ()
        return
    floats = ("f32", "f16", "bf16")
    yield from ((kind,) * count for kind in (TYPES if full else floats))
    for (rest, other), place in itertools.product(MIXED if full else MIXED[:3], range(count if count > 1 else 0)):
        yield tuple(other if index == place else rest for index in range(count))


def _takes_types(word: str) -> bool:
    head = word.partition(":")[0]
    return head in _SHAPES or head in ("k", "k0", "k6")


def _model(
    op: str, words: list[str], types: tuple[str, ...], attributes: dict[str, object], opset: int, outputs: int
) -> onnx.ModelProto:
    kinds = iter(types)
    given, stored, names = [], [], []
    for index, word in enumerate(words):
        name = "" if word == "-" else f"t{index}"
        names.append(name)
        head, _, rest = word.partition(":")
        if _takes_types(word):
            kind = TYPES[next(kinds)]
            if head in _SHAPES:
                given.append(helper.make_tensor_value_info(name, kind, _SHAPES[head]))
            else:
                stored.append(_constant(name, head, rest, kind, op))
        elif head in ("b", "n", "n2"):
            kind = TensorProto.BOOL if head == "b" else TensorProto.INT64
            given.append(helper.make_tensor_value_info(name, kind, {"b": _SHAPES["x"], "n": (4,), "n2": (1, 8)}[head]))
        elif name:
            stored.append(_fixed(name, head, rest))
    made = [f"y{index}" for index in range(outputs)]
    domain = "trt" if op.startswith("TRT_") else ""
    node = helper.make_node(op, names, made, name=op, domain=domain, **attributes)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in made
    ]  # INT32 alone must be declared
    graph = helper.make_graph([node], "typed", given, ends, stored)
    return helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("trt", 1)]
    )


def _constant(name: str, head: str, shape: str, kind: int, op: str) -> onnx.TensorProto:
    """A constant of small positive numbers: halves, or ones where the type has no halves."""
    dims = _SHAPES[shape] if shape in _SHAPES else tuple(int(side) for side in shape.split(",") if side)
    count = int(np.prod(dims)) if dims else 1
    floats = kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
    value = {"k0": 0, "k6": 6}.get(head, 0.5 if floats and op != "Range" else 1)
    values = [1, 1, 2, 2] if op == "Resize" else [value] * count
    return helper.make_tensor(name, kind, dims, [float(one) if floats else int(one) for one in values])


def _fixed(name: str, head: str, numbers: str) -> onnx.TensorProto:
    values = [float(one) for one in numbers.split(",") if one]
    if head == "f":
        return helper.make_tensor(name, TensorProto.FLOAT, [len(values)], values)
    if head in ("z8", "w8"):
        shape = _SHAPES["x"] if head == "w8" else ()
        return helper.make_tensor(name, TensorProto.INT8, shape, [int(head == "w8")] * int(np.prod(shape)))
    if head == "zf8":
        return helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, [], [0.0])
    if head == "l":
        return helper.make_tensor(name, TensorProto.INT32, [len(values)], [int(one) for one in values])
    shape = {"i": (len(values),), "i0": (), "i1": (2, 1), "i2": (2, 2)}[head]
    return helper.make_tensor(name, TensorProto.INT64, shape, [int(one) for one in values])
