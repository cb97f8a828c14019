# SPDX-License-Identifier: Apache-2.0
"""Checks of number formats beside INT8: how the compiler builds them, which versions and boards have them.

What is built was measured with TensorRT for RTX 1.7.1 for SM86, SM89 and SM120.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from qdqtool.display import named
from qdqtool.engine.engine_view import DYNAMIC
from qdqtool.forecasting.boards import boards_of
from qdqtool.formats import INT4, INT8, NVFP4, NumberFormat, number_formats
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Pair, attribute
from qdqtool.linting.check_silent_float import severity_of
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext
from qdqtool.passes.dynamic_blocks import block_scales
from qdqtool.rtxversion import RTX_TARGET

_TARGETS = ("gpu", "rtx")


@check("Q064", "format-build", "warning", targets=_TARGETS)
def format_build(context: LintContext) -> Iterator[CheckFault]:
    """Pairs that TensorRT for RTX builds in another format than they say, wrongly, or not at all.

    A weight in INT4 beside an activation in another format is no engine. A weight with scales in blocks along its depth
    beside an activation with a pair is summed first and scaled after: by its plan the engine computes something else;
    it was not run. Both are errors for RTX. An INT4 weight with FP32 scales in an FP16 network is dequantized by a
    kernel of its own. A Conv whose activation has a scale of shape [1] in place of () runs in float. Scales in E8M0 are
    refused by the parser. `TRT_QuantizedAttention` in INT8 is several layers. FP4 activations with constant scales are
    dequantized; `TRT_DynamicQuantize` in FP8 is parsed and no engine comes of it.
    """
    for name, pairs in context.activation_pairs.items():
        if any(context.format_of(pair) == NVFP4 for pair in pairs):
            text = "an activation in FP4 with constant scales is dequantized: the product runs in float"
            yield CheckFault(name, text, "write TRT_FP4DynamicQuantize", severity=severity_of(context))
    for node, index in context.weighted:
        weight = context.weight_pair(node, index)
        row = None if weight is None else context.format_of(weight)
        if weight is None or row is None:
            continue
        carriers = context.carriers(node.inputs[1 - index]) or []
        activation = context.format_of(carriers[0]) if carriers else None
        yield from _both_sides(context, node, (weight, row), activation)
        if row == INT4 and activation is None and _has_float32_scales(context, weight):
            text = f"the INT4 weight of {node.op} has FP32 scales: a kernel of its own dequantizes it"
            yield CheckFault(
                node.name, text, "store its scales in the type of the product", severity=severity_of(context)
            )
        scales = [scale for pair in carriers if (scale := context.scale_of(pair)) is not None]
        if node.op == "Conv" and activation == row and any(scale.shape == (1,) for scale in scales):
            text = "Conv runs in float: the scale of its activation has the shape [1]"
            yield CheckFault(node.name, text, "give the scale the shape ()", severity=severity_of(context))
    for node in context.file_view.every:
        if node.op == DEQUANTIZE:
            scale = context.file_view.constant_tensor(node.inputs[1])
            if scale is not None and scale.data_type == TensorProto.FLOAT8E8M0:
                text = "its scales are E8M0 (MXFP8), which TensorRT's parser refuses"
                yield CheckFault(node.name, text, "write TRT_MXFP8DequantizeLinear", severity="error")
        elif node.op == "trt::TRT_DynamicQuantize":
            text = "TensorRT for RTX parses this operator and builds no engine with it"
            yield CheckFault(node.name, text, "write FP8 pairs with constant scales", severity=_broken(context))
        elif node.op == "trt::TRT_QuantizedAttention":
            pairs = context.activation_pairs.get(context.view.root(node.inputs[0]), [])
            if any(context.format_of(pair) == INT8 for pair in pairs):
                text = "an attention in INT8 by this operator is several layers, one in FP8 is one kernel"
                todo = "quantize it to FP8, or write MatMul and Softmax with pairs"
                yield CheckFault(node.name, text, todo, severity=severity_of(context))


def _both_sides(
    context: LintContext, node: Node, weight: tuple[Pair, NumberFormat], activation: NumberFormat | None
) -> Iterator[CheckFault]:
    """A weight and an activation in formats that do not go together."""
    pair, row = weight
    if activation is None:
        return
    severity = _broken(context)
    if row != activation:
        effect = "TensorRT for RTX builds no engine of it" if row == INT4 else "the product runs in float"
        text = f"{node.op} reads {activation.title}, and its weight is {row.title}: {effect}"
        todo = f"quantize both to {activation.title}, or the weight alone"
        yield CheckFault(node.name, text, todo, severity=severity if row == INT4 else severity_of(context))
    elif row != NVFP4 and attribute(pair.dequantize, "block_size", 0):
        text = f"{node.op} reads {row.title}, and its weight has scales in blocks along the depth: "
        text += "TensorRT for RTX applies them after the sum (by its plan; it was not run)"
        todo = "take the pair off the activation, or give the weight one scale per output channel"
        yield CheckFault(node.name, text, todo, severity=severity)


def _broken(context: LintContext) -> Severity:
    """An error for TensorRT for RTX, where it was measured; elsewhere a warning."""
    return "error" if context.target == RTX_TARGET else "warning"


def _has_float32_scales(context: LintContext, pair: Pair) -> bool:
    """Whether a weight has FP32 scales in a network of halves."""
    scale = context.file_view.constant_tensor(pair.dequantize.inputs[1])
    return context.has_halves and scale is not None and scale.data_type == TensorProto.FLOAT


@check("Q065", "format-version", "error", targets=_TARGETS)
def format_version(context: LintContext) -> Iterator[CheckFault]:
    """A number format that the TensorRT that was asked for does not read. A note says which GPUs have the format.

    TensorRT reads FP8 from 9.1 on, INT4 from 10.0, FP4 from 10.8. FP8 needs compute capability 8.9, FP4 10.0, INT4 8.0:
    an Orin (8.7) has neither FP8 nor FP4, a Xavier (7.2) INT8 alone. Where the version is that of a JetPack or DRIVE OS
    all of whose boards lack the format, that is an error, too. TensorRT for RTX builds no engine for a GPU that lacks a
    format of the file.
    """
    asked = context.asked if context.target != RTX_TARGET else None
    boards = boards_of(asked.platform) if asked is not None else []
    for row in formats_in(context.file_view):
        since = ".".join(map(str, row.since))
        if asked is not None and (asked.major, asked.minor) < row.since:
            text = f"has {row.title}, which TensorRT reads from {since} on"
            yield CheckFault(context.model_place, text, f"build with TensorRT {since} or later, or quantize to INT8")
        elif boards and all(int(board.sm) < row.sm for board in boards):
            text = f"has {row.title}, which needs compute capability {row.sm / 10} or later: "
            text += f"{asked.platform if asked else ''} runs on {named([board.title for board in boards])}"
            yield CheckFault(context.model_place, text, "quantize to INT8")
        elif row.sm:
            text = f"has {row.title}, which needs a GPU of compute capability {row.sm / 10} or later"
            yield CheckFault(context.model_place, text, "", severity="note")


def formats_in(view: GraphView) -> list[NumberFormat]:
    """The formats of the codes that a graph stores or makes, INT8 apart, in the order of rules/formats.toml.

    Codes that are scales of blocks are part of the format of the blocks.
    """
    scales = {node.inputs[0] for node in block_scales(view)}
    codes = {int(tensor.data_type) for name, tensor in view.initializers.items() if name not in scales}
    names = set()
    for node in view.every:
        names |= {DYNAMIC.get(node.op, "")}
        if node.op == QUANTIZE:
            codes.add(int(str(attribute(node, "output_dtype", 0))))
        tensor = view.constant_tensor(node.key) if node.op == "Constant" else None
        codes |= set() if tensor is None else {int(tensor.data_type)}
    rows = number_formats().values()
    return [row for row in rows if row != INT8 and (row.element_type in codes or row.name in names)]
