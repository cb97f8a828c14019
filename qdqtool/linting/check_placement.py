# SPDX-License-Identifier: Apache-2.0
"""Checks of where pairs stand: inside a fused group, around a residual Add, after a head, on sizes, or for nobody."""

from __future__ import annotations

from collections.abc import Iterator, Set

from qdqtool.decisions import Decisions
from qdqtool.display import counted
from qdqtool.formats import INT8
from qdqtool.graph.edit import traced
from qdqtool.graph.heads import Head, nodes_before_weights, nodes_behind, outputs_of
from qdqtool.graph.view import Node, Pair, Use
from qdqtool.graph.weighted import is_depthwise
from qdqtool.linting.check_scales import is_cached
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext, is_other_format
from qdqtool.match.attention import find_attentions
from qdqtool.match.flow import Flow
from qdqtool.match.groups import Group
from qdqtool.match.sizes import made_of_sizes
from qdqtool.match.target_points import RULE as EVERY_TENSOR
from qdqtool.rtxversion import RTX_TARGET

_REMOVE = "qdqtool lint --fix removes the pair"
_PLACE_ANEW = "qdqtool insert --requantize with --data places all pairs anew; lint --fix leaves outputs as they are"
_GRAFTED_DECODE = (
    "graft with --float-heads regression leaves it out; qdqtool lint --fix removes it from a model in FP32"
)
_FLOAT_HEAD = "qdqtool lint --fix leaves it in float; qdqtool insert does so, too"
_GRAFTED_HEAD = "qdqtool lint --fix leaves it in float; graft with --float-heads regression does so, too"
_HALF_HEAD = "insert and graft leave it in FP16 with --float-heads regression; lint --fix leaves it in FP32"
_WEIGHT_HEAD = "qdqtool insert on the FP32 model leaves it in float"
_CACHED_HEAD = "to compare: graft with --float-heads regression, then evaluate both"


@check("Q001", "split-fusion", "warning", targets=("gpu", "rtx"))
def split_fusion(context: LintContext) -> Iterator[CheckFault]:
    """A pair inside what TensorRT fuses: between a convolution and its BatchNormalization, bias Add or activation.

    The fusion is split: the convolution writes INT8, the rest runs as a layer of its own in float, and the value is
    rounded once more. The pair belongs after the whole group. On the DLA every tensor needs a scale, so there it is
    right: a note tells of the pairs that `insert --target dla` placed.
    """
    for_dla = [pair for pair in context.all_pairs if _is_for_dla(pair)]
    if for_dla:
        text = (
            f"{counted(len(for_dla), 'pair')}, such as that of {for_dla[0].tensor}, placed for a DLA; a GPU fuses less"
        )
        yield CheckFault(context.model_place, text, "lint --target dla judges the model for the DLA", severity="note")
    for group, use, pair in split_reads(context):
        if _is_for_dla(pair):
            continue
        text = f"a Q/DQ pair between {group.start.op} {group.start.name} and the {use.node.op} that fuses with it"
        given = context.view.is_output(pair.dequantize.outputs[0])
        yield CheckFault(pair.tensor, text, _PLACE_ANEW if given else _REMOVE, fixable=not given)


def _is_for_dla(pair: Pair) -> bool:
    """Whether `insert` placed a pair since a DLA wants one on every tensor."""
    return pair.quantize is not None and traced(pair.quantize, "rule") == EVERY_TENSOR


def split_reads(context: LintContext) -> Iterator[tuple[Group, Use, Pair]]:
    """Group, read inside of it and pair by which that read goes; the residual Add's inputs are left to Q002."""
    for group in context.groups:
        inside = {name for node in group.nodes for name in node.outputs} - {group.output}
        add = None if group.residual is None else group.residual.node
        for node in group.nodes[1:]:
            for index, name in enumerate(node.inputs):
                pair = context.pair_of.get(name)
                if pair is not None and pair.tensor in inside and node is not add:
                    yield group, Use(node, index), pair


@check("Q002", "residual-add", "warning", targets=("gpu", "rtx"))
def residual_add(context: LintContext) -> Iterator[CheckFault]:
    """Q/DQ on both inputs of a residual Add that fuses with an INT8 convolution, or on neither.

    The precision of the other branch decides the type of the output: it must come in through Q/DQ. The branch that
    fuses must not. With pairs on both the Add becomes a layer of its own; with pairs on neither the convolution writes
    float. `--fix` takes the pair of the fused branch away; a missing one needs a scale. TensorRT for RTX builds as many
    layers and kernels either way, so there it is a note.
    """
    points = {point.tensor for point in context.plan.activations}
    severity: Severity | None = "note" if context.target == RTX_TARGET else None
    for group, fused, other in residual_reads(context):
        node = group.residual.node if group.residual else group.start
        if fused is not None and other:
            if _is_for_dla(context.pair_of[node.inputs[fused.index]]):
                continue  # Q001 names them
            text = f"{node.op} has Q/DQ on both inputs: it does not fuse with {group.start.op} {group.start.name}"
            todo = "qdqtool lint --fix removes the pair of the fused branch"
            yield CheckFault(node.name, text, todo, fixable=True, severity=severity)
        elif fused is None and not other and group.start.key in context.int8_nodes and group.output in points:
            text = f"{node.op} has Q/DQ on neither input: {group.start.op} {group.start.name} writes float"
            yield CheckFault(node.name, text, context.way_to_pairs, severity=severity)


def residual_reads(context: LintContext) -> Iterator[tuple[Group, Use | None, bool]]:
    """Group with a residual Add, the read of its fused branch if that goes through a pair, whether the other's does.

    A group of a convolution that stays in float is left out.
    """
    for group in context.groups:
        if group.residual is None or not context.view.pairs:
            continue
        add = group.residual.node
        mine = next((i for i in range(len(add.inputs)) if i != group.residual.index), None)
        fused = None if mine is None or add.inputs[mine] not in context.pair_of else Use(add, mine)
        yield group, fused, context.carriers(add.inputs[group.residual.index]) is not None


@check("Q007", "shape-path", "error")
def shape_path(context: LintContext) -> Iterator[CheckFault]:
    """Q/DQ on what holds sizes, places or counts, or in front of Shape.

    Rounded sizes and indices are wrong ones, and TensorRT refuses INT8 on shape tensors. In front of Shape a pair
    changes no value, but it keeps integers away from the operators after it.
    """
    for pair, use in shape_reads(context):
        if use.node.op in context.words.sizes:
            text = f"a Q/DQ pair before {use.node.op} {use.node.name}"
            yield CheckFault(pair.tensor, text, _REMOVE, fixable=True, severity="warning")
        else:
            text = f"a Q/DQ pair on sizes or indices, which {use.node.op} {use.node.name} reads"
            yield CheckFault(pair.tensor, text, _REMOVE, fixable=True)


def shape_reads(context: LintContext) -> Iterator[tuple[Pair, Use]]:
    """Every read of sizes, places or counts through a pair."""
    sizes, places = _sizes(context), _places(context)
    for node in context.view.nodes:
        for index, name in enumerate(node.inputs):
            pair = context.pair_of.get(name)
            if pair is None:
                continue
            if node.op in context.words.sizes or pair.tensor in sizes or (id(node), index) in places:
                yield pair, Use(node, index)


def _sizes(context: LintContext) -> set[str]:
    """Tensors that are sizes: what Shape gives, moved, cast or computed on, with nothing but sizes and constants."""
    view, words = context.view, context.words
    handles = context.rules.heads.arithmetic | words.roundings

    def handles_sizes(node: Node, known: Set[str]) -> bool:
        first = next(view.root(name) for name in node.inputs if name)
        return node.op in handles or (context.flow.moves(node) and first in known)

    return made_of_sizes(view, lambda node: node.op in words.sizes, follows=handles_sizes)


def _places(context: LintContext) -> set[tuple[int, int]]:
    """Reads whose value ends up as a place or size: (id of node, index), back across casts from float."""
    view = context.view
    roundings = context.words.roundings
    flow = Flow(view, lambda node: node.op in roundings or context.flow.moves(node))
    asked = [
        Use(node, index)
        for node in view.nodes
        for index in context.words.places.get(node.op, ())
        if index < len(node.inputs) and node.inputs[index]
    ]
    return {(id(use.node), use.index) for use, _ in flow.up(asked)}


@check("Q008", "quantized-decode", "error")
def quantized_decode(context: LintContext) -> Iterator[CheckFault]:
    """Q/DQ after a regression head: box coordinates rounded to 255 steps.

    The accuracy of boxes breaks, and the SQNR of the output hides it: on a face detector, pairs in the decode left
    182 of 290 faces where the outputs still had 39.7 dB. Where the values are only moved to the output it is a warning.
    """
    for head, use, pair in decode_reads(context):
        moved = context.flow.moves(use.node) or use.node.op in context.rules.heads.moves
        text = (
            f"a Q/DQ pair on box values after {head.name} ({head.label} head), which {use.node.op} "
            f"{use.node.name} reads"
        )
        todo = _GRAFTED_DECODE if is_cached(pair) else _REMOVE
        yield CheckFault(pair.tensor, text, todo, fixable=True, severity="warning" if moved else None)


def decode_reads(context: LintContext) -> Iterator[tuple[Head, Use, Pair]]:
    """Every read of box values through a pair, after a regression or mixed head and where nothing weighted follows.

    Constants of the decode are box values, too; what else an operator there reads, such as the image, is none.
    """
    view = context.view
    ends = nodes_before_weights(view, lambda node: filter(None, node.inputs))
    ends |= {id(node) for node, _ in context.weighted}
    ends |= {id(node) for node in view.nodes if node.op in context.words.sizes}
    met, values = set[int](), set[str]()
    for head in context.heads:
        if head.label in ("score", "last layer"):
            continue
        found = nodes_behind(view, [head.key], lambda node: [] if id(node) in ends else outputs_of(node), met)
        behind = list(found)
        values.update((head.key, *(name for node in behind for name in node.outputs)))
        for node in behind:
            for index, name in enumerate(node.inputs if id(node) not in ends else ()):
                pair = context.pair_of.get(name)
                if pair is not None and (pair.tensor in values or view.is_constant(pair.tensor)):
                    yield head, Use(node, index), pair


@check("Q009", "quantized-head", "warning")
def quantized_head(context: LintContext) -> Iterator[CheckFault]:
    """The last convolution before boxes runs in INT8.

    Regression heads cost little time and lose much in INT8, so TAO, Ultralytics and `insert` leave them in float.
    `--fix` gives the head its float weight back, in FP32. A head that `graft` made INT8 by a calibration cache may have
    been INT8 in its engine: it is a note and stays, as float is not always more accurate. For TensorRT 11
    `insert --float-heads regression` and `graft --float-heads regression` write FP16.
    """
    known = {node.key: (node, index) for node, index in context.weighted}
    for head in context.heads:
        node, index = known.get(head.key, (None, 0))
        weight = None if node is None else context.weight_pair(node, index)
        row = None if weight is None else context.format_of(weight)
        if node is not None and row is not None and head.label in ("regression", "mixed"):
            if row != INT8 and context.carriers(node.inputs[1 - index]) is None:
                continue  # the weight alone: the head computes in float
            pair = context.pair_of.get(node.inputs[index])
            text = f"a {head.label} head in {row.title} ({head.evidence})"
            if any(map(is_cached, context.carriers(node.inputs[1 - index]) or ())):
                text += ", for whose input the calibration cache has a scale"
                yield CheckFault(head.name, text, _CACHED_HEAD, severity="note")
                continue
            grafted = any(is_cached(one) for held in context.activation_pairs.values() for one in held)
            fixable = pair is not None and pair.quantize is not None
            todo = _HALF_HEAD if context.reads_types else _GRAFTED_HEAD if grafted else _FLOAT_HEAD
            yield CheckFault(head.name, text, todo if fixable else _WEIGHT_HEAD, fixable=fixable)


@check("Q013", "one-sided", "warning")
def one_sided(context: LintContext) -> Iterator[CheckFault]:
    """A weighted operator with Q/DQ on its weight only, or on its activation only.

    INT8 needs both. The operator runs in float, and the pair that is there only rounds. Weights in INT4, FP8 or FP4 are
    left out: TensorRT takes them without a pair on the activation. So are activations in these formats: `insert` leaves
    products in float that gain nothing in FP8, beside others that read the same tensor.
    """
    heads = {head.key for head in context.heads}
    for node, index in context.weighted:
        pair = context.weight_pair(node, index)
        zero = None if pair is None else context.zero_point(pair)
        if zero is not None and is_other_format(zero):
            continue
        weight = pair is not None
        carriers = context.carriers(node.inputs[1 - index])
        if weight and carriers is None:
            yield CheckFault(node.name, f"{node.op} has an INT8 weight, but no Q/DQ on its input", context.way_to_pairs)
            continue
        zeros = [context.zero_point(pair) for pair in carriers or ()]
        eight = carriers is not None and not any(zero is not None and is_other_format(zero) for zero in zeros)
        if eight and not weight and node.key in context.planned and node.key not in heads:
            yield CheckFault(node.name, f"{node.op} reads INT8, but its weight has no Q/DQ", context.way_to_pairs)


@check("Q019", "depthwise-silu", "error", trt=">=8.5,<9")
def depthwise_silu(context: LintContext) -> Iterator[CheckFault]:
    """A depthwise convolution with SiLU and a pair after it that nothing reads, on TensorRT 8.5 and 8.6.

    The build ends with "Could not find any implementation" (NVIDIA/TensorRT issue 3385: 8.5.2, and 8.6.2 by one more
    report) where the pair makes an output of the network. With a node after the pair it is built. `insert` makes no
    such pair.
    """
    if context.asked is None:
        return
    for group in context.groups:
        ops = [node.op for node in group.nodes]
        if "Sigmoid" not in ops or "Mul" not in ops or not is_depthwise(context.view, group.start):
            continue
        pairs = context.view.pairs.get(group.output)
        if group.start.key in context.int8_nodes and pairs and not context.view.consumers(group.output):
            text = (
                "depthwise convolution with SiLU and a Q/DQ pair after it that no layer reads: TensorRT finds no "
                "implementation"
            )
            yield CheckFault(group.start.name, text, f"remove the pair on {group.output}, or put an Identity after it")


@check("Q026", "idle-pair", "warning", targets=("gpu", "rtx"))
def idle_pair(context: LintContext) -> Iterator[CheckFault]:
    """A pair that no INT8 operator reads.

    It costs two kernels and a rounding and gains nothing: in front of Softmax, Sigmoid or another float operator, or
    on an output of the network. Pairs that Q001, Q007 or Q008 tell of are left to them, and so are those for a DLA.
    """
    reported = {(id(use.node), use.index) for _, use, _ in (*split_reads(context), *decode_reads(context))}
    reported |= {(id(use.node), use.index) for _, use in shape_reads(context)}
    for name, pair, consumers in idle_pairs(context):
        if _is_for_dla(pair):
            continue
        output, direct = pair.dequantize.outputs[0], context.through(pair)
        given = context.view.is_output(output) or output in context.view.captured
        if given or not direct or any((id(use.node), use.index) not in reported for use in direct):
            who = ", ".join(dict.fromkeys(f"{use.node.op} {use.node.name}" for use in consumers[:3]))
            text = f"no INT8 operator reads its pair{f', only {who}' if who else ''}"
            yield CheckFault(name, text, _PLACE_ANEW if given else _REMOVE, fixable=not given)


def idle_pairs(context: LintContext) -> Iterator[tuple[str, Pair, list[Use]]]:
    """Tensor, pair and final consumers of the pairs on activations that no INT8 operator reads.

    One that lacks only its weight's pair counts as INT8: Q013 tells of it.
    """
    floats = {id(node) for node, index in context.weighted if not context.has_int8_weight(node, index)}
    planned = {id(node) for node, _ in context.weighted if node.key in context.planned}
    takes = (context.int8_consumers - floats) | planned
    residual = {(id(g.residual.node), g.residual.index) for g in context.groups if g.residual is not None}
    attentions = {one.key for one in find_attentions(context.view, context.rules, "int8", Decisions()) if one.int8}
    for name, pairs in context.activation_pairs.items():
        for pair in pairs:
            zero = context.zero_point(pair)
            if name in attentions:
                continue  # the last pair of an attention, which its kernel takes in
            if zero is not None and is_other_format(zero):
                continue  # an FP8, FP4 or INT4 operator may read it
            ends = list(context.flow.ends(context.through(pair)))
            if any(use.node.op == "trt::TRT_QuantizedAttention" for use in ends):
                continue  # which takes pairs
            if not any(id(use.node) in takes or (id(use.node), use.index) in residual for use in ends):
                yield name, pair, ends


@check("Q028", "missing-scale", "note", targets=("gpu", "rtx"))
def missing_scale(context: LintContext) -> Iterator[CheckFault]:
    """A place where TensorRT takes INT8 and the model, which has Q/DQ elsewhere, has none.

    What reads it runs in float. It may be meant so; `insert` would quantize it.
    """
    if all(context.format_of(pair) != INT8 for pairs in context.view.pairs.values() for pair in pairs):
        return
    residual = {(g.residual.node.key, g.residual.index) for g in context.groups if g.residual is not None}
    for point in context.plan.activations:
        for read in point.reads:
            use = Use(context.view.producers[read.node], read.index)
            lacking = None if (read.node, read.index) in residual else _lacking(context, use)
            if lacking is not None:
                yield CheckFault(
                    point.tensor, f"no Q/DQ where {lacking.op} {lacking.name} takes INT8", context.way_to_pairs
                )


def _lacking(context: LintContext, use: Use) -> Node | None:
    """The operator that a read leads to, across what commutes, and that should have INT8 and has not; None if none.

    One whose own weight or output is in float counts where `insert` would quantize it, not where it found that another
    input is made in float; a lone INT8 weight is Q013's.
    """
    weights = context.weight_inputs
    direct = not context.flow.moves(use.node)
    for end in [use] if direct else context.flow.ends([use]):
        node = end.node
        if context.carriers(node.inputs[end.index]) is not None:
            continue
        if id(node) in weights:
            alone = context.has_int8_weight(node, weights[id(node)])
            if node.key in context.planned and not (alone and direct):
                return node
        elif node.name not in context.refused and _ends_in_int8(context, node):
            return node
    return None


def _ends_in_int8(context: LintContext, node: Node) -> bool:
    return id(node) in context.int8_consumers and any(name in context.view.pairs for name in node.outputs)
