# SPDX-License-Identifier: Apache-2.0
"""Q->DQ pairs of a training copy as calls of functions (`pairs.py`), each scale an initializer that can be trained.

A Clip of the integers between Q and DQ becomes Min and Max on the float before the pair, at the same steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.autodiff.pairs import PairFunction as Function
from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.nodes import DYNAMIC_FP4
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView, Node, Pair, attribute
from qdqtool.graph.weighted import weight_rank
from qdqtool.training.integer_weights import limits

_LOWEST_FOR = {"int8": 13, "uint8": 13, "int4": 21, "uint4": 21, "int16": 21, "uint16": 21}


@dataclass(frozen=True, eq=False)
class TrainedPair:
    """A pair as it stands in a training copy.

    Attributes:
        pair: its nodes.
        source: what its Q reads.
        tensor: the tensor whose values that are, other pairs seen through.
        scale: initializer that both nodes mean, or the Q's where the DQ has one of its own with the same bits.
        scales: all initializers of the copy that hold the scale.
        value: the scale, float32 () or [channels].
        axis: of the scales, not negative; None for one.
        zero: the zero point in the type of the integers, of the shape of the scale.
        low, high: the smallest and largest integer that the pair makes.
        constant: whether it stands on a constant.
        rank: number of axes of that constant; 0 for an activation.
    """

    pair: Pair
    source: str
    tensor: str
    scale: str
    scales: tuple[str, ...]
    value: npt.NDArray[np.float32]
    axis: int | None
    zero: npt.NDArray[Any]
    low: int
    high: int
    constant: bool
    rank: int

    @property
    def clipped(self) -> bool:
        """Whether a Clip leaves fewer integers than the type has."""
        return any(node.op == "Clip" for node in self.pair.between)


def find_sites(view: GraphView) -> list[TrainedPair]:
    """Every pair with its Q, in graph order.

    Raises:
        QdqError: a scale that is computed, in blocks, in half precision or not positive; different scales or zero
            points in Q and DQ; integers that QuantizeLinear does not make at the model's opset.
    """
    if dynamic := next((node for node in view.every if node.op == DYNAMIC_FP4), None):
        raise QdqError(dynamic.inputs[0], "its blocks get their scales at run time: no training", "quantize it to int8")
    pairs = [pair for pairs in view.pairs.values() for pair in pairs if pair.quantize is not None]
    return [
        _site(view, pair, pair.quantize) for pair in sorted(pairs, key=lambda p: p.dequantize.index) if pair.quantize
    ]


def _site(view: GraphView, pair: Pair, quantize: Node) -> TrainedPair:
    scale, zero = _scale(view, pair, quantize), _zero(view, pair, quantize)
    axis = None
    if scale.size > 1:
        axis = int(str(attribute(quantize, "axis", 1)))
        if axis < 0:
            axis += _rank(view, pair, quantize.inputs[0])
    else:
        scale, zero = scale.reshape(()), zero.reshape(()) if zero.size == 1 else zero
    if zero.shape != scale.shape:
        if zero.size not in (1, scale.size):
            reason = f"its Q has {scale.size} scales and {zero.size} zero points"
            raise QdqError(pair.tensor, reason, "repair the model")
        zero = zero.reshape(scale.shape) if zero.size == scale.size else np.broadcast_to(zero, scale.shape)
    names = tuple(dict.fromkeys((quantize.inputs[1], pair.dequantize.inputs[1])))
    low, high = limits(view, pair, zero.dtype)
    source = quantize.inputs[0]
    constant = view.is_constant(source)
    rank = _rank(view, pair, source) if constant and axis is not None else 0
    return TrainedPair(
        pair, source, view.root(source), names[0], names, scale, axis, zero, low, high, constant=constant, rank=rank
    )


def _scale(view: GraphView, pair: Pair, quantize: Node) -> npt.NDArray[np.float32]:
    values = []
    for node in (quantize, pair.dequantize):
        value = view.array(node.inputs[1])
        if attribute(node, "block_size", 0) or (value is not None and value.ndim > 1):
            raise QdqError(pair.tensor, "it has one scale per block, which cannot be trained", "leave it in float")
        if value is None or value.dtype != np.float32:
            kind = "computed" if value is None else value.dtype.name
            raise QdqError(pair.tensor, f"the scale of its Q/DQ is {kind}", "training needs float32 constants there")
        if not value.size:
            raise QdqError(pair.tensor, "the scale of its Q/DQ is empty", "repair the model")
        values.append(value.astype(np.float32))
    scale, back = values
    if not np.isfinite(scale).all() or (scale <= 0).any():
        raise QdqError(pair.tensor, "the scale of its Q/DQ is not positive", "TensorRT refuses it: repair the model")
    if scale.reshape(-1).tobytes() != back.reshape(-1).tobytes():
        reason = "its Q and its DQ have different scales: the pair computes"
        raise QdqError(pair.tensor, reason, "repair the model")
    return scale


def _zero(view: GraphView, pair: Pair, quantize: Node) -> npt.NDArray[Any]:
    """The zero point of a pair, whose type is that of its integers."""
    found: list[npt.NDArray[Any] | None] = []
    for node in (quantize, pair.dequantize):
        name = node.inputs[2] if len(node.inputs) > 2 else ""
        value = view.array(name) if name else None
        if name and value is None:
            raise QdqError(pair.tensor, "the zero point of its Q/DQ is computed", "fold constants first")
        found.append(value)
    zero, back = found
    if zero is None:
        code = int(str(attribute(quantize, "output_dtype", 0))) or onnx.TensorProto.UINT8
        zero = np.zeros((), helper.tensor_dtype_to_np_dtype(code))
    levels = np.zeros(1, np.int64) if back is None else back.astype(np.int64).reshape(-1)
    if not np.array_equal(np.unique(levels), np.unique(zero.astype(np.int64))):
        raise QdqError(pair.tensor, "its Q and its DQ have different zero points", "repair the model")
    needs = _LOWEST_FOR.get(zero.dtype.name)
    if needs is None:
        raise QdqError(pair.tensor, f"quantized to {zero.dtype.name}, which cannot be trained", "quantize it to int8")
    return zero


def _rank(view: GraphView, pair: Pair, name: str) -> int:
    rank = weight_rank(view, name)
    if rank is None:
        raise QdqError(pair.tensor, "its scales run along an axis counted from the end", "count it from the start")
    return rank


def own_scales(view: GraphView, sites: Sequence[TrainedPair]) -> set[str]:
    """The initializers among the scales that these pairs alone read, so that another value changes nothing else."""
    parts = {id(node) for site in sites for node in site.pair.nodes}
    others = {
        name for node in view.every for index, name in enumerate(node.inputs) if index != 1 or id(node) not in parts
    }
    others.update(view.outputs, view.captured)
    return {name for site in sites for name in site.scales if name in view.initializers and name not in others}


def pairs_to_functions(
    draft: GraphBuilder,
    view: GraphView,
    sites: Sequence[TrainedPair],
    shared: Mapping[str, str],
    learned: Collection[str],
) -> dict[str, str]:
    """Put a call of a function in place of each pair; its consumers keep reading the name of its DequantizeLinear.

    Q and DQ that are in no pair stay: they decode constants that are not trained, or stand at an end of the graph.

    Returns:
        Scale of a site -> the initializer that holds it now, of shape () or [channels].
    """
    outputs = frozenset(view.outputs)
    held = _hold_scales(draft, view, sites, shared)
    writer = _CallWriter(draft)
    for site in sites:
        kind = Function(site.axis, shared.get(site.scale, site.scale) in learned)
        writer.write(site, held[site.scale], kind, given_out=site.pair.dequantize.outputs[0] in outputs)
    writer.commit(outputs)
    return held


class _CallWriter:
    """The calls, and what they share."""

    def __init__(self, draft: GraphBuilder) -> None:
        self.draft = draft
        self.made: dict[int, list[onnx.NodeProto]] = {}
        self.gone: set[int] = set()
        self.kinds: dict[Function, None] = {}
        self.same: dict[tuple[Any, ...], str] = {}
        self.renamed: dict[str, str] = {}

    def write(self, site: TrainedPair, scale: str, kind: Function, *, given_out: bool) -> None:
        """One call; a second pair that computes the same from the same is left out."""
        output = site.pair.dequantize.outputs[0]
        self.gone.update(id(node.proto) for node in site.pair.nodes)
        key = (site.source, scale, kind, site.zero.dtype.name, site.zero.tobytes(), site.low, site.high)
        if key in self.same and not given_out:
            self.renamed[output] = self.same[key]
            return
        self.same.setdefault(key, output)
        self.kinds[kind] = None
        source, nodes = self._clipped(site, scale) if site.clipped else (site.source, [])
        zero = self.draft.constant("qdqtool_zero", site.zero)
        call = helper.make_node(kind.op_type, [source, scale, zero], [output], name=output, domain=PAIR_DOMAIN)
        self.made[id(site.pair.dequantize.proto)] = [*nodes, call]

    def _clipped(self, site: TrainedPair, scale: str) -> tuple[str, list[onnx.NodeProto]]:
        """Max and Min at scale * (bound - zero point), in front of a pair whose integers are cut off."""
        draft, output, source = self.draft, site.pair.dequantize.outputs[0], site.source
        if site.axis is not None and not site.rank:
            reason = "a Clip of integers with one scale per channel on an activation, which cannot be trained"
            raise QdqError(site.tensor, reason, "quantize it per tensor")
        nodes = []
        for op, bound in (("Max", site.low), ("Min", site.high)):
            steps = np.asarray(np.float32(bound) - site.zero.astype(np.float32), np.float32)
            limit = draft.unique(f"{output}_{op.lower()}")
            nodes.append(draft.node("Mul", [scale, draft.constant("qdqtool_steps", steps)], limit))
            if site.axis is not None:
                shape = np.ones(site.rank, np.int64)
                shape[site.axis] = -1
                raised = draft.unique(f"{limit}_raised")
                nodes.append(draft.node("Reshape", [limit, draft.constant("qdqtool_along", shape)], raised))
                limit = raised
            cut = draft.unique(f"{output}_{op.lower()}_cut")
            nodes.append(draft.node(op, [source, limit], cut))
            source = cut
        return source, nodes

    def commit(self, outputs: Collection[str]) -> None:
        """Bring the calls into the graph, and their functions into the model."""
        draft, gone = self.draft, self.gone
        graph = draft.proto.graph
        read = {name for node in graph.node if id(node) not in gone for name in node.input} | set(outputs)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if id(node) in gone and node.op_type == "QuantizeLinear" and node.output[0] in read:
                nodes.append(node)  # its integers are read by others, too
            nodes += self.made.get(id(node), [] if id(node) in gone else [node])
        draft.set_nodes(nodes)
        draft.rename_reads(self.renamed)
        opset = opset_of(draft.proto) or 1
        draft.proto.functions.extend(kind.function(opset) for kind in self.kinds)
        draft.proto.opset_import.append(helper.make_opsetid(PAIR_DOMAIN, 1))


def _hold_scales(
    draft: GraphBuilder, view: GraphView, sites: Sequence[TrainedPair], shared: Mapping[str, str]
) -> dict[str, str]:
    """Bring each scale into the shape that its function wants; its name stays unless others read it."""
    own = own_scales(view, sites)
    form: dict[str, str] = {}
    held: dict[str, str] = {}
    for site in sites:
        name = shared.get(site.scale, site.scale)
        if name not in form:
            if name in own:
                view.initializers[name].CopyFrom(numpy_helper.from_array(site.value, name))
                form[name] = name
            else:
                form[name] = draft.initializer(f"{name}_of_pairs", site.value)
        held[site.scale] = form[name]
    return held
