# SPDX-License-Identifier: Apache-2.0
"""The layers that TensorRT for RTX builds for a model: products, pools, and generated kernels with all between them.

A product of codes, or with a weight of INT4 codes, gives out float accumulators; its bias, activation and rounding, and
whatever else stands before the next product, run in one generated kernel. A product of floats keeps what fuses with it
(`layer_units.py`). Operators belong to one kernel where they hang together and as many products and pools lie before
them, or where one kernel alone reads what another makes. Held against engines of the corpus by
`tests/engine/test_predict_rtx.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.engine.engine_view import EngineView
from qdqtool.engine.layer_units import Unit, find_units
from qdqtool.engine.predict import FLOAT, Port, Precision, PredictedLayer
from qdqtool.engine.predicted_types import Storage
from qdqtool.formats import number_format
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node
from qdqtool.graph.weighted import is_product, pair_behind
from qdqtool.rulebook import RuleBook, load_rules

_POOLS = frozenset({"MaxPool", "AveragePool"})  # kernels of their own beside products


def predict_rtx_layers(view: GraphView) -> tuple[PredictedLayer, ...]:
    """The layers of a plain or a Q/DQ model, in the order in which they can run; the main graph only."""
    rules = load_rules("gpu_layers")
    return _RtxLayers(EngineView(view.graph, rules, view.folder), rules).layers()


class _BuiltGroups:
    """Names that belong together."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def first(self, name: str) -> str:
        """What stands for the group of a name."""
        while (up := self._of.get(name, name)) != name:
            self._of[name] = self._of.get(up, up)
            name = up
        return name

    def join(self, name: str, into: str) -> None:
        """Put the group of one name to that of another."""
        self._of[self.first(name)] = self.first(into)


class _RtxLayers:
    """One graph, cut into products, pools and kernels."""

    def __init__(self, view: EngineView, rules: RuleBook) -> None:
        self.view = view
        units = find_units(view, rules)
        storage = Storage(view, rules, units)
        self.formats = {id(unit.start): storage.computes(unit) for unit in units if is_product(unit.start)}
        self.products = [unit for unit in units if is_product(unit.start)]
        self.layer_of = {node.key: unit for unit in self.products for node in self._fused(unit)}
        loose = [node for unit in units for node in unit.nodes if node.key not in self.layer_of]
        loose = [node for node in loose if not view.is_constant(node.key)]  # folded: a Div of a weight
        pairs = [node for node in view.nodes if node.op in (QUANTIZE, DEQUANTIZE)]
        self.loose = sorted([*loose, *pairs], key=lambda node: (node.level, node.index))
        self.idle = frozenset(rules.sets["nothing"]) | {DEQUANTIZE}
        self.joined = frozenset(rules.sets["joined"])

    def layers(self) -> tuple[PredictedLayer, ...]:
        """Every layer."""
        found = [self._product(unit) for unit in self.products]
        found += [self._kernel(nodes) for nodes in self._kernels() if self._works(nodes)]
        return tuple(layer for _, layer in sorted(found, key=lambda one: one[0]))

    def _fused(self, unit: Unit) -> tuple[Node, ...]:
        """The nodes that run in the layer of a product: itself where it reads codes, a weight's alone included."""
        return unit.nodes[:1] if self._reads_codes(unit) else unit.nodes

    def _reads_codes(self, unit: Unit) -> bool:
        if self.formats[id(unit.start)] is not None:
            return True
        pairs = (pair_behind(self.view, name) for name in unit.start.inputs if self.view.is_constant(name))
        names = [self.view.format_of(pair.dequantize) for pair in pairs if pair is not None]
        return any("activation" not in number_format(name).roles for name in names)

    def _works(self, nodes: list[Node]) -> bool:
        """Whether a kernel moves a byte: views do not, nor does a Concat into which products of floats write."""
        busy = [node for node in nodes if node.op not in self.idle]
        return any(node.op not in self.joined or not self._written_into(node) for node in busy)

    def _written_into(self, concat: Node) -> bool:
        makers = [self.layer_of.get(getattr(self.view.producer(name), "key", "")) for name in concat.inputs if name]
        return all(maker is not None and self.formats[id(maker.start)] is None for maker in makers)

    def _kernels(self) -> list[list[Node]]:
        """The nodes of each kernel and pool."""
        depth, groups = self._depths(), _BuiltGroups()
        inside = {name: node for node in self.loose if node.op not in _POOLS for name in node.outputs if name}
        for name, node in inside.items():
            groups.join(name, node.key)
            for read in node.inputs:
                maker = inside.get(self.view.root(read)) if read else None
                if maker is not None and depth[maker.key] == depth[node.key]:
                    groups.join(maker.key, node.key)
        kernels: dict[str, list[Node]] = {}
        for node in self.loose:
            kernels.setdefault(groups.first(node.key), []).append(node)
        for name in sorted(kernels, key=lambda one: kernels[one][-1].level, reverse=True):
            reader = self._only_reader(kernels[name], groups, inside)
            if reader in kernels and reader != name:
                groups.join(name, reader)
                kernels[reader] = [*kernels.pop(name), *kernels[reader]]
        return list(kernels.values())

    def _only_reader(self, nodes: list[Node], groups: _BuiltGroups, inside: dict[str, Node]) -> str:
        """The kernel that alone reads what another makes; "" where an output, a product, a pool or several read it."""
        made = [name for node in nodes for name in node.outputs if name]
        uses = [use.node.key for name in made for use in self.view.consumers(name)]
        if nodes[0].op in _POOLS or any(map(self.view.is_output, made)) or any(key not in inside for key in uses):
            return ""
        readers = {groups.first(key) for key in uses} - {groups.first(nodes[0].key)}
        return readers.pop() if len(readers) == 1 else ""

    def _depths(self) -> dict[str, int]:
        """Output -> how many products and pools lie before it on the longest way."""
        depth: dict[str, int] = {}
        starts = {id(unit.start) for unit in self.products}
        for node in sorted(self.view.nodes, key=lambda node: (node.level, node.index)):
            before = max((depth.get(self.view.root(name), 0) for name in node.inputs if name), default=0)
            own = int(id(node) in starts or node.op in _POOLS)
            depth.update(dict.fromkeys(node.outputs, before + own))
        return depth

    def _product(self, unit: Unit) -> tuple[tuple[int, int], PredictedLayer]:
        nodes = list(self._fused(unit))
        names = [name for node in nodes for name in node.inputs if name]
        constants = [name for name in names if self.view.is_constant(name)]
        absorbed = [node for name in constants if (pair := pair_behind(self.view, name)) for node in pair.nodes]
        absorbed += [one for name in names if name not in constants and (one := self.view.dequantizer(name))]
        kind = "convolution" if "Conv" in unit.start.op else "product"
        return self._layer(kind, self.formats[id(unit.start)] or FLOAT, nodes, absorbed, constants)

    def _kernel(self, nodes: list[Node]) -> tuple[tuple[int, int], PredictedLayer]:
        kind = nodes[0].op.lower() if nodes[0].op in _POOLS else "kernel"
        return self._layer(kind, FLOAT, nodes, [], [])

    def _layer(
        self, kind: str, compute: Precision, nodes: list[Node], absorbed: list[Node], constants: Iterable[str]
    ) -> tuple[tuple[int, int], PredictedLayer]:
        inside = {id(node) for node in nodes}
        made = [name for node in nodes for name in node.outputs if name]
        read = [name for node in nodes for name in node.inputs if name and self.view.root(name) not in made]
        given = [
            name
            for name in made
            if self.view.is_output(name) or any(id(use.node) not in inside for use in self.view.consumers(name))
        ]
        first = next((node for node in nodes if node.op not in self.idle), nodes[0])
        layer = PredictedLayer(
            first.name,
            kind,
            tuple(dict.fromkeys(node.name for node in [*nodes, *absorbed])),
            (first.name,),
            compute,
            tuple(dict.fromkeys(self._port(name) for name in read if not self.view.is_constant(name))),
            tuple(dict.fromkeys(map(self._port, given))),
            tuple(dict.fromkeys(map(self.view.root, constants))),
        )
        return (first.level, first.index), layer

    def _port(self, name: str) -> Port:
        """A tensor as it lies in memory; codes under the name of what they stand for."""
        maker = self.view.producers.get(self.view.root(name))
        if maker is not None and maker.op == QUANTIZE:
            return Port(self.view.root(maker.inputs[0]), self.view.format_of(maker))
        source = self.view.dequantizer(name)
        if source is not None:
            return Port(self.view.root(self.view.quantized_tensor(source)), self.view.format_of(source))
        return Port(self.view.root(name), FLOAT)
