# SPDX-License-Identifier: Apache-2.0
"""What `graft` says: of products that build in float, of scales from data, of entries without one, of float types."""

from __future__ import annotations

from collections.abc import Container, Mapping

from qdqtool.cache.text import Cache
from qdqtool.display import counted, named
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index
from qdqtool.linting.checks import checks_of, run_checks
from qdqtool.linting.lint_context import LintContext
from qdqtool.match.flow import commuting
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.restrict_plan import sites_behind
from qdqtool.precision.rest import RestType
from qdqtool.rulebook import RuleBook
from qdqtool.scales import Scale
from qdqtool.verbs.typed_rest import TypedRest

_SILENT_FLOAT = ("Q035", "Q036", "Q037", "Q038", "Q039")
_MOST_NAMED = 10
_ASKED_FOR = ("keep-float", "float-head", "no-scale")


def starved_products(view: GraphView, wanted: Plan, decided: Plan) -> dict[str, tuple[str, ...]]:
    """Each product that the plan wanted in INT8 and that runs in float -> the tensors it reads that have no scale."""
    points = {point.tensor for point in wanted.activations}
    lost = points - {point.tensor for point in decided.activations}
    if not lost:
        return {}
    kept = {read for point in decided.weights for read in point.reads}
    floats = {read.node for point in wanted.weights for read in point.reads if read not in kept}
    found = {}
    for node in sorted(view.nodes, key=lambda node: (node.level, node.key)):
        if node.key in floats or (node.op == "MatMul" and not any(map(view.is_constant, node.inputs))):
            names = [name for name in node.inputs if name and not view.is_constant(name)]
            behind = {site for name in names for site in sites_behind(view, name, points)}
            if behind & lost:
                found[f"{node.op} {node.name}"] = tuple(sorted(behind & lost))
    return found


def of_starved(starved: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Which products build in float for want of which scale, in a sentence: all of them up to ten, then how many."""
    if not starved:
        return []
    shown = [f"{product} (reads {named(names)})" for product, names in starved.items()]
    build = "builds" if len(starved) == 1 else "build"
    why = (
        "the cache has no scale for what they read" if len(starved) > 1 else "the cache has no scale for what it reads"
    )
    return [f"{counted(len(starved), 'product')} {build} in float, since {why}: {named(shown, _MOST_NAMED)}"]


def of_float_products(view: GraphView, decided: Plan, rules: RuleBook, entries: Container[str]) -> list[str]:
    """Products that stay in float though the cache has a scale for all that they read, in a sentence.

    Left out are heads, operators that the user keeps in float, and those that `of_starved` names.
    """
    points = {point.tensor for point in decided.activations}
    weighted = {read.node for point in decided.weights for read in point.reads}
    reasons = {one.site: one for one in decided.refusals}
    flow = commuting(view, rules)
    found = []
    for node in sorted(view.nodes, key=lambda node: (node.level, node.key)):
        computed = [name for name in node.inputs if name and not view.is_constant(name)]
        two = node.op == "MatMul" and len(computed) == len(node.inputs)
        if not (two or weight_index(view, node) is not None) or node.key in weighted:
            continue
        why = reasons.get(node.key) or reasons.get(node.name)
        if why is not None and why.rule in _ASKED_FOR:
            continue
        int8 = two and points.issuperset(one for name in computed for one in flow.origins(name, points.__contains__))
        if not int8 and all(view.root(name) in entries for name in computed):
            found.append(f"{node.op} {node.name}" + (f" ({why.reason})" if why is not None else ""))
    if not found:
        return []
    stay = "stays" if len(found) == 1 else "stay"
    many = f"{counted(len(found), 'product')} {stay} in float though the cache has scales"
    return [f"{many}, as the rules have it: {named(found, _MOST_NAMED)}"]


def of_silent_floats(model: Model, options: PlanOptions) -> list[str]:
    """That products build in float though they have Q/DQ, where lint warns of it for the version that was asked for."""
    context = LintContext(model, "gpu", options.trt_version)
    found = [one for one in run_checks(context, checks_of(_SILENT_FLOAT, ())) if one.severity == "warning"]
    if not found:
        return []
    many = f"{counted(len(found), 'product')} will build in float though {'it has' if len(found) == 1 else 'they have'}"
    return [f"{many} Q/DQ, such as {found[0].where} ({found[0].code}: {found[0].message})"]


def of_filled(filled: Mapping[str, Scale]) -> list[str]:
    """What was calibrated beside the cache, in a sentence."""
    if not filled:
        return []
    name, scale = next(iter(filled.items()))
    many = f"{counted(len(filled), 'scale')} that the cache lacks {'is' if len(filled) == 1 else 'are'}"
    return [f"{many} from data by {scale.method.partition(':')[0]}, such as that of {name}"]


def of_types(rest: RestType, typed: TypedRest | None) -> list[str]:
    """What is said of the float types of the rest."""
    return [*([rest.note] if rest.note else []), *(() if typed is None else typed.notes)]


def of_dropped(cache: Cache) -> list[str]:
    """What the cache names without a usable scale, in a sentence."""
    if not cache.dropped:
        return []
    name, _, reason = cache.dropped[0]
    number = len(cache.dropped)
    return [f"{number} {'entry' if number == 1 else 'entries'} of the cache left out, such as {name}: {reason}"]
