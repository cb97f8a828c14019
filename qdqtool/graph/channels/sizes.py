# SPDX-License-Identifier: Apache-2.0
"""How long the axes of a graph's tensors are, and what nodes say about axes, as far as constants and operators tell.

No shape inference is run and no weight is read. A size that is not known is None.
"""

from __future__ import annotations

from qdqtool.graph.channels.arguments import integers, permutation, slices_of
from qdqtool.graph.view import DEQUANTIZE, GraphView, Node, attribute
from qdqtool.rule_files import operator_set

# Each output value is made of the input values at its own place.
IN_PLACE = frozenset(
    {"Abs", "Add", "And", "BatchNormalization", "Cast", "Ceil", "Clip", "Cos", "Div", "Dropout", "Elu", "Erf",
     "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "LogSoftmax", "Max", "Min",
     "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
     "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where"}
)  # fmt: skip
_SAME_RANK = frozenset({"Transpose", "Concat", "Slice", "Split", "Resize", "GatherElements", "MatMul"})
# What makes one entry of a shape that is put together piece by piece.
_ONE_LENGTH = frozenset({"Gather", "Unsqueeze", "Reshape"})
END = 2**31 - 1
# Sizes are looked for this many operators back; a network may be thousands deep.
_FAR = 60


class TensorSizes:
    """Sizes of the tensors of one graph as far as they follow from weights, constants and declared shapes."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self._sizes: dict[tuple[str, int], int | None] = {}
        self._ranks: dict[str, int | None] = {}
        self._depth = 0
        self._declared = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*view.graph.value_info, *view.graph.input, *view.graph.output)
            if value.type.tensor_type.HasField("shape")
        }

    # ------------------------------------------------------------------ sizes

    def rank(self, name: str) -> int | None:
        """Number of axes of a tensor, or None."""
        name = self.view.root(name)
        if name not in self._ranks:
            self._ranks[name] = None
            self._depth += 1
            self._ranks[name] = self._find_rank(name) if self._depth < _FAR else None
            self._depth -= 1
        return self._ranks[name]

    def size(self, name: str, axis: int) -> int | None:
        """Length of a tensor along an axis (counted from 0), or None."""
        key = self.view.root(name), axis
        if key not in self._sizes:
            self._sizes[key] = None
            self._depth += 1
            self._sizes[key] = self._find_size(*key) if self._depth < _FAR else None
            self._depth -= 1
        return self._sizes[key]

    def _find_rank(self, name: str) -> int | None:
        """What operators say goes first: a declared shape may be wrong, and nobody notices."""
        dims = self._constant_dims(name)
        if dims is not None:
            return len(dims)
        node = self.view.producer(name)
        rank = None if node is None else self._rank_behind(node)
        return len(self._declared[name]) if rank is None and name in self._declared else rank

    def _rank_behind(self, node: Node) -> int | None:
        if node.op in ("Conv", "ConvTranspose"):
            weight = self._constant_dims(node.inputs[1])
            return None if weight is None else len(weight)
        if node.op in ("Gemm", "Flatten"):
            return 2
        if node.op == "Reshape":
            return len(self.target(node)) or None
        if node.op in IN_PLACE:
            ranks = [self.rank(name) for name in node.inputs if name]
            return None if None in ranks else max(rank or 0 for rank in ranks)
        return self.rank(node.inputs[0]) if node.op in _SAME_RANK or node.op in operator_set("pooling") else None

    def _find_size(self, name: str, axis: int) -> int | None:
        dims = self._constant_dims(name)
        if dims is not None:
            return dims[axis] if axis < len(dims) else None
        node, dims = self.view.producer(name), self._declared.get(name, [])
        size = None if node is None else self._size_behind(node, name, axis)
        return dims[axis] if size is None and axis < len(dims) and dims[axis] > 0 else size

    def _size_behind(self, node: Node, name: str, axis: int) -> int | None:
        if node.op in IN_PLACE:
            return self._broadcast(node, name, axis)
        if node.op == "Concat":
            if self.axis(node, name) != axis:
                return next((size for n in node.inputs if (size := self.size(n, axis)) is not None), None)
            sizes = [self.size(n, axis) for n in node.inputs]
            return None if None in sizes else sum(size or 0 for size in sizes)
        if node.op == "Transpose":
            order = self.order(node)
            return None if order is None or axis >= len(order) else self.size(node.inputs[0], order[axis])
        if node.op == "Reshape":
            target = self.target(node)
            known = target[axis] if axis < len(target) else None
            return self.size(node.inputs[0], axis) if known == 0 else known if known is not None and known > 0 else None
        if node.op == "Slice":
            return self._slice_size(node, axis)
        if node.op == "Split":
            if self.axis(node, node.inputs[0], 0) != axis:
                return self.size(node.inputs[0], axis)
            pieces = self.pieces(node)
            return None if pieces is None else pieces[node.outputs.index(name)]
        return self._channels(node, axis)

    def made_by_weight(self, node: Node) -> int | None:
        """Number of channels that a convolution or a matrix product with a constant gives, or None."""
        weight = self._constant_dims(node.inputs[1]) if len(node.inputs) > 1 else None
        if not weight:
            return None
        if node.op == "ConvTranspose":
            return weight[1] * int(str(attribute(node, "group", 1)))
        if node.op == "Gemm":
            return weight[0 if attribute(node, "transB", 0) else 1]
        return {"Conv": weight[0], "MatMul": weight[-1]}.get(node.op)

    def _channels(self, node: Node, axis: int) -> int | None:
        """Length along the axis of channels; of other axes only what a pool leaves alone."""
        if node.op in ("Conv", "ConvTranspose", "Gemm") and axis == 1:
            return self.made_by_weight(node)
        if node.op == "MatMul" and self.rank(node.inputs[0]) == axis + 1:
            return self.made_by_weight(node)
        return self.size(node.inputs[0], axis) if axis <= 1 and node.op in operator_set("pooling") else None

    def _broadcast(self, node: Node, name: str, axis: int) -> int | None:
        rank = self.rank(name)
        if rank is None:
            return None
        ranks = [(n, self.rank(n)) for n in node.inputs if n]
        sizes = [self.size(n, axis - rank + own) for n, own in ranks if own is not None and axis - rank + own >= 0]
        wide = [size for size in sizes if size is not None and size > 1]
        return wide[0] if wide else None if None in sizes or not sizes else 1

    def _slice_size(self, node: Node, axis: int) -> int | None:
        bounds, size = self.bounds(node), self.size(node.inputs[0], axis)
        for own, first, last, step in bounds or ():
            if own == axis:
                last = last if size is None else min(last, size)
                return None if step != 1 or last >= END else max(0, last - first)
        return size if bounds is not None else None

    # ------------------------------------------------------------------ what nodes say

    def axis(self, node: Node, name: str, default: int = 1) -> int | None:
        """The attribute `axis`, counted from 0."""
        axis = int(str(attribute(node, "axis", default)))
        rank = None if axis >= 0 else self.rank(name)
        if axis < 0 and rank is None and node.op == "Concat":
            rank = next((r for n in node.inputs if (r := self.rank(n)) is not None), None)
        axis += (rank or 0) * (axis < 0)
        return axis if axis >= 0 else None

    def order(self, node: Node) -> list[int] | None:
        """The order of axes of a Transpose."""
        rank = self.rank(node.inputs[0]) if attribute(node, "perm") is None else None
        return permutation(node, rank)

    def bounds(self, node: Node) -> list[tuple[int, int, int, int]] | None:
        """(axis, first, last, step) of a Slice, counted from 0 and the last cut to the size; None where not known."""
        rows = slices_of(node, self.view.array)
        if rows is None:
            return None
        rank, bounds = self.rank(node.inputs[0]), []
        for axis, first, last, step in rows:
            if step < 1 or (axis < 0 and rank is None):
                return None
            axis = max(0, axis + (rank or 0) * (axis < 0))
            size = self.size(node.inputs[0], axis)
            if size is None and (first < 0 or last < 0):
                return None
            first, last = (v + (size or 0) * (v < 0) for v in (first, last))
            bounds.append((axis, first, min(last, END if size is None else size), step))
        return bounds

    def pieces(self, node: Node) -> list[int] | None:
        """Sizes of the outputs of a Split."""
        given = integers(node, 1, "split", self.view.array)
        if given:
            return given if len(given) == len(node.outputs) else None
        axis = self.axis(node, node.inputs[0], 0)
        size = None if axis is None else self.size(node.inputs[0], axis)
        if given is None or size is None:
            return None
        wide = -(-size // len(node.outputs))
        return [min(wide, size - wide * index) for index in range(len(node.outputs))]

    def target(self, node: Node) -> list[int]:
        """The shape that a Reshape asks for, -1 for what is computed; empty where nothing is known."""
        given = integers(node, 1, "shape", self.view.array)
        if given is not None:
            return given
        producer = self.view.producer(node.inputs[1])
        if producer is None or producer.op != "Concat":
            return []
        target: list[int] = []
        for name in producer.inputs:
            value, piece = self.view.array(name), self.view.producer(name)
            if value is None and (piece is None or piece.op not in _ONE_LENGTH):
                return []
            target += [-1] if value is None else [int(v) for v in value.reshape(-1)]
        return target

    def _constant_dims(self, name: str) -> list[int] | None:
        """Shape of a constant, its value left alone; None where it is computed or folded by what is not known here."""
        tensor = self.view.constant_tensor(name) if self.view.is_constant(name) else None
        node = self.view.producers.get(name)
        if tensor is not None or node is None or not self.view.is_constant(name):
            return None if tensor is None else list(tensor.dims)
        if node.op == "Constant":
            value = self.view.array(name)
            return None if value is None else list(value.shape)
        dims = self._constant_dims(node.inputs[0]) if node.op in ("Cast", "Transpose", DEQUANTIZE) else None
        if dims is None or node.op != "Transpose":
            return dims
        order = attribute(node, "perm")
        return [dims[axis] for axis in order] if isinstance(order, list | tuple) else dims[::-1]
