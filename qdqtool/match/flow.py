# SPDX-License-Identifier: Apache-2.0
"""Where values go and come from across operators that hand them on as they are: the one walk, up and down.

Which operators those are the caller says: by the rules of a target (`commuting`), or by a set of rules/common.toml
(`operator_set`). What stands at the ends of a walk is judged where it is asked for.

Heads (`graph/heads.py`) and channels (`graph/channels/`) are other walks, for other questions. This one is in `match/`
because rules and their guards say what it may cross.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import RuleBook


def joins(node: Node) -> bool:
    """Whether an operator hands on the values of all its inputs, not of the first alone."""
    return node.op in operator_set("joining")


def value_inputs(node: Node) -> list[int]:
    """The inputs whose values an operator hands on, by number: all of one that joins, else the first."""
    names = node.inputs if joins(node) else node.inputs[:1]
    return [index for index, name in enumerate(names) if name]


def value_names(node: Node) -> list[str]:
    """The names of those inputs."""
    return [node.inputs[index] for index in value_inputs(node)]


def commuting(view: GraphView, rules: RuleBook) -> Flow:
    """The walk across what the rules let a Q/DQ pair be moved across."""
    index = RuleIndex(rules.commutes, rules)
    return Flow(view, lambda node: index.first(view, node) is not None)


class Flow:
    """The walk over one graph across the operators that `moves` lets through; each is judged once."""

    def __init__(
        self,
        view: GraphView,
        moves: Callable[[Node], bool],
        *,
        producer: Callable[[str], Node | None] | None = None,
        consumers: Callable[[str], Sequence[Use]] | None = None,
    ) -> None:
        """Begin with nothing judged."""
        self._view, self._moves = view, moves
        self._producer, self._consumers = producer or view.producer, consumers or view.consumers
        self._known: dict[int, bool] = {}

    def moves(self, node: Node) -> bool:
        """Whether an operator hands on values of its inputs as they are."""
        key = id(node)
        if key not in self._known:
            self._known[key] = self._moves(node)
        return self._known[key]

    def crosses(self, use: Use) -> bool:
        """Whether what a node reads there is handed on by it."""
        return self.moves(use.node) and (use.index == 0 or joins(use.node)) and bool(use.node.inputs[use.index])

    def sources(self, node: Node) -> list[Use]:
        """The reads of a moving operator whose values it hands on."""
        return [Use(node, index) for index in value_inputs(node)]

    def nodes(self) -> list[Node]:
        """Every moving operator, in file order."""
        return [node for node in self._view.nodes if self.moves(node)]

    def down(self, reads: Iterable[Use]) -> Iterator[tuple[Use, bool]]:
        """The reads and all after what moves their values, each once; whether the walk goes on across it."""

        def behind(use: Use) -> list[Use]:
            return [later for name in use.node.outputs if name for later in self._consumers(name)]

        return walk(reads, lambda use: behind(use) if self.crosses(use) else None)

    def ends(self, reads: Iterable[Use]) -> Iterator[Use]:
        """Where the values of these reads end up: every read by an operator that does not hand them on."""
        return (use for use, across in self.down(reads) if not across)

    def tensors(self, name: str) -> Iterator[str]:
        """A tensor and all that hold its values after it, or part of them."""
        yield name
        for use, across in self.down(self._consumers(name)):
            if across:
                yield from filter(None, use.node.outputs)

    def up(self, reads: Iterable[Use], stop: Callable[[str], bool] | None = None) -> Iterator[tuple[Use, bool]]:
        """The reads and all before what moved their values there, each once; whether the walk goes on."""
        return walk(reads, lambda use: self._before(use.node.inputs[use.index], stop))

    def origins(self, name: str, stop: Callable[[str], bool] | None = None) -> Iterator[str]:
        """The tensors that the values of one come from, by the names under which they are read; `stop` as in `up`."""
        before = self._before(name, stop)
        if before is None:
            yield name
        for use, across in self.up(before or (), stop):
            if not across:
                yield use.node.inputs[use.index]

    def _before(self, name: str, stop: Callable[[str], bool] | None) -> list[Use] | None:
        """The reads of what moved values to a tensor; None where they come from it."""
        producer = None if stop is not None and stop(name) else self._producer(name)
        if producer is None or self._view.is_constant(name) or not self.moves(producer):
            return None
        return self.sources(producer)


def walk(reads: Iterable[Use], onward: Callable[[Use], Sequence[Use] | None]) -> Iterator[tuple[Use, bool]]:
    """Depth first, each read once; `onward` gives the reads that follow, None where a way ends."""
    stack, met = list(reads)[::-1], set[tuple[int, int]]()
    while stack:
        use = stack.pop()
        key = id(use.node), use.index
        if key in met:
            continue
        met.add(key)
        further = onward(use)
        yield use, further is not None
        stack.extend(reversed(further or ()))
