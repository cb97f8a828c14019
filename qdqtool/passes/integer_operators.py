# SPDX-License-Identifier: Apache-2.0
"""Lets floats be where a converter moves, takes or gives out integers: whole pairs around each such operator.

Q > Transpose > DQ becomes Q > DQ > Transpose > Q > DQ, with the same scale: to the bit the same values, since such an
operator only moves them. An integer input or output of the graph becomes float32, which is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from qdqtool.graph.edit import Editor
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Use, attribute
from qdqtool.match.flow import Flow, value_inputs, value_names
from qdqtool.rule_files import operator_set

_INTEGERS = frozenset({onnx.TensorProto.INT8, onnx.TensorProto.UINT8})


@dataclass(frozen=True)
class _Code:
    """How a stretch of integers is coded: scale and zero point, as its Q or DQ names them."""

    operands: tuple[str, ...]
    node: Node


@dataclass(frozen=True)
class FloatInput:
    """An input of the graph that took integers and takes floats.

    Attributes:
        name: its name.
        was: the type of its integers.
        scale, zero: one float is ``scale * (code - zero)``; the scale is None where it is no constant of one number.
    """

    name: str
    was: np.dtype[Any]
    scale: np.float32 | None
    zero: int

    @property
    def span(self) -> tuple[float, float] | None:
        """The smallest and the largest value that its codes stand for."""
        if self.scale is None:
            return None
        codes = np.iinfo(self.was)
        lowest, highest = (self.scale * np.float32(code - self.zero) for code in (codes.min, codes.max))
        return float(lowest), float(highest)

    @property
    def preprocess(self) -> str:
        """The preprocessing of images whose pixels were the codes: less 128 where these are signed."""
        mean = self.scale and self.scale * np.float32(self.zero - np.iinfo(self.was).min)
        return f"scale={self.scale!s}" + (f",mean={mean!s}" if mean else "")

    @property
    def note(self) -> str:
        """A sentence on what it takes now."""
        said = f"the input {self.name} took {self.was} and takes floats now"
        if self.span is None:
            return said
        code = f"(code {'-' if self.zero >= 0 else '+'} {abs(self.zero)})" if self.zero else "code"
        return f"{said}: {self.scale!s} * {code}, from {self.span[0]:.6g} to {self.span[1]:.6g}"


@dataclass(frozen=True)
class FloatEnds:
    """Ends of the graph that were integers and are floats: a sentence for each, and its inputs."""

    notes: tuple[str, ...] = ()
    inputs: tuple[FloatInput, ...] = ()


def has_loose_integers(view: GraphView) -> bool:
    """Whether a Q or DQ is not a part of a pair: its partner is after what moves integers, or outside of the graph."""
    paired = {id(node) for pairs in view.pairs.values() for pair in pairs for node in pair.nodes}
    if any(node.op in (QUANTIZE, DEQUANTIZE) and id(node) not in paired for node in view.every):
        return True
    integers = {node.outputs[0] for node in view.every if node.op == QUANTIZE}
    sizes = operator_set("sizes")
    consumers = (node for node in view.nodes if node.op in sizes or _is_move(node))
    return bool(integers) and any(name in integers for node in consumers for name in value_names(node))


def _is_move(node: Node) -> bool:
    """Whether a node gives out values of its inputs and nothing else: it commutes with Q and DQ of one scale."""
    if node.op in operator_set("resampling"):
        extrapolates = attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
        return attribute(node, "mode", "nearest") == "nearest" and not extrapolates
    return node.op in operator_set("unchanged") and (len(node.outputs) == 1 or node.op == "Split")


def complete_pairs(view: GraphView, *, ends: bool = True) -> FloatEnds:
    """Make whole pairs of what `has_loose_integers` finds; the proto is edited. What cannot be completed stays.

    Args:
        view: the graph; make a new view afterwards.
        ends: also where the graph takes or gives out integers, which become float32.
    """
    work = _Work(view, ends=ends)
    if ends:
        work.inputs()
    work.moves()
    if ends:
        work.outputs()
    work.editor.commit()
    return FloatEnds(tuple(work.notes), tuple(work.taken))


class _Work:
    """The edits, and how each integer tensor of the graph is coded."""

    def __init__(self, view: GraphView, *, ends: bool) -> None:
        self.view, self.editor, self.notes, self.ends = view, Editor(view), list[str](), ends
        self.floats: dict[str, str] = {node.outputs[0]: node.inputs[0] for node in view.every if node.op == QUANTIZE}
        self.taken: list[FloatInput] = []
        self.moved: set[str] = set()  # outputs of the graph that were integers
        self.consumers: dict[str, list[Use]] = {}
        for node in view.every:
            for index, name in enumerate(node.inputs):
                self.consumers.setdefault(name, []).append(Use(node, index))
        self.codes = {
            node.outputs[0]: _Code(tuple(node.inputs[1:]), node) for node in view.every if node.op == QUANTIZE
        }

    def inputs(self) -> None:
        """An integer input that only DQ and what moves integers read."""
        for value in self.view.graph.input:
            name, kind = value.name, value.type.tensor_type
            if kind.elem_type not in _INTEGERS or name in self.view.initializers or name in self.view.captured:
                continue
            dequantize = self._dequantize_behind(name)
            if dequantize is None:
                continue
            uses = list(self.consumers[name])
            self._quantize(name, _Code(tuple(dequantize.inputs[1:]), dequantize), uses, beside=None)
            scale, zero = (self.view.array(one) for one in (*dequantize.inputs[1:], "")[:2])
            number = np.float32(scale.item()) if scale is not None and scale.size == 1 else None
            shift = int(zero.item()) if zero is not None and zero.size == 1 else 0
            was = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            kind.elem_type = self._float(dequantize)
            self.taken.append(FloatInput(name, was, number, shift))
            self.notes.append(self.taken[-1].note)

    def _dequantize_behind(self, name: str) -> Node | None:
        """The first DQ behind integers, where nothing but DQ and what moves integers reads them."""
        flow = Flow(self.view, _is_move, consumers=lambda tensor: self.consumers.get(tensor, []))
        ends = list(flow.ends(self.consumers.get(name, [])))
        if not all(use.node.op == DEQUANTIZE and use.index == 0 for use in ends):
            return None
        return min((use.node for use in ends), key=lambda node: node.index, default=None)

    def moves(self) -> None:
        """Floats around each operator that moves integers, in the order of the data."""
        waiting = sorted((node for node in self.view.every if self._movable(node)), key=lambda node: node.level)
        for node in waiting:
            code = self._code_of(node)
            if code is None:
                continue
            if node.op == "Identity" and not self.view.is_output(node.outputs[0]):
                self.codes[node.outputs[0]] = code  # a view sees through it
                continue
            for index in value_inputs(node):
                source = node.inputs[index]
                back = self.editor.unique_name(f"{source}_DQ")
                self._add(DEQUANTIZE, [source, *code.operands], back, code.node, beside=node, after=False)
                self._reroute(Use(node, index), back)
            for moved in filter(None, node.outputs):
                self.moved.update({moved} if self.view.is_output(moved) else ())
                self._quantize(moved, code, list(self.consumers.get(moved, [])), beside=node)
                self.editor.drop_value_info([moved])
        sizes = operator_set("sizes")  # these ask for no value: they read the floats as well
        for name, source in self.floats.items():
            for use in [use for use in self.consumers.get(name, []) if use.node.op in sizes]:
                self._reroute(use, source)

    def _movable(self, node: Node) -> bool:
        """A move of integers that are no constant, nor given out where the graph's ends must stay as they are."""
        ends = self.ends or not any(map(self.view.is_output, node.outputs))
        return ends and _is_move(node) and not self.view.is_constant(node.outputs[0])

    def _code_of(self, node: Node) -> _Code | None:
        """How the integers that a node moves are coded; None where they are none, or of several codes."""
        names = value_names(node)
        codes = [self.codes[name] for name in names if name in self.codes]
        if not codes or not all(name in self.codes or self.view.is_constant(name) for name in names):
            return None
        return codes[0] if all(self._alike(codes[0], code) for code in codes) else None

    def _alike(self, one: _Code, other: _Code) -> bool:
        """Whether two stretches of integers have one scale and zero point."""
        if one.operands == other.operands:
            return True
        values = [[self.view.array(name) for name in code.operands if name] for code in (one, other)]
        same = len(values[0]) == len(values[1]) and attribute(one.node, "axis") == attribute(other.node, "axis")
        return same and all(
            a is not None and b is not None and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in zip(*values, strict=True)
        )

    def outputs(self) -> None:
        """An output that a Q makes; one after a moving operator is float by now."""
        given = {value.name: value.type.tensor_type for value in self.view.graph.output}
        for name, kind in given.items():
            producer = self.view.producers.get(name)
            if producer is None or name in self.view.captured:
                continue
            if producer.op == QUANTIZE:
                code = self.codes[name]
                fresh = self.editor.unique_name(f"{name}_Q")
                self.editor.rename_output(producer, 0, fresh)
                for use in self.consumers.get(name, []):
                    self._reroute(use, fresh)
                self._add(DEQUANTIZE, [fresh, *code.operands], name, code.node, beside=producer, after=True)
            elif name not in self.moved:
                continue
            was = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name if kind.elem_type else "integers"
            kind.elem_type = onnx.TensorProto.FLOAT
            self.editor.drop_value_info([name])
            self.notes.append(f"the output {name} gave {was} and gives floats now")

    def _quantize(self, name: str, code: _Code, uses: list[Use], *, beside: Node | None) -> None:
        """A Q on a tensor that was integers, for all who read them; with a DQ where nobody does: it keeps the scale."""
        fresh = self.editor.unique_name(f"{name}_Q")
        self._add(QUANTIZE, [name, *code.operands], fresh, code.node, beside=beside, after=beside is not None)
        for use in uses:
            self._reroute(use, fresh)
        if not uses:
            back = self.editor.unique_name(f"{name}_DQ")
            self._add(DEQUANTIZE, [fresh, *code.operands], back, code.node, beside=beside, after=True)
        self.codes[fresh], self.floats[fresh] = code, name

    def _reroute(self, use: Use, name: str) -> None:
        self.consumers[use.node.inputs[use.index]].remove(use)
        self.editor.reroute(use, name)
        self.consumers.setdefault(name, []).append(use)

    def _add(self, op: str, inputs: list[str], output: str, like: Node, *, beside: Node | None, after: bool) -> None:
        axis = attribute(like, "axis")
        given = None if axis is None else int(str(axis))
        self.editor.add_node(op, inputs, output, beside=beside, after=after, axis=given)

    def _float(self, node: Node) -> int:
        scale = self.view.array(node.inputs[1])
        return onnx.TensorProto.FLOAT if scale is None else int(onnx.helper.np_dtype_to_tensor_dtype(scale.dtype))
