# SPDX-License-Identifier: Apache-2.0
"""Which operators must stay in FP32, with the reason, one function per reason. Not which are so for fewer casts."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.view import Node
from qdqtool.options import compile_pattern
from qdqtool.precision.accumulation import product_bound, sum_bound
from qdqtool.precision.amp_rules import AmpRules
from qdqtool.precision.constant_values import ConstantValues, values_of
from qdqtool.precision.fixed_types import UNKNOWN, makers_of_unknown
from qdqtool.precision.float_graph import FloatGraph
from qdqtool.precision.half_places import half_places
from qdqtool.precision.stored_weights import SMALLEST
from qdqtool.precision.value_ranges import ValueRange, ValueRanges

# The largest finite value of each type.
LARGEST: Mapping[int, float] = {TensorProto.FLOAT16: 65504.0, TensorProto.BFLOAT16: 3.3895313892515355e38}


_UNKNOWN = ("nothing is known of the values", "has a clipping value of", "no data was run")


def wants_data(text: str) -> bool:
    """Whether a reason may go where data are given: the values were unknown, or their largest was."""
    return any(words in text for words in _UNKNOWN)


@dataclass(frozen=True)
class FloatReason:
    """Why an operator is in FP32.

    Attributes:
        rule: kept, operator, untyped, range, constant, product, sum, steep, singular or faint; int8 in INT8 layers;
            tail where outputs want digits; casts, loss or overflow where it is so for what was found later.
        text: the same as a sentence, with the tensor and the figure.
    """

    rule: str
    text: str


class Requirements:
    """What every check reads, and the constants that are read once."""

    def __init__(
        self, graph: FloatGraph, ranges: ValueRanges, rules: AmpRules, rest: int, fixed: Mapping[str, str]
    ) -> None:
        """Read nothing yet."""
        self.graph, self.ranges, self.rules, self.rest, self.fixed = graph, ranges, rules, rest, fixed
        self.most = LARGEST[rest]
        self.least = SMALLEST[rest]
        self._constants: dict[str, ConstantValues | None] = {}
        untyped = (node for key, node in graph.nodes.items() if fixed.get(key) == UNKNOWN)
        self.untyped_by = makers_of_unknown(graph.view, untyped, graph.types)

    def constant(self, name: str) -> ConstantValues | None:
        """The magnitudes of a constant."""
        if name not in self._constants:
            self._constants[name] = values_of(self.graph.view, name)
        return self._constants[name]

    def range_of(self, name: str) -> ValueRange | None:
        """The values of an activation or of a constant."""
        if not self.graph.view.is_constant(name):
            return self.ranges.of(self.graph.view, name)
        found = self.constant(name)
        return None if found is None else ValueRange(-found.largest, found.largest, smallest=found.smallest)


_Check = Callable[[Requirements, Node], FloatReason | None]


def required_float32(needs: Requirements, keep: tuple[str, ...]) -> dict[str, FloatReason]:
    """Key -> reason, for every node that cannot be half; the first reason that holds, in file order.

    Raises:
        QdqError: an expression is none, or matches no operator.
    """
    kept = _kept(needs.graph, keep)
    found = {}
    for key, node in needs.graph.nodes.items():
        reason = kept.get(key) or next(filter(None, (check(needs, node) for check in _CHECKS)), None)
        if reason is not None:
            found[key] = reason
    return found


def _kept(graph: FloatGraph, patterns: tuple[str, ...]) -> dict[str, FloatReason]:
    found: dict[str, FloatReason] = {}
    for pattern in patterns:
        where = f"--keep-fp32 {pattern}"
        expression = compile_pattern("--keep-fp32", pattern)
        keys = [key for key, node in graph.nodes.items() if any(map(expression.search, (node.name, *node.outputs)))]
        if not keys:
            near = difflib.get_close_matches(pattern, [node.name for node in graph.nodes.values()], 3)
            raise QdqError(
                where, "matches no operator", f"near: {', '.join(near)}" if near else "see amp --explain for the names"
            )
        found.update((key, FloatReason("kept", where)) for key in keys)
    return found


def _operator(needs: Requirements, node: Node) -> FloatReason | None:
    fixed = needs.fixed.get(node.key)
    if fixed == UNKNOWN:
        maker = needs.untyped_by[node.key]
        made = "it makes it" if maker is node else f"{maker.name} ({maker.op}) makes it"
        return FloatReason("untyped", f"{node.op}: {UNKNOWN}; {made}")
    if fixed is not None:
        return FloatReason("operator", f"{node.op}: {fixed}")
    rule = needs.rules.lists.get(node.op)
    if rule is None:
        return FloatReason("operator", f"{node.op} is in no list of rules/amp.toml")
    return FloatReason("operator", f"{node.op}: {rule.why}") if rule.word == "deny" else None


def _range(needs: Requirements, node: Node) -> FloatReason | None:
    limits = needs.rules.limits
    for name in needs.graph.floats(node):
        values = needs.range_of(name)
        if values is None:
            return FloatReason("range", f"nothing is known of the values of {name}")
        margin = limits["clipped_safety" if values.clipped else "safety"]
        if values.largest * margin > needs.most:
            seen = "has a clipping value of" if values.clipped else "holds values up to"
            return FloatReason("range", f"{name} {seen} {values.largest:.4g}; {needs.most:g} / {margin:g} is the limit")
    return None


def _constant(needs: Requirements, node: Node) -> FloatReason | None:
    for name in _float_constants(needs, node):
        values = needs.constant(name)
        if values is None:
            continue
        if values.largest > needs.most:
            return FloatReason("constant", f"the constant {name} holds {values.largest:.4g}, beyond {needs.most:g}")
        if 0 < values.largest <= needs.least / 2 and not _may_vanish(needs, node, name):
            return FloatReason("constant", f"the constant {name} is rounded to 0: it holds {values.largest:.4g}")
    return None


def _may_vanish(needs: Requirements, node: Node, name: str) -> bool:
    """Whether a constant that is rounded to 0 changes nothing.

    A bias, or one that guards values which lie far above it: stored as the type's smallest number, it changes none.
    """
    single = math.prod(needs.graph.view.shape(name) or ()) == 1
    addend = needs.rules.addends.get(node.op)
    if addend is not None and (node.inputs.index(name) == addend.input if addend.input else not single):
        return True
    if node.op not in needs.rules.epsilons or not single:
        return False
    guarded = [needs.range_of(one) for one in node.inputs if one and one != name]
    least = needs.rules.limits["epsilon"] * needs.least
    return all(values is not None and values.low >= least for values in guarded)


def _float_constants(needs: Requirements, node: Node) -> list[str]:
    """The float32 constants that a node would read as half."""
    places = half_places(node, needs.graph.opset, needs.rest)
    read = [name for place, name in enumerate(node.inputs) if name and places is not None and places.reads(place)]
    view, types = needs.graph.view, needs.graph.types
    return [name for name in read if view.is_constant(name) and types.get(name) == TensorProto.FLOAT]


def _product(needs: Requirements, node: Node) -> FloatReason | None:
    bound = product_bound(needs.graph, node, needs.ranges, needs.rules)
    if bound is None or bound <= needs.most:
        return None
    return FloatReason("product", f"{node.op} may reach {bound:.4g} in intermediate sums, beyond {needs.most:g}")


def _sum(needs: Requirements, node: Node) -> FloatReason | None:
    if node.op not in needs.rules.sums:
        return None
    found = sum_bound(needs.graph, node, needs.ranges, needs.rules)
    if found is None:
        run = needs.ranges.source == "data" and needs.ranges.samples > 0
        why = "neither its length nor the values were seen" if run else "no data was run"
        return FloatReason("sum", f"{node.op} sums over an axis of unknown length: {why}")
    bound, terms = found
    if bound <= needs.most:
        return None
    return FloatReason(
        "sum", f"{node.op} adds up {terms} values, with intermediate sums up to {bound:.4g}, beyond {needs.most:g}"
    )


def _steep(needs: Requirements, node: Node) -> FloatReason | None:
    rule = needs.rules.steep.get(node.op)
    if rule is None or len(node.inputs) <= rule.input:
        return None
    name = node.inputs[rule.input]
    values = needs.range_of(name) if needs.graph.types.get(name, TensorProto.FLOAT) == TensorProto.FLOAT else None
    if values is None or values.largest <= rule.largest:
        return None
    return FloatReason("steep", f"{node.op} reads values up to {values.largest:.4g}. {rule.why}")


def _singular(needs: Requirements, node: Node) -> FloatReason | None:
    rule = needs.rules.singular.get(node.op)
    if rule is None or len(node.inputs) <= rule.input:
        return None
    values = needs.range_of(node.inputs[rule.input])
    if values is None or values.smallest is None or not values.largest:
        return None
    if values.smallest > needs.least / 2:
        return None
    return FloatReason("singular", f"{node.inputs[rule.input]} holds values that may become 0. {rule.why}")


def _faint(needs: Requirements, node: Node) -> FloatReason | None:
    if needs.rest != TensorProto.FLOAT16:
        return None
    for name in needs.graph.floats(node):
        values = needs.range_of(name)
        if values is None or values.mean is None or not 0 < values.mean < needs.rules.limits["faint"]:
            continue
        if not _is_small_addend(needs, name):
            return FloatReason(
                "faint", f"{name} has a mean magnitude of {values.mean:.3g}: FP16 keeps few bits of such small values"
            )
    return None


def _is_small_addend(needs: Requirements, name: str) -> bool:
    """Whether a tensor is only added to far larger ones, whose rounding is more than what FP16 loses of it."""
    view, rules = needs.graph.view, needs.rules
    readers = [use.node for use in view.consumers(name)]
    if not readers or view.is_output(name) or name in view.captured:
        return False
    if any(node.op not in rules.addends or rules.addends[node.op].input for node in readers):
        return False
    sums = (needs.range_of(node.outputs[0]) for node in readers)
    least = rules.limits["epsilon"] * needs.least
    return all(one is not None and one.mean is not None and one.mean >= least for one in sums)


_CHECKS: tuple[_Check, ...] = (_operator, _range, _constant, _product, _sum, _steep, _singular, _faint)
