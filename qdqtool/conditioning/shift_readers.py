# SPDX-License-Identifier: Apache-2.0
"""Who reads a tensor, and which of them can make up for a shift of it: these are shifted in groups, each for itself."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.conditioning.channel_map import why_shared
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.conditioning.point_consumers import PointConsumers, find_way
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import Point, Read
from qdqtool.passes.condition.correct import bias_site
from qdqtool.passes.condition.layout import readable
from qdqtool.rule_files import operator_set


@dataclass(frozen=True)
class ReadGroup:
    """Reads of one tensor that are shifted alike.

    Attributes:
        reads: them.
        readers: first outputs of the weighted operators that the values get to.
        pads: the zeros that these put around the tensor; () for none.
        behind: tensors that hold the values after a Concat, a pool and the like; empty where the weighted operators
            read the tensor itself.
    """

    reads: tuple[Read, ...]
    readers: tuple[str, ...]
    pads: tuple[int, ...] = ()
    behind: frozenset[str] = frozenset()


def group_reads(context: ConditionContext, point: Point, *, can_pad: bool = True) -> tuple[list[ReadGroup], str]:
    """The readers of a point that can make up for a shift, in groups; why there are none.

    Weighted operators that read it themselves are one group for each kind of pads. All that is read after a Concat, a
    pool and the like is one group, and none of its readers may pad. Any other reader, the Add of a residual block, say,
    goes on reading the tensor as it is.
    """
    view = context.view
    producer = view.producers.get(point.tensor)
    if producer is not None and producer.op == "MatMul" and weight_index(view, producer) is None:
        return [], "it is a product of two activations, whose channels are heads"  # few, each with values of all kinds
    direct: dict[tuple[int, ...], list[Read]] = {}
    moving: list[Read] = []
    refusals: list[str] = []
    for read in point.reads:
        way = find_way(view, context.flow, [read])
        if way.moves:
            moving.append(read)
        elif why := _why_not_there(view, way, can_pad=can_pad):
            refusals.append(why)
        else:
            direct.setdefault(pads_of(way.ends[0].node) or (), []).append(read)
    groups = [ReadGroup(tuple(own), tuple(read.node for read in own), pads) for pads, own in direct.items()]
    if moving:
        way = find_way(view, context.flow, moving)
        moves = operator_set("unchanged") | operator_set("resampling")
        computing = next((node for node in way.moves if node.op not in moves), None)
        if computing is not None:
            refusals.append(f"{computing.op} {computing.name} computes with its values")
        elif why := _why_not_there(view, way, can_pad=False):
            refusals.append(why)
        else:
            behind = frozenset(name for node in way.moves for name in node.outputs if name)
            groups.append(ReadGroup(tuple(moving), tuple(use.node.key for use in way.ends), (), behind))
    return groups, "" if groups else next(iter(refusals), "no operator with weights reads it")


def _why_not_there(view: GraphView, way: PointConsumers, *, can_pad: bool) -> str:
    """Why those at the end of a way cannot make up for a shift, "" where all can."""
    refusals = (_why_not(view, use.node, can_pad=can_pad) for use in way.ends)
    return why_shared(view, way) or next(filter(None, refusals), "")


def _why_not(view: GraphView, node: Node, *, can_pad: bool) -> str:
    """Why a weighted operator cannot make up for a shift of what it reads, "" where it can."""
    if not readable(view, node):
        return f"{node.op} {node.name} has a weight whose channels cannot be determined"
    pads = pads_of(node)
    if pads is None or (pads and not can_pad):
        return f"{node.op} {node.name} pads it with zeros, which a shift would move"
    return "" if bias_site(view, node) else f"{node.op} {node.name} has no bias that could make up for a shift"


def pads_of(node: Node) -> tuple[int, ...] | None:
    """The zeros that a weighted operator puts around what it reads, () for none; None where no Pad can do that."""
    if node.op == "ConvTranspose":
        return None
    automatic, pads = attribute(node, "auto_pad", "NOTSET"), attribute(node, "pads", ())
    if node.op != "Conv" or automatic == "VALID" or not isinstance(pads, (list, tuple)):
        return ()
    if automatic != "NOTSET":
        return None
    return tuple(map(int, pads)) if any(pads) else ()
