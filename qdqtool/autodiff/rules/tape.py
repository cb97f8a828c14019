# SPDX-License-Identifier: Apache-2.0
"""The backward graph while it is written: values that know their shape, and the nodes that make them.

What a gradient is, the rules say; here is only how to write algebra down as nodes of opset 16 to 21.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from qdqtool.fresh_names import FreshNames
from qdqtool.graph.builder import tensor_of

Shape = tuple[int, ...]
Operand = Union["GraphValue", float, npt.NDArray[Any]]

LOWEST_OPSET = 16
"""Below it scattering cannot add. No operator but RoiAlign changed its meaning from opset 13 to here."""
_AXES_AS_INPUT = 18  # every reduction but ReduceSum, which has them as an input since 13


class Tape:
    """Nodes in the order in which they were written; the same node is written once.

    Attributes:
        opset: of the graph that is written.
        nodes: forward nodes, then what the rules added.
        initializers: constants that the rules added.
    """

    def __init__(self, opset: int, taken: Iterable[str]) -> None:
        """Begin with no node."""
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._names = FreshNames(taken)
        self._written: dict[tuple[object, ...], GraphValue] = {}

    def fresh(self, stem: str) -> str:
        """`stem`, or a name made from it that nothing else has."""
        return self._names.unique(stem)

    def emit(
        self, op: str, inputs: Sequence[GraphValue | None], shape: Shape, kind: int | None = None, **attributes: Any
    ) -> GraphValue:
        """Write one node with one output; `kind` is its element type, by default the one of the first input."""
        names = ["" if value is None else value.name for value in inputs]
        key = (op, *names, *sorted((name, repr(value)) for name, value in attributes.items()))
        if key not in self._written:
            if kind is None:
                kind = next(value.kind for value in inputs if value is not None)
            output = self.fresh(f"backward/{op}")
            self.nodes.append(helper.make_node(op, names, [output], **attributes))
            self._written[key] = GraphValue(output, shape, kind, self)
        return self._written[key]

    def emit_several(
        self, op: str, inputs: Sequence[GraphValue | None], shapes: Sequence[Shape | None], **attributes: Any
    ) -> list[GraphValue | None]:
        """Write one node with several outputs of the first input's type; one whose shape is None is left out."""
        kind = next(value.kind for value in inputs if value is not None)
        names = ["" if shape is None else self.fresh(f"backward/{op}") for shape in shapes]
        read = ["" if value is None else value.name for value in inputs]
        self.nodes.append(helper.make_node(op, read, names, **attributes))
        pairs = zip(names, shapes, strict=True)
        return [None if shape is None else GraphValue(name, shape, kind, self) for name, shape in pairs]

    def constant(self, array: npt.ArrayLike) -> GraphValue:
        """An initializer of the array's own type; equal arrays share one."""
        values = np.ascontiguousarray(array).reshape(np.shape(array))
        key = ("", values.dtype.str, values.shape, values.tobytes())
        if key not in self._written:
            name = self.fresh("backward/constant")
            self.initializers.append(tensor_of(values, name))
            kind = helper.np_dtype_to_tensor_dtype(values.dtype)
            self._written[key] = GraphValue(name, values.shape, kind, self)
        return self._written[key]

    def integers(self, numbers: Iterable[int]) -> GraphValue:
        """A one-dimensional int64 constant: axes, shapes, pads."""
        return self.constant(np.asarray(tuple(numbers), np.int64))

    def zeros(self, shape: Shape, kind: int) -> GraphValue:
        """Zeros that are filled when the graph runs, so that the file holds none."""
        zero = helper.make_tensor("value", kind, [1], [0])
        return self.emit("ConstantOfShape", [self.integers(shape)], shape, kind, value=zero)

    def concat(self, parts: Sequence[GraphValue], axis: int) -> GraphValue:
        """The parts one after the other along an axis that is not negative."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.emit("Concat", parts, tuple(shape), axis=axis)

    def add_up(self, terms: Sequence[GraphValue]) -> GraphValue:
        """The sum of terms of one shape."""
        if len(terms) <= 2:
            return terms[0] if len(terms) == 1 else terms[0] + terms[1]
        return self.emit("Sum", terms, terms[0].shape)


@dataclass(frozen=True, eq=False)
class GraphValue:
    """A tensor of the graph: its name, its shape and its ONNX element type. Arithmetic on it writes nodes.

    Numbers and arrays become constants of the element type.
    """

    name: str
    shape: Shape
    kind: int
    tape: Tape

    def lift(self, other: Operand) -> GraphValue:
        """The operand as a value of this element type."""
        if isinstance(other, GraphValue):
            return other
        return self.tape.constant(np.asarray(other, helper.tensor_dtype_to_np_dtype(self.kind)))

    def _with(self, op: str, other: Operand, swapped: bool = False, kind: int | None = None) -> GraphValue:
        second = self.lift(other)
        pair = (second, self) if swapped else (self, second)
        return self.tape.emit(op, pair, np.broadcast_shapes(self.shape, second.shape), kind)

    def __add__(self, other: Operand) -> GraphValue:
        return self._with("Add", other)

    def __radd__(self, other: Operand) -> GraphValue:
        return self._with("Add", other)

    def __sub__(self, other: Operand) -> GraphValue:
        return self._with("Sub", other)

    def __rsub__(self, other: Operand) -> GraphValue:
        return self._with("Sub", other, swapped=True)

    def __mul__(self, other: Operand) -> GraphValue:
        return self._with("Mul", other)

    def __rmul__(self, other: Operand) -> GraphValue:
        return self._with("Mul", other)

    def __truediv__(self, other: Operand) -> GraphValue:
        return self._with("Div", other)

    def __rtruediv__(self, other: Operand) -> GraphValue:
        return self._with("Div", other, swapped=True)

    def __pow__(self, other: Operand) -> GraphValue:
        return self._with("Pow", other)

    def __neg__(self) -> GraphValue:
        return self.unary("Neg")

    def above(self, other: Operand) -> GraphValue:
        """Where this is larger: a bool tensor."""
        return self._with("Greater", other, kind=TensorProto.BOOL)

    def below(self, other: Operand) -> GraphValue:
        """Where this is smaller."""
        return self._with("Less", other, kind=TensorProto.BOOL)

    def at_least(self, other: Operand) -> GraphValue:
        """Where this is larger or equal."""
        return self._with("GreaterOrEqual", other, kind=TensorProto.BOOL)

    def at_most(self, other: Operand) -> GraphValue:
        """Where this is smaller or equal."""
        return self._with("LessOrEqual", other, kind=TensorProto.BOOL)

    def equals(self, other: Operand) -> GraphValue:
        """Where the two are equal."""
        return self._with("Equal", other, kind=TensorProto.BOOL)

    def both(self, other: GraphValue) -> GraphValue:
        """Where both bool tensors are true."""
        return self._with("And", other)

    def maximum(self, other: Operand) -> GraphValue:
        """The larger of the two."""
        return self._with("Max", other)

    def unary(self, op: str, **attributes: Any) -> GraphValue:
        """An operator of one input that keeps shape and type."""
        return self.tape.emit(op, [self], self.shape, **attributes)

    def where(self, yes: GraphValue, no: Operand) -> GraphValue:
        """`yes` where this bool tensor is true, else `no`."""
        other = yes.lift(no)
        shape = np.broadcast_shapes(self.shape, yes.shape, other.shape)
        return self.tape.emit("Where", [self, yes, other], shape, yes.kind)

    def cast(self, kind: int) -> GraphValue:
        """The same numbers as another element type."""
        return self if kind == self.kind else self.tape.emit("Cast", [self], self.shape, kind, to=kind)

    def reshape(self, shape: Shape) -> GraphValue:
        """The same numbers in the same order."""
        if shape == self.shape:
            return self
        return self.tape.emit("Reshape", [self, self.tape.integers(shape)], shape)

    def transpose(self, order: Sequence[int]) -> GraphValue:
        """The axes in another order; only a new shape where no number moves.

        Axes of one are left out and axes that stay neighbors are one axis: what onnxruntime has a fast way for.
        """
        runs: list[list[int]] = []
        for axis in (axis for axis in order if self.shape[axis] != 1):
            last = runs[-1][-1] if runs else len(self.shape)
            if last < axis and all(self.shape[between] == 1 for between in range(last + 1, axis)):
                runs[-1].append(axis)
            else:
                runs.append([axis])
        shape = tuple(self.shape[axis] for axis in order)
        sorted_runs = sorted(runs)
        if runs == sorted_runs:
            return self.reshape(shape)
        sizes = [math.prod(self.shape[axis] for axis in run) for run in sorted_runs]
        places = tuple(sorted_runs.index(run) for run in runs)
        merged = tuple(sizes[place] for place in places)
        return self.tape.emit("Transpose", [self.reshape(tuple(sizes))], merged, perm=places).reshape(shape)

    def expand(self, shape: Shape) -> GraphValue:
        """The same numbers repeated along axes of one."""
        if shape == self.shape:
            return self
        return self.tape.emit("Expand", [self, self.tape.integers(shape)], shape)

    def reduce(self, op: str, axes: Sequence[int], keep: bool = True) -> GraphValue:
        """A reduction (`ReduceSum`, `ReduceMean`, ...) over axes that are not negative; none at all keeps the value."""
        if not axes:
            return self
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(self.shape))
        shape = kept if keep else tuple(size for axis, size in enumerate(self.shape) if axis not in axes)
        how: dict[str, Any] = {"keepdims": int(keep)}
        if op == "ReduceSum" or self.tape.opset >= _AXES_AS_INPUT:
            return self.tape.emit(op, [self, self.tape.integers(sorted(axes))], shape, **how)
        return self.tape.emit(op, [self], shape, axes=tuple(sorted(axes)), **how)

    def sum(self, axes: Sequence[int], keep: bool = True) -> GraphValue:
        """The sum over axes."""
        return self.reduce("ReduceSum", axes, keep)

    def mean(self, axes: Sequence[int]) -> GraphValue:
        """The mean over axes, which stay as axes of one."""
        return self.reduce("ReduceMean", axes)

    def sum_to(self, shape: Shape) -> GraphValue:
        """The sum over every axis along which `shape` was broadcast to this shape."""
        if shape == self.shape:
            return self
        lead = len(self.shape) - len(shape)
        ones = [at + lead for at, size in enumerate(shape) if size == 1 and self.shape[at + lead] != 1]
        return self.sum([*range(lead), *ones]).reshape(shape)

    def slice(
        self, begins: Sequence[int], ends: Sequence[int], steps: Sequence[int], axes: Sequence[int]
    ) -> GraphValue:
        """Every `step`-th place from `begin` up to `end` along each axis, all of them inside and steps above zero."""
        shape, whole = list(self.shape), True
        for begin, end, step, axis in zip(begins, ends, steps, axes, strict=True):
            whole = whole and (begin, step) == (0, 1) and end == shape[axis]
            shape[axis] = -(-(end - begin) // step)
        if whole:
            return self
        numbers = [self.tape.integers(group) for group in (begins, ends, axes, steps)]
        return self.tape.emit("Slice", [self, *numbers], tuple(shape))

    def flip(self, axes: Sequence[int]) -> GraphValue:
        """The numbers in reverse order along axes."""
        axes = [axis for axis in axes if self.shape[axis] > 1]
        if not axes:
            return self
        lowest = np.iinfo(np.int64).min
        groups = ([-1] * len(axes), [lowest] * len(axes), axes, [-1] * len(axes))
        return self.tape.emit("Slice", [self, *(self.tape.integers(group) for group in groups)], self.shape)

    def pad(self, begins: Sequence[int], ends: Sequence[int]) -> GraphValue:
        """Zeros before and after, one count per axis; a negative count cuts."""
        if not any(begins) and not any(ends):
            return self
        shape = tuple(b + size + e for b, size, e in zip(begins, self.shape, ends, strict=True))
        return self.tape.emit("Pad", [self, self.tape.integers((*begins, *ends))], shape)

    def spread(self, axis: int, step: int) -> GraphValue:
        """`step` - 1 zeros between neighbors along an axis."""
        if step == 1 or self.shape[axis] == 1:
            return self
        before, size, after = self.shape[:axis], self.shape[axis], self.shape[axis + 1 :]
        rank = len(self.shape) + 1
        ends = [step - 1 if at == axis + 1 else 0 for at in range(rank)]
        wide = self.reshape((*before, size, 1, *after)).pad([0] * rank, ends).reshape((*before, size * step, *after))
        return wide.slice([0], [(size - 1) * step + 1], [1], [axis])

    def matmul(self, other: GraphValue) -> GraphValue:
        """The product of matrices in the last two axes; both have at least two."""
        lead = np.broadcast_shapes(self.shape[:-2], other.shape[:-2])
        return self.tape.emit("MatMul", [self, other], (*lead, self.shape[-2], other.shape[-1]))

    def gemm(self, other: GraphValue, turn_first: bool = False, turn_second: bool = False) -> GraphValue:
        """The product of two matrices, each transposed first if asked."""
        rows = self.shape[1] if turn_first else self.shape[0]
        columns = other.shape[0] if turn_second else other.shape[1]
        how = {"transA": int(turn_first), "transB": int(turn_second)}
        return self.tape.emit("Gemm", [self, other], (rows, columns), **how)

    def turned(self) -> GraphValue:
        """The last two axes swapped."""
        rank = len(self.shape)
        return self.transpose((*range(rank - 2), rank - 1, rank - 2))

    def along(self, axis: int, matrix: npt.NDArray[Any]) -> GraphValue:
        """A linear map along one axis: `matrix` [size of the axis, new size] from the right.

        out[.., j, ..] = sum over i of in[.., i, ..] * matrix[i, j].
        """
        if matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix))):
            return self
        before, after = self.shape[:axis], self.shape[axis + 1 :]
        shape = (*before, matrix.shape[1], *after)
        if math.prod(after) == 1:
            flat = self.reshape((math.prod(before), self.shape[axis]))
            return flat.matmul(self.lift(matrix)).reshape(shape)
        cube = self.reshape((math.prod(before), self.shape[axis], math.prod(after)))
        return self.lift(np.ascontiguousarray(matrix.T)).matmul(cube).reshape(shape)
