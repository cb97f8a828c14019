# SPDX-License-Identifier: Apache-2.0
"""A training form cut into blocks, and each block as a model of its own. Nothing runs here.

A pair of an activation stands in each block that reads it, so that what passes from block to block is in float and has
a twin in the float network. What follows from constants alone stands in each block that reads it, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import onnx
from onnx import helper

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.graph.order import reads_of
from qdqtool.training.shapes import SeenTensor

OPERATORS = 4
"""Operators with trained weights in a block, about; a block more is a gradient graph more."""
_BLOCKS = 32
_BARRED = (float("inf"), 0)


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a training form.

    Attributes:
        proto: it alone, its inputs and outputs of the shapes of one batch.
        takes: tensors of earlier blocks, and inputs of the model, that it reads.
        gives: tensors that later blocks read, or the form gives out.
        parameters: weights and scales of the form that no other block reads.
    """

    proto: onnx.ModelProto
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    parameters: tuple[str, ...]


def cut_blocks(
    form: onnx.ModelProto, parameters: Sequence[str], seen: Mapping[str, SeenTensor], operators: int = OPERATORS
) -> list[Block]:
    """The blocks of a training form, in the order in which they run."""
    graph = _FormGraph(form, parameters)
    parts = [graph.moving[start:end] for start, end in pairwise(graph.places(operators, seen))]
    whole = [graph.with_needed(nodes) for nodes in parts]
    reads = [{name for node in nodes for name in reads_of(node)} for nodes in whole]
    made = [{name for node in nodes for name in node.output} for nodes in parts]
    blocks = []
    for index, nodes in enumerate(whole):
        own = {name for node in nodes for name in node.output}
        later = graph.outputs.union(*reads[index + 1 :])
        elsewhere = set[str]().union(*reads[:index], *reads[index + 1 :])
        takes = [name for name in dict.fromkeys(n for node in nodes for n in reads_of(node)) if name not in own]
        takes = [name for name in takes if name not in graph.initializers]
        gives = [name for node in parts[index] for name in node.output if name in later and name in made[index]]
        trained = tuple(name for name in parameters if name in reads[index] and name not in elsewhere)
        proto = graph.model(nodes, reads[index], (takes, gives), seen)
        blocks.append(Block(proto, tuple(takes), tuple(gives), trained))
    return blocks


class _FormGraph:
    """A training form, divided into nodes that stay with their readers and nodes that are cut."""

    def __init__(self, form: onnx.ModelProto, parameters: Collection[str]) -> None:
        self.form = form
        self.initializers = {tensor.name: tensor for tensor in form.graph.initializer}
        self.outputs = {value.name for value in form.graph.output}
        known, weights = set(self.initializers), set(parameters)
        self.attached: dict[str, onnx.NodeProto] = {}
        self.moving: list[onnx.NodeProto] = []
        self._weighted: list[bool] = []
        for node in form.graph.node:
            reads = reads_of(node)
            constant = all(name in known for name in reads)
            trained = any(name in weights for name in reads)
            if constant:
                known.update(node.output)
                if trained:
                    weights.update(node.output)
            pair = node.domain == PAIR_DOMAIN and self.outputs.isdisjoint(node.output)
            if constant or pair:
                self.attached.update((name, node) for name in node.output if name)
            else:
                self.moving.append(node)
                self._weighted.append(trained)

    def with_needed(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes with what is attached to them, in an order in which they run."""
        found: dict[int, onnx.NodeProto] = {}

        def attach(node: onnx.NodeProto) -> None:
            for name in reads_of(node):
                other = self.attached.get(name)
                if other is not None and id(other) not in found:
                    attach(other)
                    found[id(other)] = other

        for node in nodes:
            attach(node)
            found[id(node)] = node
        return list(found.values())

    def sources(self, node: onnx.NodeProto) -> set[str]:
        """The tensors that a node reads through what is attached to it."""
        found, stack = set[str](), list(reads_of(node))
        while stack:
            name = stack.pop()
            other = self.attached.get(name)
            if other is None:
                found.add(name)
            else:
                stack += reads_of(other)
        return found

    def places(self, operators: int, seen: Mapping[str, SeenTensor]) -> list[int]:
        """Where blocks begin and end: near even shares of the weighted operators, where few values pass."""
        crossing = self._crossing(seen)
        counts = list(accumulate(self._weighted))
        total = counts[-1] if counts else 0
        blocks = max(1, min(_BLOCKS, total // operators))
        found = {0, len(self.moving)}
        for index in range(1, blocks):
            low, high = (bisect_left(counts, total * (2 * index + side) / (2 * blocks)) + 1 for side in (-1, 1))
            middle = (low + high) / 2
            best = min(range(low, max(high, low + 1)), key=lambda at: (crossing[at], abs(at - middle), at))
            if crossing[best] < _BARRED:
                found.add(best)
        return sorted(found)

    def _crossing(self, seen: Mapping[str, SeenTensor]) -> list[tuple[float, int]]:
        """How many tensors pass each place, and how many values; place k is in front of moving node k.

        Sequences and optionals, which are not `seen`, cannot pass from one model to the next: those places are barred.
        """
        made = {name: place for place, node in enumerate(self.moving) for name in node.output if name}
        last: dict[str, int] = {}
        for place, node in enumerate(self.moving):
            last.update((name, place) for name in self.sources(node) if name in made)
        last.update((name, len(self.moving)) for name in self.outputs if name in made)
        sums = [(0.0, 0)] * (len(self.moving) + 1)
        for name, end in last.items():
            count, size = (1.0, _size(seen[name])) if name in seen else _BARRED
            for place in range(made[name] + 1, end + 1):
                sums[place] = (sums[place][0] + count, sums[place][1] + size)
        return sums

    def model(
        self,
        nodes: Sequence[onnx.NodeProto],
        reads: Collection[str],
        ends: tuple[Sequence[str], Sequence[str]],
        seen: Mapping[str, SeenTensor],
    ) -> onnx.ModelProto:
        """Some nodes as a model: what they take and give as its inputs and outputs."""
        inputs, outputs = (
            [helper.make_tensor_value_info(name, seen[name].elem_type, seen[name].shape) for name in names]
            for names in ends
        )
        constants = [tensor for name, tensor in self.initializers.items() if name in reads]
        graph = helper.make_graph(list(nodes), self.form.graph.name or "block", inputs, outputs, constants)
        made = helper.make_model(graph, opset_imports=list(self.form.opset_import), ir_version=self.form.ir_version)
        made.functions.extend(self.form.functions)
        return made


def _size(tensor: SeenTensor) -> int:
    found = 1
    for length in tensor.shape:
        found *= length
    return found
