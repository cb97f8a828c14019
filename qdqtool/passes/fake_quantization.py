# SPDX-License-Identifier: Apache-2.0
"""Fake quantization that an exporter wrote as arithmetic (Div, Round, Clip, Mul), as Q/DQ pairs with its own scales.

TensorRT builds such arithmetic in float. Enters the main graph only, and knows float32 alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.graph.edit import Editor, count_uses, release
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, attribute

_Array = npt.NDArray[Any]
_TYPES: dict[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
_SAME = 1e-6  # a scale and the inverse of its reciprocal: float32 rounds either by 6e-8
_NOT_NEGATIVE = frozenset({"Relu", "Sigmoid", "HardSigmoid", "Softmax"})
_INTEGERS = frozenset({onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT32, onnx.TensorProto.INT64})
_LARGEST = 65536  # zero points of 16 bits, which are named and left
_STEPS = 12  # operators of the longest known spelling


class _NotKnownError(Exception):
    """The arithmetic is no fake quantization of a known spelling."""


@dataclass(frozen=True)
class FakeQuantization:
    """Arithmetic that rounds a tensor to `scale * (q - zero)`, with q from `low` to `high`.

    Attributes:
        tensor: what is rounded.
        nodes: the operators, in the order of the data.
        stored: the constant of the file that is the scale; "" where it holds a reciprocal alone.
        scale: float32, a scalar or one per channel.
        axis: of several scales, negative where the rank of the tensor is not known; None for one.
        zero: the zero point, a scalar or one per channel.
        low, high: what Clip, Min and Max leave.
        kind: "int8" or "uint8"; "" where 8 bits do not hold these integers.
        needs_clip: whether the type's integers beside `low` to `high` may occur, other than the lowest one alone.
        drops_clip: whether that one may occur.
    """

    tensor: str
    nodes: tuple[Node, ...]
    stored: str
    scale: npt.NDArray[np.float32]
    axis: int | None
    zero: npt.NDArray[np.int64]
    low: int
    high: int
    kind: str
    needs_clip: bool
    drops_clip: bool

    @property
    def output(self) -> str:
        """The rounded tensor."""
        return str(self.nodes[-1].outputs[0])

    @property
    def symmetric(self) -> bool:
        """Whether int8 without a zero point has the same steps."""
        return bool((self.zero == {"int8": 0, "uint8": 128}.get(self.kind, 0)).all())

    def describe(self) -> str:
        """The integers in words."""
        zeros = np.unique(self.zero)
        zero = f", zero point {zeros[0]}" if zeros.size == 1 else f", zero points from {zeros[0]} to {zeros[-1]}"
        return f"{self.low} to {self.high}{zero if zeros.any() else ''}"


def find_fake_quantization(view: GraphView) -> Iterator[FakeQuantization]:
    """The fake quantization of a graph that is written as arithmetic.

    Known spellings: x / s or x * (1 / s); Round, also as the straight-through v + (Round(v) - v); a zero point added
    before or after Round and taken away again; Clip, or Min and Max, before or after Round; Casts to integers and
    back; q * s or q / (1 / s); all of it as the straight-through x + (y - x). Round(v + z) differs from Round(v) + z
    in ties alone, where z is odd.
    """
    for node in view.every:
        if node.op == "Round" and len(node.inputs) == 1:
            try:
                with np.errstate(over="ignore"):  # a reciprocal of next to nothing
                    found = _Chain(view).read(node)
            except _NotKnownError:
                continue
            yield found


def write_pairs(model: Model, wanted: Container[str] | None = None, *, lift: bool = True) -> tuple[str, ...]:
    """Put Q/DQ pairs in place of fake quantization written as arithmetic; the model is edited.

    The scale of a pair is the constant of the file, bit for bit; where that is a reciprocal r alone, float32(1 / r).
    Where a Clip leaves out the lowest integer alone, pairs have it, as TensorRT's; a Clip to fewer stays between Q and
    DQ. What 8 bits do not hold stays as it is.

    Raises:
        QdqError: as `normalize`. The model is unchanged then.
    """
    view = model.view
    found = [chain for chain in find_fake_quantization(view) if wanted is None or chain.output in wanted]
    chains = [chain for chain in found if chain.kind]
    lifted = normalize(model).notes if chains and lift else ()
    if lifted:
        return (*lifted, *write_pairs(model, wanted, lift=False))
    if not chains:  # an edit would index the graph again
        return tuple(_notes(found))
    editor, uses = Editor(view), count_uses(view)
    for chain in chains:
        _write(view, editor, uses, chain)
    editor.commit()
    return tuple(_notes(found))


def _write(view: GraphView, editor: Editor, uses: Counter[str], chain: FakeQuantization) -> None:
    """One pair in the place of one chain; constants that nobody reads any more go."""
    stored = chain.stored if chain.stored in view.initializers and view.shape(chain.stored) == () else ""
    if stored:
        uses[stored] += 2
    scale = stored or editor.add_initializer(editor.unique_name(f"{chain.tensor}_scale"), chain.scale)
    zero = editor.add_initializer(editor.unique_name(f"{chain.tensor}_zero_point"), chain.zero.astype(chain.kind))
    codes = editor.unique_name(f"{chain.tensor}_Q")
    first, last = chain.nodes[0], chain.nodes[-1]
    for node in chain.nodes:
        editor.remove_node(node)
    editor.add_node(QUANTIZE, [chain.tensor, scale, zero], codes, beside=first, after=False, axis=chain.axis)
    if chain.needs_clip:
        bounds = [
            editor.add_initializer(editor.unique_name(f"{chain.tensor}_{end}"), np.array(value, chain.kind))
            for end, value in (("low", chain.low), ("high", chain.high))
        ]
        clipped = editor.unique_name(f"{chain.tensor}_Q_Clip")
        editor.add_node("Clip", [codes, *bounds], clipped, beside=last, after=False)
        codes = clipped
    editor.add_node(DEQUANTIZE, [codes, scale, zero], chain.output, beside=last, after=False, axis=chain.axis)
    editor.drop_value_info(node.outputs[0] for node in chain.nodes[:-1])
    inside = {node.outputs[0] for node in chain.nodes} | {chain.tensor}
    for name in (name for node in chain.nodes for name in node.inputs if name and name not in inside):
        release(editor, uses, name)


def _notes(found: list[FakeQuantization]) -> Iterator[str]:
    known = [chain for chain in found if chain.kind]
    if known:
        yield f"{_counted(known)} written as arithmetic with Round became Q/DQ with {_their(known)} own scales"
    if inverse := [chain for chain in known if not chain.stored]:
        yield f"{_counted(inverse)} stores the reciprocal r of {_their(inverse)} scale alone: the scale is float32(1/r)"
    if dropped := [chain for chain in known if chain.drops_clip]:
        yield f"{_counted(dropped)} leaves out the lowest integer, which TensorRT's INT8 has"
    if shifted := [chain for chain in known if not chain.symmetric]:
        what = f"{_counted(shifted)} is asymmetric ({shifted[0].kind}, {shifted[0].describe()})"
        yield f"{what}, which TensorRT refuses as Q/DQ: insert --requantize --data makes it symmetric"
    if other := [chain for chain in found if not chain.kind]:
        yield f"{_counted(other)} stays in float: 8 bits do not hold its integers, {other[0].describe()}"


def _counted(chains: list[FakeQuantization]) -> str:
    more = f" and of {len(chains) - 1} more" if chains[1:] else ""
    return f"fake quantization of {chains[0].tensor}{more}"


def _their(chains: list[FakeQuantization]) -> str:
    return "their" if chains[1:] else "its"


class _Step(NamedTuple):
    """An operator of one tensor and constants."""

    op: str
    data: str
    name: str = ""
    value: _Array = np.zeros(())
    low: int | None = None
    high: int | None = None


@dataclass
class _Chain:
    """What is known of one chain while it is read from its first operator to its last."""

    view: GraphView
    nodes: list[Node] = field(default_factory=list)
    offset: _Array = field(default_factory=lambda: np.zeros(()))
    zero: _Array | None = None
    low: int | None = None
    high: int | None = None

    def read(self, middle: Node) -> FakeQuantization:
        """The fake quantization around a Round.

        Raises:
            _NotKnownError: there is none.
        """
        first = self._first(middle)
        enter = self._step(first, None)
        name, rounded = first.outputs[0], False
        self.nodes = [first]
        while len(self.nodes) <= _STEPS:
            node = self._next(name, rounded)
            if node is middle:
                rounded, (name, nodes) = True, self._behind_round(middle, name)
                self.nodes += nodes
                continue
            step = self._step(node, name)
            self.nodes.append(node)
            name = node.outputs[0]
            if step.op in ("Mul", "Div"):
                if not rounded or np.any(self.offset):
                    raise _NotKnownError
                return self._made(enter, step)
            self._carry(step, rounded=rounded)
        raise _NotKnownError

    def _first(self, middle: Node) -> Node:
        """The Div or Mul that divides by the scale, before a Round."""
        name = middle.inputs[0]
        for _ in range(_STEPS):
            node = self.view.producers.get(name)
            if node is None:
                break
            step = self._step(node, None)
            if step.op in ("Mul", "Div"):
                return node
            name = step.data
        raise _NotKnownError

    def _next(self, name: str, rounded: bool) -> Node:
        """The one node that reads a tensor of the chain; before Round the readers of a straight-through one, too."""
        nodes = list({id(use.node): use.node for use in self.view.consumers(name)}.values())
        if self.view.is_output(name) or name in self.view.captured or not nodes:
            raise _NotKnownError
        if len(nodes) > 1:
            nodes = [node for node in nodes if node.op == "Round" and not rounded]
        if len(nodes) != 1:
            raise _NotKnownError
        return nodes[0]

    def _behind_round(self, middle: Node, before: str) -> tuple[str, list[Node]]:
        """The rounded tensor and the nodes that make it of `before`."""
        made = [middle, *self._straight_through(middle.outputs[0], before)]
        if any(not any(use.node is node for node in made) for use in self.view.consumers(before)):
            raise _NotKnownError
        return made[-1].outputs[0], made

    def _straight_through(self, name: str, base: str) -> list[Node]:
        """Sub and Add of base + (name - base); empty where there are none."""
        made: list[Node] = []
        for op, other in (("Sub", base), ("Add", base)):
            uses = self.view.consumers(name)
            node = uses[0].node if len(uses) == 1 else None
            if node is None or node.op != op or self.view.is_output(name) or name in self.view.captured:
                return []
            if node.inputs != [name, other] and not (op == "Add" and node.inputs == [other, name]):
                return []
            made.append(node)
            name = node.outputs[0]
        return made

    def _step(self, node: Node, data: str | None) -> _Step:
        """What a node of the chain does."""
        view, names = self.view, node.inputs
        if node.op == "Cast":
            if int(str(attribute(node, "to", 0))) not in {onnx.TensorProto.FLOAT, *_INTEGERS}:
                raise _NotKnownError
            return _Step("Cast", names[0])
        if node.op == "Clip":
            low, high = (self._bound(names[index]) if len(names) > index else None for index in (1, 2))
            return _Step("Clip", names[0], low=low, high=high)
        if node.op not in ("Div", "Mul", "Add", "Sub", "Min", "Max") or len(names) != 2:
            raise _NotKnownError
        if data is None:
            data = max(names, key=lambda name: (not view.is_constant(name), self._size(name)))
        place = names.index(data)
        other = names[1 - place]
        if not view.is_constant(other) or (place and node.op in ("Div", "Sub")):
            raise _NotKnownError
        if node.op in ("Min", "Max"):
            bound = self._bound(other)
            return _Step(
                "Clip", data, low=bound if node.op == "Max" else None, high=bound if node.op == "Min" else None
            )
        value = view.array(other)
        if value is None or value.dtype.kind not in "fi" or not value.size or not np.isfinite(value).all():
            raise _NotKnownError
        return _Step(node.op, data, other, value)

    def _size(self, name: str) -> int:
        return int(np.prod(self.view.shape(name) or (), dtype=np.int64))

    def _bound(self, name: str) -> int | None:
        """One end of a Clip, which must be a whole number."""
        if not name:
            return None
        value = self.view.array(name)
        if value is None or value.size != 1 or value.dtype.kind not in "fi" or float(value.item()) % 1:
            raise _NotKnownError
        return int(value.item())

    def _carry(self, step: _Step, *, rounded: bool) -> None:
        """Take in a zero point or bounds."""
        if step.op in ("Add", "Sub"):
            fits = step.value.size == 1 or self.offset.size == 1 or step.value.shape == self.offset.shape
            if not fits or np.any(step.value % 1) or np.abs(step.value).max() > _LARGEST:
                raise _NotKnownError
            self.offset = self.offset + (step.value if step.op == "Add" else -step.value)
        elif step.op == "Clip":
            if self.zero is not None and not np.array_equal(self.zero, self.offset):
                raise _NotKnownError
            self.zero = self.offset
            self.low = max((end for end in (self.low, step.low) if end is not None), default=None)
            self.high = min((end for end in (self.high, step.high) if end is not None), default=None)
        elif not rounded:
            raise _NotKnownError  # a Cast that truncates

    def _made(self, enter: _Step, leave: _Step) -> FakeQuantization:
        """What the whole chain is."""
        if not all(step.value.dtype == np.float32 and step.value.all() for step in (enter, leave)):
            raise _NotKnownError
        tensor = enter.data
        stored = next((step.name for step in (leave, enter) if step.op == ("Mul" if step is leave else "Div")), "")
        into = enter.value.astype(np.float64) if enter.op == "Div" else 1 / enter.value.astype(np.float64)
        back = leave.value.astype(np.float64) if leave.op == "Mul" else 1 / leave.value.astype(np.float64)
        value = self.view.array(stored) if stored else back.astype(np.float32)
        alike = into.shape == back.shape or into.size == back.size == 1
        if value is None or not alike or not np.allclose(into.ravel(), back.ravel(), rtol=_SAME, atol=0):
            raise _NotKnownError
        scale = np.asarray(value, np.float32)
        shape = self.view.shape(tensor)
        sides = [index for index, size in enumerate(scale.shape) if size > 1]
        if (
            not (np.isfinite(scale).all() and (scale > 0).all())
            or len(sides) > 1
            or (shape is not None and scale.ndim > len(shape))
        ):
            raise _NotKnownError
        axis = sides[0] - scale.ndim + (0 if shape is None else len(shape)) if sides else None
        if axis is not None and shape is not None and shape[axis] != scale.size:
            raise _NotKnownError
        zero = np.zeros(()) if self.zero is None else np.asarray(self.zero)
        if zero.size > 1 and zero.shape != scale.shape:
            raise _NotKnownError
        flat = (scale.size,) if sides else ()
        zeros: npt.NDArray[np.int64] = np.broadcast_to(zero.reshape(flat if zero.size > 1 else ()), flat).astype(
            np.int64
        )
        return self._coded(tensor, stored, np.ascontiguousarray(scale.reshape(flat)), axis, zeros)

    def _coded(
        self, tensor: str, stored: str, scale: npt.NDArray[np.float32], axis: int | None, zero: npt.NDArray[np.int64]
    ) -> FakeQuantization:
        """The same with its integers: their type, and what of it the Clip leaves out."""
        used = self._used(tensor, scale, axis, zero)
        low, high = self.low, self.high
        if used is not None:
            low = used[0] if low is None else low
            high = used[1] if high is None else high
        if low is None or high is None or low > high:
            raise _NotKnownError
        kinds = (name for name, (least, most) in _TYPES.items() if least <= min(low, int(zero.min())))
        kind = next((name for name in kinds if max(high, int(zero.max())) <= _TYPES[name][1]), "")
        below = above = False
        if kind:
            least, most = _TYPES[kind]
            producer = self.view.producer(tensor)
            positive = producer is not None and producer.op in _NOT_NEGATIVE and bool((zero >= low).all())
            below = low > least and not positive and (used is None or used[0] < low)
            above = high < most and (used is None or used[1] > high)
            narrow = low == least + 1 and not above
        nodes = tuple(self.nodes)
        ends = self._straight_through(nodes[-1].outputs[0], tensor)
        clips, drops = (above or (below and not narrow), below and narrow) if kind else (False, False)
        return FakeQuantization(tensor, (*nodes, *ends), stored, scale, axis, zero, low, high, kind, clips, drops)

    def _used(
        self, tensor: str, scale: npt.NDArray[np.float32], axis: int | None, zero: npt.NDArray[np.int64]
    ) -> tuple[int, int] | None:
        """The smallest and largest integer that a constant needs without a Clip; None for what is computed."""
        value: _Array | None = self.view.array(tensor) if self.view.is_constant(tensor) else None
        if value is None or not value.size or value.dtype != np.float32:
            return None
        shape = [1] * value.ndim
        if axis is not None:
            shape[axis] = scale.size
        several = shape if axis is not None else ()
        with np.errstate(over="ignore", invalid="ignore"):
            codes = np.rint(value / scale.reshape(several)) + zero.reshape(several)
        return (int(codes.min()), int(codes.max())) if np.isfinite(codes).all() else None
