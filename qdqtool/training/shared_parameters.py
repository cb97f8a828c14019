# SPDX-License-Identifier: Apache-2.0
"""Which trained initializers stay one for several consumers, and which become one for each. Not what is trained.

Exporters write equal constants once: twelve fresh BatchNormalizations share one tensor of ones, and its consumers have
no tie. A weight that several operators read (a head over all levels of a pyramid) is tied by intent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx

from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Read
from qdqtool.training.trainable import Role, by_accident
from qdqtool.training.write_back import Origin, in_file, stands_in


def unshare(
    draft: GraphBuilder, view: GraphView, file: GraphView, roles: Sequence[Role], coded: Collection[str]
) -> tuple[dict[str, Origin], list[str]]:
    """Give consumers without a tie an initializer of their own in the training copy.

    Tied, and so one parameter whose gradient sums up over its consumers: several values, read for the same purpose
    by trained consumers alone. Else every trained consumer has its own.
    """
    by_name: dict[str, dict[Read, Role]] = {}
    order: dict[Read, int] = {}
    for place, role in enumerate(roles):
        by_name.setdefault(role.initializer, {}).setdefault(role.read, role)
        order.setdefault(role.read, place)
    everywhere = _reads(view, by_name)
    found: list[tuple[int, str, Origin]] = []
    notes: list[str] = []
    for name, consumers in by_name.items():
        if not in_file(file, name):
            notes.append(f"{name} is not trained: the file holds it inside a local function")
            continue
        others = everywhere[name] - set(consumers)
        purposes = {(role.kind, role.read.index if role.kind == "norm" else 0) for role in consumers.values()}
        tied = len(consumers) == 1 or (len(purposes) == 1 and not by_accident(view, name))
        if name in coded or (tied and not others):
            found.append((min(order[read] for read in consumers), name, Origin((name,))))
            continue
        for place, read in enumerate(consumers):
            if not others and not place:
                found.append((order[read], name, Origin((name,))))
            elif stands_in(file, read, name):
                found.append((order[read], _own(draft, view, name, read), Origin((name,), read)))
            else:
                notes.append(
                    f"{name} is not trained for {read.node}: other nodes read it, too, and the file has no such node"
                )
    return {name: origin for _, name, origin in sorted(found, key=lambda one: one[0])}, notes


def _reads(view: GraphView, names: Collection[str]) -> dict[str, set[Read]]:
    """Every place that reads an initializer; outputs of the graph and bodies of control flow count as one, too."""
    found: dict[str, set[Read]] = {name: set() for name in names}
    for node in view.every:
        for index, name in enumerate(node.inputs):
            if name in found:
                found[name].add(Read(node.key, index))
    for name in (*view.outputs, *sorted(view.captured)):
        if name in found:
            found[name].add(Read("", -1))
    return found


def _own(draft: GraphBuilder, view: GraphView, name: str, read: Read) -> str:
    fresh = draft.unique(f"{name}_of_{read.node}")
    tensor = onnx.TensorProto()
    tensor.CopyFrom(view.initializers[name])
    tensor.name = fresh
    draft.proto.graph.initializer.append(tensor)
    node = view.producers[read.node]
    node.proto.input[read.index] = node.inputs[read.index] = fresh
    return fresh
