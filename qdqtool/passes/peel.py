# SPDX-License-Identifier: Apache-2.0
"""Takes Q/DQ pairs out of a graph and hands over the scales they carried, bit for bit. Not what a cache makes of them.

Enters the main graph only, and the names that bodies of control flow read from it. A pair inside a body is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError
from qdqtool.formats import INT8, NumberFormat
from qdqtool.graph.edit import TRACE, Editor
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import PAIR_DOMAINS
from qdqtool.graph.order import read_names
from qdqtool.graph.validate import nodes_within
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Pair, attribute
from qdqtool.graph.weighted import pair_behind, weight_index
from qdqtool.passes.activation import restore_activations
from qdqtool.passes.bake_weights import WeightCode
from qdqtool.passes.dynamic_blocks import restore_blocks
from qdqtool.passes.insert import is_estimated
from qdqtool.passes.integer_operators import FloatEnds, complete_pairs, has_loose_integers
from qdqtool.passes.next_scale import first_scales
from qdqtool.passes.quant_params import OnAsymmetric, OtherTypeError, block_scale, coding_of, pair_scale, scale_of
from qdqtool.passes.rewrites import undo_rewrites
from qdqtool.passes.unsupported_quant_ops import refuse_outsiders
from qdqtool.scales import Scale

OnConflict = Literal["error", "max"]

_EXPORT = "export the model with Q/DQ pairs and float inputs and outputs"
_WITH_FLOAT_ENDS = "qdqtool insert --requantize --data makes whole pairs of such integers, and qdqtool peel floats"


@dataclass(frozen=True)
class Peeled:
    """What came out of a graph.

    Attributes:
        model: the model without pairs, in FP32.
        scales: activation -> its scale.
        weights: weight -> its scale.
        estimated: activations whose scale was estimated without data.
        int8_nodes: first outputs of the weighted operators that read their weight through a pair.
        codes: weight -> how its pair quantized it.
        notes: what was done beside taking pairs out, a sentence each.
        ends: inputs and outputs that were integers.
    """

    model: Model
    scales: dict[str, Scale]
    weights: dict[str, Scale]
    estimated: tuple[str, ...]
    int8_nodes: tuple[str, ...]
    codes: dict[str, WeightCode] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ends: FloatEnds = field(default_factory=FloatEnds)

    @property
    def uncached(self) -> tuple[str, NumberFormat] | None:
        """The first tensor of a number format that no calibration cache holds, and that format; None for none."""
        scales = (*self.scales.items(), *self.weights.items())
        return next(((tensor, scale.format) for tensor, scale in scales if not scale.format.cache), None)

    def refuse_other_formats(self) -> None:
        """Refuse scales of a number format that no calibration cache holds.

        Raises:
            QdqError: there is one.
        """
        if self.uncached is not None:
            tensor, row = self.uncached
            raise OtherTypeError(tensor, row.name)


@dataclass(frozen=True)
class _Carried:
    """What the pairs of a graph say."""

    scales: dict[str, Scale] = field(default_factory=dict)
    weights: dict[str, Scale] = field(default_factory=dict)
    estimated: dict[str, None] = field(default_factory=dict)
    codes: dict[str, WeightCode] = field(default_factory=dict)
    widened: dict[str, str] = field(default_factory=dict)
    shifted: dict[str, None] = field(default_factory=dict)


def peel_pairs(
    model: Model,
    *,
    on_conflict: OnConflict = "error",
    on_asymmetric: OnAsymmetric = "error",
    ends: bool = False,
    opset: int | None = None,
    drop_scales: bool = False,
) -> Peeled:
    """Take every Q/DQ pair out of the main graph of a model in FP32, which is edited; see `peel_model` for typed ones.

    Integer constants after a DequantizeLinear become floats under the name of its output, value scale * (q - zero
    point), in the type of the scale.

    Args:
        model: in FP32.
        on_conflict: which scale is kept where a tensor has several.
        on_asymmetric: what to do where integers are no symmetric int8: "widen" takes the symmetric range around theirs,
            and puts Relu back where unsigned integers did its work.
        ends: also take pairs whose integers are an input or output of the graph, which becomes float.
        opset: of the model, for operators that are put back.
        drop_scales: whether the caller has no use for the scales: pairs that no cache can say (zero or computed scales,
            other widths, blocks) are taken out, too, and those scales are not handed over.

    Raises:
        QdqError: unless `drop_scales`, asymmetric or unsigned quantization, other widths, several scales on one tensor;
            a Q without its DQ, pairs in a body, integer operators. The graph is untouched then.
    """
    refuse_outsiders(model.view)
    dynamic = restore_blocks(model)
    view = model.view
    loose, signless = has_loose_integers(view), on_asymmetric == "widen" and _has_unsigned(view)
    if not loose and not signless:
        peeled = _peel(model, on_conflict, on_asymmetric, drop_scales=drop_scales)
        return replace(peeled, scales={**peeled.scales, **dynamic}) if dynamic else peeled
    whole = model.copy()
    became_floats = complete_pairs(whole.view, ends=ends) if loose else FloatEnds()
    notes = [*became_floats.notes]
    restored = restore_activations(whole.view, opset) if signless else ()
    if restored:
        what = f"unsigned integers acted as Relu: a Relu was added after {len(restored)} tensors"
        notes.append(f"{what}, such as {restored[0]}")
    known = frozenset(view.producers)
    todo = _EXPORT if ends else _WITH_FLOAT_ENDS
    peeled = _peel(whole, on_conflict, on_asymmetric, known, drop_scales=drop_scales, todo=todo)
    model.graph.CopyFrom(whole.graph)
    model.changed()
    return replace(
        peeled, model=model, scales={**peeled.scales, **dynamic}, notes=(*notes, *peeled.notes), ends=became_floats
    )


def _has_unsigned(view: GraphView) -> bool:
    """Whether a Q or DQ has another zero point than 0 of int8; one that is computed counts."""
    for node in view.every:
        if node.op in (QUANTIZE, DEQUANTIZE):
            zero = view.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
            if node.op == QUANTIZE if zero is None else not INT8.has_zero_point(zero):
                return True
    return False


def _peel(
    model: Model,
    on_conflict: OnConflict,
    on_asymmetric: OnAsymmetric,
    known: Collection[str] | None = None,
    *,
    drop_scales: bool = False,
    todo: str = _EXPORT,
) -> Peeled:
    """Take the pairs out; `known` are the tensors that the user's model makes, where others were added to it."""
    _refuse_loose_ends(model.view, model.view.producers.keys() if known is None else known, todo)
    undo_rewrites(model, changing_pairs=True)
    view = model.view
    carried = _collect(view, on_conflict, on_asymmetric, drop_scales=drop_scales)
    int8_nodes = tuple(node.key for node in view.nodes if _reads_weight_pair(view, node))
    values = {
        pair.tensor: _float_value(view, pair)
        for pairs in view.pairs.values()
        for pair in pairs
        if pair.quantize is None
    }
    editor = Editor(view)
    names: dict[str, str] = {}
    for tensor, pairs in view.pairs.items():
        for pair in pairs:
            _take_out(view, editor, pair, names)
            if pair.quantize is None:
                editor.add_initializer(tensor, values[tensor])
    for node in view.nodes:
        editor.reroute_bodies(node, names)
    _drop_unused(view, editor)
    editor.commit()
    undo_rewrites(model, changing_pairs=False)
    estimated, notes = tuple(carried.estimated), _format_notes(carried)
    return Peeled(model, carried.scales, carried.weights, estimated, int8_nodes, carried.codes, notes)


def _format_notes(carried: _Carried) -> tuple[str, ...]:
    notes = []
    if carried.shifted:
        name, number = next(iter(carried.shifted)), len(carried.shifted)
        notes.append(
            f"uint8 with zero point 128 equals int8 with the same scale: converted for {number}, such as {name}"
        )
    if carried.widened:
        name, number = next(iter(carried.widened)), len(carried.widened)
        kind = f"such as {name} ({carried.widened[name]})"
        notes.append(
            f"asymmetric integers were widened to the symmetric range that contains theirs: {number} tensors, {kind}"
        )
    return tuple(notes)


def _refuse_loose_ends(view: GraphView, known: Collection[str], todo: str) -> None:
    paired = {id(node) for pairs in view.pairs.values() for pair in pairs for node in pair.nodes}
    for node in view.every:
        if node.op in (QUANTIZE, DEQUANTIZE) and id(node) not in paired:
            raise _loose(view, node, known, todo)
    for pairs in view.pairs.values():
        for pair in pairs:
            for name in (part.outputs[0] for part in pair.nodes[:-1]):
                consumer = next(iter(view.consumers(name)), None)
                if consumer is not None or name in view.captured:
                    who = f"{consumer.node.op} {consumer.node.name}" if consumer else "a subgraph (If, Loop, Scan)"
                    raise QdqError(pair.tensor, f"{who} reads the integers of its Q", "use Q/DQ, not integer operators")
    for body in view.bodies():
        if any(node.op in (QUANTIZE, DEQUANTIZE) for node in body.every):
            raise QdqError(
                body.scope,
                "Q/DQ inside a subgraph (If, Loop, Scan)",
                "TensorRT runs such subgraphs in float: export them in float",
            )


def _loose(view: GraphView, node: Node, known: Collection[str], todo: str) -> QdqError:
    """Why a Q or DQ is not one of a pair; a Q that stands for integers of the user's model is not named."""
    if node.op == QUANTIZE:
        name, other = node.outputs[0], "DQ"
        use = next(iter(view.consumers(name)), None)
        consumer = f"{use.node.op} {use.node.name} reads these integers" if use else ""
        if consumer and name not in known:
            reason = f"{consumer}, and no DQ converts them to float, which TensorRT refuses"
            return QdqError(node.inputs[0], reason, todo)
        where = (
            ": these integers are an output of the model"
            if view.is_output(name)
            else f": {consumer}"
            if consumer
            else ""
        )
    else:
        name, other = node.inputs[0], "Q"
        producer = view.producers.get(name)
        made = "" if producer is None else f": {producer.op} {producer.name} makes these integers"
        where = ": the model takes these integers as an input" if name in view.inputs else made
    return QdqError(node.inputs[0], f"{node.op} {node.name} has no {other} next to it{where}", todo)


def _collect(view: GraphView, on_conflict: OnConflict, on_asymmetric: OnAsymmetric, *, drop_scales: bool) -> _Carried:
    carried = _Carried()
    for tensor, pairs in view.pairs.items():
        constant = view.is_constant(tensor)
        for pair in pairs:
            if (blocks := block_scale(view, pair)) is not None:
                carried.weights[tensor] = blocks
                continue
            try:
                coding = coding_of(view, pair)
                _check_one_scale(view, pair)
                scale = _traced(pair, scale_of(view, pair, coding, on_asymmetric))
                if not constant and coding.kind != "int32":
                    scale = _one_of(tensor, carried.scales.get(tensor), scale, on_conflict)
            except QdqError:
                if drop_scales:
                    continue
                raise
            if coding.kind == "int32":
                continue  # a bias: its scale is that of the products
            if not coding.symmetric:
                carried.widened[tensor] = coding.describe()
            elif coding.shifted:
                carried.shifted[tensor] = None
            if constant:
                carried.weights[tensor] = scale
                carried.codes[tensor] = WeightCode(pair_scale(view, pair), coding)
            else:
                carried.scales[tensor] = scale
                if carried.scales[tensor].origin == "estimated":
                    carried.estimated[tensor] = None
    return replace(carried, scales=first_scales(view, carried.scales))


def _one_of(tensor: str, before: Scale | None, scale: Scale, on_conflict: OnConflict) -> Scale:
    """The scale of an activation, which has one for the whole tensor."""
    if scale.bits.ndim:
        raise QdqError(
            tensor, "one scale per channel on an activation, which TensorRT does not take", "quantize it per tensor"
        )
    if before is None or before.same_bits(scale):
        return scale
    if on_conflict == "error":
        raise QdqError(tensor, f"two scales, {before.hex()} and {scale.hex()}", "--on-conflict max takes the larger")
    return max(before, scale, key=lambda s: float(s.bits))


def _traced(pair: Pair, scale: Scale) -> Scale:
    """The scale with what the trace on its Q says of it."""
    node = pair.quantize or pair.dequantize
    trace = {
        entry.key.removeprefix(TRACE): entry.value for entry in node.proto.metadata_props if entry.key.startswith(TRACE)
    }
    origin: Literal["estimated", "qdq"] = "estimated" if is_estimated(pair) else "qdq"
    if scale.origin == "derived":  # widened
        return scale
    return Scale(scale.bits, scale.axis, origin, trace.get("method", ""), trace.get("rule", ""), format=scale.format)


def _check_one_scale(view: GraphView, pair: Pair) -> None:
    if pair.quantize is None or pair.quantize.inputs[1] == pair.dequantize.inputs[1]:
        return
    into, back = pair_scale(view, pair), pair_scale(view, Pair(pair.tensor, None, pair.dequantize))
    if not into.same_bits(back):
        reason = f"its Q has the scale {into.hex()}, its DQ {back.hex()}: the pair changes values"
        raise QdqError(pair.tensor, reason, "repair the model")


def _reads_weight_pair(view: GraphView, node: Node) -> bool:
    index = weight_index(view, node)
    return index is not None and pair_behind(view, node.inputs[index]) is not None


def _float_value(view: GraphView, pair: Pair) -> npt.NDArray[np.generic]:
    """Scale * (q - zero point) of an integer constant, along the axis of its DequantizeLinear."""
    value = view.array(pair.dequantize.outputs[0])
    value = _blocks_value(view, pair.dequantize) if value is None else value
    if value is None:
        raise QdqError(pair.tensor, "an integer weight whose value cannot be read", "fold constants first")
    return value


def _blocks_value(view: GraphView, node: Node) -> npt.NDArray[np.generic] | None:
    """The same where each block of integers along an axis has its scale; None where it cannot be read."""
    size, axis = int(str(attribute(node, "block_size", 0))), int(str(attribute(node, "axis", 1)))
    stored, scale = view.integers(node.inputs[0]), view.array(node.inputs[1])
    zero = view.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros((), np.int8)
    if size < 1 or stored is None or scale is None or zero is None or stored.ndim != scale.ndim:
        return None
    if not -stored.ndim <= axis < stored.ndim or zero.shape not in ((), scale.shape):
        return None
    place = (slice(None),) * (axis % stored.ndim) + (slice(stored.shape[axis]),)
    steps, shift = (
        np.repeat(one.astype(np.float32), size, axis)[place] if one.ndim else one.astype(np.float32)
        for one in (scale, zero)
    )
    if steps.shape != stored.shape:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # checks of weights say what is not finite
        value: npt.NDArray[np.float32] = (stored.astype(np.float32) - shift) * steps
    return value.astype(scale.dtype, copy=False)


def _take_out(view: GraphView, editor: Editor, pair: Pair, names: dict[str, str]) -> None:
    """Remove one pair and let its consumers read what it was put on."""
    output = pair.dequantize.outputs[0]
    if pair.quantize is not None:
        for use in view.consumers(pair.tensor):
            if use.node.inputs[use.index] == output:
                editor.reroute(use, pair.tensor)
        names[output] = pair.tensor
    for node in pair.nodes:
        editor.remove_node(node)
    if view.is_output(output) and output != pair.tensor:
        editor.add_node("Identity", [pair.tensor], output, beside=pair.dequantize, after=False)


def _drop_unused(view: GraphView, editor: Editor) -> None:
    """Scales, zero points and integer weights that nobody reads any more, and constants that these were made of."""
    gone = {id(node): node for pairs in view.pairs.values() for pair in pairs for node in pair.nodes}
    used = Counter(name for node in view.every if id(node) not in gone for name in read_names(node))
    used.update((*view.outputs, *(value.name for value in view.graph.input)))
    quantized = (pair for pairs in view.pairs.values() for pair in pairs if pair.quantize is not None)
    used.update(
        pair.tensor for pair in quantized if any(view.is_output(name) for node in pair.nodes for name in node.outputs)
    )  # an Identity reads it
    waiting = [name for node in gone.values() for name in node.inputs if name and not used[name]]
    lost = []
    while waiting:
        name = waiting.pop()
        producer = view.producers.get(name)
        if name in view.initializers:
            lost.append(name)
            continue
        if producer is None or id(producer) in gone:
            continue
        if all(view.is_constant(one) and not used[one] for one in producer.outputs if one):
            gone[id(producer)] = producer
            editor.remove_node(producer)
            used.subtract(read_names(producer))
            waiting += [source for source in producer.inputs if source and not used[source]]
    editor.drop_initializers(lost)


def is_plain(proto: onnx.ModelProto) -> bool:
    """Whether a model holds no Q/DQ at all."""
    return not any(node.op_type in (QUANTIZE, DEQUANTIZE) for node in proto.graph.node)


def has_qdq(graph: onnx.GraphProto) -> bool:
    """Whether there is a Q or a DQ, in a body too; what is odd about them, `peel_pairs` says."""
    return any(
        node.op_type in (QUANTIZE, DEQUANTIZE) and node.domain in PAIR_DOMAINS for node in nodes_within(graph.node)
    )
