# SPDX-License-Identifier: Apache-2.0
"""Checks of what a pair is in itself: its two halves, its zero point, its element type, what it stands on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qdqtool.formats import INT8
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, Node, Pair
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext, is_other_format
from qdqtool.passes.fake_quantization import find_fake_quantization

_SYMMETRIC = "qdqtool insert --requantize --data quantizes to symmetric int8"
_AGAIN = "qdqtool insert on the FP32 model with --data quantizes to symmetric int8"
# Operators of TensorRT's own that make the numbers which a DequantizeLinear reads.
_QUANTIZERS = frozenset({"TRT_FP4DynamicQuantize", "TRT_MXFP8DynamicQuantize"})


@check("Q003", "loose-end", "error")
def loose_end(context: LintContext) -> Iterator[CheckFault]:
    """A QuantizeLinear without a DequantizeLinear after it, or a DequantizeLinear whose integers no Q made.

    TensorRT takes Q and DQ as pairs, or a DQ on stored integers; it refuses a graph in which a product reads the
    integers themselves. Integers that only move or go through MaxPool, or are an output of the network, are a note:
    TensorRT for RTX 1.7.1 builds them in INT8, and versions before 10.15 were not tried, so for those they stay an
    error. A DQ on an input of the network is Q022.
    """
    view = context.view
    paired = {id(node) for pairs in view.pairs.values() for pair in pairs for node in pair.nodes}
    for node in view.every:
        if node.op == QUANTIZE and id(node) not in paired:
            yield _quantize_alone(context, node)
        if node.op == DEQUANTIZE and id(node) not in paired and node.inputs[0] not in view.inputs:
            yield from _dequantize_alone(context, node)
    for pairs in view.pairs.values():
        for pair in pairs:
            if pair.quantize is not None and (uses := view.consumers(pair.quantize.outputs[0])):
                consumer = uses[0].node
                severity = _moved_severity(context, consumer)
                message = f"{consumer.op} {consumer.name} reads the integers of its Q directly"
                yield CheckFault(pair.tensor, message, _whole(context, consumer), severity=severity)


def _quantize_alone(context: LintContext, node: Node) -> CheckFault:
    """What a Q is that no DQ follows."""
    integers = node.inputs[0], node.outputs[0]
    uses = context.view.consumers(integers[1])
    if not uses and not context.view.is_output(integers[1]):
        message = f"its Q {node.name} makes integers that nothing reads, which TensorRT refuses"
        return CheckFault(
            integers[0], message, f"qdqtool lint --fix removes a Q that nothing reads; {_AGAIN}", fixable=True
        )
    if all(use.node.op == DEQUANTIZE for use in uses) and _reads_integers(context):
        message = f"its Q {node.name} makes integers that are an output of the network, which is built in INT8"
        return CheckFault(integers[0], message, "note that a calibration cache cannot express it", severity="note")
    severity = _moved_severity(context, *(use.node for use in uses))
    message = f"its Q {node.name} makes integers that no DQ reads, which TensorRT refuses"
    if severity is not None:
        message = f"its Q {node.name} makes integers that {uses[0].node.op} {uses[0].node.name} moves, built in INT8"
    return CheckFault(integers[0], message, _whole(context, *(use.node for use in uses)), severity=severity)


def _dequantize_alone(context: LintContext, node: Node) -> Iterator[CheckFault]:
    """What a DQ is whose integers no Q made; nothing where an operator of TensorRT's own made them."""
    producer = context.view.producers.get(node.inputs[0])
    if producer is not None and (producer.op == QUANTIZE or producer.op.rpartition("::")[2] in _QUANTIZERS):
        return  # a Q that is an output, too, is reported by itself
    made = "a subgraph around this graph" if producer is None else f"{producer.op} {producer.name}"
    severity = None if producer is None else _moved_severity(context, producer)
    message = f"DQ {node.name} reads integers that {made} makes, not a Q"
    todo = _AGAIN if producer is None else _whole(context, producer)
    yield CheckFault(node.outputs[0], message, todo, severity=severity)


def _moved_severity(context: LintContext, *nodes: Node) -> Severity | None:
    """A note where all that touches the integers moves them, for a parser that was seen to build that."""
    return "note" if nodes and _move(context, nodes) and _reads_integers(context) else None


def _move(context: LintContext, nodes: Sequence[Node]) -> bool:
    """Whether nodes only move integers or end them."""
    return all(context.flow.moves(node) or node.op == DEQUANTIZE for node in nodes)


def _whole(context: LintContext, *nodes: Node) -> str:
    """What to do about integers that nodes touch outside of pairs: pairs around those that move, by the same file."""
    return _SYMMETRIC if _move(context, nodes) else _AGAIN


def _reads_integers(context: LintContext) -> bool:
    """Whether the parser is one that was seen to build integers between a Q and its DQ."""
    asked = context.asked
    return context.target != "dla" and (asked is None or (asked.major, asked.minor) >= (10, 15))


@check("Q004", "asymmetric", "error")
def asymmetric(context: LintContext) -> Iterator[CheckFault]:
    """A zero point that is not zero: asymmetric quantization.

    TensorRT's INT8 and INT4 are symmetric: x = scale * q. An unsigned tensor with the zero point 128 everywhere is
    symmetric in disguise and belongs to Q005. The DLA of Orin takes asymmetric uint8 from TensorRT 10.11 on after a
    parser flag.
    """
    for pair in context.all_pairs:
        zero = context.zero_point(pair)
        if zero is None or zero.dtype == np.int32 or (is_other_format(zero) and zero.dtype.name != "int4"):
            continue
        middle = 128 if zero.dtype == np.uint8 else 0
        if np.any(zero != middle) and np.any(zero != 0):
            shown = (
                f"{int(zero.reshape(-1)[0])}" if zero.size == 1 else f"up to {int(np.abs(zero.astype(np.int64)).max())}"
            )
            yield CheckFault(pair.tensor, f"asymmetric: its zero point is {shown}, TensorRT takes 0 only", _SYMMETRIC)


@check("Q005", "not-int8", "error")
def not_int8(context: LintContext) -> Iterator[CheckFault]:
    """Quantized to uint8 or 16 bits, or by a Q without a zero point, which ONNX takes for uint8.

    TensorRT reads int8 only. With the zero point 128 throughout, uint8 holds the same numbers as int8 with 0:
    `--fix` writes those. With the zero point 0 TensorRT warns, reads uint8 as int8, and clips everything above 127
    times the scale. A Q without a zero point is uint8 in ONNX and int8 in TensorRT's importer: the two disagree.
    Stored FP8 (E4M3), INT4 and FP4 are left alone; E5M2 and unsigned INT4 are refused.
    """
    for pair in context.all_pairs:
        zero = context.zero_point(pair)
        if zero is None:
            if pair.quantize is not None and _without_zero_point(pair.quantize):
                yield CheckFault(
                    pair.tensor,
                    "its Q has no zero point: uint8 in ONNX, int8 in TensorRT",
                    "give the Q and its DQ an int8 zero point of 0",
                    severity="warning",
                )
            continue
        if is_other_format(zero) or zero.dtype == INT8.dtype or (zero.dtype == np.int32 and _is_bias(context, pair)):
            continue
        shifted = zero.dtype == np.uint8 and bool(np.all(zero == 128)) and _may_be_shifted(pair)
        todo = "qdqtool lint --fix writes the same numbers as int8" if shifted else _SYMMETRIC
        text = f"quantized to {zero.dtype}, TensorRT takes int8{_silently(pair, zero)}"
        yield CheckFault(pair.tensor, text, todo, shifted)


def _silently(pair: Pair, zero: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    """What TensorRT does where it does not refuse the type; "" where it refuses it."""
    if pair.quantize is None or np.any(zero):
        return ""
    reasons = {
        "uint8": ": it warns, and clips everything above 127 times the scale",
        "int32": ": it warns, and takes that",
    }
    return reasons.get(str(zero.dtype), "")


def _is_bias(context: LintContext, pair: Pair) -> bool:
    """Whether all that reads a pair reads it as a bias, which Q006 tells of."""
    reads = context.through(pair)
    return bool(reads) and all(context.words.biases.get(use.node.op) == use.index for use in reads)


@check("Q006", "int32-bias", "error")
def integer_bias(context: LintContext) -> Iterator[CheckFault]:
    """A bias after Q/DQ: stored as int32 with a DQ, or rounded by a pair.

    TensorRT needs the bias in float and quantizes it inside, with scale = scale of the input * scale of the weight;
    an int32 DQ is refused. A bias rounded to int8 is a warning: it is built, and costs accuracy only. `--fix` stores
    the float values.
    """
    for node in context.view.nodes:
        index = context.words.biases.get(node.op)
        if index is None or len(node.inputs) <= index or not node.inputs[index]:
            continue
        pair = context.pair_of.get(node.inputs[index])
        if pair is not None and context.view.is_constant(pair.tensor):
            zero = context.zero_point(pair)
            kind = "integers" if zero is None else str(zero.dtype)
            stored = f"{kind} with a DQ" if pair.quantize is None else "rounded by a pair"
            todo = "qdqtool lint --fix stores it in float"
            text = f"the bias of {node.op} {node.name} is {stored}"
            built: Severity | None = "warning" if kind == "int8" or pair.quantize is not None else None
            yield CheckFault(pair.tensor, text, todo, fixable=True, severity=built)


@check("Q022", "dq-only-input", "warning")
def dequantized_input(context: LintContext) -> Iterator[CheckFault]:
    """A DequantizeLinear on an input of the network: an activation without a Q.

    The network is fed integers. TensorRT runs that with an INT8 input binding; no calibration cache can say it, and
    `peel` finds no float tensor of that name.
    """
    for node in context.view.every:
        if node.op == DEQUANTIZE and node.inputs and node.inputs[0] in context.view.inputs:
            message = f"an integer input that DQ {node.name} reads without a Q before it"
            yield CheckFault(node.inputs[0], message, "export the model with a float input")


@check("Q024", "pair-in-body", "error")
def pair_in_body(context: LintContext) -> Iterator[CheckFault]:
    """Q/DQ inside the body of If, Loop or Scan, or inside a local function.

    TensorRT runs such bodies in float. Functions are written out by the importer, but no tool can name a tensor in
    one, so no cache can either.
    """
    for body in context.view.bodies():
        number = sum(node.op in (QUANTIZE, DEQUANTIZE) for node in body.every)
        if number:
            yield CheckFault(
                body.scope, f"{number} Q/DQ nodes in a subgraph (If, Loop, Scan)", "export subgraphs in float"
            )
    for function in context.proto.functions:
        number = sum(proto.op_type in (QUANTIZE, DEQUANTIZE) for proto in function.node)
        if number:
            todo = "inline functions first: onnx.inliner.inline_local_functions"
            yield CheckFault(function.name, f"{number} Q/DQ nodes in a local function", todo, severity="warning")


@check("Q025", "integer-operator", "error")
def integer_operator(context: LintContext) -> Iterator[CheckFault]:
    """An operator on integers, such as QLinearConv or DynamicQuantizeLinear.

    TensorRT imports none of them: INT8 is written with Q/DQ around float operators.
    """
    for node in context.view.every:
        if node.op.rpartition("::")[2] in context.words.integer:
            yield CheckFault(node.name, f"TensorRT imports no {node.op}", "quantize with Q/DQ: qdqtool insert")


@check("Q059", "fake-quantization", "warning")
def fake_quantization(context: LintContext) -> Iterator[CheckFault]:
    """Fake quantization that the exporter wrote as arithmetic: Div, Round, Clip, Mul in place of Q and DQ.

    TensorRT builds such arithmetic in float. `--fix` writes Q/DQ with the file's own scales, bit for bit, where the
    integers are symmetric; `insert`, `peel` and `graft` read all of it as Q/DQ.
    """
    for chain in find_fake_quantization(context.file_view):
        text = f"fake quantization written as arithmetic ({chain.describe()}): TensorRT builds it in float"
        fixable = bool(chain.kind) and chain.symmetric and context.file_view is context.view
        todo = "qdqtool lint --fix writes Q/DQ with its own scale" if fixable else _SYMMETRIC if chain.kind else _AGAIN
        yield CheckFault(chain.output, text, todo, fixable)


def _without_zero_point(node: Node) -> bool:
    given = len(node.inputs) > 2 and bool(node.inputs[2])
    return not given and not any(item.name == "output_dtype" and item.i for item in node.proto.attribute)


def _may_be_shifted(pair: Pair) -> bool:
    """Whether Q and DQ both have a zero point and nothing between or in them names the type."""
    nodes = [node for node in (pair.quantize, pair.dequantize) if node is not None]
    given = all(len(node.inputs) > 2 and node.inputs[2] for node in nodes)
    return given and not pair.between and not any(i.name == "output_dtype" for n in nodes for i in n.proto.attribute)
