# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out: Q/DQ pairs into a graph. What stands where, and with which scale, was decided before.

Enters the main graph only. Pairs that are there already stay; a point that has one gets its missing consumers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.amax.weight_blocks import BlockLayout
from qdqtool.errors import QdqError
from qdqtool.formats import NumberFormat
from qdqtool.graph.edit import TRACE, Editor, Trace, count_uses, release
from qdqtool.graph.nodes import DYNAMIC_FP4
from qdqtool.graph.tensors import channel_amax
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Pair, Use
from qdqtool.graph.weighted import pair_behind, weight_rank
from qdqtool.match.plan import Plan, Point
from qdqtool.passes.next_scale import next_scale
from qdqtool.passes.quant_params import pair_format, pair_scale
from qdqtool.scales import Origin, Scale

# The name of a scale that no data was seen for: tools that drop metadata keep names.
ESTIMATED = "_estimated_scale"
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Inserted:
    """What a pass over one graph did.

    Attributes:
        added: points that got a pair.
        kept: points whose pair was there.
        scales: tensor -> scale of every activation point, as it stands in the graph.
        estimated: activations whose pair was there, with a scale that an earlier run estimated without data.
    """

    added: tuple[Point, ...]
    kept: tuple[Point, ...]
    scales: Mapping[str, Scale]
    estimated: tuple[str, ...] = ()


def insert_pairs(view: GraphView, plan: Plan, scales: Mapping[str, Scale], *, given: bool = False) -> Inserted:
    """Put Q/DQ where the plan says.

    Raises:
        QdqError: a point without a scale, a conflict, or a weight with NaN or Inf. The graph is untouched then.
    """
    chosen = activation_scales(view, plan, scales, given=given)
    weights = {
        (point.tensor, point.axis): weight_scale(view, point, scales)
        for point in plan.weights
        if not _present(view, point)
    }
    if given:
        _refuse_other_weights(view, plan, scales)
    for point in plan.points:
        there = next((pair_format(view, pair) for pair in _present(view, point)), point.format)
        if there != point.format:
            reason = f"its Q/DQ is {there.name}, and {point.format.name} is requested"
            raise QdqError(point.tensor, reason, "--requantize replaces the pairs")
    writer = _PairWriter(view)
    added, kept, estimated = [], [], []
    for point in plan.points:
        here = _present(view, point)
        if here:
            kept.append(point)
            if point.role == "activation" and is_estimated(here[0]):
                estimated.append(point.tensor)
            if here[0].tensor == point.tensor:
                writer.join(point, here[0])
        else:
            added.append(point)
            scale = chosen[point.tensor] if point.role == "activation" else weights[point.tensor, point.axis]
            writer.write(point, scale)
    writer.editor.commit()
    return Inserted(tuple(added), tuple(kept), chosen, tuple(estimated))


def zero_point_name(row: NumberFormat, *shape: int) -> str:
    """The name of the zero point that pairs of a format share."""
    return "_".join(["qdqtool_zero_point", *([] if row.dtype == np.int8 else [row.name]), *map(str, shape)])


def is_estimated(pair: Pair) -> bool:
    """Whether the scale of a pair was estimated without data, as the trace on its Q or the name of the scale says."""
    node = pair.quantize or pair.dequantize
    marked = any(entry.key == f"{TRACE}origin" and entry.value == "estimated" for entry in node.proto.metadata_props)
    return marked or node.inputs[1].startswith(pair.tensor + ESTIMATED)


def _present(view: GraphView, point: Point) -> list[Pair]:
    """The pairs that stand on a point already; of a weight those that its consumers use, or that have its axis."""
    pairs = view.pairs.get(point.tensor, [])
    if point.role == "weight" and not pairs:  # it may stand in front of a Transpose
        moved = pair_behind(view, point.tensor)
        return [] if moved is None else [moved]
    if point.role == "activation":
        return pairs
    read = {view.producers[read.node].inputs[read.index] for read in point.reads}
    return [p for p in pairs if p.dequantize.outputs[0] in read] or [p for p in pairs if _same_axis(view, p, point)]


def _same_axis(view: GraphView, pair: Pair, point: Point) -> bool:
    axis, rank = pair_scale(view, pair).axis, weight_rank(view, point.tensor)
    if axis is None or point.axis is None or rank is None:
        return axis == point.axis
    return axis % rank == point.axis % rank


def activation_scales(
    view: GraphView, plan: Plan, scales: Mapping[str, Scale], *, given: bool = False
) -> dict[str, Scale]:
    """One scale for tensors that share it: what stands in the graph, else the largest of its members'.

    Raises:
        QdqError: a point without a scale, a conflict.
    """
    missing = [p.tensor for p in plan.activations if p.tensor not in scales and not p.repeats and not _present(view, p)]
    if missing:
        raise QdqError(
            missing[0],
            f"no scale for this and {len(missing) - 1} more points" if missing[1:] else "no scale for this point",
            "calibrate it, or give a table that has it",
        )
    for point in plan.activations:
        if point.tensor in scales:
            _check_fits(view, point, scales[point.tensor])
    chosen: dict[str, Scale] = {}
    by_name = {point.tensor: point for point in plan.activations}
    scales = {name: scales[name].in_format(point.format) for name, point in by_name.items() if name in scales}
    for class_ in plan.shared_scales().values():
        members = [name for name in class_ if not by_name[name].repeats]
        if not members:
            continue
        standing = {name: pair_scale(view, pairs[0]) for name in members if (pairs := _present(view, by_name[name]))}
        own = {name: scales[name] for name in members if name in scales}
        largest = _largest(own) if own and (given or not standing) else _largest(standing)
        for name in members:
            scale = largest if name not in own or own[name].same_bits(largest) else _shared(largest)
            if name in standing:
                if given and own and not standing[name].same_bits(scale):
                    raise _conflict(name, standing[name], scale)
                scale = standing[name]
            chosen[name] = scale
    for point in plan.activations:
        if point.repeats:
            chosen[point.tensor] = _repeated(view, point, chosen, given=given)
    return {point.tensor: chosen[point.tensor] for point in plan.activations}


def _repeated(view: GraphView, point: Point, chosen: Mapping[str, Scale], *, given: bool) -> Scale:
    """The scale of a second pair: the largest of those whose values it holds; one that stands there stays."""
    first = _shared(_largest({name: chosen[name] for name in point.repeats}))
    scale = next_scale(first) if point.raised else first
    pairs = _present(view, point)
    if not pairs:
        return scale
    standing = pair_scale(view, pairs[0])
    if given and not (standing.same_bits(scale) or standing.same_bits(first)):
        raise _conflict(point.tensor, standing, scale)
    return standing


def _refuse_other_weights(view: GraphView, plan: Plan, scales: Mapping[str, Scale]) -> None:
    for point in plan.weights:
        own, pairs = scales.get(point.tensor), _present(view, point)
        if own is not None and pairs:
            standing = pair_scale(view, pairs[0])
            if standing.bits.tobytes() != own.bits.tobytes():
                raise _conflict(point.tensor, standing, own)


def _conflict(name: str, standing: Scale, own: Scale) -> QdqError:
    reason = f"its Q/DQ has the scale {standing.hex()}, the table has {own.hex()}"
    return QdqError(name, reason, "--requantize replaces the pairs")


def _largest(scales: Mapping[str, Scale]) -> Scale:
    name = max(sorted(scales), key=lambda n: scales[n].bits.max())
    return scales[name]


def _shared(scale: Scale) -> Scale:
    origin: Origin = "equal" if scale.origin != "estimated" else "estimated"
    return replace(scale, axis=None, origin=origin)


def weight_scale(view: GraphView, point: Point, scales: Mapping[str, Scale]) -> Scale:
    """The scale of a weight: the one given, else abs-max by the largest code (127 in INT8) per channel in float32.

    A channel of zeros takes the tensor's largest: zero stays zero. Scales of blocks are rounded to the type that the
    format's row names.

    Raises:
        QdqError: a weight with NaN or Inf or without a value, a scale that does not fit it.
    """
    given = scales.get(point.tensor)
    if point.block:
        return _block_scale(view, point, given)
    if given is not None:
        _check_fits(view, point, given)
        return given.in_format(point.format)
    tensor = view.constant_tensor(point.tensor)
    if tensor is not None:
        key = point.tensor, point.axis
        if key not in view.channel_amax:
            view.channel_amax[key] = channel_amax(tensor, view.folder, point.axis)
        rank, amax = len(tensor.dims), view.channel_amax[key]
    else:
        value = view.array(point.tensor)
        if value is None or value.dtype != np.float32:
            raise QdqError(point.tensor, "a weight whose value cannot be read", "fold constants first")
        others = None if point.axis is None else tuple(i for i in range(value.ndim) if i != point.axis % value.ndim)
        rank, amax = value.ndim, np.maximum(value.max(axis=others), -value.min(axis=others))
    top = float(amax.max(initial=0))
    if not np.isfinite(top):
        raise QdqError(point.tensor, "the weight holds NaN or Inf", "repair the model")
    if amax.min(initial=top) <= 0:
        amax = np.where(amax > 0, amax, np.float32(top or 1))
    bits = np.maximum(point.format.scale_of(amax), _TINY)
    axis = None if point.axis is None else point.axis % rank
    return Scale(bits, axis, "derived", "abs-max", point.rule, format=point.format)


def _block_scale(view: GraphView, point: Point, given: Scale | None) -> Scale:
    """The scales of a weight's blocks: those given for these blocks, else abs-max of each."""
    if given is not None and (given.axis, given.block) == (point.axis, point.block):
        return given
    weight = block_weight(view, point)
    bits = block_layout(point, weight).scales(weight)
    return Scale(bits, point.axis, "derived", "abs-max", point.rule, format=point.format, block=point.block)


def block_layout(point: Point, weight: npt.NDArray[np.float32]) -> BlockLayout:
    """How the weight of a point is cut into blocks."""
    return BlockLayout.of(int(point.axis or 0), point.block, point.format, weight)


def block_weight(view: GraphView, point: Point) -> npt.NDArray[np.float32]:
    """The values of a weight with blocks.

    Raises:
        QdqError: they cannot be read, or hold NaN or Inf.
    """
    value = view.array(point.tensor)
    if value is None or value.dtype != np.float32:
        raise QdqError(point.tensor, "a weight whose value cannot be read", "fold constants first")
    if not np.isfinite(value).all():
        raise QdqError(point.tensor, "the weight holds NaN or Inf", "repair the model")
    return np.asarray(value, np.float32)


def _check_fits(view: GraphView, point: Point, scale: Scale) -> None:
    """Refuse a scale along an axis that the tensor lacks, of another size than it, or per channel on an activation."""
    if scale.bits.ndim == 0:
        return
    if point.role == "activation":
        raise QdqError(point.tensor, "one scale per channel on an activation", "give one scale for the whole tensor")
    tensor = view.constant_tensor(point.tensor)
    value = view.array(point.tensor) if tensor is None else None
    shape = tuple(tensor.dims) if tensor is not None else () if value is None else value.shape
    if scale.axis is None or not -len(shape) <= scale.axis < len(shape) or shape[scale.axis] != scale.bits.size:
        reason = f"{scale.bits.size} scales along axis {scale.axis} do not fit its shape {list(shape)}"
        raise QdqError(point.tensor, reason, "calibrate this model again")


class _PairWriter:
    """Writes pairs with an editor; holds the zero points that pairs share."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.editor = Editor(view)
        self._zero: dict[tuple[NumberFormat, int], str] = {}
        self._by_key = {node.key: node for node in view.every}
        self._uses = count_uses(view)

    def _zero_point(self, kind: NumberFormat, size: int) -> str:
        if (kind, size) not in self._zero:
            shape = (size,) if size else ()
            base = zero_point_name(kind, *shape)
            there = self.view.array(base) if base in self.view.initializers else None
            if there is None or there.shape != shape or not kind.has_zero_point(there):
                base = self.editor.add_initializer(self.editor.unique_name(base), kind.zero_point(*shape))
            self._zero[kind, size] = base
        return self._zero[kind, size]

    def write(self, point: Point, scale: Scale) -> None:
        """A new pair after the tensor, read by the point's consumers."""
        editor, name = self.editor, point.tensor
        if point.block:
            (self._write_codes if point.role == "weight" else self._write_dynamic)(point, scale)
            return
        size = int(scale.bits.size) if scale.bits.ndim else 0
        ending = ESTIMATED if scale.origin == "estimated" else "_scale"
        scale_name = editor.add_initializer(editor.unique_name(name + ending), np.asarray(scale.bits))
        zero = self._zero_point(point.format, size)
        beside, after = self._place(point)
        trace = (("rule", point.rule), ("origin", scale.origin), ("method", scale.method))[: 3 if scale.method else 2]
        quantized, back = editor.unique_name(f"{name}_Q"), editor.unique_name(f"{name}_DQ")
        axis = scale.axis if size else None
        editor.add_node(
            QUANTIZE, [name, scale_name, zero], quantized, beside=beside, after=after, axis=axis, trace=trace
        )
        editor.add_node(
            DEQUANTIZE, [quantized, scale_name, zero], back, beside=beside, after=after, axis=axis, trace=trace
        )
        self._reroute(point, back)

    def _write_codes(self, point: Point, scale: Scale) -> None:
        """Codes with a DequantizeLinear in the place of a weight; a weight with other readers stays, too."""
        editor, name = self.editor, point.tensor
        weight = block_weight(self.view, point)
        layout = block_layout(point, weight)
        stored = editor.add_initializer(editor.unique_name(f"{name}_Q"), layout.codes(weight, scale.bits))
        steps = editor.add_initializer(editor.unique_name(f"{name}_scale"), layout.stored(scale.bits))
        trace = (("rule", point.rule), ("origin", scale.origin), ("method", scale.method))
        if point.format.has_two_levels:
            level = editor.add_initializer(editor.unique_name(f"{name}_tensor_scale"), np.asarray(layout.tensor))
            steps = self._block_scales(point, steps, level)
        self._dequantize_blocks(point, stored, steps, trace)
        for _ in point.reads:
            release(editor, self._uses, name)

    def _write_dynamic(self, point: Point, scale: Scale) -> None:
        """An activation whose blocks get their scales at run time, as codes that a scale of the tensor multiplies."""
        editor, name = self.editor, point.tensor
        ending = ESTIMATED if scale.origin == "estimated" else "_tensor_scale"
        level = editor.add_initializer(editor.unique_name(name + ending), np.asarray(scale.bits))
        stored, steps = editor.unique_name(f"{name}_Q"), editor.unique_name(f"{name}_scale")
        beside, after = self._place(point)
        trace = (("rule", point.rule), ("origin", scale.origin), ("method", scale.method))[: 3 if scale.method else 2]
        kind = int(onnx.TensorProto.DataType.Value(point.format.scale))
        editor.add_node(
            DYNAMIC_FP4,
            [name, level],
            stored,
            beside=beside,
            after=after,
            axis=-1,
            trace=trace,
            more={"block_size": point.block, "scale_type": kind},
            outputs=[steps],
        )
        self._dequantize_blocks(point, stored, self._block_scales(point, steps, level))

    def _block_scales(self, point: Point, codes: str, level: str) -> str:
        """The name of the float scales of blocks that are codes, times the scale of the tensor."""
        made = self.editor.unique_name(f"{codes}_DQ")
        beside, after = self._place(point)
        self.editor.add_node(DEQUANTIZE, [codes, level], made, beside=beside, after=after)
        return made

    def _dequantize_blocks(self, point: Point, codes: str, scales: str, trace: Trace = ()) -> None:
        back = self.editor.unique_name(f"{point.tensor}_DQ")
        beside, after = self._place(point)
        axis, more = -1 if point.axis is None else point.axis, {"block_size": point.block}
        self.editor.add_node(
            DEQUANTIZE, [codes, scales], back, beside=beside, after=after, axis=axis, trace=trace, more=more
        )
        self._reroute(point, back)

    def join(self, point: Point, pair: Pair) -> None:
        """Let the point's consumers that are not after the pair yet read it."""
        self._reroute(point, pair.dequantize.outputs[0])

    def _reroute(self, point: Point, name: str) -> None:
        for read in point.reads:
            node = self._by_key[read.node]
            if node.inputs[read.index] == point.tensor:
                self.editor.reroute(Use(node, read.index), name)

    def _place(self, point: Point) -> tuple[Node | None, bool]:
        """Next to the producer; for an initializer in front of its first consumer; for an input at the front."""
        producer = self.view.producers.get(point.tensor)
        if producer is not None:
            return producer, True
        if point.role == "weight":
            return min((self._by_key[read.node] for read in point.reads), key=lambda node: node.index), False
        return None, False
