# SPDX-License-Identifier: Apache-2.0
"""Puts the types of an assignment into a model, and takes them out again. What came typed from elsewhere stays typed.

Casts stand between operators of two types; constants are stored in the type in which they are read. Enters the main
graph only: bodies of control flow stay FP32, and what they read from outside is cast at their border. Which operators
compute in which type was decided before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

from qdqtool.graph.edit import TRACE, Editor, drop_metadata
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import captured_names, may_have_bodies
from qdqtool.graph.order import wrapped
from qdqtool.graph.tensors import constant_value
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Use, attribute
from qdqtool.precision.assignment import (
    PRECISION,
    PrecisionRecord,
    TypeAssignment,
    rest_name,
    store_precision,
    stored_precision,
)
from qdqtool.precision.fixed_types import fixed_for, float_types
from qdqtool.precision.half_places import half_places, reads_any_type
from qdqtool.precision.scopes import typed_scope
from qdqtool.precision.stored_weights import Rounding, rounded_tensor
from qdqtool.precision.widen import is_typed, widen, widen_named

FLOAT = int(TensorProto.FLOAT)


@dataclass
class _Reads:
    """Who reads a float tensor, by the type that it wants; 0 for a reader that takes either."""

    uses: dict[int, list[Use]] = field(default_factory=dict)
    bodies: list[Node] = field(default_factory=list)

    def add(self, kind: int, use: Use) -> None:
        self.uses.setdefault(kind, []).append(use)

    def kinds(self) -> set[int]:
        """The types that are wanted."""
        return {kind for kind in self.uses if kind} | ({FLOAT} if self.bodies else set())


def apply_types(model: Model, assignment: TypeAssignment, rounding: Rounding | None = None) -> Model:
    """A copy of a model with the types of an assignment, as a strongly typed network of TensorRT reads it.

    Every tensor and node keeps its name. A tensor that is read in another type than it is made in gets one Cast, which
    its readers share (`x_fp16`, `x_fp32`). An output whose type is kept is cast at the end, and so has its own name.
    QuantizeLinear, DequantizeLinear and their scales stay float32: a Cast stands in front of the one and behind the
    other. Scales of a weight's blocks have the type of the product instead, which a Cast would keep from fusing.
    Constants are stored in the type in which they are read, twice where there are readers of both. Operators that
    cannot have the type (`fixed_types.fixed_for`) stay FP32 whatever the assignment says.

    Returns:
        The typed model, with the record "precision" in its metadata; the same model gives the same bytes.
    """
    made, folder = model.copy(), model.folder
    twins = _Caster(
        model, made, assignment, rounding or (lambda tensor, kind: rounded_tensor(tensor, kind, folder))
    ).run()
    store_precision(made.proto, PrecisionRecord(assignment, twins))
    return made


class _Caster:
    """One model that gets its types: `made`, a copy of `model`, which knows its types already."""

    def __init__(self, model: Model, made: Model, assignment: TypeAssignment, rounding: Rounding) -> None:
        self.view = made.view
        self.types = float_types(model)
        self.rest, self.half_io = assignment.rest, assignment.half_io
        self.opset = opset_of(model.proto) or 1
        float32 = assignment.float32 | fixed_for(model, self.rest, for_dla=assignment.for_dla).keys()
        self.in_float32 = {
            node.index for node in self.view.every if node.key in float32 or node.op in (QUANTIZE, DEQUANTIZE)
        }
        blocks = (node for node in self.view.every if is_blocks(self.view, node))
        self.as_read: set[int] = set()
        self.as_read = {node.index for node in blocks if self._read_in_half(node)}
        self.in_float32 -= self.as_read
        self.editor = Editor(self.view)
        self.rounding = rounding
        self.twins: dict[str, str] = {}
        self.at_border = self.rest if self.half_io else FLOAT

    def run(self) -> dict[str, str]:
        """Do it; constants stored a second time -> the FP32 constant."""
        reads = self._reads()
        constants = {tensor.name for tensor in self.view.graph.initializer} | {
            node.key for node in self.view.every if node.op == "Constant"
        }
        kinds: dict[str, int] = {}
        made: list[tuple[str, Node | None, int]] = [(name, None, self.at_border) for name in self.view.inputs]
        for node in self.view.every:
            if node.op != "Constant":
                made += [(name, node, self._gives(node, place)) for place, name in enumerate(node.outputs) if name]
        typed = {node.index for node in self.view.every if self._type(node) == self.rest and self._makes_float(node)}
        for name, producer, kind in made:
            if self._is_float(name):
                kinds[name] = kind
                self._cast(name, producer, kind, reads.get(name) or _Reads())
        for name in [name for name in self._constants_in_order() if name in constants and self._is_float(name)]:
            kinds[name] = self._store(name, reads.get(name) or _Reads())
        for node in self.view.every:
            if node.index in typed:
                _retype(node.proto, self.rest)
        self._declare(kinds)
        self.editor.commit()
        return self.twins

    # ------------------------------------------------------------------ what has which type

    def _read_in_half(self, node: Node) -> bool:
        """Whether all that read what a DequantizeLinear makes read it in the type of 16 bits."""
        uses = self.view.consumers(node.key)
        return all(self._wants(use.node, use.index) == self.rest for use in uses) and not self.view.is_output(node.key)

    def _is_float(self, name: str) -> bool:
        return self.types.get(name) == FLOAT

    def _makes_float(self, node: Node) -> bool:
        return any(self._is_float(name) for name in node.outputs)

    def _type(self, node: Node) -> int:
        return FLOAT if node.index in self.in_float32 else self.rest

    def _gives(self, node: Node, place: int) -> int:
        """The type of one output of a node, if it is a float."""
        if node.index in self.as_read:
            return self.rest
        places = half_places(node, self.opset, self.rest)
        return self._type(node) if places is not None and places.gives(place) else FLOAT

    def _wants(self, node: Node, place: int) -> int:
        """The type in which a node reads one input, if it is a float; 0 for either."""
        if reads_any_type(node, place):
            return 0
        if node.index in self.as_read:
            return self.rest
        places = half_places(node, self.opset, self.rest)
        return self._type(node) if places is not None and places.reads(place) else FLOAT

    def _reads(self) -> dict[str, _Reads]:
        reads: dict[str, _Reads] = {}
        for node in self.view.every:
            for place, name in enumerate(node.inputs):
                if self._is_float(name):
                    reads.setdefault(name, _Reads()).add(self._wants(node, place), Use(node, place))
            for name in sorted(captured_names(node)) if may_have_bodies(node) else ():
                if self._is_float(name):
                    reads.setdefault(name, _Reads()).bodies.append(node)
        return reads

    def _constants_in_order(self) -> list[str]:
        nodes = [node.key for node in self.view.every if node.op == "Constant"]
        return [tensor.name for tensor in self.view.graph.initializer] + nodes

    # ------------------------------------------------------------------ edits

    def _cast(self, name: str, producer: Node | None, kind: int, reads: _Reads) -> None:
        """Casts behind one tensor that is made in the type `kind`; its readers in other types read them."""
        names = {kind: name}
        if producer is not None and self.view.is_output(name) and kind != self.at_border:
            names = {kind: self._name(name, kind), self.at_border: name}
            self.editor.rename_output(producer, producer.outputs.index(name), names[kind])
        for wanted in sorted(reads.kinds() - names.keys()):
            names[wanted] = self._name(name, wanted)
        for wanted in sorted(names.keys() - {kind}):
            rule = (("rule", "precision"),)
            self.editor.add_node(
                "Cast", [names[kind]], names[wanted], beside=producer, after=True, to=wanted, trace=rule
            )
        names[0] = names[kind]
        self._reroute(name, reads, names)

    def _name(self, name: str, kind: int) -> str:
        return self.editor.unique_name(f"{name}_{rest_name(kind)}")

    def _reroute(self, name: str, reads: _Reads, names: dict[int, str]) -> None:
        for wanted, uses in reads.uses.items():
            if names[wanted] != name:
                for use in uses:
                    self.editor.reroute(use, names[wanted])
        for node in reads.bodies:
            if names[FLOAT] != name:
                self.editor.reroute_bodies(node, {name: names[FLOAT]})

    def _store(self, name: str, reads: _Reads) -> int:
        """A constant in the types in which it is read; the type that it has under its own name."""
        wanted = reads.kinds()
        if self.view.is_output(name):
            wanted.add(self.at_border)
        if self.rest not in wanted:
            return FLOAT
        if wanted == {self.rest}:
            self._set_constant(name)
            return self.rest
        primary = self.at_border if self.view.is_output(name) else FLOAT
        other = self.rest if primary == FLOAT else FLOAT
        twin = self._name(name, other)
        source = self._tensor(name)
        copy = TensorProto()
        copy.CopyFrom(source if other == FLOAT else self.rounding(source, self.rest))
        copy.name = twin
        self.view.graph.initializer.append(copy)
        if primary == self.rest:
            self._set_constant(name)
        self.twins[twin] = name
        self._reroute(name, reads, {primary: name, other: twin, 0: name})
        return primary

    def _tensor(self, name: str) -> TensorProto:
        """The values of a constant as a float32 tensor."""
        if name in self.view.initializers:
            return self.view.initializers[name]
        proto = self.view.producers[name].proto
        for item in proto.attribute:
            if item.name == "value":
                held: TensorProto = item.t
                return held
        value = np.asarray(constant_value(proto, self.view.folder), np.float32)
        return helper.make_tensor(name, FLOAT, value.shape, value.tobytes(), raw=True)

    def _set_constant(self, name: str) -> None:
        rounded = self.rounding(self._tensor(name), self.rest)
        if name in self.view.initializers:
            self.view.initializers[name].CopyFrom(rounded)
            return
        proto = self.view.producers[name].proto
        del proto.attribute[:]
        proto.attribute.append(helper.make_attribute("value", rounded))

    def _declare(self, kinds: dict[str, int]) -> None:
        """Let the graph's inputs, outputs and value_info say the types that the tensors have."""
        graph = self.view.graph
        for value in (*graph.input, *graph.value_info):
            if value.type.tensor_type.elem_type == FLOAT and kinds.get(value.name) == self.rest:
                value.type.tensor_type.elem_type = self.rest
        for value in graph.output:
            if value.type.tensor_type.elem_type == FLOAT and self._is_float(value.name):
                value.type.tensor_type.elem_type = self.at_border


def is_blocks(view: GraphView, node: Node) -> bool:
    """Whether a DequantizeLinear reads a constant with one scale per block, and no codes of scales."""
    if node.op != DEQUANTIZE or not attribute(node, "block_size", 0) or not view.is_constant(node.inputs[0]):
        return False
    return view.constant_tensor(node.inputs[1]) is not None


def _retype(proto: onnx.NodeProto, rest: int) -> None:
    """Let a Cast to FP32, or a ConstantOfShape of FP32, make another element type; other operators stay."""
    for item in proto.attribute:
        if proto.op_type == "Cast" and item.name == "to":
            item.i = rest
        if proto.op_type == "ConstantOfShape" and item.name == "value":
            item.t.CopyFrom(rounded_tensor(item.t, rest, None))
            return
    if proto.op_type == "ConstantOfShape":
        proto.attribute.append(helper.make_attribute("value", helper.make_tensor("", rest, [1], [0.0])))


def count_casts(model: onnx.ModelProto) -> int:
    """How many Casts in the main graph `apply_types` put in."""
    return sum(map(is_added_cast, model.graph.node))


def is_added_cast(proto: onnx.NodeProto) -> bool:
    """Whether `apply_types` put a node in."""
    return proto.op_type == "Cast" and any(
        entry.key == f"{TRACE}rule" and entry.value == "precision" for entry in proto.metadata_props
    )


def types_over_pairs(model: onnx.ModelProto) -> PrecisionRecord | None:
    """The record of a Q/DQ model whose types came after its pairs; None where the pairs came into a typed model.

    Only then do the Casts beside pairs carry the trace of `apply_types`.
    """
    record = stored_precision(model)
    if record is None:
        return None
    dequantized = {proto.output[0] for proto in model.graph.node if proto.op_type == DEQUANTIZE and proto.output}
    quantized = {proto.input[0] for proto in model.graph.node if proto.op_type == QUANTIZE and proto.input}
    beside = [
        proto
        for proto in model.graph.node
        if proto.op_type == "Cast" and (proto.input[0] in dequantized or proto.output[0] in quantized)
    ]
    return record if all(map(is_added_cast, beside)) else None


def take_out_types(model: Model, record: PrecisionRecord) -> Model:
    """The model in FP32 under the names that it had before its types: Casts are gone, and constants stored twice.

    Constants that were stored in 16 bits alone keep their rounded values.
    """
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    made = widen(model)
    _merge_twins(made.graph, record.twins, kinds)
    drop_metadata(made.proto, PRECISION)
    return made


def fp32_masters(model: Model) -> tuple[Model, TypeAssignment | None]:
    """What is trained of a model, in FP32, and the types that it gets afterwards; None for a model in FP32.

    Types that `apply_types` did not write are read off the file: an operator that makes FP32 tensors stays FP32.
    """
    record = stored_precision(model.proto)
    if not is_typed(model):
        return model, None
    if record is not None:
        return take_out_types(model, record), record.assignment
    wide = widen_named(model)
    types = typed_scope(model).types
    kinds = {types.get(name, 0) for proto in model.graph.node for name in proto.output}
    kinds.update(tensor.data_type for tensor in model.graph.initializer)
    rest = int(TensorProto.FLOAT16 if TensorProto.FLOAT16 in kinds else TensorProto.BFLOAT16)
    float32 = {
        wide.names.get(node.key, node.key)
        for node in wrapped(model.graph.node)
        if node.op not in (QUANTIZE, DEQUANTIZE, "Constant")
        and node.key not in wide.casts
        and types.get(node.key) == TensorProto.FLOAT
    }
    stored = {tensor.name for tensor in model.graph.initializer}  # which old files list as inputs
    fed = (value for value in model.graph.input if value.name not in stored)
    half_io = any(value.type.tensor_type.elem_type == rest for value in fed)
    return wide.model, TypeAssignment(rest, frozenset(float32), half_io)


def _merge_twins(graph: onnx.GraphProto, twins: Mapping[str, str], kinds: Mapping[str, int]) -> None:
    """Let who reads a second copy of a constant read the first, which takes the exact values of an FP32 copy."""
    copies = {tensor.name: tensor for tensor in graph.initializer if tensor.name in twins}
    for tensor in graph.initializer:
        twin = next((name for name, first in twins.items() if first == tensor.name and name in copies), None)
        if twin is not None and kinds.get(twin) == onnx.TensorProto.FLOAT:
            exact = onnx.TensorProto()
            exact.CopyFrom(copies[twin])
            exact.name = tensor.name
            tensor.CopyFrom(exact)
    for proto in graph.node:
        for index, name in enumerate(proto.input):
            if name in copies:
                proto.input[index] = twins[name]
    for place in range(len(graph.initializer) - 1, -1, -1):
        if graph.initializer[place].name in copies:
            del graph.initializer[place]
