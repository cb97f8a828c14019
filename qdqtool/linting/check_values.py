# SPDX-License-Identifier: Apache-2.0
"""Checks of what a pair is in itself: its two halves, its zero point, its element type, what it stands on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, Node, Pair
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.lint_context import LintContext

_AGAIN = "qdqtool insert on the FP32 model with --data quantizes to symmetric int8"
# Types that pass through untouched: none of INT8's rules holds for them.
_OTHER_WORLDS = ("float8", "int4", "uint4", "float4", "int2", "uint2")


@check("Q003", "loose-end", "error")
def loose_end(subject: LintContext) -> Iterator[CheckFault]:
    """A QuantizeLinear without a DequantizeLinear behind it, or a DequantizeLinear whose integers no Q made.

    TensorRT takes Q and DQ as pairs, or a DQ on stored integers; it refuses a graph in which an operator reads the
    integers themselves. A DQ on an input of the network is Q022.
    """
    view = subject.view
    paired = {id(node) for pairs in view.pairs.values() for pair in pairs for node in pair.nodes}
    for node in view.every:
        if node.op == QUANTIZE and id(node) not in paired:
            unread = not view.consumers(node.outputs[0]) and not view.is_output(node.outputs[0])
            what = "nobody reads" if unread else "no DQ reads"
            message = f"its Q {node.name} makes integers that {what}, which TensorRT refuses"
            yield CheckFault(node.inputs[0], message, f"qdqtool lint --fix removes a Q nobody reads; {_AGAIN}", unread)
        if node.op == DEQUANTIZE and id(node) not in paired and node.inputs[0] not in view.inputs:
            maker = view.producers.get(node.inputs[0])
            made = "a body around this graph" if maker is None else f"{maker.op} {maker.name}"
            yield CheckFault(node.outputs[0], f"DQ {node.name} reads integers that {made} makes, not a Q", _AGAIN)
    for pairs in view.pairs.values():
        for pair in pairs:
            if pair.quantize is not None and (uses := view.consumers(pair.quantize.outputs[0])):
                reader = uses[0].node
                yield CheckFault(pair.tensor, f"{reader.op} {reader.name} reads the integers of its Q itself", _AGAIN)


@check("Q004", "asymmetric", "error")
def asymmetric(subject: LintContext) -> Iterator[CheckFault]:
    """A zero point that is not zero: asymmetric quantization.

    TensorRT's INT8 is symmetric: x = scale * q. An unsigned tensor with the zero point 128 everywhere is symmetric in
    disguise and belongs to Q005. The DLA of Orin takes asymmetric uint8 from TensorRT 10.11 on behind a parser flag.
    """
    for pair in _all_pairs(subject):
        zero = _zero_point(subject, pair)
        if zero is None or _foreign(zero) or zero.dtype == np.int32:
            continue
        middle = 128 if zero.dtype == np.uint8 else 0
        if np.any(zero != middle) and np.any(zero != 0):
            shown = (
                f"{int(zero.reshape(-1)[0])}" if zero.size == 1 else f"up to {int(np.abs(zero.astype(np.int64)).max())}"
            )
            yield CheckFault(pair.tensor, f"asymmetric: its zero point is {shown}, TensorRT takes 0 only", _AGAIN)


@check("Q005", "not-int8", "error")
def not_int8(subject: LintContext) -> Iterator[CheckFault]:
    """Quantized to uint8 or 16 bits, or by a Q without a zero point, which ONNX takes for uint8.

    TensorRT reads int8 only. With the zero point 128 throughout, uint8 holds the same numbers as int8 with 0:
    `--fix` writes those. A Q without a zero point is uint8 in ONNX and int8 in TensorRT's importer: the two disagree.
    Stored FP8, INT4 and smaller types are left alone.
    """
    for pair in _all_pairs(subject):
        zero = _zero_point(subject, pair)
        if zero is None:
            if pair.quantize is not None and _without_zero_point(pair.quantize):
                yield CheckFault(
                    pair.tensor,
                    "its Q has no zero point: uint8 in ONNX, int8 in TensorRT",
                    "give the Q and its DQ an int8 zero point of 0",
                    severity="warning",
                )
            continue
        if _foreign(zero) or zero.dtype in (np.int8, np.int32):
            continue
        shifted = zero.dtype == np.uint8 and bool(np.all(zero == 128)) and _may_be_shifted(pair)
        todo = "qdqtool lint --fix writes the same numbers as int8" if shifted else _AGAIN
        yield CheckFault(pair.tensor, f"quantized to {zero.dtype}, TensorRT takes int8", todo, shifted)


@check("Q006", "int32-bias", "error")
def integer_bias(subject: LintContext) -> Iterator[CheckFault]:
    """A bias behind Q/DQ: stored as int32 with a DQ, or rounded by a pair.

    TensorRT wants the bias in float and quantizes it inside, with scale = scale of the input * scale of the weight;
    an int32 DQ is refused. `--fix` stores the float values.
    """
    for node in subject.view.nodes:
        index = subject.words.biases.get(node.op)
        if index is None or len(node.inputs) <= index or not node.inputs[index]:
            continue
        pair = subject.pair_of.get(node.inputs[index])
        if pair is not None and subject.view.is_constant(pair.tensor):
            stored = "int32 behind a DQ" if pair.quantize is None else "rounded by a pair"
            todo = "qdqtool lint --fix stores it in float"
            yield CheckFault(pair.tensor, f"the bias of {node.op} {node.name} is {stored}", todo, fixable=True)


@check("Q022", "dq-only-input", "warning")
def dequantized_input(subject: LintContext) -> Iterator[CheckFault]:
    """A DequantizeLinear on an input of the network: an activation without a Q.

    The network is fed integers. TensorRT runs that with an INT8 input binding; no calibration cache can say it, and
    `peel` finds no float tensor of that name.
    """
    for node in subject.view.every:
        if node.op == DEQUANTIZE and node.inputs and node.inputs[0] in subject.view.inputs:
            message = f"an integer input that DQ {node.name} reads without a Q before it"
            yield CheckFault(node.inputs[0], message, "export the model with a float input")


@check("Q024", "pair-in-body", "error")
def pair_in_body(subject: LintContext) -> Iterator[CheckFault]:
    """Q/DQ inside the body of If, Loop or Scan, or inside a local function.

    TensorRT runs such bodies in float. Functions are written out by the importer, but no tool can name a tensor in
    one, so no cache can either.
    """
    for body in subject.view.bodies():
        number = sum(node.op in (QUANTIZE, DEQUANTIZE) for node in body.every)
        if number:
            yield CheckFault(body.scope, f"{number} Q/DQ nodes in a body of control flow", "export bodies in float")
    for function in subject.proto.functions:
        number = sum(proto.op_type in (QUANTIZE, DEQUANTIZE) for proto in function.node)
        if number:
            todo = "write functions out first: onnx.inliner.inline_local_functions"
            yield CheckFault(function.name, f"{number} Q/DQ nodes in a local function", todo, severity="warning")


@check("Q025", "integer-operator", "error")
def integer_operator(subject: LintContext) -> Iterator[CheckFault]:
    """An operator on integers, such as QLinearConv or DynamicQuantizeLinear.

    TensorRT imports none of them: INT8 is written with Q/DQ around float operators.
    """
    for node in subject.view.every:
        if node.op.rpartition("::")[2] in subject.words.integer:
            yield CheckFault(node.name, f"TensorRT imports no {node.op}", "quantize with Q/DQ: qdqtool insert")


def _all_pairs(subject: LintContext) -> Iterator[Pair]:
    for pairs in subject.view.pairs.values():
        yield from pairs


def _zero_point(subject: LintContext, pair: Pair) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
    """The zero point of either half; for stored integers without one a zero of their type."""
    for node in (pair.quantize, pair.dequantize):
        if node is not None and len(node.inputs) > 2 and node.inputs[2]:
            return subject.constant(node.inputs[2])
    if pair.quantize is None:
        stored = subject.view.constant_tensor(pair.dequantize.inputs[0])
        if stored is not None:
            return np.zeros((), onnx.helper.tensor_dtype_to_np_dtype(stored.data_type))
    return None


def _without_zero_point(node: Node) -> bool:
    given = len(node.inputs) > 2 and bool(node.inputs[2])
    return not given and not any(item.name == "output_dtype" and item.i for item in node.proto.attribute)


def _may_be_shifted(pair: Pair) -> bool:
    """Whether Q and DQ both have a zero point and nothing between or in them names the type."""
    nodes = [node for node in (pair.quantize, pair.dequantize) if node is not None]
    given = all(len(node.inputs) > 2 and node.inputs[2] for node in nodes)
    return given and not pair.between and not any(i.name == "output_dtype" for n in nodes for i in n.proto.attribute)


def _foreign(zero: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bool:
    return zero.dtype.name.startswith(_OTHER_WORLDS)
