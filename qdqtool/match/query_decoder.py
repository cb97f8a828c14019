# SPDX-License-Identifier: Apache-2.0
"""The decoder of a detector by queries (DETR and its descendants): which weighted operators compute for each query.

Queries are constants, or tokens that a TopK picked. They attend to the image (a Softmax between two products, or a
look-up at places that they compute), and boxes that are bounded or refined are made of them: without all three there
is no decoder. What is made of queries is the decoder's. The projections of the image's own tokens (keys, values, those
of deformable attention) are not: they see each token, cost most of the products, and keep INT8.
"""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.graph.heads import Head, nodes_behind, outputs_of
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import is_product, weight_dims, weight_index
from qdqtool.match.sizes import gives_sizes, made_of_sizes
from qdqtool.rule_files import operator_set
from qdqtool.rule_kinds import HeadRules

_PICKS = "TopK"
_SAMPLES = "GridSample"  # reads a reference as a place, and gives features
_LOOK_UPS = frozenset({_SAMPLES, "Gather", "GatherElements", "GatherND"})  # features, and places to read them at
# Between the product of queries and keys and the product with the values, beside moves and arithmetic: masks, limits.
_OF_SCORES = frozenset({"Cast", "Clip", "Max", "Min", "Softmax", "Tanh", "Where"})


def decoder_layers(view: GraphView, heads: Iterable[Head], rules: HeadRules) -> list[Node]:
    """The weighted operators that compute for each query, heads among them, in file order; none without box heads."""
    fixed, reached = made_of_sizes(view, constants=True), query_nodes(view, heads, rules)
    if not reached:
        return []
    return [
        node
        for node in view.nodes
        if weight_index(view, node) is not None and (node.key in reached or view.root(node.key) in fixed)
    ]


def query_nodes(view: GraphView, heads: Iterable[Head], rules: HeadRules) -> set[str]:
    """First outputs of all that computes for each query, whatever operators they are; none without box heads."""
    boxes = {head.key for head in heads if _is_box(view, head)}
    if not boxes:
        return set()
    fixed = made_of_sizes(view, constants=True)

    def onward(node: Node) -> list[str]:
        """A second stage that crops its regions out of the features computes for each region, not for each query."""
        ends = gives_sizes(node) or node.op.rpartition("::")[2] in rules.features
        return [] if ends else outputs_of(node)

    starts = [name for node in view.nodes if node.op == _PICKS for name in outputs_of(node)]
    asking = [node for node in view.nodes if _asks(view, node, fixed, rules)]
    starts += [name for node in asking for name in outputs_of(node)]
    behind = [*asking, *nodes_behind(view, starts, onward)]
    reached = {node.key for node in behind}
    weighted = [node for node in view.nodes if weight_index(view, node) is not None]
    found = any(node.key in boxes and (node.key in reached or view.root(node.key) in fixed) for node in weighted)
    return reached if found and (asking or _picked_attend(view, starts, behind, fixed, rules)) else set()


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
    """Whether a head is a linear layer that gives boxes: four numbers or four distributions, bounded or refined."""
    node = view.producer(head.key)
    index = None if node is None else weight_index(view, node)
    if node is None or index is None or node.op != "MatMul" or head.label not in ("regression", "mixed"):
        return False
    dims = weight_dims(view, node.inputs[index])
    return head.decoded and bool(dims) and dims[-1] % 4 == 0


def _asks(view: GraphView, node: Node, fixed: set[str], rules: HeadRules) -> bool:
    """Whether it is the first product of an attention of learned queries, which the image has no part in, to the image.

    Queries stand on the left, folded to a constant or not. What stands on the right is a layer's weight, which an
    exporter may leave to be computed from constants. Any other constant on the left is a transform or a mixing matrix.
    """
    if not is_product(node) or len(node.inputs) < 2:
        return False
    if weight_index(view, node) is not None:
        own = [weight_index(view, node) == 0, False]
    else:
        own = [view.root(name) in fixed or view.is_constant(name) for name in node.inputs[:2]]
    return own[0] and not own[1] and _gives_scores(view, node, rules)


def _picked_attend(view: GraphView, picked: list[str], behind: list[Node], fixed: set[str], rules: HeadRules) -> bool:
    """Whether picked tokens attend to other tokens: to keys, or at places that they compute."""
    made = {*picked, *(name for node in behind for name in outputs_of(node))}

    def is_memory(name: str) -> bool:
        root = view.root(name)
        return root not in made and root not in fixed and not view.is_constant(name)

    def onward(node: Node) -> list[str]:
        return [] if node.op == _PICKS or gives_sizes(node) else outputs_of(node)

    weighted = [name for node in behind if weight_index(view, node) is not None for name in outputs_of(node)]
    computed = {name for node in nodes_behind(view, weighted, onward) for name in onward(node)} | set(weighted)
    for node in behind:
        if len(node.inputs) < 2 or not is_memory(node.inputs[1 if is_product(node) else 0]):
            continue
        if is_product(node):
            if view.root(node.inputs[0]) in made and _gives_scores(view, node, rules):
                return True
        elif (node.op in _LOOK_UPS or "::" in node.op) and any(view.root(name) in computed for name in node.inputs[1:]):
            return True
    return False


def _gives_scores(view: GraphView, node: Node, rules: HeadRules) -> bool:
    """Whether a product's values are chances by a Softmax that another product reads on its left."""
    passing = rules.arithmetic | operator_set("moving") | _OF_SCORES
    stack, met = [(name, False) for name in outputs_of(node)], set[tuple[str, bool]]()
    while stack:
        name, chances = stack.pop()
        for use in view.consumers(name):
            if chances and is_product(use.node) and use.index == 0:
                return True
            if use.node.op in passing:
                onward = [(made, chances or use.node.op == "Softmax") for made in outputs_of(use.node)]
                stack += [one for one in onward if one not in met]
                met.update(onward)
    return False
