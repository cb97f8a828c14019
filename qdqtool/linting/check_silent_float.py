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
_SECOND = "qdqtool insert --target rtx puts a second pair with the same scale behind it"


def severity_of(subject: LintContext) -> Severity:
    """A warning for TensorRT for RTX and from TensorRT 11 on, where it was asked for; else a note."""
    newer = subject.asked is not None and subject.asked.major >= FIRST_WITHOUT_CACHES[0]
    return "warning" if subject.target == RTX_TARGET or newer else "note"


@check("Q035", "stopped-int8", "warning", targets=_TARGETS)
def stopped_int8(subject: LintContext) -> Iterator[CheckFault]:
    """An operator that only copies values, but stops INT8, between a pair and the product that should read it.

    A DequantizeLinear does not travel through Resize, nearest neighbors or not. The product behind is built in float,
    and its INT8 weight is dequantized by a kernel of its own at every inference. A second pair with the same scale
    behind the operator repairs it, and rounds nothing twice. Operators that compute (AveragePool, ReduceMean, Relu, a
    constant Add) are Q013's. A warning for RTX and TensorRT 11, a note for 8 to 10. In a plain
    model a note says that `insert` would place it so for that version.
    """
    copies = load_rules(RTX_TARGET).commutes
    found = RuleIndex(copies, subject.rules).nodes(subject.view)
    stops = {id(node) for node, rule in found if rule.side == "both" and node.op != "Concat"}  # INT8 passes a Concat
    plain = not subject.view.pairs
    points = {point.tensor for point in subject.plan.activations} if plain else set[str]()

    def has_pair(name: str) -> bool:
        return name in subject.pair_of or subject.view.root(name) in points

    for node, index in subject.weighted if stops else ():
        if node.key not in subject.int8_nodes:
            continue
        between = _between(subject, node.inputs[1 - index], stops, has_pair)
        if between is not None:
            reads = "would read" if plain else "reads"
            text = f"{node.op} {reads} its pair through {between.op} {between.name}: {_FLOAT}"
            yield CheckFault(node.name, text, _SECOND, severity="note" if plain else severity_of(subject))


def _between(subject: LintContext, name: str, stops: set[int], has_pair: Callable[[str], bool]) -> Node | None:
    """The first operator on the way back to the pairs that INT8 does not pass; None where one way is float anyway."""
    if not all(map(has_pair, subject.flow.origins(name, has_pair))):
        return None
    stack, seen = [name], set[str]()
    while stack:
        tensor = stack.pop()
        if tensor in seen or has_pair(tensor):
            continue
        seen.add(tensor)
        maker = subject.view.producers[tensor]
        if id(maker) in stops:
            return maker
        stack += value_names(maker)
    return None


@check("Q036", "vector-scale", "warning", targets=_TARGETS)
def vector_scale(subject: LintContext) -> Iterator[CheckFault]:
    """A scale of shape [1] on an activation that a convolution reads: the convolution is built in float.

    TensorRT takes it for one scale per channel. A scalar has the same value; matrix products take both. A warning for
    RTX and TensorRT 11, a note for 8 to 10.
    """
    convolutions = {id(node) for node, index in subject.weighted if node.op in ("Conv", "ConvTranspose")}
    for name, pairs in subject.activation_pairs.items():
        for pair in pairs:
            scale = subject.scale_of(pair)
            if scale is None or scale.shape != (1,):
                continue
            ends = (use.node for use in subject.flow.ends(subject.through(pair)))
            reader = next((node for node in ends if id(node) in convolutions), None)
            if reader is not None:
                text = f"its scale has the shape [1], not that of a scalar: {reader.op} {reader.name} is {_FLOAT}"
                yield CheckFault(name, text, "store the scale as a scalar", severity=severity_of(subject))


@check("Q037", "int8-deconvolution", "warning", targets=_TARGETS)
def int8_deconvolution(subject: LintContext) -> Iterator[CheckFault]:
    """A ConvTranspose with Q/DQ on its weight, or one that gets them: TensorRT for RTX has no INT8 kernel for it.

    It is built in float, and its weight is dequantized at every inference. `insert --target rtx` leaves it in float.
    That is a matter of kernels, which differ between the two: TensorRT documents INT8 transposed convolutions, and none
    was measured. A warning for RTX, a note for TensorRT. In a plain model a note says that `insert` would quantize it.
    """
    for node, index in subject.weighted:
        if node.op != "ConvTranspose" or node.key not in subject.int8_nodes:
            continue
        if subject.has_int8_weight(node, index):
            text = f"ConvTranspose has Q/DQ on its weight: TensorRT for RTX has it {_FLOAT}"
            severity: Severity = "warning" if subject.target == RTX_TARGET else "note"
            yield CheckFault(node.name, text, "take its pairs away, or insert --target rtx", severity=severity)
        elif not subject.view.pairs:
            text = f"ConvTranspose would be quantized: TensorRT for RTX has it {_FLOAT}"
            yield CheckFault(node.name, text, "insert --target rtx leaves it in float", severity="note")


@check("Q038", "one-sided-product", "warning", targets=_TARGETS)
def one_sided_product(subject: LintContext) -> Iterator[CheckFault]:
    """A MatMul of two computed tensors of which only one comes in through Q/DQ.

    INT8 needs both. The product is built in float, the pair that is there only rounds, and an attention is no longer
    fused: incomplete pairs are worse than none. A warning for RTX and TensorRT 11, a note for 8 to 10.
    """
    for node in subject.view.nodes:
        if node.op != "MatMul" or any(subject.view.is_constant(name) for name in node.inputs):
            continue
        first, second = (subject.carriers(name) is not None for name in node.inputs[:2])
        if first != second:
            text = f"MatMul has Q/DQ on {node.inputs[0 if first else 1]} only: built in float"
            yield CheckFault(node.name, text, "put pairs on both inputs or on neither", severity=severity_of(subject))


@check("Q039", "float-sibling", "warning", targets=_TARGETS)
def float_sibling(subject: LintContext) -> Iterator[CheckFault]:
    """A product that reads a tensor in float while another one reads the tensor's pair.

    The tensor is written twice, as INT8 and in float, and the product runs in float where INT8 is there already. Heads
    and what accuracy keeps in float are left out; one whose weight has Q/DQ is Q013's. A warning for RTX and
    TensorRT 11, a note for 8 to 10.
    """
    heads = {head.key for head in subject.heads}
    int8 = {id(node) for node, index in subject.weighted if subject.has_int8_weight(node, index)}
    for node, index in subject.weighted:
        name = node.inputs[1 - index]
        tensor = subject.view.root(name)
        if id(node) in int8 or name in subject.pair_of or tensor not in subject.activation_pairs:
            continue
        if node.key in subject.planned and node.key not in heads:
            siblings = (use.node for use in subject.view.consumers(tensor) if id(use.node) in int8)
            sibling = next(siblings, None)
            if sibling is not None:
                text = f"{node.op} reads {tensor} in float, {sibling.op} {sibling.name} in INT8"
                yield CheckFault(node.name, text, "qdqtool insert --requantize", severity=severity_of(subject))
