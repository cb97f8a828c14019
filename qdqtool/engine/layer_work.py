# SPDX-License-Identifier: Apache-2.0
"""What each predicted layer computes and moves. How long that takes on a device is in `forecasting/`."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from onnx import TensorProto

from qdqtool.decisions import Decisions
from qdqtool.engine.layer_info import EngineLayer
from qdqtool.engine.layer_types import layer_types
from qdqtool.engine.macs import multiply_adds
from qdqtool.engine.onnx_nodes import OnnxNodes
from qdqtool.engine.predict import FLOAT, REFORMATS, Port, Precision, PredictedLayer
from qdqtool.formats import format_of_element, number_format
from qdqtool.graph.model import Model
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import sample_shapes
from qdqtool.graph.tensors import BITS
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, attribute
from qdqtool.graph.weighted import is_product, weight_index
from qdqtool.match.attention import Attention, find_attentions
from qdqtool.precision.element_types import type_name
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import RuleBook

FP16_BYTES, FP32_BYTES = 2, 4
ATTENTION = "attention"
"""The kind of a layer that is a whole attention."""
JOINED = "joined"
"""The kind of a kernel of several layers, and the rule that says from which version on there are such."""
_POOLS = frozenset({"maxpool", "averagepool"})

Unit = Literal["int8", "fp8", "fp4", "half", "single"]
"""In what a layer multiplies: FP16 and BF16 are `half`, FP32 and TF32 `single`."""
# A product of INT4 on both sides counts as one of INT8: boards publish no rate of their own for it.
_UNITS: dict[str, Unit] = {"INT8": "int8", "INT4": "int8", "FP8": "fp8", "FP4": "fp4", "FP32": "single"}


@dataclass(frozen=True)
class Product:
    """A convolution or matrix product: `count` times (rows x depth) by (depth x columns), with sizes of one inference.

    Attributes:
        kernel: values of one channel that are summed: 9 of a 3x3 convolution, 1 of a matrix product.
        weighted: whether one operand is a weight, which a larger batch does not repeat.
    """

    count: int
    rows: int
    columns: int
    depth: int
    kernel: int = 1
    weighted: bool = True

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.count * self.rows * self.columns * self.depth

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one channel: Tensor Cores do not compute that."""
        return self.weighted and self.count > 1 and self.columns == 1 and self.depth == self.kernel

    def in_batch(self, batch: int) -> Product:
        """The same for a larger batch."""
        return replace(self, rows=self.rows * batch) if self.weighted else replace(self, count=self.count * batch)


_UNSIZED = Product(0, 0, 0, 0)  # where a size is not known


@dataclass(frozen=True)
class LayerWork:
    """What one kernel computes and moves in one inference.

    Attributes:
        name: as TensorRT lists it.
        kind: as `PredictedLayer` has it, "attention" of a fused one, or "kernel" of several joined layers.
        nodes: names of the ONNX nodes that run in it.
        unit: in what it multiplies.
        products: of all nodes in it.
        read: tensor and its precision -> bytes.
        written: likewise.
        weights: bytes of its constants.
        layers: how many predicted layers run in it; 0 of the second and later kernels that one layer is cut into.
        sized: whether all sizes are known; what is not known counts as 0.
        attends: whether it multiplies two activations, or lies between two layers that do, as a Softmax does.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    unit: Unit
    products: tuple[Product, ...]
    read: Mapping[str, int]
    written: Mapping[str, int]
    weights: int = 0
    layers: int = 1
    sized: bool = True
    attends: bool = False

    @functools.cached_property
    def activations(self) -> tuple[int, ...]:
        """Bytes of each tensor that it reads or writes."""
        return (*self.read.values(), *self.written.values())

    @property
    def macs(self) -> int:
        """Multiply-adds of its products."""
        return sum(one.macs for one in self.products)

    @property
    def moved(self) -> int:
        """Bytes that it reads and writes, weights included."""
        return sum(self.activations) + self.weights

    @property
    def converts(self) -> bool:
        """Whether it only turns codes into float or back, or copies."""
        return self.kind in REFORMATS

    def in_batch(self, batch: int) -> LayerWork:
        """The same for a larger batch."""
        read, written = ({key: size * batch for key, size in one.items()} for one in (self.read, self.written))
        products = tuple(one.in_batch(batch) for one in self.products)
        return replace(self, products=products, read=read, written=written)


def layer_work(
    view: GraphView,
    layers: Sequence[PredictedLayer],
    rules: RuleBook,
    types: Mapping[str, int] | None = None,
    file: GraphView | None = None,
) -> list[LayerWork]:
    """The work of each kernel, counted as `forecast` counts it.

    An attention that is one kernel (`rules`) is one layer, with what moves its heads. In FP16 it reads queries, keys
    and values and never writes the scores; in FP32 it is several layers. In INT8 it is one kernel if all of its tensors
    have pairs and its sizes fit, in FP8 also without a pair behind it; with pairs on some of its tensors it is several
    layers. TensorRT for RTX moves and rounds what an attention gives in the same kernel. Where the rules of the
    engine's layers say so (`joined`), layers between two products that hang together are one generated kernel.
    """
    shapes = sample_shapes(view)
    widths = LayerWidths(view, layers, types, file)
    products = {node.name: product or _UNSIZED for node, product in find_products(view, shapes)}
    sources = _Sources(view)
    found = []
    for place, layer in enumerate(layers):
        moved = [count for _, count in moved_values(place, layer, shapes, widths)]
        known = [count or 0 for count in moved]
        floats: Unit = "single" if widths.multiplies_fp32(place, layer) else "half"
        unit = floats if layer.compute == FLOAT else _UNITS[number_format(layer.compute).title]
        inside = tuple(products[name] for name in layer.nodes if name in products)
        ins, outs = len(layer.inputs), len(layer.inputs) + len(layer.outputs)
        read = {sources.key(port): size for port, size in zip(layer.inputs, known[:ins], strict=True)}
        written = {sources.key(port): size for port, size in zip(layer.outputs, known[ins:outs], strict=True)}
        weights, sized = sum(known[outs:]), None not in moved
        found.append(LayerWork(layer.name, layer.kind, layer.nodes, unit, inside, read, written, weights, sized=sized))
    fused = _marking_attentions(_with_cut_operands(view, _with_fused_attentions(view, found, rules)))
    return _with_joined_kernels(fused) if JOINED in rules.names else fused


def built_work(model: Model, layers: Sequence[EngineLayer]) -> list[LayerWork]:
    """The work of the layers that a compiler built, with types and sizes as it lists them; a free batch counts as 1.

    Args:
        model: what was built, by whose nodes the sizes of products are known.
        layers: with their ONNX nodes and the sizes of what they read and write.
    """
    view, nodes = model.view, OnnxNodes(model.proto)
    products = {node.key: one for node, one in find_products(view, sample_shapes(view)) if one is not None}
    found = []
    for layer in layers:
        made = [node.output[0] for label in layer.metadata if (node := nodes.find(label)) is not None]
        inside = tuple(products.pop(name) for name in made if layer.is_product and name in products)
        kind = "convolution" if layer.kind in ("correlation", "deconv") else "product"
        kind = ATTENTION if layer.kind == "kgen" else kind
        if not layer.is_product:
            kind = "copy" if layer.is_conversion else layer.kind
        read, written = ({one.name: one.bytes or 0 for one in ends} for ends in (layer.inputs, layer.outputs))
        weights = sum(one.bytes or 0 for one in layer.constants)
        unit = _UNITS.get(layer.product_type, "half")
        found.append(LayerWork(layer.name, kind, layer.metadata, unit, inside, read, written, weights))
    return found


class _Sources:
    """What layers call a tensor that they hand on: one name for it and for what only has another shape."""

    def __init__(self, view: GraphView) -> None:
        self._view, self._same = view, operator_set("reshaping")

    def key(self, port: Port) -> str:
        """Precision and name."""
        name = port.tensor
        while (maker := self._view.producer(name)) is not None and maker.op in self._same:
            name = self._view.root(maker.inputs[0])
        return f"{port.precision} {name}"


def _with_fused_attentions(view: GraphView, work: Sequence[LayerWork], rules: RuleBook) -> list[LayerWork]:
    one_kernel = {form.name: form.half for form in rules.attentions}
    place_of = {name: place for place, layer in enumerate(work) for name in layer.nodes}
    pairs = {node.name for node in view.every if node.op in (QUANTIZE, DEQUANTIZE)}
    groups: list[list[int]] = []
    taken: set[int] = set()
    for one in find_attentions(view, rules, "int8", Decisions()):
        inside = sorted({place_of[node.name] for node in one.nodes if node.name in place_of})
        chosen = [work[place] for place in inside]
        keys = [key for layer in chosen for key in (*layer.read, *layer.written)]
        in_half = one_kernel[one.rule] and all(layer.unit == "half" for layer in chosen)
        in_half = in_half and all(key.startswith(FLOAT) for key in keys)
        units = {layer.unit for layer in chosen if layer.products}
        in_codes = (one.int8 and units == {"int8"}) or units == {"fp8"}
        if one.weights and inside and taken.isdisjoint(inside) and (in_half or in_codes):
            moved = _moved_heads(view, one)
            moving = {place_of[name] for name in moved if name in place_of and work[place_of[name]].kind == "transpose"}
            made = {key for layer in chosen for key in layer.written}
            rounding = {place for place, layer in enumerate(work) if layer.converts and made.issuperset(layer.read)}
            ending = {
                place
                for place, layer in enumerate(work)
                if layer.kind == "kernel" and made.issuperset(layer.read) and pairs.union(moved).issuperset(layer.nodes)
            }
            groups.append([*inside, *((moving | ending | (rounding if in_codes else set())) - taken)])
            taken |= {*inside, *moving, *ending, *rounding}
    return _joined(work, groups, ATTENTION)


def _with_cut_operands(view: GraphView, work: Sequence[LayerWork]) -> list[LayerWork]:
    """The work with a kernel for each of the queries, keys and values of a float attention that one product gives.

    So does TensorRT for RTX, whose layers alone are of the kind "kernel", unless the one operation in it is a bias that
    no product took up.
    """
    moves = operator_set("moving")
    moving = {node.name for node in view.nodes if node.op in moves}
    read = {key for layer in work if layer.kind == ATTENTION and layer.unit == "half" for key in layer.read}
    found = []
    for layer in work:
        computing = len(set(layer.nodes) - moving)
        if layer.kind == "kernel" and computing != 1 and read.issuperset(layer.written):
            whole = sum(layer.written.values()) or 1
            for place, (key, size) in enumerate(layer.written.items()):
                part = {source: before * size // whole for source, before in layer.read.items()}
                found.append(replace(layer, read=part, written={key: size}, layers=0 if place else layer.layers))
        else:
            found.append(layer)
    return found


def _marking_attentions(work: Sequence[LayerWork]) -> list[LayerWork]:
    """The work with `attends` at products of two activations, and at what lies between two of them."""
    computed = {place for place, layer in enumerate(work) if any(not one.weighted for one in layer.products)}
    maker = {key: place for place, layer in enumerate(work) for key in layer.written}
    makers = [{maker[key] for key in layer.read if maker.get(key, place) < place} for place, layer in enumerate(work)]
    behind, before = set(computed), set(computed)
    for place, layer in enumerate(work):
        if not layer.products and not behind.isdisjoint(makers[place]):
            behind.add(place)
    for place in reversed(range(len(work))):
        if place in before:
            before |= {one for one in makers[place] if not work[one].products}
    return [replace(layer, attends=place in behind & before) for place, layer in enumerate(work)]


def _moved_heads(view: GraphView, one: Attention) -> list[str]:
    """The nodes that only bring queries, keys and values to an attention, or its result away."""
    moves, names = operator_set("rearranging"), list[str]()
    for name in (*one.nodes[0].inputs, *one.nodes[-1].inputs[1:]):
        while (maker := view.producer(name)) is not None and maker.op in moves and len(view.consumers(name)) == 1:
            names.append(maker.name)
            name = maker.inputs[0]
    name = one.nodes[-1].outputs[0]
    while len(uses := view.consumers(name)) == 1 and uses[0].node.op in moves:
        names.append(uses[0].node.name)
        name = uses[0].node.outputs[0]
    return names


def _with_joined_kernels(work: Sequence[LayerWork]) -> list[LayerWork]:
    """The work with all layers between two products or pools in one kernel, if they hang together."""
    maker = {key: place for place, layer in enumerate(work) for key in layer.written}
    depth: list[int] = []
    group = list(range(len(work)))

    def first(place: int) -> int:
        while group[place] != place:
            place = group[place]
        return place

    alone = [bool(layer.products) or layer.kind in _POOLS for layer in work]
    for place, layer in enumerate(work):
        makers = [maker[key] for key in layer.read if maker.get(key, place) < place]
        depth.append(max((depth[one] for one in makers), default=0) + alone[place])
        for one in makers:
            if not alone[place] and not alone[one] and depth[one] == depth[place]:
                group[first(place)] = first(one)
    groups: dict[int, list[int]] = {}
    for place in range(len(work)):
        groups.setdefault(first(place), []).append(place)
    return _joined(work, [one for one in groups.values() if one[1:]], JOINED)


def _joined(work: Sequence[LayerWork], groups: Sequence[Sequence[int]], kind: str) -> list[LayerWork]:
    """The work with each group of layers in the place of its last one; what only they hand on is not moved."""
    readers: Counter[str] = Counter(key for layer in work for key in layer.read)
    made: dict[int, LayerWork] = {}
    for group in groups:
        chosen = [work[place] for place in sorted(group)]
        written = {key: size for layer in chosen for key, size in layer.written.items()}
        inside: Counter[str] = Counter(key for layer in chosen for key in layer.read)
        made[max(group)] = LayerWork(
            next((layer.name for layer in chosen if layer.products), chosen[0].name),
            kind if any(not layer.converts for layer in chosen) else chosen[0].kind,
            tuple(dict.fromkeys(node for layer in chosen for node in layer.nodes)),
            next((layer.unit for layer in chosen if layer.products), chosen[0].unit),
            tuple(product for layer in chosen for product in layer.products),
            {key: size for layer in chosen for key, size in layer.read.items() if key not in written},
            {key: size for key, size in written.items() if not inside[key] or readers[key] > inside[key]},
            sum(layer.weights for layer in chosen),
            sum(layer.layers for layer in chosen),
            all(layer.sized for layer in chosen),
            any(layer.attends for layer in chosen),
        )
    gone = {place for group in groups for place in group} - made.keys()
    return [made.get(place, layer) for place, layer in enumerate(work) if place not in gone]


def find_products(view: GraphView, shapes: Mapping[str, Shape]) -> Iterator[tuple[Node, Product | None]]:
    """Each product with its sizes, a free batch counted as 1; None where another side is not known."""
    for node in view.every:
        if not is_product(node) or len(node.inputs) < 2:
            continue
        found = [shapes.get(name) for name in (*node.inputs[:2], node.outputs[0])]
        if any(shape is None or None in shape[1:] for shape in found):
            yield node, None
            continue
        first, second, output = (tuple(axis or 1 for axis in shape or ()) for shape in found)
        yield node, product_of(view, node, first, second, output)


def product_of(
    view: GraphView, node: Node, first: Sequence[int], second: Sequence[int], output: Sequence[int]
) -> Product:
    """A Conv, ConvTranspose, Einsum, Gemm or MatMul of inputs and an output of these shapes."""
    group, kernel = attribute(node, "group", 1), math.prod(second[2:])
    groups = group if isinstance(group, int) else 1
    if node.op == "Conv":  # sizes are the weight's, as a file may declare an output of another rank
        columns = max(1, second[0] // groups)
        return Product(groups, max(1, math.prod(output) // (groups * columns)), columns, math.prod(second[1:]), kernel)
    if node.op == "ConvTranspose":
        pixels = max(1, math.prod(first) // max(1, second[0]))
        return Product(groups, pixels, math.prod(second[1:]), max(1, second[0] // groups))
    macs, weighted = multiply_adds(node, first, second, output), weight_index(view, node) is not None
    count, columns = 1 if weighted else math.prod(output[:-2]), output[-1] if output else 1
    rows = math.prod(output) // max(1, count * columns)
    return Product(count, rows, columns, macs // max(1, count * rows * columns), weighted=weighted)


class LayerWidths:
    """What a value of a tensor is in memory."""

    def __init__(
        self,
        view: GraphView,
        layers: Sequence[PredictedLayer],
        types: Mapping[str, int] | None,
        file: GraphView | None,
    ) -> None:
        self._view = view
        self._types, self._ends = types, frozenset((*view.inputs, *view.outputs))
        self._ports = None if types is None else layer_types(file or view, layers, types)

    def of(self, tensor: str, precision: Precision = FLOAT) -> tuple[str, int]:
        """A tensor's type as people write it, of the codes or in the file, and bits of a value."""
        if precision != FLOAT:
            row = number_format(precision)
            return row.title, row.bits
        if self._types is None:
            return ("FP32", 8 * FP32_BYTES) if tensor in self._ends else ("FP16", 8 * FP16_BYTES)
        return _named(self._types.get(tensor, int(TensorProto.FLOAT)))

    def of_codes(self, weight: str) -> tuple[tuple[str, str, int], ...]:
        """Codes and scales that a product of floats reads in place of a weight: name, type, bits; empty for floats."""
        maker = self._view.producer(weight)
        codes = None if maker is None or maker.op != DEQUANTIZE else self._view.constant_tensor(maker.inputs[0])
        row = None if codes is None else format_of_element(codes.data_type)
        if maker is None or row is None or "activation" in row.roles:
            return ()
        return (maker.inputs[0], row.title, row.bits), (maker.inputs[1], *self.of(maker.inputs[1]))

    def of_ports(self, place: int, layer: PredictedLayer) -> list[tuple[str, int]]:
        """The same of all that a layer reads and writes, as it lies in memory there."""
        if self._ports is None:
            return [self.of(port.tensor, port.precision) for port in (*layer.inputs, *layer.outputs)]
        return [_named(code) for code in (*self._ports[place].inputs, *self._ports[place].outputs)]

    def multiplies_fp32(self, place: int, layer: PredictedLayer) -> bool:
        """Whether a layer that multiplies floats does so in FP32: by its weights, else by what it reads first."""
        if self._types is None:
            return False
        kinds = [*(self.of(name) for name in layer.weights), *self.of_ports(place, layer)]
        return next((kind == "FP32" for kind, _ in kinds), False)


def _named(code: int) -> tuple[str, int]:
    return type_name(code), BITS.get(code, 8 * FP32_BYTES)


def moved_values(
    place: int, layer: PredictedLayer, shapes: Mapping[str, Shape], widths: LayerWidths
) -> Iterator[tuple[str, int | None]]:
    """Type and bytes of everything that a layer reads and writes; None for bytes that are not known."""
    for port, (kind, bits) in zip((*layer.inputs, *layer.outputs), widths.of_ports(place, layer), strict=True):
        axes = shapes.get(port.tensor)
        known = axes is not None and None not in axes[1:]
        yield kind, _bytes(axes, bits) if known and axes is not None else None
    for name in layer.weights:
        stored = () if layer.compute != FLOAT else widths.of_codes(name)
        for tensor, kind, bits in stored or ((name, *widths.of(name, layer.compute)),):
            yield kind, _bytes(shapes.get(tensor, ()), bits)


def _bytes(axes: Shape, bits: int) -> int:
    return (math.prod(axis or 1 for axis in axes) * bits + 7) // 8
