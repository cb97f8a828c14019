# SPDX-License-Identifier: Apache-2.0
"""Which weights a format with blocks quantizes, in blocks of which length, and which activations beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx

from qdqtool.amax.weight_blocks import block_of
from qdqtool.display import counted
from qdqtool.errors import QdqError
from qdqtool.formats import NumberFormat
from qdqtool.graph.nodes import DYNAMIC_FP4
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import DEQUANTIZE, GraphView, Node, attribute
from qdqtool.graph.weighted import output_axis, weight_dims, weight_index, weight_type
from qdqtool.match.plan import Plan, Point, Read, Refusal

FLOAT = onnx.TensorProto.FLOAT
RULE = "weight-blocks"
_REASONS = 3  # for a weight in float that a note names
_DYNAMIC_RANKS = (2, 3)  # of what TRT_FP4DynamicQuantize takes: TensorRT for RTX 1.7.1 refuses four axes


def weight_points(
    view: GraphView, row: NumberFormat, block: int | None, floats: Mapping[str, tuple[str, str]]
) -> tuple[list[Point], list[Refusal]]:
    """A point for each weight of the format's operators, and a refusal for each operator that keeps its weight.

    The blocks lie along the axis that the product sums over: of `block` values, or of the longest of the row's lengths
    that divides it. `floats`: first outputs of what stays in float -> rule and reason. Where the format is for
    activations, too, what the products read has a point, unless it is quantized already.

    Raises:
        QdqError: a `block` that such a format does not have.
    """
    both = "activation" in row.roles
    if both and block is not None and block not in row.blocks:
        raise QdqError(
            f"--block {block}", f"{row.title} has blocks of {', '.join(map(str, row.blocks))}", "leave it out"
        )
    reads: dict[tuple[str, int, int], list[Read]] = {}
    fed: dict[tuple[str, int], list[Read]] = {}
    refusals = []
    for node in view.nodes:
        index = weight_index(view, node)
        if index is None:
            continue
        dims = weight_dims(view, node.inputs[index])
        axis = 1 - output_axis(node, index, 2)
        size = dims[axis] if len(dims) == 2 else 0
        length = block_of(size, row.blocks if block is None else (block,))
        title = row.title
        if node.key in floats:
            refusals.append(Refusal(node.name, *floats[node.key]))
        elif node.op not in row.operators:
            refusals.append(Refusal(node.name, RULE, f"{title} weights are for {' and '.join(row.operators)} alone"))
        elif index != 1 or len(dims) != 2:
            what = "is its first input" if index != 1 else f"has {len(dims)} axes"
            refusals.append(Refusal(node.name, RULE, f"its weight {what}: {title} takes two axes, as second input"))
        elif weight_type(view, node.inputs[index]) != FLOAT:
            refusals.append(Refusal(node.name, RULE, "its weight is not FP32"))
        elif not length:
            lengths = ", ".join(map(str, row.blocks if block is None else (block,)))
            reason = f"the {size} values that it sums over are not two or more blocks of {lengths}"
            refusals.append(Refusal(node.name, RULE, reason))
        elif both and (reason := _unfit_activation(view, node, row)):
            refusals.append(Refusal(node.name, RULE, reason))
        else:
            reads.setdefault((view.root(node.inputs[1]), axis, length), []).append(Read(node.key, index))
            if both and not _is_dynamic(view, node.inputs[0]):
                fed.setdefault((view.root(node.inputs[0]), length), []).append(Read(node.key, 0))
    points = [
        Point(
            name,
            "weight",
            tuple(sorted(found)),
            axis,
            RULE,
            f"{row.title} in blocks of {length} along axis {axis}",
            name,
            view.producers[found[0].node].name,
            format=row,
            block=length,
        )
        for (name, axis, length), found in reads.items()
    ]
    points += [
        Point(
            name,
            "activation",
            tuple(sorted(found)),
            None,
            RULE,
            f"{row.title} in blocks of {length}, whose scales are found at run time",
            name,
            "" if (maker := view.producers.get(name)) is None else maker.name,
            format=row,
            block=length,
        )
        for (name, length), found in fed.items()
    ]
    return points, refusals


def _unfit_activation(view: GraphView, node: Node, row: NumberFormat) -> str:
    """Why TensorRT cannot compute scales for blocks of what a product reads; "" where it can."""
    name = view.root(node.inputs[0])
    rank = len(known_shapes(view).get(name, ()))
    if attribute(node, "transA", 0):
        return "it reads its activation transposed, and blocks lie along the last axis"
    if rank not in _DYNAMIC_RANKS and not _is_dynamic(view, node.inputs[0]):
        what = f"has {rank} axes" if rank else "has axes that are not known"
        return f"its activation {what}, and {row.title} takes two or three"
    return ""


def _is_dynamic(view: GraphView, name: str) -> bool:
    """Whether a tensor comes out of blocks whose scales are found at run time."""
    node = view.producers.get(name)
    while node is not None and node.op == "Cast":
        node = view.producers.get(node.inputs[0])
    maker = view.producers.get(node.inputs[0]) if node is not None and node.op == DEQUANTIZE else None
    return maker is not None and maker.op == DYNAMIC_FP4


def blocks_notes(decided: Plan) -> tuple[str, ...]:
    """How many weights have blocks of which length, and why others have none; nothing where no point has blocks."""
    lengths = Counter(point.block for point in decided.weights if point.block)
    if not lengths:
        return ()
    said = (f"{counted(count, 'weight')} in blocks of {length}" for length, count in sorted(lengths.items()))
    kind = "FP8" if any(point.format.has_two_levels for point in decided.weights) else "FP16"
    note = f"one {kind} scale per block: {', '.join(said)}"
    reasons = Counter(one.reason for one in decided.refusals if one.rule == RULE)
    if not reasons:
        return (note,)
    few = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(_REASONS))
    few += f"; {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
    stay = "stay" if reasons.total() > 1 else "stays"
    return note, f"{counted(reasons.total(), 'weight')} {stay} in float ({few})"
