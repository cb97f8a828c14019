# SPDX-License-Identifier: Apache-2.0
"""Which operators must stay in FP32: a table of constraints, each with its reason. Not which are so for fewer casts."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.view import Node
from qdqtool.match.common_scale import divided_weights, has_one_scale, products_of_one_tensor
from qdqtool.options import compile_pattern
from qdqtool.precision.accumulation import product_bound, sum_bound
from qdqtool.precision.fixed_types import UNKNOWN
from qdqtool.precision.half_places import half_places
from qdqtool.precision.output_tail import output_tail
from qdqtool.precision.reasons import INT8, FloatReason, Requirements

IN_INT8_LAYER = FloatReason(INT8, "its layer reads or writes INT8, so FP16 inside it saves nothing")

# Reasons that the ranges give; those of a constant follow from its values.
VALUE_RULES = frozenset({"range", "product", "sum", "steep", "singular", "faint"})

Reasons = Mapping[str, FloatReason]
Check = Callable[[Requirements, Node], FloatReason | None]


@dataclass(frozen=True)
class Constraint:
    """One reason why operators must be in FP32.

    Attributes:
        rules: the words of its reasons.
        find: (what it reads, keys of what is FP32 for another reason) -> key -> reason.
    """

    rules: tuple[str, ...]
    find: Callable[[Requirements, Collection[str]], Reasons]


def required_float32(needs: Requirements) -> dict[str, FloatReason]:
    """Key -> reason, for every node that cannot be half: the first of `CONSTRAINTS` that holds.

    Raises:
        QdqError: an expression of `keep` is none, or matches no operator.
    """
    found: dict[str, FloatReason] = {}
    for constraint in CONSTRAINTS:
        found = {**constraint.find(needs, found.keys()), **found}
    return found


def _each(check: Check) -> Callable[[Requirements, Collection[str]], Reasons]:
    """The constraint that looks at one operator after the other."""

    def find(needs: Requirements, known: Collection[str]) -> Reasons:
        seen = ((key, check(needs, node)) for key, node in needs.graph.nodes.items() if key not in known)
        return {key: reason for key, reason in seen if reason is not None}

    return find


def _divided(needs: Requirements, known: Collection[str]) -> Reasons:
    return dict.fromkeys(divided_weights(needs.graph.view), IN_INT8_LAYER)


def _layers(needs: Requirements, known: Collection[str]) -> Reasons:
    return dict.fromkeys(needs.layers, IN_INT8_LAYER)


def _kept(needs: Requirements, known: Collection[str]) -> Reasons:
    graph, found = needs.graph, dict[str, FloatReason]()
    for pattern in needs.keep:
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
        margin = 1.0 if values.certain else limits["clipped_safety" if values.clipped else "safety"]
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


def _of_one_tensor(needs: Requirements, known: Collection[str]) -> Reasons:
    """INT8 matrix products beside one in FP32: TensorRT for RTX builds those of one tensor as one, and of no two types.

    It fails where the half one has one scale for its weight; with a scale per channel both are built.
    """
    view, found = needs.graph.view, dict[str, FloatReason]()
    for group in products_of_one_tensor(view):
        wide = [key for key in group if key in known]
        if wide and any(has_one_scale(view, node) for node in group.values()):
            text = f"{wide[0]}, an INT8 product of the same tensor, is FP32, and both are built as one"
            found |= dict.fromkeys(group.keys() - known, FloatReason("product", text))
    return found


# In the order in which a reason is reported: the first that holds.
CONSTRAINTS = (
    Constraint((INT8,), _divided),
    Constraint(("kept",), _kept),
    Constraint(("operator", "untyped"), _each(_operator)),
    Constraint(("range",), _each(_range)),
    Constraint(("constant",), _each(_constant)),
    Constraint(("product",), _each(_product)),
    Constraint(("sum",), _each(_sum)),
    Constraint(("steep",), _each(_steep)),
    Constraint(("singular",), _each(_singular)),
    Constraint(("faint",), _each(_faint)),
    Constraint((INT8,), _layers),
    Constraint(("product",), _of_one_tensor),
    Constraint(("tail",), output_tail),
)
