# SPDX-License-Identifier: Apache-2.0
"""Which part of a tensor holds the values of another one, followed through Concat, Slice and kin.

Where a size or an index is not known the axis is given up: a part is never said to be smaller than it is. Main graph
only; nothing is run, no weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qdqtool.graph.view import DEQUANTIZE, GraphView, Node, Use, attribute
from qdqtool.rule_files import operator_set

# Axis -> first and last index (exclusive) along it; an axis that is not in it is covered in full.
Part = tuple[tuple[int, int, int], ...]

# Each output value is made of the input values at its own place.
_IN_PLACE = frozenset(
    {"Abs", "Add", "And", "BatchNormalization", "Cast", "Ceil", "Clip", "Cos", "Div", "Dropout", "Elu", "Erf",
     "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "LogSoftmax", "Max", "Min",
     "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
     "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where"}
)  # fmt: skip
_SAME_RANK = frozenset({"Transpose", "Concat", "Slice", "Split", "Resize", "GatherElements", "MatMul"})
# What makes one entry of a shape that is put together piece by piece.
_ONE_LENGTH = frozenset({"Gather", "Unsqueeze", "Reshape"})
_END = 2**31 - 1
# Sizes are looked for this many operators back; a network may be thousands deep.
_FAR = 60


@dataclass(frozen=True)
class ChannelStep:
    """One output that holds values of the part.

    Attributes:
        tensor: the output's name.
        part: where in it they lie.
        cut: whether values of the part were left behind.
    """

    tensor: str
    part: Part
    cut: bool = False


class Channels:
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

    # ------------------------------------------------------------------ following

    def follow(self, use: Use, part: Part) -> list[ChannelStep]:
        """The outputs of a node that hold values of a part of the input that is read at `use`."""
        node, outputs = use.node, [name for name in use.node.outputs if name]
        if node.op == "Concat":
            return [ChannelStep(node.outputs[0], self._joined(use, part))]
        if node.op == "Slice":
            return self._sliced(node, part) if use.index == 0 else []
        if node.op == "Split":
            return self._split(node, part) if use.index == 0 else []
        if node.op == "Gather":
            return self._gathered(node, part) if use.index == 0 else []
        if node.op in _IN_PLACE:
            return [ChannelStep(name, part) for name in outputs]
        moved = {"Transpose": self._transposed, "Reshape": self._reshaped, "GatherElements": self._picked}
        return [ChannelStep(name, moved[node.op](node, part) if node.op in moved else ()) for name in outputs]

    def _joined(self, use: Use, part: Part) -> Part:
        node = use.node
        axis = self._axis(node, node.outputs[0])
        rest = tuple(span for span in part if span[0] != axis)
        sizes = [None if axis is None else self.size(name, axis) for name in node.inputs]
        before = sizes[: use.index + 1]
        if axis is None or any(size is None for size in before):
            return rest if axis is not None else ()
        offset = sum(size or 0 for size in before[:-1])
        first, last = _span(part, axis) or (0, before[-1] or 0)
        return tuple(sorted((*rest, (axis, first + offset, last + offset))))

    def _sliced(self, node: Node, part: Part) -> list[ChannelStep]:
        bounds = self._bounds(node)
        if bounds is None:
            return [ChannelStep(node.outputs[0], (), cut=True)]
        cut = False
        for axis, first, last, step in bounds:
            kept = _overlap(part, axis, first, last, self.size(node.inputs[0], axis))
            if kept is None:
                return []
            part, lost = kept
            cut = cut or lost or step != 1
            if step != 1:
                part = tuple(span for span in part if span[0] != axis)
        return [ChannelStep(node.outputs[0], part, cut)]

    def _split(self, node: Node, part: Part) -> list[ChannelStep]:
        axis, pieces = self._axis(node, node.inputs[0], 0), self._pieces(node)
        if axis is None or pieces is None:
            return [ChannelStep(name, (), cut=True) for name in node.outputs if name]
        steps, first = [], 0
        for name, size in zip(node.outputs, pieces, strict=True):
            kept = _overlap(part, axis, first, first + size, sum(pieces))
            if name and kept is not None:
                steps.append(ChannelStep(name, kept[0], kept[1]))
            first += size
        return steps

    def _gathered(self, node: Node, part: Part) -> list[ChannelStep]:
        """Chosen indices are known where they are constant; others choose boxes, not channels."""
        output, axis = node.outputs[0], self._axis(node, node.inputs[0], 0)
        chosen = self.view.array(node.inputs[1])
        rank = None if chosen is None else chosen.ndim
        if axis is None or chosen is None or rank is None:
            return [ChannelStep(output, ())]
        span, size = _span(part, axis), self.size(node.inputs[0], axis)
        indices = chosen.reshape(-1).astype(np.int64)
        if (indices < 0).any() and size is None:
            return [ChannelStep(output, (), cut=True)]
        indices = np.where(indices < 0, indices + (size or 0), indices)
        if span is not None and not ((indices >= span[0]) & (indices < span[1])).any():
            return []
        rest = tuple((a + (rank - 1) * (a > axis), lo, hi) for a, lo, hi in part if a != axis)
        every = set(range(*span)) if span is not None else set(range(size)) if size is not None else {-1}
        return [ChannelStep(output, rest if rank <= 1 else (), cut=not every <= set(indices.tolist()))]

    def _transposed(self, node: Node, part: Part) -> Part:
        order = self._order(node)
        return () if order is None else tuple(sorted((order.index(axis), lo, hi) for axis, lo, hi in part))

    def _reshaped(self, node: Node, part: Part) -> Part:
        """An axis stays itself where its size stays and only the batch lies before it, or nothing behind it."""
        target, rank = self._target(node), self.rank(node.inputs[0])
        kept = []
        for axis, lo, hi in part if target else ():
            size = self.size(node.inputs[0], axis)
            if axis <= 1 and axis < len(target) and size is not None and target[axis] in (0, size):
                kept.append((axis, lo, hi))
            elif rank is not None and axis == rank - 1 and size is not None and target[-1] == size:
                kept.append((len(target) - 1, lo, hi))
        return tuple(kept)

    def _picked(self, node: Node, part: Part) -> Part:
        axis = self._axis(node, node.inputs[0], 0)
        return () if axis is None else tuple(span for span in part if span[0] != axis)

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
            return len(self._target(node)) or None
        if node.op in _IN_PLACE:
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
        if node.op in _IN_PLACE:
            return self._broadcast(node, name, axis)
        if node.op == "Concat":
            if self._axis(node, name) != axis:
                return next((size for n in node.inputs if (size := self.size(n, axis)) is not None), None)
            sizes = [self.size(n, axis) for n in node.inputs]
            return None if None in sizes else sum(size or 0 for size in sizes)
        if node.op == "Transpose":
            order = self._order(node)
            return None if order is None or axis >= len(order) else self.size(node.inputs[0], order[axis])
        if node.op == "Reshape":
            target = self._target(node)
            known = target[axis] if axis < len(target) else None
            return self.size(node.inputs[0], axis) if known == 0 else known if known is not None and known > 0 else None
        if node.op == "Slice":
            return self._slice_size(node, axis)
        if node.op == "Split":
            if self._axis(node, node.inputs[0], 0) != axis:
                return self.size(node.inputs[0], axis)
            pieces = self._pieces(node)
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
        bounds, size = self._bounds(node), self.size(node.inputs[0], axis)
        for own, first, last, step in bounds or ():
            if own == axis:
                last = last if size is None else min(last, size)
                return None if step != 1 or last >= _END else max(0, last - first)
        return size if bounds is not None else None

    # ------------------------------------------------------------------ what nodes say

    def _axis(self, node: Node, name: str, default: int = 1) -> int | None:
        """The attribute `axis`, counted from 0."""
        axis = int(str(attribute(node, "axis", default)))
        rank = None if axis >= 0 else self.rank(name)
        if axis < 0 and rank is None and node.op == "Concat":
            rank = next((r for n in node.inputs if (r := self.rank(n)) is not None), None)
        axis += (rank or 0) * (axis < 0)
        return axis if axis >= 0 else None

    def _order(self, node: Node) -> list[int] | None:
        order = attribute(node, "perm")
        rank = self.rank(node.inputs[0]) if order is None else None
        return list(order) if isinstance(order, list | tuple) else None if rank is None else list(range(rank))[::-1]

    def _ints(self, node: Node, index: int, name: str) -> list[int] | None:
        """A list that newer opsets have as an input and older ones as an attribute; None where it is computed."""
        if len(node.inputs) > index and node.inputs[index]:
            value = self.view.array(node.inputs[index])
            return None if value is None else [int(v) for v in value.reshape(-1)]
        stored = attribute(node, name, [])
        return [int(v) for v in stored] if isinstance(stored, list | tuple) else []

    def _bounds(self, node: Node) -> list[tuple[int, int, int, int]] | None:
        """(axis, first, last, step) of a Slice, counted from 0 and the last cut to the size; None where not known."""
        lists = [self._ints(node, i + 1, n) for i, n in enumerate(("starts", "ends", "axes", "steps"))]
        starts, ends, axes, steps = lists
        if starts is None or ends is None or axes is None or steps is None:
            return None
        rank, bounds = self.rank(node.inputs[0]), []
        rows = zip(starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True)
        for first, last, axis, step in rows:
            if step < 1 or (axis < 0 and rank is None):
                return None
            axis = max(0, axis + (rank or 0) * (axis < 0))
            size = self.size(node.inputs[0], axis)
            if size is None and (first < 0 or last < 0):
                return None
            first, last = (v + (size or 0) * (v < 0) for v in (first, last))
            bounds.append((axis, first, min(last, _END if size is None else size), step))
        return bounds

    def _pieces(self, node: Node) -> list[int] | None:
        """Sizes of the outputs of a Split."""
        given = self._ints(node, 1, "split")
        if given:
            return given if len(given) == len(node.outputs) else None
        axis = self._axis(node, node.inputs[0], 0)
        size = None if axis is None else self.size(node.inputs[0], axis)
        if given is None or size is None:
            return None
        wide = -(-size // len(node.outputs))
        return [min(wide, size - wide * index) for index in range(len(node.outputs))]

    def _target(self, node: Node) -> list[int]:
        """The shape that a Reshape asks for, -1 for what is computed; empty where nothing is known."""
        given = self._ints(node, 1, "shape")
        if given is not None:
            return given
        maker = self.view.producer(node.inputs[1])
        if maker is None or maker.op != "Concat":
            return []
        target: list[int] = []
        for name in maker.inputs:
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


def _span(part: Part, axis: int) -> tuple[int, int] | None:
    return next(((lo, hi) for own, lo, hi in part if own == axis), None)


def _overlap(part: Part, axis: int, first: int, last: int, size: int | None) -> tuple[Part, bool] | None:
    """What a cut from first to last leaves of a part, and whether it loses some; None where nothing is left."""
    span = _span(part, axis)
    if span is None:
        return part, first > 0 or last < (_END if size is None else size)
    lo, hi = max(span[0], first), min(span[1], last)
    if lo >= hi:
        return None
    rest = tuple(own for own in part if own[0] != axis)
    whole = lo == first and hi == last
    return rest if whole else tuple(sorted((*rest, (axis, lo - first, hi - first)))), (lo, hi) != span
