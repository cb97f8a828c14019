# SPDX-License-Identifier: Apache-2.0
"""What a calibration is to count: which tensors, into which histograms, fetched or derived. Nothing is counted here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.histogram_kinds import KINDS, AnyHistogram, all_mergeable
from qdqtool.graph.view import GraphView
from qdqtool.observers.derive import RULES, Derivation, DerivedFrom, derivation, derive_all
from qdqtool.observers.pre_activation import before_activations, before_pools, before_silu, gates_of
from qdqtool.observers.pre_batchnorm_range import Affine, before_norms

_NO_VALUE = np.float32(1e30)  # what masks and paddings write in place of -Inf is larger


@dataclass(frozen=True)
class ObservationPlan:
    """Tensors to count, by kind of histogram.

    Attributes:
        names: all tensors, in graph order.
        derivations: kind of histogram (`KINDS`) -> which tensors are fetched for it and which follow from those.
        affine: tensors whose range, but no histogram, follows from another.
        follows: tensors that take the scale of another, the activation after them.
        behind: tensor -> operator that onnxruntime lacks, for those that cannot be computed.
        silu: tensors that only a SiLU reads -> what it makes.
        pooled: tensors that only a MaxPool reads -> what it makes.
    """

    names: tuple[str, ...]
    derivations: Mapping[str, Derivation]
    affine: Mapping[str, Affine]
    follows: Mapping[str, str]
    behind: Mapping[str, str]
    silu: Mapping[str, str] = field(default_factory=dict)
    pooled: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        view: GraphView,
        names: Iterable[str],
        kinds: Collection[str],
        behind: Mapping[str, str],
        *,
        derive: bool,
        kept: Collection[str] = (),
        activated: bool = True,
    ) -> ObservationPlan:
        """The plan of tensors of a graph."""
        wanted = tuple(names)
        less = derive and all_mergeable(kinds)  # TensorRT's calibrator fetches each tensor
        follows = before_activations(view, wanted, kept) if less and activated else {}
        affine = before_norms(view, wanted, kept, follows) if less else {}
        counted = tuple(name for name in wanted if name not in affine and name not in follows)
        silu = before_silu(view, counted)
        gates = gates_of(view, silu, kept) if less and activated else {}
        found = {
            kind: derivation(view, counted, KINDS[kind].mergeable, gates)
            if derive
            else Derivation(counted, {}, counted)
            for kind in kinds
        }
        return cls(wanted, found, affine, follows, behind, silu, before_pools(view, counted))

    @property
    def ordered(self) -> bool:
        """Whether batches must be counted in file order."""
        return not all_mergeable(self.derivations)

    @property
    def fetched(self) -> tuple[str, ...]:
        """The tensors that must be had from a run, in graph order."""
        needed = {name for one in self.derivations.values() for name in one.observed}
        return tuple(name for name in self.names if name in needed)

    def without(self, dropped: Iterable[str]) -> ObservationPlan:
        """The plan without some fetched tensors and all that follows from them: they prove to hold no float32."""
        gone = set(dropped)
        if not gone:
            return self
        left = {kind: _without(one, gone) for kind, one in self.derivations.items()}
        affine = {name: one for name, one in self.affine.items() if one.source not in gone}
        follows = {name: after for name, after in self.follows.items() if after not in gone}
        kept = {*affine, *follows, *(name for one in left.values() for name in one.names)}
        names = tuple(name for name in self.names if name in kept)
        silu = {name: made for name, made in self.silu.items() if name in kept}
        pooled = {name: made for name, made in self.pooled.items() if {name, made} <= kept}
        return ObservationPlan(names, left, affine, follows, self.behind, silu, pooled)

    def source_of(self, kind: str, name: str) -> str:
        """The tensor whose histogram of one kind is that of another: what it follows, the first of the same values."""
        name = self.follows.get(name, name)
        recipe = self.derivations[kind].recipes.get(name)
        return recipe.sources[0] if recipe is not None and recipe.rule == "same" else name

    def gates(self, kind: str) -> dict[str, str]:
        """What a Sigmoid makes, whose histogram follows from that of what it reads -> what it reads."""
        recipes = self.derivations[kind].recipes
        return {name: recipe.sources[0] for name, recipe in recipes.items() if recipe.rule == "sigmoid"}

    def derive(self, kind: str, observed: Mapping[str, AnyHistogram]) -> dict[str, AnyHistogram]:
        """The histograms of one kind of all tensors, in graph order.

        Where -Inf pads or masks what only a MaxPool reads, or the lowest float32 in its place, the histogram is that of
        what the pool makes: what lies below the largest value of each window does not matter.
        """
        found = derive_all(self.derivations[kind], observed)
        hidden = {name: after for name, after in self.pooled.items() if _is_masked(found[name])}
        found.update((name, found[after].copy()) for name, after in hidden.items() if not _is_masked(found[after]))
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain values; see `from_json`."""
        kinds = {
            kind: {name: [recipe.rule, *recipe.sources] for name, recipe in one.recipes.items()}
            for kind, one in self.derivations.items()
        }
        affine = {name: one.to_json() for name, one in self.affine.items()}
        follows = {"affine": affine, "follows": dict(self.follows), "silu": dict(self.silu)}
        follows |= {"pooled": dict(self.pooled)} if self.pooled else {}
        return {"names": list(self.names), "kinds": kinds, **follows, "behind": dict(self.behind)}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> ObservationPlan:
        """The plan that `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        names = tuple(map(str, facts["names"]))
        affine = {str(name): Affine.from_json(entry) for name, entry in facts["affine"].items()}
        follows = {str(name): str(after) for name, after in facts["follows"].items()}
        counted = tuple(name for name in names if name not in affine and name not in follows)
        derivations = {}
        for kind, entry in facts["kinds"].items():
            recipes = {name: DerivedFrom(rule, tuple(sources)) for name, (rule, *sources) in entry.items()}
            if kind not in KINDS or any(one.rule not in RULES for one in recipes.values()):
                raise ValueError(kind)
            observed = tuple(name for name in counted if name not in recipes)
            derivations[kind] = Derivation(observed, recipes, counted)
        if not derivations:
            raise ValueError("no kind")
        _check_sources(names, derivations, affine, follows)
        silu = {str(name): str(made) for name, made in facts.get("silu", {}).items() if name in counted}
        behind = {str(name): str(operator) for name, operator in facts["behind"].items()}
        given = {str(name): str(made) for name, made in facts.get("pooled", {}).items()}
        pooled = {name: made for name, made in given.items() if {name, made} <= set(counted)}
        return cls(names, derivations, affine, follows, behind, silu, pooled)


def _is_masked(histogram: AnyHistogram) -> bool:
    """Whether it counted Inf, or a number that stands for it."""
    return histogram.has_inf or (isinstance(histogram, Histogram) and bool(histogram.amax >= _NO_VALUE))


def _check_sources(
    names: tuple[str, ...],
    derivations: Mapping[str, Derivation],
    affine: Mapping[str, Affine],
    follows: Mapping[str, str],
) -> None:
    """Hold what follows against what it follows from, which must be there, and be there first."""
    if len(set(names)) != len(names):
        raise ValueError("a tensor comes twice")
    for one in derivations.values():
        known = {*one.observed}
        for name, recipe in one.recipes.items():
            if not recipe.sources or not known.issuperset(recipe.sources):
                raise ValueError(f"{name} depends on a missing tensor")
            known.add(name)
    counted = {name for one in derivations.values() for name in one.names}
    for name, source in (*((name, one.source) for name, one in affine.items()), *follows.items()):
        if name not in names or source not in counted:
            raise ValueError(f"{name} depends on a missing tensor")


def _without(one: Derivation, dropped: set[str]) -> Derivation:
    gone = set(dropped)
    recipes = {}
    for name, recipe in one.recipes.items():  # sources come before what follows from them
        if name not in gone and gone.isdisjoint(recipe.sources):
            recipes[name] = recipe
        else:
            gone.add(name)
    kept = tuple(name for name in one.names if name not in gone)
    return Derivation(tuple(name for name in one.observed if name not in gone), recipes, kept)
