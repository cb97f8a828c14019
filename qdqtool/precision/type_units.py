# SPDX-License-Identifier: Apache-2.0
"""Operators that have one type because they are one operator written out: normalizations, softmax, GELU and its kin.

A Cast in their middle keeps TensorRT and onnxruntime from running them as one. Worse, onnxruntime drops the Casts of a
decomposed LayerNormalization, and refuses the model where its input and its scale are of two types then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from qdqtool.graph.view import GraphView, Node
from qdqtool.match.composite import compile_composite, find_composite
from qdqtool.precision.float_graph import FloatGraph, FloatTensor
from qdqtool.precision.reasons import INT8, TOGETHER, FloatReason
from qdqtool.rulebook import load_rules

_ONE_TYPE = "onnxruntime makes one LayerNormalization of these operators, whose input {} and scale have one type"


@dataclass(frozen=True)
class DecomposedNorm:
    """A LayerNormalization or RMSNormalization as several operators.

    Attributes:
        data: the tensor that is normalized.
        body: keys of the operators from the first mean to the division.
        affine: keys of the Mul with a scale and the Add with a bias behind it, as far as there are any.
        centered: whether the mean is subtracted: a LayerNormalization.
    """

    data: str
    body: tuple[str, ...]
    affine: tuple[str, ...]
    centered: bool


@dataclass(frozen=True)
class TypeUnits:
    """What has one type in a graph.

    Attributes:
        units: keys of the operators of each.
        norms: the LayerNormalizations among them.
    """

    units: tuple[tuple[str, ...], ...] = ()
    norms: tuple[DecomposedNorm, ...] = ()

    def with_parts(self, graph: FloatGraph, required: Mapping[str, FloatReason]) -> dict[str, FloatReason]:
        """What must be in FP32, and all that is of one unit with it, but for what is so for an INT8 layer."""
        found = dict(required)
        for unit in self.units:
            wide = next((key for key in unit if key in found and found[key].rule != INT8), None)
            if wide is not None:
                text = f"{graph.nodes[wide].name} is FP32, and both are parts of one operator that is written out"
                found |= {key: FloatReason(TOGETHER, text) for key in unit if key not in found}
        return found

    def corrections(
        self, graph: FloatGraph, float32: Collection[str], required: Collection[str]
    ) -> tuple[dict[str, FloatReason], frozenset[str]]:
        """What to change in a choice so that onnxruntime takes its LayerNormalizations; nothing where it does.

        It drops the Casts between their parts, and the one in front that nothing else reads. Then data, scale and
        result must have one type (onnxruntime, core/optimizer/layer_norm_fusion.cc).

        Args:
            graph: the operators and tensors.
            float32: keys of what is in FP32.
            required: keys of what must be.
        """
        tensors = {one.name: one for one in graph.tensors}
        wide: dict[str, FloatReason] = {}
        half: set[str] = set()
        for norm in self.norms:
            data = tensors.get(norm.data)
            if data is None or (seen := _seen_in_float32(norm, data, float32)) == (_last(norm) in float32):
                continue
            if not seen and norm.affine and not any(key in required for key in norm.affine):
                half.update(norm.affine)
                continue
            maker = [data.maker] if data.maker is not None and not seen else []
            reason = FloatReason(TOGETHER, _ONE_TYPE.format(norm.data))
            wide |= {key: reason for key in (*norm.body, *norm.affine, *maker) if key not in required}
        return wide, frozenset(half)


def _last(norm: DecomposedNorm) -> str:
    """The operator whose type is that of the scale; of the ones that onnxruntime makes up where there is none."""
    return (norm.affine or norm.body)[-1]


def _seen_in_float32(norm: DecomposedNorm, data: FloatTensor, float32: Collection[str]) -> bool:
    """Whether the data of the norm are FP32 once onnxruntime has dropped a Cast in front that only the norm reads."""
    made = not data.half_maker if data.maker is None else data.maker in float32
    read = norm.body[0] in float32
    shared = data.fixed if read else data.half_reader
    shared |= any((key in float32) == read for key in data.readers if key not in norm.body)
    return read if shared else made


def type_units(graph: FloatGraph) -> TypeUnits:
    """The units of a graph, in file order."""
    view = graph.view
    norms = [norm for node in view.every if node.op == "Sqrt" and (norm := _norm_of(view, node)) is not None]
    norms = [norm for norm in norms if all(key in graph.nodes for key in (*norm.body, *norm.affine))]
    parts = [part for norm in norms for part in (norm.body, norm.affine)]
    parts += [tuple(node.key for node in nodes) for nodes in (*_softmaxes(view), *_activations(view))]
    units = tuple(unit for part in parts if len(unit := tuple(key for key in part if key in graph.nodes)) > 1)
    return TypeUnits(units, tuple(norm for norm in norms if norm.centered))


def _norm_of(view: GraphView, root: Node) -> DecomposedNorm | None:
    """The normalization whose root of the variance this is: data / sqrt(mean(data ** 2) + epsilon)."""
    sums = _made_by(view, root.inputs[0], "Add")
    means = [mean for name in sums.inputs if (mean := _made_by(view, name, "ReduceMean"))] if sums else []
    square = _made_by(view, means[0].inputs[0], "Pow", "Mul") if means else None
    if sums is None or square is None or (square.op == "Mul" and len(set(square.inputs)) > 1):
        return None
    divided = _only_reader(view, root.key)
    turned = [divided] if divided is not None and divided.op == "Reciprocal" else []
    divided = _only_reader(view, turned[0].key) if turned else divided
    if divided is None or divided.op != ("Mul" if turned else "Div"):
        return None
    data, first = square.inputs[0], list[Node]()
    made = (_made_by(view, name, "Sub") for name in (data, *divided.inputs))
    shifts = list({shift.key: shift for shift in made if shift is not None}.values())
    if shifts:
        mean = _made_by(view, shifts[0].inputs[1], "ReduceMean")
        if mean is None or any(shift.inputs[0] != mean.inputs[0] for shift in shifts):
            return None
        data, first = mean.inputs[0], [mean, *shifts]
    body = (*first, square, means[0], sums, root, *turned, divided)
    return DecomposedNorm(data, tuple(node.key for node in body), _affine(view, divided), bool(first))


def _affine(view: GraphView, divided: Node) -> tuple[str, ...]:
    """The Mul with a constant behind a normalization, and the Add behind that."""
    found, at = list[str](), divided.key
    for op in ("Mul", "Add"):
        node = _only_reader(view, at)
        if node is None or node.op != op or not any(map(view.is_constant, node.inputs)):
            break
        found.append(node.key)
        at = node.key
    return tuple(found)


def _softmaxes(view: GraphView) -> Iterator[tuple[Node, ...]]:
    """exp(x - max(x)) / sum(exp(x - max(x))), with or without the largest."""
    for node in view.every:
        power = _made_by(view, node.inputs[0], "Exp") if node.op == "Div" else None
        total = _made_by(view, node.inputs[1], "ReduceSum") if power is not None else None
        if power is None or total is None or total.inputs[0] != power.key:
            continue
        shift = _made_by(view, power.inputs[0], "Sub")
        largest = _made_by(view, shift.inputs[1], "ReduceMax") if shift is not None else None
        first = (largest, shift) if largest is not None and shift is not None else ()
        yield (*first, power, total, node)


def _activations(view: GraphView) -> Iterator[tuple[Node, ...]]:
    """The composites of rules/common.toml: GELU, SiLU, HardSwish, Mish."""
    patterns = [pattern for rule in load_rules().composites for pattern in compile_composite(rule)]
    for name in dict.fromkeys((*view.inputs, *view.producers)):
        if not view.is_constant(name):
            found = find_composite(view, tuple(patterns), name)
            if found is not None:
                yield found.nodes


def _made_by(view: GraphView, name: str, *ops: str) -> Node | None:
    """What makes a tensor, across Casts: exporters put some of FP32 to FP32 there."""
    node = view.producers.get(name)
    while node is not None and node.op == "Cast":
        node = view.producers.get(node.inputs[0])
    return node if node is not None and node.op in ops else None


def _only_reader(view: GraphView, name: str) -> Node | None:
    """What alone reads a tensor, across Casts."""
    uses = view.consumers(name)
    if len(uses) != 1 or view.is_output(name) or name in view.captured:
        return None
    node = uses[0].node
    return _only_reader(view, node.key) if node.op == "Cast" else node
