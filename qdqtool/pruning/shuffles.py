# SPDX-License-Identifier: Apache-2.0
"""Channel shuffles: Reshape, Transpose, Reshape that deal channels out anew. Which of them a pruned model can keep.

A shuffle keeps its three operators where the channels that go leave a rectangle between them: then one of each row goes
with one of each other row. Several shuffles one after the other tie all channels of a stage together in that way
(ShuffleNetV2: eight units), so that none could go. Such a shuffle becomes a Gather, which ties nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from qdqtool.graph.channels import relayout
from qdqtool.graph.channels.arguments import permutation
from qdqtool.graph.channels.atoms import MOST, ChannelAtoms, Int64
from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Node


@dataclass(frozen=True, eq=False)
class ChannelShuffle:
    """Three operators that give the channels of a tensor in another order, and nothing else.

    Attributes:
        nodes: Reshape, Transpose, Reshape.
        order: channel i of the output is channel order[i] of the input.
    """

    nodes: tuple[Node, Node, Node]
    order: Int64

    @property
    def source(self) -> str:
        """The tensor that is shuffled."""
        return str(self.nodes[0].inputs[0])

    @property
    def made(self) -> str:
        """The shuffled tensor."""
        return str(self.nodes[2].outputs[0])

    @property
    def between(self) -> tuple[str, str]:
        """The tensors on the way, which nothing else reads."""
        return self.nodes[0].outputs[0], self.nodes[1].outputs[0]


def find_shuffles(atoms: ChannelAtoms, nodes: Iterable[Node]) -> list[ChannelShuffle]:
    """The shuffles of a graph, in the order of its nodes."""
    found = (_shuffle(atoms, node) for node in nodes if node.op == "Reshape")
    return [shuffle for shuffle in found if shuffle is not None]


def _shuffle(atoms: ChannelAtoms, first: Node) -> ChannelShuffle | None:
    view, chain = atoms.view, [first]
    for op in ("Transpose", "Reshape"):
        uses = view.consumers(chain[-1].outputs[0])
        if len(uses) != 1 or uses[0].node.op != op or uses[0].index or view.is_output(chain[-1].outputs[0]):
            return None
        chain.append(uses[0].node)
    shapes = [atoms.shape(name) for name in (first.inputs[0], chain[0].outputs[0], chain[1].outputs[0])]
    whole, apart, turned = shapes
    if whole is None or apart is None or turned is None or whole != atoms.shape(chain[2].outputs[0]):
        return None
    sizes = [size or 0 for size in whole]
    if len(sizes) < 2 or not 0 < int(np.prod(sizes)) <= MOST:
        return None
    labels = np.arange(np.prod(sizes)).reshape(sizes)
    dealt = relayout.reshaped(labels, whole, apart, MOST)
    moved = None if dealt is None else relayout.transposed(dealt, permutation(chain[1], dealt.ndim) or [])
    made = None if moved is None else relayout.reshaped(moved, turned, whole, MOST)
    if made is None or made.shape != labels.shape:
        return None
    order = made[0].reshape(sizes[1], -1)[:, 0] // int(np.prod(sizes[2:]))
    same = order.max() < sizes[1] and np.array_equal(made, labels[:, order])
    return ChannelShuffle((chain[0], chain[1], chain[2]), order) if same else None


def gather(editor: Editor, view: GraphView, shuffle: ChannelShuffle, kept: tuple[Int64, Int64]) -> None:
    """Let a Gather take the place of a shuffle."""
    source, made = kept
    indices = np.searchsorted(source, shuffle.order[made]).astype(np.int64)
    twins = [view.every[node.index] for node in shuffle.nodes]
    name = editor.add_initializer(editor.unique_name(f"{shuffle.made}_order"), indices)
    for twin in twins:
        editor.remove_node(twin)
    editor.add_node("Gather", [twins[0].inputs[0], name], shuffle.made, beside=twins[2], after=True, axis=1)
    editor.drop_value_info(shuffle.between)
