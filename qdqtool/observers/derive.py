# SPDX-License-Identifier: Apache-2.0
"""Which tensors' histograms follow from those of others, and how: what need not be fetched from a run.

All follow exactly but one: of the Sigmoid in a SiLU, each value is taken in the middle of its bin. Only the graph is
looked at and only histograms are combined; no model is run here.
Source: facts/performance.md 2, "Derived without observing".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from qdqtool.amax.behind_sigmoid import behind_sigmoid
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.histogram_kinds import AnyHistogram
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.flow import Flow
from qdqtool.rule_files import operator_set

Rule = Literal["same", "rectified", "merged", "sigmoid"]
RULES = frozenset(get_args(Rule))


@dataclass(frozen=True)
class DerivedFrom:
    """How a histogram follows from others.

    Attributes:
        rule: "same" (every value, in another place), "rectified" (max(x, 0)), "merged" (all values of all sources) or
            "sigmoid" (of each value, taken in the middle of its bin).
        sources: the tensors it follows from; one but for "merged", which counts a source as often as it is listed.
    """

    rule: Rule
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Derivation:
    """What to fetch from a run, and what follows from it.

    Attributes:
        observed: tensors to fetch, in the order of `names`.
        recipes: the other tensors; each stands after those of its sources that are derived themselves.
        names: all of them, in the order that was asked for.
    """

    observed: tuple[str, ...]
    recipes: Mapping[str, DerivedFrom]
    names: tuple[str, ...]


def derivation(
    view: GraphView, names: Sequence[str], mergeable: bool, gates: Mapping[str, str] = MappingProxyType({})
) -> Derivation:
    """Divide tensors into those to observe and those that follow.

    A tensor is derived from wanted tensors alone, since fetching another one instead would save nothing. Operators of
    other domains, bodies of control flow and constants (a Concat with one) are never derived through.

    Args:
        view: the main graph.
        names: the float32 activations whose histograms are wanted, in graph order.
        mergeable: whether the histograms' state depends on the values alone; False (TensorRT's entropy, whose width is
            that of the first batch) leaves only tensors of the same values.
        gates: what a Sigmoid makes, and need not be observed -> what it reads.
    """
    wanted = tuple(dict.fromkeys(names))
    flow = _rearranging(view)
    origins = {name: _origin(flow, name) for name in wanted}
    chosen: dict[str, str] = {}  # of the tensors with the same values the first wanted one stands for all
    for name, origin in origins.items():
        chosen.setdefault(origin, name)
    recipes: dict[str, DerivedFrom] = {}
    for origin in sorted(chosen, key=view.level_of) if mergeable else ():
        recipe = _recipe(view, flow, origin, chosen, gates)
        if recipe is not None:
            recipes[chosen[origin]] = recipe
    recipes = {**_divided(view, flow, chosen, recipes), **recipes} if mergeable else recipes
    for name, origin in origins.items():
        if name != chosen[origin]:
            recipes[name] = DerivedFrom("same", (chosen[origin],))
    return Derivation(tuple(name for name in wanted if name not in recipes), recipes, wanted)


def derive_all(derivation: Derivation, observed: Mapping[str, AnyHistogram]) -> dict[str, AnyHistogram]:
    """The histogram of every wanted tensor; bit for bit as if it had been observed, but for the rule "sigmoid"."""
    found = dict(observed)
    for name, recipe in derivation.recipes.items():
        found[name] = _APPLY[recipe.rule](found[source] for source in recipe.sources)
    return {name: found[name] for name in derivation.names}


def _rearranging(view: GraphView) -> Flow:
    """The walk across operators whose first output holds every value of their first input once, and nothing else.

    What selects or repeats values (Slice, Gather, Expand) keeps a scale but not a count. Q/DQ pairs round: they end it.
    """
    ops = operator_set("rearranging")

    def producer(name: str) -> Node | None:
        node = view.producers.get(name)
        return node if node is not None and name == node.outputs[0] else None

    return Flow(view, lambda node: node.op in ops and (node.op != "Dropout" or _inert(view, node)), producer=producer)


def _origin(flow: Flow, name: str) -> str:
    """The first tensor upwards with the same values, wanted or not."""
    return next(flow.origins(name))


def _inert(view: GraphView, node: Node) -> bool:
    """Whether a Dropout drops nothing: training_mode (opset 12 on) is absent or a constant false."""
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True
    training = view.array(node.inputs[2])
    return training is not None and not training.any()


def _recipe(
    view: GraphView, flow: Flow, origin: str, chosen: Mapping[str, str], gates: Mapping[str, str]
) -> DerivedFrom | None:
    """How a tensor follows from the wanted ones before it; None where it must be observed."""
    node = view.producers.get(origin)
    if origin in gates and (read := chosen.get(_origin(flow, gates[origin]))) is not None:
        return DerivedFrom("sigmoid", (read,))
    if node is None or node.op not in ("Relu", "Concat"):
        return None
    sources = [chosen.get(_origin(flow, name)) for name in node.inputs]
    known = tuple(source for source in sources if source is not None)
    if not known or len(known) < len(sources):
        return None
    return DerivedFrom("rectified" if node.op == "Relu" else "merged", known)


def _divided(
    view: GraphView, flow: Flow, chosen: Mapping[str, str], known: Mapping[str, DerivedFrom]
) -> dict[str, DerivedFrom]:
    """How tensors follow from the wanted ones that a Split makes of all their values; the last ones first."""
    found: dict[str, DerivedFrom] = {}
    for node in sorted(view.nodes, key=lambda node: -node.level):
        if node.op == "Split":
            whole = chosen.get(_origin(flow, node.inputs[0]), "")
            parts = [chosen.get(name, "") for name in node.outputs]
            if whole and whole not in known and whole not in found and all(parts):
                found[whole] = DerivedFrom("merged", tuple(parts))
    return found


def _same(sources: Iterator[AnyHistogram]) -> AnyHistogram:
    return next(sources).copy()


def _rectified(sources: Iterator[AnyHistogram]) -> AnyHistogram:
    return _exact(next(sources)).rectified()


def _merged(sources: Iterator[AnyHistogram]) -> AnyHistogram:
    total = Histogram()
    for source in sources:
        total.merge(_exact(source))
    return total


def _sigmoid(sources: Iterator[AnyHistogram]) -> AnyHistogram:
    return behind_sigmoid(_exact(next(sources)))


def _exact(histogram: AnyHistogram) -> Histogram:
    if not isinstance(histogram, Histogram):
        raise TypeError("TensorRT's entropy histogram is not mergeable: derive with mergeable=False")
    return histogram


_APPLY: Mapping[Rule, Callable[[Iterator[AnyHistogram]], AnyHistogram]] = {
    "same": _same,
    "rectified": _rectified,
    "merged": _merged,
    "sigmoid": _sigmoid,
}
