# SPDX-License-Identifier: Apache-2.0
"""A graph as TensorRT's optimizer has it: pairs of weights seen through, pairs of activations operators of their own.

Also where values lie in a number format by the Q/DQ nodes alone. Which operators become one layer is `predict.py`.
Answers are kept per tensor, since they are asked for every tensor of long chains; single steps are those of `Flow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from qdqtool.formats import INT8, format_of_element
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Pair, attribute
from qdqtool.graph.weighted import pair_behind, weight_index
from qdqtool.match.flow import commuting, joins, value_names
from qdqtool.precision.element_types import FLOATS
from qdqtool.rulebook import RuleBook

Coding = tuple[str, bytes]
"""The name of a number format, and the bits of a scale."""

DYNAMIC = {
    "trt::TRT_FP4DynamicQuantize": "nvfp4",
    "trt::TRT_DynamicQuantize": "fp8",
    "trt::TRT_MXFP8DynamicQuantize": "fp8",
}
"""Operators that compute their scales -> the format of the codes that are their first output."""


class EngineView(GraphView):
    """The index of a graph whose activation pairs break every chain.

    Casts between float types are seen through where the types are known: the kernels beside them convert.

    Attributes:
        weight_pairs: output of the DequantizeLinear of a constant -> its pair.
        activation_pairs: the same of the pairs that are operators here; what lies between Q and DQ is left out.
        flow: the walk across operators that a pair may be moved across.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        rules: RuleBook,
        folder: Path | None = None,
        types: Mapping[str, int] | None = None,
    ) -> None:
        self._types = types or {}
        self.flow = commuting(self, rules)
        self._wanted: dict[str, Coding | None] = {}
        self._dequantized_by: dict[str, Node | None] = {}
        self._formats: dict[int, str] = {}
        self.weight_pairs: dict[str, Pair] = {}
        self.activation_pairs: dict[str, Pair] = {}
        super().__init__(graph, folder)

    def _find_pairs(self, order: Sequence[Node]) -> None:
        casts = [node for node in order if node.op == "Cast" and self._converts_floats(node)] if self._types else []
        self._see_through(casts)  # so that the pair behind a Cast stands on what the Cast reads
        super()._find_pairs(order)
        self._hidden |= {id(node) for node in casts}
        self._hidden |= {id(node) for node in order if node.op == "Cast" and self.is_constant(node.key)}  # folded
        self._index_readers()  # guards of rules ask who reads a tensor; indexed again once the pairs are known
        consumers = self._plain_readers()
        kept: dict[str, list[Pair]] = {}
        for tensor, pairs in self.pairs.items():
            for pair in pairs:
                if tensor in self._constants:
                    self.weight_pairs[pair.dequantize.outputs[0]] = pair
                elif not self._idle(pair, consumers):
                    self.activation_pairs[pair.dequantize.outputs[0]] = pair
                    continue
                kept.setdefault(tensor, []).append(pair)
        for name, pair in self.activation_pairs.items():
            self._root.pop(name, None)
            self._hidden -= {id(pair.quantize), id(pair.dequantize)}
            if pair.quantize is not None:  # a Clip to fewer codes is no layer
                self._root |= {node.key: pair.quantize.outputs[0] for node in pair.between}
        self._see_through(casts)
        self.pairs = kept
        self.nodes = [node for node in self.every if id(node) not in self._hidden]

    def _converts_floats(self, node: Node) -> bool:
        """Whether a Cast turns one float type into another, for readers inside the graph."""
        if not node.inputs or self.is_constant(node.key) or self.is_output(node.key):
            return False
        return {self._types.get(node.inputs[0], 0), self._types.get(node.key, 0)} <= FLOATS

    def _see_through(self, casts: Sequence[Node]) -> None:
        for node in casts:
            self._root[node.key] = self._root.get(node.inputs[0], node.inputs[0])

    def _plain_readers(self) -> dict[str, list[Node]]:
        consumers: dict[str, list[Node]] = {}
        for node in self.every:
            for name in dict.fromkeys(node.inputs):
                consumers.setdefault(name, []).append(node)
        return consumers

    def _idle(self, pair: Pair, consumers: Mapping[str, list[Node]]) -> bool:
        """Whether only operators that move values read a pair, and pairs of the same scale alone read what they make.

        Q(max(DQ(Q(x)))) is Q(max(x)): the pair before the pool does nothing that the one behind it does not do.
        """
        if pair.quantize is None or self.is_output(pair.dequantize.outputs[0]):
            return False
        movers = consumers.get(pair.dequantize.outputs[0], [])
        behind = [consumer for node in movers for consumer in consumers.get(node.outputs[0], [])]
        coding = self.coding_of(pair.quantize)
        return (
            bool(movers and behind)
            and coding is not None
            and all(self.flow.moves(node) and not joins(node) for node in movers)
            and not any(self.is_output(node.outputs[0]) for node in movers)
            and all(node.op == QUANTIZE and self.coding_of(node) == coding for node in behind)
        )

    def coding_of(self, node: Node) -> Coding | None:
        """The format and scale of a QuantizeLinear or DequantizeLinear; None where the scale is computed."""
        value = self.array(node.inputs[1]) if len(node.inputs) > 1 else None
        if value is None:
            return None
        with np.errstate(over="ignore"):  # a double may be beyond float32
            return self.format_of(node), np.ascontiguousarray(value, np.float32).tobytes()

    def format_of(self, node: Node) -> str:
        """The name of the format whose codes a QuantizeLinear makes or a DequantizeLinear reads; INT8 for any other."""
        if id(node) not in self._formats:
            code = self._element_type(node)
            row = None if isinstance(code, str) else format_of_element(code)
            self._formats[id(node)] = code if isinstance(code, str) else INT8.name if row is None else row.name
        return self._formats[id(node)]

    def _element_type(self, node: Node) -> int | str:
        """The element type of codes, or the format's name where an operator of TensorRT makes them."""
        zero = self.constant_tensor(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
        if zero is not None:
            return int(zero.data_type)
        if node.op == QUANTIZE:
            return int(str(attribute(node, "output_dtype", 0)))
        stored = self.constant_tensor(node.inputs[0])
        if stored is not None:
            return int(stored.data_type)
        maker = self.producer(node.inputs[0])
        if maker is None:
            return 0
        return self._element_type(maker) if maker.op == QUANTIZE else DYNAMIC.get(maker.op, 0)

    def wanted_coding(self, name: str) -> Coding | None:
        """The one coding in which everything that reads a tensor quantizes it; None where something reads it in float.

        Looks forward across operators that move values: their consumers are its consumers.
        """
        if not self._wanted:
            for node in sorted(self.every, key=lambda node: node.level, reverse=True):
                self._wanted.update({made: self._find_wanted(made) for made in node.outputs if made})
        return self._wanted.get(name) if name in self.producers else self._find_wanted(name)

    def used_outputs(self, node: Node) -> list[str]:
        """What a node makes that something reads or the graph gives out."""
        return [name for name in node.outputs if name and (self.consumers(name) or self.is_output(name))]

    def _find_wanted(self, name: str) -> Coding | None:
        if self.is_output(name) or name in self.captured:
            return None
        codings: dict[Coding | None, None] = {}
        for use in self.consumers(name):
            if use.node.op == QUANTIZE:
                codings[self.coding_of(use.node)] = None
            elif self.flow.crosses(use):
                codings |= dict.fromkeys(self._wanted.get(made) for made in self.used_outputs(use.node))
            else:
                return None
        return next(iter(codings)) if len(codings) == 1 else None

    def dequantizer(self, name: str) -> Node | None:
        """The DequantizeLinear whose values a tensor carries, back across operators that move them; None for float.

        Behind a Concat the first of its inputs', if all have one scale.
        """
        passed: list[str] = []
        while name not in self._dequantized_by:
            passed.append(name)
            producer = None if self.is_constant(name) else self.producers.get(self.root(name))
            if producer is not None and self.flow.moves(producer) and not joins(producer):
                name = producer.inputs[0]
            else:
                self._dequantized_by[name] = self._made_by(producer)
        found = self._dequantized_by[name]
        self._dequantized_by.update(dict.fromkeys(passed, found))
        return found

    def _made_by(self, producer: Node | None) -> Node | None:
        if producer is None:
            return None
        if producer.op == DEQUANTIZE:
            return producer
        return self._of_all(producer) if joins(producer) and self.flow.moves(producer) else None

    def _of_all(self, joined: Node) -> Node | None:
        found = [self.dequantizer(name) for name in value_names(joined)]
        codings = {None if node is None else self.coding_of(node) for node in found}
        return found[0] if len(codings) == 1 else None

    def quantized_tensor(self, dequantize: Node) -> str:
        """The tensor that the integers of a DequantizeLinear stand for; its own output where no Q makes them."""
        pair = self.activation_pairs.get(dequantize.outputs[0])
        name: str = dequantize.outputs[0] if pair is None or pair.quantize is None else pair.quantize.inputs[0]
        return name

    def multiplies(self, node: Node) -> str | None:
        """The format in which a weighted operator reads its activation and its weight; None for float.

        A weight that lies in another format than the activation is dequantized, and so is one beside a float.
        """
        index = weight_index(self, node)
        pair = None if index is None else pair_behind(self, node.inputs[index])
        if index is None or pair is None:
            return None
        return self._common(pair.dequantize, self.dequantizer(node.inputs[1 - index]))

    def computes(self, node: Node) -> str | None:
        """The format in which a product reads both operands: its weight, or what is computed, too; None for float."""
        if weight_index(self, node) is not None or node.op not in ("MatMul", "Einsum"):
            return self.multiplies(node)
        return self._common(*map(self.dequantizer, node.inputs[:2]))

    def _common(self, *nodes: Node | None) -> str | None:
        names = {None if node is None else self.format_of(node) for node in nodes}
        if names == {"nvfp4"} and any(maker is not None and maker.op == QUANTIZE for maker in map(self._maker, nodes)):
            return None  # TensorRT for RTX 1.7.1 dequantizes FP4 whose blocks have constant scales
        return names.pop() if len(names) == 1 else None

    def _maker(self, node: Node | None) -> Node | None:
        return None if node is None else self.producer(node.inputs[0])
