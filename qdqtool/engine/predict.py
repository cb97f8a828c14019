# SPDX-License-Identifier: Apache-2.0
"""The layers that TensorRT would build for a model on a GPU: what runs together, in which type, under which name.

Predicted from the graph and rules/gpu_layers.toml; nothing is built. Not Reformats between memory formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qdqtool.engine.engine_view import EngineView
from qdqtool.engine.layer_names import layer_name, names_in
from qdqtool.engine.layer_units import Unit, find_units, merge_parallel
from qdqtool.engine.predicted_types import Left, Storage
from qdqtool.errors import QdqError
from qdqtool.graph.view import QUANTIZE, GraphView, Node
from qdqtool.graph.weighted import is_product, pair_behind
from qdqtool.rulebook import RuleBook, load_rules
from qdqtool.trtversion import TrtVersion

Precision = str
"""The name of a number format, such as "int8"; or `FLOAT`."""
FLOAT = "float"
REFORMATS = frozenset({"quantize", "dequantize", "copy"})


@dataclass(frozen=True)
class Port:
    """A tensor that a layer reads or writes, by its name in the plain model, and what it is in memory."""

    tensor: str
    precision: Precision


@dataclass(frozen=True)
class PredictedLayer:
    """One layer of the engine, as predicted.

    Attributes:
        name: as TensorRT lists it, but for the numbers that it gives unnamed helpers.
        kind: convolution, product, pointwise, quantize, dequantize, copy, or the operator in lower case.
        nodes: names of all ONNX nodes that run in it, Q/DQ nodes that it takes in among them.
        named: those of them that the name tells.
        compute: what it multiplies or compares.
        inputs: what it reads, constants left out.
        outputs: what it writes.
        weights: names of the constants that it holds.
        rule: the fusion rule, "" for an operator alone.
        residual: the tensor that a fused Add takes in, None where there is none.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    named: tuple[str, ...]
    compute: Precision
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: tuple[str, ...] = ()
    rule: str = ""
    residual: Port | None = None

    @property
    def input(self) -> Precision:
        """The format of the first input that it reads as codes; float where there is none."""
        return next((port.precision for port in self.inputs if port.precision != FLOAT), FLOAT)

    @property
    def output(self) -> Precision:
        """What it gives out."""
        return self.outputs[0].precision if self.outputs else FLOAT


def predict_layers(
    view: GraphView,
    version: TrtVersion | None = None,
    target: str = "gpu",
    types: Mapping[str, int] | None = None,
) -> tuple[PredictedLayer, ...]:
    """The layers that TensorRT would list for a plain or a Q/DQ model, in the order in which they can run.

    The main graph only. A plain model's layers are in float, FP32 or FP16 as the builder is set.

    Raises:
        QdqError: another target.
    """
    if target != "gpu":
        raise QdqError(f"--target {target}", "a DLA subgraph is one layer of the engine", "predict layers for gpu")
    rules = load_rules("gpu_layers", version)
    engine = EngineView(view.graph, rules, view.folder, types)
    units = find_units(engine, rules)
    storage = Storage(engine, rules, units)
    layers: list[tuple[tuple[int, int], PredictedLayer]] = []
    gone = set(rules.sets["nothing"]) | set(rules.sets["joined"])
    for group in merge_parallel(engine, [unit for unit in units if unit.start.op not in gone], rules):
        last = max((unit.nodes[-1] for unit in group), key=lambda node: (node.level, node.index))
        layers.append(((last.level, last.index), _layer(storage, group, rules)))
    layers += [((left.node.level, left.node.index), _left_layer(storage, left)) for left in storage.left_over()]
    for unit in (unit for unit in units if unit.start.op in rules.sets["joined"]):
        place = unit.start.level, unit.start.index
        layers += [(place, layer) for layer in _copies(storage, unit, set(rules.sets["unstrided"]))]
    return tuple(layer for _, layer in sorted(layers, key=lambda item: item[0]))


def _layer(storage: Storage, group: tuple[Unit, ...], rules: RuleBook) -> PredictedLayer:
    view = storage.view
    first = group[0]
    compute = storage.computes(first) or FLOAT
    unnamed = frozenset[str]() if compute == FLOAT else frozenset(rules.sets["unnamed"])
    named = [node for unit in group for node in names_in(view, unit, unnamed)]
    outputs = [Port(name, _precision(storage, name)) for unit in group for name in unit.nodes[-1].outputs if name]
    inputs = dict.fromkeys(port for unit in group for port in _inputs(storage, unit))
    weights = dict.fromkeys(
        view.root(name) for unit in group for node in unit.nodes for name in node.inputs if view.is_constant(name)
    )
    skip = first.residual
    return PredictedLayer(
        layer_name(view, group, unnamed),
        _kind(first, rules),
        _names(node for unit in group for node in (*unit.nodes, *_absorbed(storage, unit))),
        _names(named),
        compute,
        tuple(inputs),
        tuple(outputs),
        tuple(weights),
        first.rule,
        None if skip is None else _port(storage, first, skip.node.inputs[skip.index], residual=True),
    )


def _kind(unit: Unit, rules: RuleBook) -> str:
    if unit.rule == "pointwise":
        return "pointwise"
    if is_product(unit.start):
        return "convolution" if unit.start.op in rules.sets["conv"] else "product"
    return unit.start.op.lower()


def _names(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.name for node in nodes))


def _precision(storage: Storage, name: str) -> Precision:
    return storage.format(name) or FLOAT


def _inputs(storage: Storage, unit: Unit) -> list[Port]:
    view = storage.view
    ports = []
    for use in unit.reads():
        name = use.node.inputs[use.index]
        if not view.is_constant(name):
            ports.append(_port(storage, unit, name, residual=use == unit.residual))
    return ports


def _port(storage: Storage, unit: Unit, name: str, *, residual: bool) -> Port:
    """A tensor by what made its values; quantized where the layer takes the codes themselves."""
    gives = storage.gives(unit)
    direct = storage.converts(unit) or (storage.computes(unit) is not None and (not residual or gives is not None))
    source = storage.view.dequantizer(name)
    kept = None if gives is None or not storage.view.flow.moves(unit.start) else storage.format(name)
    read = storage.view.format_of(source) if source is not None and direct else kept
    return Port(_plain(storage.view, name), read or FLOAT)


def _plain(view: EngineView, name: str) -> str:
    """The tensor behind a pair: what carries the same values in the plain model."""
    name = view.root(name)
    while (pair := view.activation_pairs.get(name)) is not None and pair.quantize is not None:
        name = view.root(pair.quantize.inputs[0])
    return name


def _absorbed(storage: Storage, unit: Unit) -> list[Node]:
    """The Q/DQ nodes that vanish in a layer: of its weights, of what it reads as integers, and behind it."""
    view = storage.view
    found: list[Node] = []
    for use in unit.reads():
        name = use.node.inputs[use.index]
        pair = pair_behind(view, name) if view.is_constant(name) else None
        if pair is not None and storage.computes(unit) is not None:
            found += pair.nodes
        elif (
            not view.is_constant(name) and _port(storage, unit, name, residual=use == unit.residual).precision != FLOAT
        ):
            source = view.dequantizer(name)
            found += [] if source is None else [source]
    inside = {name for node in unit.nodes for name in node.outputs}
    for tensor in inside & view.pairs.keys():
        found += [node for pair in view.pairs[tensor] for node in pair.nodes]
    if storage.gives(unit) is not None:
        found += [use.node for use in view.consumers(unit.output) if use.node.op == QUANTIZE]
    return sorted(found, key=lambda node: node.index)


def _left_layer(storage: Storage, left: Left) -> PredictedLayer:
    node, view = left.node, storage.view
    quantizes = node.op == QUANTIZE
    codes = view.format_of(node)
    before, after = (FLOAT, codes) if quantizes else (codes, FLOAT)
    name = node.inputs[0] if quantizes else node.outputs[0]
    tensor = _plain(view, name)
    nodes = _names(left.nodes)
    kind = "quantize" if quantizes else "dequantize"
    return PredictedLayer(node.name, kind, nodes, nodes[:1], "float", (Port(tensor, before),), (Port(tensor, after),))


def _copies(storage: Storage, unit: Unit, unstrided: set[str]) -> list[PredictedLayer]:
    """One copy for each input of a Concat that cannot be written into its output: strided or of another type."""
    view, layers = storage.view, []
    after = _precision(storage, unit.output)
    for name in dict.fromkeys(unit.start.inputs):
        producer = view.producers.get(view.root(name))
        before = _precision(storage, name)
        if producer is None or producer.op in unstrided or before != after:
            tensor = _plain(view, name)
            ports = (Port(tensor, before),), (Port(tensor, after),)
            layers.append(PredictedLayer(f"{tensor} copy", "copy", (), (), "float", *ports))
    return layers
