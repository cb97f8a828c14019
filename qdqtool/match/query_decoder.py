# SPDX-License-Identifier: Apache-2.0
"""The decoder of a detector by queries (DETR and its descendants): which weighted operators compute for each query.

Queries are constants that attend to the image, or tokens that a TopK picked; what is made of them is the decoder's.
The projections of the image's own tokens (keys, values, those of deformable attention) are not: they see each token,
cost most of the products, and keep INT8.
"""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.graph.heads import Head, nodes_behind, outputs_of
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import is_product, weight_dims, weight_index
from qdqtool.match.sizes import gives_sizes, made_of_sizes
from qdqtool.rule_kinds import HeadRules

_PICKS = "TopK"
_SAMPLES = "GridSample"  # reads a reference as a place, and gives features


def decoder_layers(view: GraphView, heads: Iterable[Head], rules: HeadRules) -> list[Node]:
    """The weighted operators that compute for each query, heads among them, in file order; none without box heads.

    Args:
        view: the graph; pairs are seen through.
        heads: what `find_heads` found.
        rules: the words by which it did.
    """
    fixed, reached = made_of_sizes(view, constants=True), query_nodes(view, heads, rules)
    if not reached:
        return []
    return [
        node
        for node in view.nodes
        if weight_index(view, node) is not None and (node.key in reached or view.root(node.key) in fixed)
    ]


def query_nodes(view: GraphView, heads: Iterable[Head], rules: HeadRules) -> set[str]:
    """First outputs of all that computes for each query, whatever operators they are; none without box heads.

    Args:
        view: the graph; pairs are seen through.
        heads: what `find_heads` found.
        rules: the words by which it did.
    """
    boxes = {head.key for head in heads if _is_box(view, head)}
    if not boxes:
        return set()
    fixed = made_of_sizes(view, constants=True)

    def onward(node: Node) -> list[str]:
        """A second stage that crops its regions out of the features computes for each region, not for each query."""
        ends = gives_sizes(node) or node.op.rpartition("::")[2] in rules.features
        return [] if ends else outputs_of(node)

    starts = [name for node in view.nodes if node.op == _PICKS for name in outputs_of(node)]
    asking = [node for node in view.nodes if _asks(view, node, fixed)]
    starts += [name for node in asking for name in outputs_of(node)]
    reached = {node.key for node in (*asking, *nodes_behind(view, starts, onward))}
    weighted = (node for node in view.nodes if weight_index(view, node) is not None)
    found = any(node.key in boxes and (node.key in reached or view.root(node.key) in fixed) for node in weighted)
    return reached if found else set()


def reference_readers(view: GraphView, heads: Iterable[Head]) -> list[Node]:
    """Weighted operators that read the boxes of a layer, or what is computed of them, as the next layer's references.

    In file order. A box in 256 steps moves every query's place, so that these must not read INT8 either.
    """

    def onward(node: Node) -> list[str]:
        ends = node.op in (_SAMPLES, _PICKS) or is_product(node) or gives_sizes(node)
        return [] if ends else outputs_of(node)

    boxes = [head.key for head in heads if _is_box(view, head)]
    reached = {id(node) for node in nodes_behind(view, boxes, onward) if weight_index(view, node) is not None}
    return [node for node in view.nodes if id(node) in reached]


def _is_box(view: GraphView, head: Head) -> bool:
    """Whether a head is a linear layer that gives boxes: four numbers, or four distributions."""
    node = view.producer(head.key)
    index = None if node is None else weight_index(view, node)
    if node is None or index is None or node.op != "MatMul" or head.label not in ("regression", "mixed"):
        return False
    dims = weight_dims(view, node.inputs[index])
    return bool(dims) and dims[-1] % 4 == 0


def _asks(view: GraphView, node: Node, fixed: set[str]) -> bool:
    """Whether it is a product of what the image has no part in, such as learned queries, with what it has.

    Queries stand on the left, folded to a constant or not. What stands on the right is a layer's weight, which an
    exporter may leave to be computed from constants.
    """
    if not is_product(node) or len(node.inputs) < 2:
        return False
    if weight_index(view, node) is not None:
        return weight_index(view, node) == 0
    own = [view.root(name) in fixed or view.is_constant(name) for name in node.inputs[:2]]
    return own[0] and not own[1]
