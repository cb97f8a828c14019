# SPDX-License-Identifier: Apache-2.0
"""Which weights a format for weights alone quantizes, in blocks of which length. Activations have no points then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import onnx

from qdqtool.amax.weight_blocks import block_of
from qdqtool.display import counted
from qdqtool.formats import NumberFormat
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import output_axis, weight_dims, weight_index, weight_type
from qdqtool.match.plan import Point, Read, Refusal

FLOAT = onnx.TensorProto.FLOAT
RULE = "weight-blocks"


def weight_points(
    view: GraphView, row: NumberFormat, block: int | None, floats: Mapping[str, tuple[str, str]]
) -> tuple[list[Point], list[Refusal]]:
    """A point for each weight of the format's operators, and a refusal for each operator that keeps its weight.

    The blocks lie along the axis that the product sums over: of `block` values, or of the longest of the row's lengths
    that divides it. `floats`: first outputs of what stays in float -> rule and reason.
    """
    reads: dict[tuple[str, int, int], list[Read]] = {}
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
        else:
            reads.setdefault((view.root(node.inputs[1]), axis, length), []).append(Read(node.key, index))
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
    return points, refusals


def blocks_note(points: Iterable[Point]) -> tuple[str, ...]:
    """A sentence on how many weights have blocks of which length; none where no point has blocks."""
    lengths = Counter(point.block for point in points if point.block)
    said = (f"{counted(count, 'weight')} in blocks of {length}" for length, count in sorted(lengths.items()))
    return (f"one FP16 scale per block: {', '.join(said)}",) if lengths else ()
