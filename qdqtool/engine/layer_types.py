# SPDX-License-Identifier: Apache-2.0
"""The element types of what predicted layers read and write, by the types of a strongly typed file.

A Cast between float types runs in the layer beside it: what a layer writes lies in memory in the narrower of the type
that it is made in and the type that all who read it take. It predicts no layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from qdqtool.engine.predict import FLOAT, Port, PredictedLayer
from qdqtool.formats import number_format
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node
from qdqtool.precision.element_types import FLOATS

_FP32 = int(TensorProto.FLOAT)


@dataclass(frozen=True)
class LayerTypes:
    """Element types (codes of TensorProto) of a layer's inputs and outputs, in the order of its ports."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def layer_types(file: GraphView, layers: Sequence[PredictedLayer], types: Mapping[str, int]) -> tuple[LayerTypes, ...]:
    """What each layer reads and writes in memory."""
    memory = _Memory(file, layers, types)
    return tuple(memory.of(place, layer) for place, layer in enumerate(layers))


def _codes(port: Port) -> int:
    """The element type of codes; 0 for float."""
    return 0 if port.precision == FLOAT else number_format(port.precision).element_type


class _Memory:
    """The type in which every float tensor of a graph lies in memory between two layers."""

    def __init__(self, file: GraphView, layers: Sequence[PredictedLayer], types: Mapping[str, int]) -> None:
        self._types = types
        self._makers = {name: node for node in file.every for name in node.outputs if name}
        self._nodes = {node.name: node for node in file.every}
        self._fixed = frozenset((*file.inputs, *file.outputs, *file.captured))
        self._sources: list[dict[str, str]] = []  # of each layer: float input -> the tensor that holds it
        self._inside: set[int] = set()
        self._read: set[tuple[int, str]] = set()  # nodes, and what they read in float from outside of their layer
        for layer in layers:
            self._sources.append(self._look_into(layer))
        self._wanted: dict[str, set[int]] = defaultdict(set)
        for node in sorted(file.every, key=lambda node: node.level, reverse=True):
            self._note_readers(node)

    def of(self, place: int, layer: PredictedLayer) -> LayerTypes:
        """The types of one layer."""
        held = self._sources[place]
        read = (_codes(p) or self._stored(held.get(p.tensor, p.tensor)) for p in layer.inputs)
        first = self._nodes.get(layer.nodes[0]) if layer.kind == "dequantize" else None
        made = "" if first is None else first.outputs[0]
        given = (_codes(p) or self._stored(made or p.tensor) for p in layer.outputs)
        return LayerTypes(tuple(read), tuple(given))

    def _look_into(self, layer: PredictedLayer) -> dict[str, str]:
        """What holds each float input of a layer."""
        floats = {port.tensor for port in layer.inputs if port.precision == FLOAT}
        held: dict[str, str] = {}
        for node in (self._node(name) for name in layer.nodes if name in self._nodes):
            self._inside.add(id(node))
            for name in node.inputs:
                source = self._source(name)
                for tensor in (source, self._plain(source)):
                    if tensor in floats:
                        held.setdefault(tensor, source)
                        self._read.add((id(node), name))
        return held

    def _note_readers(self, node: Node) -> None:
        """Note in which types a node reads what it reads; what is no layer hands its readers' types on."""
        if self._converts(node) or (node.op in (QUANTIZE, DEQUANTIZE) and id(node) not in self._inside):
            return
        given = [name for name in node.outputs if self._types.get(name) in FLOATS]
        for name in node.inputs:
            code = self._types.get(name, 0)
            if code not in FLOATS:
                continue
            if id(node) in self._inside:
                found = {code} if (id(node), name) in self._read else set[int]()
            elif code == _FP32 and not self._fixed.intersection(given):
                found = {one for made in given for one in self._wanted[made]}
            else:
                found = {code} if given else set[int]()
            self._wanted[self._source(name)] |= found

    def _stored(self, name: str) -> int:
        own = self._types.get(name, _FP32)
        wanted = self._wanted.get(name, set())
        return next(iter(wanted)) if own == _FP32 and name not in self._fixed and len(wanted) == 1 else own

    def _node(self, name: str) -> Node:
        """The node of a layer; what makes an output before its Cast, where the FP32 form of a model has no Cast."""
        node = self._nodes[name]
        while self._converts(node) and node.inputs[0] in self._makers:
            node = self._makers[node.inputs[0]]
        return node

    def _converts(self, node: Node) -> bool:
        """Whether a node is a Cast from one float type to another."""
        return node.op == "Cast" and {self._types.get(node.inputs[0], 0), self._types.get(node.key, 0)} <= FLOATS

    def _source(self, name: str) -> str:
        """The tensor before Casts between floats."""
        while (node := self._makers.get(name)) is not None and self._converts(node):
            name = node.inputs[0]
        return name

    def _plain(self, name: str) -> str:
        """The tensor before Casts and pairs, as layers are predicted with it."""
        while (node := self._makers.get(name)) is not None and node.op in (QUANTIZE, DEQUANTIZE):
            name = self._source(node.inputs[0])
        return name
