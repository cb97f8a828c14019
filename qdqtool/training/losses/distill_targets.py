# SPDX-License-Identifier: Apache-2.0
"""What a network ends in, where its error is what a user sees: scores before their Sigmoid or Softmax, and boxes.

Background outnumbers objects in a detector by thousands to one, and the plain error of its outputs is background's. So
scores are held against the teacher's by divergence, which counts little where both say no, and what belongs to one
place of the image counts as much as the teacher is sure that something is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qdqtool.graph.heads import Head, find_heads, nodes_behind, outputs_of
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import weight_index
from qdqtool.rulebook import load_rules
from qdqtool.training.losses import terms
from qdqtool.training.losses.nodes import LossValue, Nodes
from qdqtool.training.losses.targets import Targets

Behind = Literal["sigmoid", "softmax", "values"]
Shapes = Mapping[str, tuple[int, ...]]

_CUTS = frozenset({"Split", "Slice", "Gather"})
_ACTIVATIONS: Mapping[str, Behind] = {"Sigmoid": "sigmoid", "Softmax": "softmax", "LogSoftmax": "softmax"}


@dataclass(frozen=True)
class DistillTarget:
    """One tensor that is held against the teacher's.

    Attributes:
        tensor: its name: logits before an activation, or a head's own output.
        form: what stands after it; "values" where nothing does that makes probabilities.
        axis: of its channels or classes.
        beside: logits of scores of another kind for the same places, by whose probability an error counts.
    """

    tensor: str
    form: Behind
    axis: int
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetKind:
    """Ends of one kind: those of all levels of a pyramid. They are one term.

    Attributes:
        name: for the log.
        ends: its members, in the order of the graph.
    """

    name: str
    ends: tuple[DistillTarget, ...]


def find_kinds(
    quantized: GraphView, known: Collection[str], shapes: Shapes
) -> tuple[tuple[TargetKind, ...], frozenset[str]]:
    """Every kind of end, and the graph outputs whose error they are."""
    ends: dict[tuple[str, Behind], DistillTarget] = {}
    covered: set[str] = set()
    for head in find_heads(quantized, load_rules("gpu").heads):
        found = [end for end in _ends_of(quantized, head, shapes) if end.tensor in known]
        ends.update(((end.tensor, end.form), end) for end in found)
        covered.update(_outputs_told(quantized, head, {end.tensor for end in found}) if found else ())
    beside = _beside(ends.values(), shapes)
    kinds: dict[str, list[DistillTarget]] = {}
    for end in ends.values():
        name = f"{end.form} {shapes[end.tensor][end.axis]}"
        kinds.setdefault(name, []).append(replace(end, beside=beside.get(end.tensor, ())))
    made = tuple(TargetKind(name, tuple(members)) for name, members in kinds.items())
    return made, frozenset(covered.intersection(quantized.outputs))


def kind_term(nodes: Nodes, targets: Targets, kind: TargetKind) -> LossValue:
    """The divergence, or the square error, of all ends of a kind, summed over places as they count."""
    parts = [_end_term(nodes, targets, end) for end in kind.ends]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _end_term(nodes: Nodes, targets: Targets, end: DistillTarget) -> LossValue:
    where = f"--distill-weight {end.tensor}"
    s, t = nodes.tensor(end.tensor, where), targets.value(end.tensor, where)
    if end.form == "sigmoid":
        each = terms.bernoulli_divergence(s, t)
    elif end.form == "softmax":
        each = terms.categorical_divergence(s, t, end.axis)
    else:
        each = (s - t) * (s - t)
    for logits in end.beside:
        sure = nodes.op("Sigmoid", targets.value(logits, where))
        each = each * sure.max_over(end.axis)
    return each.sum()


def _outputs_told(view: GraphView, head: Head, ends: Collection[str]) -> set[str]:
    """The outputs of a head whose error some of its ends are."""
    made = [name for node in _scores(view, head) for name in outputs_of(node)]
    if not made:
        return set(head.outputs)
    starts = [*made, *(name for name in _beside_scores(view, head) if name in ends)]
    reached = {name for node in nodes_behind(view, starts, outputs_of) for name in outputs_of(node)}
    return set(head.outputs) & (reached | set(starts))


def _beside_scores(view: GraphView, head: Head) -> list[str]:
    """The pieces that are cut from a head's tensor, or from one that is made of it, and do not become scores."""
    before, stack = {head.key}, [view.root(node.inputs[0]) for node in _scores(view, head)]
    while stack:
        name = stack.pop()
        node = view.producer(name)
        if name not in before and node is not None:
            before.update(outputs_of(node) if node.op not in _CUTS else [name])
            stack += [view.root(one) for one in node.inputs[:1]]
    cuts = {use.node.key: use.node for name in sorted(before) for use in view.consumers(name) if use.node.op in _CUTS}
    return [name for node in cuts.values() for name in outputs_of(node) if name not in before]


def _scores(view: GraphView, head: Head) -> list[Node]:
    """What makes probabilities of a head's values."""
    return _activations(view, head.key) if head.label != "regression" else []


def _ends_of(view: GraphView, head: Head, shapes: Shapes) -> Iterator[DistillTarget]:
    """Logits where a head gives scores, else what it gives."""
    made = _scores(view, head)
    for node in made:
        tensor, form = view.root(node.inputs[0]), _ACTIVATIONS[node.op]
        if tensor in shapes and len(shapes[tensor]) > 1:
            rank = len(shapes[tensor])
            last: Any = attribute(node, "axis", -1)
            axis = int(last) % rank if form == "softmax" else _channels(rank)
            yield DistillTarget(tensor, form, axis)
    for name in _beside_scores(view, head) if made else ():
        if len(shapes.get(name, ())) > 1:
            yield DistillTarget(name, "values", _channels(len(shapes[name])))
    if not made and len(shapes.get(head.key, ())) > 1:
        rank = len(shapes[head.key])
        if head.label == "last layer" and rank == 2:  # a classifier's logits, which are outputs themselves
            yield DistillTarget(head.key, "softmax", _channels(rank))
        yield DistillTarget(head.key, "values", _channels(rank))


def _activations(view: GraphView, start: str) -> list[Node]:
    """The first operators on every way from a head that make probabilities; no way goes through another weight."""

    def onward(node: Node) -> list[str]:
        return [] if node.op in _ACTIVATIONS or weight_index(view, node) is not None else outputs_of(node)

    return [node for node in nodes_behind(view, [start], onward) if node.op in _ACTIVATIONS]


def _channels(rank: int) -> int:
    """The axis of channels: 1 of [N, C] and of pictures, the last of [N, anchors, C]."""
    return 2 if rank == 3 else 1


def _beside(ends: Collection[DistillTarget], shapes: Shapes) -> dict[str, tuple[str, ...]]:
    """End -> logits of sigmoids for the same places, one of each other kind; none where two of a kind could be it."""
    places: dict[tuple[int, ...], list[DistillTarget]] = {}
    for end in ends:
        places.setdefault(_place(end, shapes), []).append(end)
    found = {}
    for end in ends:
        own = (end.form, shapes[end.tensor][end.axis])
        others: dict[int, list[str]] = {}
        for other in places[_place(end, shapes)]:
            if other.form == "sigmoid" and ("sigmoid", shapes[other.tensor][other.axis]) != own:
                others.setdefault(shapes[other.tensor][other.axis], []).append(other.tensor)
        found[end.tensor] = tuple(names[0] for names in others.values() if len(names) == 1)
    return found


def _place(end: DistillTarget, shapes: Shapes) -> tuple[int, ...]:
    """What two tensors for the same places have in common: all sizes but the channels', and where those lie."""
    shape: Sequence[int] = shapes[end.tensor]
    sizes = tuple(size for axis, size in enumerate(shape) if axis != end.axis)
    return (end.axis, *sizes) if len(shape) > 2 else (-1, id(end))
