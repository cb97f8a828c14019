# SPDX-License-Identifier: Apache-2.0
"""Last weighted operators that are no detection heads: classifiers, layers over tokens, class maps, features.

Each test says what the graph shows; `heads.py` decides in which order they count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

import onnx

from qdqtool.graph.channels.sizes import TensorSizes
from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.graph.weighted import weight_dims, weight_index
from qdqtool.rule_files import operator_set
from qdqtool.rule_kinds import HeadRules

_INTEGERS = frozenset((onnx.TensorProto.INT32, onnx.TensorProto.INT64))
_CELL = 8  # pixels of the input along a side of one value, at most: detectors with one map have coarser ones
_CLASSES = 9  # fewer channels may be a depth, a flow, a picture, a box or its four corners
_NEAR = 8  # operators between a division and the sum of squares that it is by
# What stands between a length or a deviation and the division by it.
_OF_LENGTHS = frozenset(
    {"Sqrt", "Add", "Max", "Clip", "Expand", "Cast", "Reciprocal", "Unsqueeze", "Div", "Mul", "Pow"}
)
_LENGTHS = frozenset({"ReduceL2", "Sqrt"})


class LastLayers:
    """Tests of the last weighted operators of one graph."""

    def __init__(self, view: GraphView, rules: HeadRules, sizes: TensorSizes) -> None:
        self.view, self.rules, self.sizes = view, rules, sizes

    @cached_property
    def reads_tokens(self) -> bool:
        """Whether the network reads numbers of tokens: an integer input picks rows of a constant table."""
        picks = [use.node for name in self._integer_inputs() for use in self._reads(name)]
        return any(
            node.op == "Gather" and len(weight_dims(self.view, node.inputs[0])) == 2
            for node in picks
            if self.view.is_constant(node.inputs[0])
        )

    @cached_property
    def reads_tokens_alone(self) -> bool:
        """Whether it reads tokens, and no other input than integers: nothing in it is a detector's."""
        return self.reads_tokens and len(self._integer_inputs()) == len(self.view.inputs)

    def _integer_inputs(self) -> list[str]:
        return [
            value.name
            for value in self.view.graph.input
            if value.name not in self.view.initializers and value.type.tensor_type.elem_type in _INTEGERS
        ]

    def _reads(self, name: str) -> Iterable[Use]:
        for use in self.view.consumers(name):
            if use.node.op == "Cast":
                yield from self.view.consumers(use.node.key)
            else:
                yield use

    def is_over_sequence(self, node: Node) -> bool:
        """Whether it is a linear layer over a sequence of tokens or queries, not over one vector per image."""
        return node.op == "MatMul" and self.sizes.rank(node.key) != 2

    def gives_classes_of_tokens(self, node: Node, ops: Collection[str], boxes: Collection[str]) -> bool:
        """Whether raw values are classes of each token or query."""
        if self.reads_tokens_alone:
            return True
        plain = set(ops) <= self.rules.moves | operator_set("moving")
        if not plain or not self.is_over_sequence(node) or self.sizes.made_by_weight(node) in (None, 4):
            return False
        return self.reads_tokens or bool(set(boxes) - {node.key})

    def give_class_maps(self, nodes: Collection[Node], ops: Collection[str]) -> bool:
        """Whether raw maps are as wide as classes of each pixel, as a segmentation gives them."""
        widths = {self.sizes.made_by_weight(node) if node.op == "Conv" else None for node in nodes}
        width = widths.pop() if len(widths) == 1 else None
        return width is not None and width >= _CLASSES and set(ops) <= self.rules.maps

    def is_fine(self, output: str) -> bool:
        """Whether a map has a value for each few pixels of the input."""
        images = [name for name in self.view.inputs if self.sizes.rank(name) == 4]
        rows = self.sizes.size(output, 2) if self.sizes.rank(output) == 4 else None
        given = self.sizes.size(images[0], 2) if len(images) == 1 else None
        return bool(rows and given and given <= _CELL * rows)

    def is_length(self, name: str) -> bool:
        """Whether a tensor is the root of a sum or mean of squares, or one by it: what a normalization divides by."""
        rooted = False
        for _ in range(_NEAR):
            node = self.view.producer(name)
            if node is None:
                return False
            rooted = rooted or node.op in _LENGTHS
            if node.op.startswith("Reduce"):
                return rooted
            computed = [one for one in node.inputs if one and not self.view.is_constant(one)]
            if node.op not in _OF_LENGTHS or not computed:
                return False
            name = computed[0]
        return False

    def gives_one_vector(self, node: Node, ops: Collection[str]) -> bool:
        """Whether it gives logits: pooled to one vector before or after, and only moved or added to since."""
        view, rules = self.view, self.rules
        if not set(ops) <= rules.moves | rules.pools | rules.bounded:
            return False
        if any(op in rules.pools for op in ops):
            return True
        index = weight_index(view, node)
        source = view.producer(node.inputs[1 - index]) if index in (0, 1) else None
        flat = node.op == "Gemm"
        for _ in range(4):
            if source is None:
                return flat
            if source.op in rules.pools or source.op == "Flatten" or self._picks_one(source):
                return True
            if source.op == "Reshape" and not flat:
                shape = view.array(source.inputs[1]) if len(source.inputs) > 1 else None
                return shape is not None and shape.size == 2
            passed = source.op in rules.moves | rules.normalizations
            if not passed or len([n for n in source.inputs if n and not view.is_constant(n)]) != 1:
                return flat
            source = view.producer(source.inputs[0])
        return flat

    def _picks_one(self, node: Node) -> bool:
        """Whether it takes one token of a sequence, as a vision transformer its class token."""
        if node.op != "Gather" or self.view.is_constant(node.inputs[0]):
            return False
        place = self.view.array(node.inputs[1])
        return place is not None and place.ndim == 0


def made_of_constants(view: GraphView) -> set[str]:
    """Tensors that are computed of constants alone, constants themselves left out."""
    made = set[str]()
    for node in sorted(view.nodes, key=lambda node: (node.level, node.index)):
        given = [view.root(name) for name in node.inputs if name]
        if given and all(name in made or view.is_constant(name) for name in given):
            made.update(name for name in node.outputs if name and not view.is_constant(name))
    return made


def is_log_odds(view: GraphView, name: str) -> bool:
    """Whether a tensor is the inverse of a Sigmoid: log(x / (1 - x)), or the difference of two logarithms."""
    node = view.producer(name)
    if node is not None and node.op == "Sub":
        node = view.producer(node.inputs[0])
    return node is not None and node.op == "Log"
