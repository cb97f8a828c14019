# SPDX-License-Identifier: Apache-2.0
"""The order of nodes, what hangs together, what outputs need, and the removal of the rest. Bodies are read, too.

Not in here: what a single edit leaves unread (`edit.py`, and the passes that edit).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from typing import TypeVar

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.nodes import WITH_BODIES, Node, captured_names, may_have_bodies

_Key = TypeVar("_Key")


# ---------------------------------------------------------------------- order


def dependency_order(needs: Mapping[_Key, Sequence[_Key]]) -> list[_Key]:
    """Keys in topological order (Kahn's algorithm); keys that are ready keep the order of the mapping."""
    left = {key: len(needed) for key, needed in needs.items()}
    needers: dict[_Key, list[_Key]] = {}
    for key, needed in needs.items():
        for other in needed:
            needers.setdefault(other, []).append(key)
    ready = [key for key, count in left.items() if not count]
    for key in ready:  # grows while it is walked
        for needer in needers.get(key, ()):
            left[needer] -= 1
            if not left[needer]:
                ready.append(needer)
    return ready


def key_on_cycle(needs: Mapping[_Key, Sequence[_Key]]) -> _Key | None:
    """A key that needs itself, through others or not; None where there is none."""
    done = set(dependency_order(needs))
    at = next((key for key in needs if key not in done), None)
    seen: set[_Key] = set()
    while at is not None and at not in seen:  # each key that is left needs another: going on ends on a cycle
        seen.add(at)
        at = next(other for other in needs[at] if other not in done)
    return at


def topological(nodes: Sequence[Node]) -> Sequence[Node]:
    """Each node after those that it reads from; `nodes` itself where it is in such an order already.

    Raises:
        QdqError: the graph has a cycle.
    """
    reads = [read_names(node) if may_have_bodies(node) else node.inputs for node in nodes]
    order = _new_order([node.outputs for node in nodes], reads, lambda index: nodes[index].name)
    return nodes if order is None else [nodes[index] for index in order]


def topological_protos(protos: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """`topological` for the nodes of a proto."""
    nodes = list(protos)
    plain = (not proto.domain and proto.op_type not in WITH_BODIES for proto in nodes)  # no Node for each: 100,000 cost
    reads = [proto.input if only else reads_of(proto) for proto, only in zip(nodes, plain, strict=True)]
    order = _new_order([proto.output for proto in nodes], reads, lambda index: Node(nodes[index], index).name)
    return nodes if order is None else [nodes[index] for index in order]


def _new_order(
    outputs: Sequence[Sequence[str]], reads: Sequence[Sequence[str]], label: Callable[[int], str]
) -> list[int] | None:
    """The places of nodes in topological order; None where they are in one."""
    position = {name: index for index, names in enumerate(outputs) for name in names if name}
    if not any(position.get(name, -1) >= index for index, names in enumerate(reads) for name in names):
        return None
    needs = {i: list({position[name]: None for name in names if name in position}) for i, names in enumerate(reads)}
    order = dependency_order(needs)
    if len(order) != len(reads):
        stuck = min(needs.keys() - set(order))
        raise QdqError(label(stuck), "the graph has a cycle through this node", "export the model again")
    return order


# ---------------------------------------------------------------------- what reads what


def wrapped(protos: Iterable[onnx.NodeProto]) -> list[Node]:
    """The nodes of a list, each with its place in it."""
    return [Node(proto, index) for index, proto in enumerate(protos)]


def read_names(node: Node) -> list[str]:
    """Every tensor that a node reads: its inputs, then what its bodies read from outside of them, sorted."""
    names = [name for name in node.inputs if name]
    return names + sorted(captured_names(node)) if may_have_bodies(node) else names


def reads_of(proto: onnx.NodeProto) -> list[str]:
    """`read_names` for a proto."""
    if not proto.domain and proto.op_type not in WITH_BODIES:  # no Node for each: shapes and stages ask again and again
        return list(filter(None, proto.input))
    return read_names(Node(proto, 0))


def needed(nodes: Iterable[Node], outputs: Iterable[str]) -> tuple[list[Node], set[str]]:
    """The nodes that some output depends on, in the order given, and every tensor on the way, outputs included."""
    every = list(nodes)
    producer = {name: index for index, node in enumerate(every) for name in node.outputs if name}
    stack, names, kept = list(outputs), set[str](), set[int]()
    while stack:
        name = stack.pop()
        if name in names:
            continue
        names.add(name)
        index = producer.get(name)
        if index is not None and index not in kept:
            kept.add(index)
            stack.extend(read_names(every[index]))
    return [every[index] for index in sorted(kept)], names


# ---------------------------------------------------------------------- removal


def remove_dead(graph: onnx.GraphProto, outputs: Iterable[str] | None = None) -> None:
    """Take away nodes that lead to no output, and initializers and inputs that nobody reads; the order stays."""
    nodes = wrapped(graph.node)
    kept, names = needed(nodes, [value.name for value in graph.output] if outputs is None else outputs)
    keep = {node.index for node in kept}
    for place in range(len(nodes) - 1, -1, -1):
        if place not in keep:
            del graph.node[place]
    _keep_named(graph.initializer, names)
    _keep_named(graph.input, names)


def remove_unread_initializers(graph: onnx.GraphProto) -> None:
    """Take away initializers that no node reads and that are no outputs; the order of the others stays."""
    read = {name for proto in graph.node for name in reads_of(proto)}
    _keep_named(graph.initializer, read.union(value.name for value in graph.output))


def _keep_named(
    table: MutableSequence[onnx.TensorProto] | MutableSequence[onnx.ValueInfoProto], names: Collection[str]
) -> None:
    for place in range(len(table) - 1, -1, -1):
        if table[place].name not in names:
            del table[place]


def connected(keys: Iterable[_Key], links: Iterable[Sequence[_Key]]) -> list[list[_Key]]:
    """The parts that links join keys into, by union-find: parts and keys in the order given."""
    joined = {key: key for key in keys}

    def root(key: _Key) -> _Key:
        while joined[key] != key:
            joined[key] = joined[joined[key]]
            key = joined[key]
        return key

    for link in links:
        for key in link[1:]:
            joined[root(key)] = root(link[0])
    parts: dict[_Key, list[_Key]] = {}
    for key in joined:
        parts.setdefault(root(key), []).append(key)
    return list(parts.values())
