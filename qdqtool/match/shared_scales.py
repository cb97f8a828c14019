# SPDX-License-Identifier: Apache-2.0
"""Tensors that must have one range: classes by the rules of a target and version, each taking its largest scale."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from qdqtool.graph.view import GraphView
from qdqtool.match.propagate_scales import same_values
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rulebook import RuleBook
from qdqtool.scales import Scale


def take_shared_scales(
    view: GraphView, rules: RuleBook, scales: Mapping[str, Scale]
) -> tuple[dict[str, Scale], dict[str, str]]:
    """Give tensors that share a scale the largest scale among them.

    Tensors that hold the same values and had the same scale before go along with what they are views of.
    """
    classes = _ruled(view, rules, scales)
    for name, neighbors in same_values(view, rules).items():
        for other in neighbors:
            if name in scales and other in scales and scales[name].same_bits(scales[other]):
                classes.join([name, other])
    shared = dict(scales)
    taken: dict[str, str] = {}
    for members in classes.members():
        top = max(sorted(members), key=lambda name: float(scales[name].bits))
        for name in members:
            if not scales[name].same_bits(scales[top]):
                shared[name] = replace(scales[top], origin="equal", method=f"shares its scale with {top}")
                taken[name] = top
    return shared, taken


def shared_scale_classes(view: GraphView, rules: RuleBook, names: Collection[str]) -> list[list[str]]:
    """Which of the named tensors must have one range, by a rule or since they hold the same values."""
    classes = _ruled(view, rules, names)
    for name, neighbors in same_values(view, rules).items():
        for other in neighbors:
            if name in names and other in names:
                classes.join([name, other])
    return classes.members()


def _ruled(view: GraphView, rules: RuleBook, names: Collection[str]) -> _ScaleClasses:
    """Tensors joined by the rules of shared scales alone."""
    classes = _ScaleClasses()
    for node, rule in RuleIndex(rules.shared_scales, rules).nodes(view):
        if rule.members == "none":
            continue
        inputs = [view.root(name) for name in node.inputs if name and not view.is_constant(name)]
        members = [*inputs, *filter(None, node.outputs[:1])] if rule.members == "all" else inputs
        classes.join([name for name in members if name in names])
    return classes


def unequal_inputs(view: GraphView, rules: RuleBook, scales: Mapping[str, np.float32]) -> list[str]:
    """First outputs of the operators that a rule leaves untied and whose inputs have ranges that differ, in file order.

    The target wants one range there, which would cost an input its levels: they had better stay in float.
    """
    found = []
    for node, rule in RuleIndex(rules.shared_scales, rules).nodes(view):
        names = [view.root(name) for name in node.inputs if name]
        bits = {scales[name].tobytes() for name in names if name in scales}
        if rule.members == "none" and len(bits) > 1:
            found.append(node.key)
    return found


class _ScaleClasses:
    """Disjoint sets of tensor names."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def _root(self, name: str) -> str:
        parent = self._parent.setdefault(name, name)
        while parent != name:
            self._parent[name] = self._parent[parent]
            name, parent = parent, self._parent[parent]
        return name

    def join(self, names: list[str]) -> None:
        """All of them are in one set from now on."""
        roots = sorted({self._root(name) for name in names})
        for root in roots[1:]:
            self._parent[root] = roots[0]

    def members(self) -> list[list[str]]:
        """Every set, in the order in which its first member came."""
        sets: dict[str, list[str]] = {}
        for name in self._parent:
            sets.setdefault(self._root(name), []).append(name)
        return list(sets.values())
