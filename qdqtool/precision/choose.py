# SPDX-License-Identifier: Apache-2.0
"""The type of every operator: FP32 where it must be, and where that saves casts; FP16 or BF16 for the rest.

Nothing is run, nothing is edited: `casts.py` writes what is chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnx import TensorProto

from qdqtool.display import Cells, Displayed, counted
from qdqtool.graph.model import Model
from qdqtool.graph.view import Node
from qdqtool.precision.amp_rules import amp_rules
from qdqtool.precision.assignment import TypeAssignment, rest_name
from qdqtool.precision.between_pairs import between_pairs, cheap_between_pairs
from qdqtool.precision.cast_cut import plan_casts, reasons_beside
from qdqtool.precision.fixed_types import fixed_for
from qdqtool.precision.float_graph import FloatGraph, float_graph
from qdqtool.precision.int8_paths import int8_layers
from qdqtool.precision.reasons import CASTS, INT8, FloatReason, Requirements
from qdqtool.precision.required import IN_INT8_LAYER, required_float32
from qdqtool.precision.type_units import TypeUnits, type_units
from qdqtool.precision.value_ranges import ValueRanges

_NOT_SAID = "it was chosen before, and the model does not say why"


@dataclass(frozen=True)
class TypeOptions:
    """The options of a choice of types.

    Attributes:
        rest: element type of what is not FP32: TensorProto.FLOAT16 or BFLOAT16.
        keep_fp32: regular expressions; operators whose name or output one is found in stay in FP32.
        half_io: whether inputs and outputs of the graph take that type, too.
        for_dla: whether a DLA runs the model. It has no FP32, so nothing is FP32 because that costs a GPU no byte.
    """

    rest: int = TensorProto.FLOAT16
    keep_fp32: tuple[str, ...] = ()
    half_io: bool = False
    for_dla: bool = False


@dataclass(frozen=True, repr=False)
class TypeChoice(Displayed):
    """The type of every operator, and why some are in FP32.

    Attributes:
        assignment: what `apply_types` takes.
        reasons: key of each node in FP32 -> why.
        operators: key -> (name, operator) of every node that has a choice, in file order.
        casts: how many Casts the choice needs; those behind a DequantizeLinear and before a QuantizeLinear among them.
        plain_casts: how many there were without the minimum cut.
        graph: what was looked at.
        units: what of it has one type.
    """

    assignment: TypeAssignment
    reasons: Mapping[str, FloatReason]
    operators: Mapping[str, tuple[str, str]]
    casts: int
    plain_casts: int
    graph: FloatGraph
    units: TypeUnits

    @property
    def half(self) -> int:
        """How many operators compute in half precision."""
        return len(self.operators) - len(self.reasons)

    def float_type(self, node: Node) -> str:
        """The type in which an operator computes floats, as people write it."""
        half = node.key in self.operators and node.key not in self.reasons
        return rest_name(self.assignment.rest).upper() if half else "FP32"

    @property
    def int8(self) -> int:
        """How many operators are in FP32 in the file and in quantized layers of the engine."""
        return sum(one.rule == INT8 for one in self.reasons.values())

    def headline(self) -> str:
        """How many operators have which type, and what stands between them."""
        name = rest_name(self.assignment.rest).upper()
        phrases = [f"{counted(self.half, 'operator')} in {name}", f"{len(self.reasons) - self.int8} in FP32"]
        if self.int8:
            phrases.append(f"{self.int8} in quantized layers")
        return ", ".join([*phrases, counted(self.casts, "Cast")])

    def rows(self) -> Cells:
        """One row for each operator in FP32 but those in quantized layers: name, type of operator, rule, reason."""
        shown = ((key, one) for key, one in self.reasons.items() if one.rule != INT8)
        found = [(*self.operators[key], one.rule, one.text) for key, one in shown]
        return [("operator", "type", "rule", "reason"), *found]

    def with_float32(self, more: Mapping[str, FloatReason]) -> TypeChoice:
        """The choice with more operators in FP32, and what then saves casts."""
        own = {key: one for key, one in self.reasons.items() if one.rule != CASTS}  # whatever the neighbors are
        return _choice(self.graph, {**own, **more}, self.assignment, self.units)


def choose_types(model: Model, ranges: ValueRanges, options: TypeOptions | None = None) -> TypeChoice:
    """Choose the type of every operator of a model.

    Raises:
        QdqError: a `keep_fp32` that is no expression, or matches nothing.
    """
    options = options or TypeOptions()
    view = model.view
    graph = float_graph(model, options.rest, ranges.input_shapes, half_io=options.half_io)
    fixed = fixed_for(model, options.rest, for_dla=options.for_dla)
    layers = frozenset[str]() if options.for_dla else int8_layers(view)
    if not options.for_dla:
        layers |= cheap_between_pairs(graph, layers, amp_rules())
    needs = Requirements(graph, ranges, amp_rules(), options.rest, fixed, layers=layers, keep=options.keep_fp32)
    assignment = TypeAssignment(options.rest, half_io=options.half_io, for_dla=options.for_dla)
    return _choice(graph.with_layers(layers), required_float32(needs), assignment, type_units(graph))


def recorded_choice(model: Model, assignment: TypeAssignment) -> TypeChoice:
    """A choice that was made before: the reasons are not known any more."""
    view = model.view
    graph, inside = float_graph(model, assignment.rest, {}, half_io=assignment.half_io), int8_layers(view)
    inside |= between_pairs(view, inside)
    operators = {key: (node.name, node.op) for key, node in graph.nodes.items()}
    kept = (key for key in graph.nodes if key in assignment.float32)
    recorded = assignment.reasons
    reasons = {
        key: IN_INT8_LAYER
        if key in inside and key not in recorded
        else FloatReason("recorded", recorded.get(key, _NOT_SAID))
        for key in kept
    }
    casts = graph.casts(assignment.float32)
    return TypeChoice(assignment, reasons, operators, casts, casts, graph, type_units(graph))


def _choice(
    graph: FloatGraph, required: Mapping[str, FloatReason], assignment: TypeAssignment, units: TypeUnits
) -> TypeChoice:
    half = frozenset(graph.nodes) if assignment.for_dla else frozenset[str]()
    while True:  # each round makes more operators FP32, or half that were free
        required = units.with_parts(graph, required)
        plan = plan_casts(graph, required, amp_rules(), units.units, half - required.keys())
        wide, narrow = units.corrections(graph, plan.float32, required)
        if not wide and narrow <= half:
            break
        required, half = {**required, **wide}, half | narrow
    beside = reasons_beside(graph, [key for key in graph.nodes if key in plan.float32 - required.keys()], required)
    reasons = {key: required.get(key) or beside[key] for key in graph.nodes if key in plan.float32}
    texts = {key: one.text for key, one in reasons.items() if one.rule != INT8}
    operators = {key: (node.name, node.op) for key, node in graph.nodes.items()}
    assigned = replace(assignment, float32=plan.float32, reasons=texts)
    return TypeChoice(assigned, reasons, operators, plan.casts, plan.plain_casts, graph, units)
