# SPDX-License-Identifier: Apache-2.0
"""Checks of products that build in float though they have Q/DQ: nothing warns, and each inference dequantizes a weight.

Measured with TensorRT for RTX, whose parser and builder are those of TensorRT 11: warnings for both. TensorRT 8 to 10
may build otherwise, so there, and where no version is asked for, they are notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qdqtool.graph.view import Node
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext
from qdqtool.match.flow import value_names
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import FIRST_WITHOUT_CACHES

_TARGETS = ("gpu", "rtx")
_FLOAT = "built in float, its INT8 weight dequantized at each inference"
_SECOND = (
    "qdqtool insert, and graft with a cache, put a second pair after it: for --target rtx and from --trt-version 11 on"
)


def severity_of(context: LintContext) -> Severity:
    """A warning for TensorRT for RTX and from TensorRT 11 on, where it was asked for; else a note."""
    newer = context.asked is not None and context.asked.major >= FIRST_WITHOUT_CACHES[0]
    return "warning" if context.target == RTX_TARGET or newer else "note"


@check("Q035", "stopped-int8", "warning", targets=_TARGETS)
def stopped_int8(context: LintContext) -> Iterator[CheckFault]:
    """An operator that only copies values, but stops INT8, between a pair and the product that should read it.

    A DequantizeLinear does not travel through Resize, nearest neighbors or not. The product after is built in float,
    and its INT8 weight is dequantized by a kernel of its own at every inference. A second pair with the same scale
    after the operator repairs it, and rounds nothing twice. Operators that compute (AveragePool, ReduceMean, Relu, a
    constant Add) are Q013's. A warning for RTX and TensorRT 11, a note for 8 to 10. In a plain
    model a note says that `insert` would place it so for that version.
    """
    copies = load_rules(RTX_TARGET).commutes
    found = RuleIndex(copies, context.rules).nodes(context.view)
    stops = {id(node) for node, rule in found if rule.side == "both" and node.op != "Concat"}  # INT8 passes a Concat
    plain = not context.view.pairs
    points = {point.tensor for point in context.plan.activations} if plain else set[str]()

    def has_pair(name: str) -> bool:
        return name in context.pair_of or context.view.root(name) in points

    for node, index in context.weighted if stops else ():
        if node.key not in context.int8_nodes:
            continue
        between = _between(context, node.inputs[1 - index], stops, has_pair)
        if between is not None:
            reads = "would read" if plain else "reads"
            text = f"{node.op} {reads} its pair through {between.op} {between.name}: {_FLOAT}"
            yield CheckFault(node.name, text, _SECOND, severity="note" if plain else severity_of(context))


def _between(context: LintContext, name: str, stops: set[int], has_pair: Callable[[str], bool]) -> Node | None:
    """The first operator on the way back to the pairs that INT8 does not pass; None where one way is float anyway."""
    if not all(map(has_pair, context.flow.origins(name, has_pair))):
        return None
    stack, seen = [name], set[str]()
    while stack:
        tensor = stack.pop()
        if tensor in seen or has_pair(tensor):
            continue
        seen.add(tensor)
        producer = context.view.producers[tensor]
        if id(producer) in stops:
            return producer
        stack += value_names(producer)
    return None


@check("Q036", "vector-scale", "warning", targets=_TARGETS)
def vector_scale(context: LintContext) -> Iterator[CheckFault]:
    """A scale of shape [1] on an activation that a convolution reads: the convolution is built in float.

    TensorRT takes it for one scale per channel. A scalar has the same value; matrix products take both. A warning for
    RTX and TensorRT 11, a note for 8 to 10.
    """
    convolutions = {id(node) for node, index in context.weighted if node.op in ("Conv", "ConvTranspose")}
    for name, pairs in context.activation_pairs.items():
        for pair in pairs:
            scale = context.scale_of(pair)
            if scale is None or scale.shape != (1,):
                continue
            ends = (use.node for use in context.flow.ends(context.through(pair)))
            consumer = next((node for node in ends if id(node) in convolutions), None)
            if consumer is not None:
                text = f"its scale has the shape [1], not that of a scalar: {consumer.op} {consumer.name} is {_FLOAT}"
                yield CheckFault(name, text, "store the scale as a scalar", severity=severity_of(context))


@check("Q037", "int8-deconvolution", "warning", targets=_TARGETS)
def int8_deconvolution(context: LintContext) -> Iterator[CheckFault]:
    """A ConvTranspose with Q/DQ on its weight, or one that gets them: TensorRT for RTX has no INT8 kernel for it.

    It is built in float, and its weight is dequantized at every inference. `insert --target rtx` leaves it in float.
    That is a matter of kernels, which differ between the two: TensorRT documents INT8 transposed convolutions, and none
    was measured. A warning for RTX, a note for TensorRT. In a plain model a note says that `insert` would quantize it.
    """
    for node, index in context.weighted:
        if node.op != "ConvTranspose" or node.key not in context.int8_nodes:
            continue
        if context.has_int8_weight(node, index):
            text = f"ConvTranspose has Q/DQ on its weight: TensorRT for RTX runs it {_FLOAT}"
            severity: Severity = "warning" if context.target == RTX_TARGET else "note"
            yield CheckFault(node.name, text, "remove its pairs, or use insert --target rtx", severity=severity)
        elif not context.view.pairs:
            text = f"ConvTranspose would be quantized: TensorRT for RTX runs it {_FLOAT}"
            yield CheckFault(node.name, text, "insert --target rtx leaves it in float", severity="note")


@check("Q038", "one-sided-product", "warning", targets=_TARGETS)
def one_sided_product(context: LintContext) -> Iterator[CheckFault]:
    """A MatMul of two computed tensors of which only one comes in through Q/DQ.

    INT8 needs both. The product is built in float, the pair that is there only rounds, and an attention is no longer
    fused: incomplete pairs are worse than none. A warning for RTX and TensorRT 11, a note for 8 to 10.
    """
    for node in context.view.nodes:
        if node.op != "MatMul" or any(context.view.is_constant(name) for name in node.inputs):
            continue
        first, second = (context.carriers(name) is not None for name in node.inputs[:2])
        if first != second:
            text = f"MatMul has Q/DQ on {node.inputs[0 if first else 1]} only: built in float"
            yield CheckFault(node.name, text, "put pairs on both inputs or on neither", severity=severity_of(context))


@check("Q039", "float-sibling", "warning", targets=_TARGETS)
def float_sibling(context: LintContext) -> Iterator[CheckFault]:
    """A product that reads a tensor in float while another one reads the tensor's pair.

    The tensor is written twice, as INT8 and in float, and the product runs in float where INT8 is there already. Heads
    and what accuracy keeps in float are left out; one whose weight has Q/DQ is Q013's. A warning for RTX and
    TensorRT 11, a note for 8 to 10.
    """
    heads = {head.key for head in context.heads}
    int8 = {id(node) for node, index in context.weighted if context.has_int8_weight(node, index)}
    for node, index in context.weighted:
        name = node.inputs[1 - index]
        tensor = context.view.root(name)
        if id(node) in int8 or name in context.pair_of or tensor not in context.activation_pairs:
            continue
        if node.key in context.planned and node.key not in heads:
            siblings = (use.node for use in context.view.consumers(tensor) if id(use.node) in int8)
            sibling = next(siblings, None)
            if sibling is not None:
                text = f"{node.op} reads {tensor} in float, {sibling.op} {sibling.name} in INT8"
                yield CheckFault(node.name, text, context.way_to_pairs, severity=severity_of(context))
