# SPDX-License-Identifier: Apache-2.0
"""Takes Q/DQ pairs out of a graph and hands over the scales they carried, bit for bit. Not what a cache makes of them.

Enters the main graph only, and the names that bodies of control flow read from it. A pair inside a body is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.edit import TRACE, Editor
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Pair, captured_names
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.insert import ESTIMATED, pair_scale
from qdqtool.scales import Scale

OnConflict = Literal["error", "max"]


@dataclass(frozen=True)
class Peeled:
    """What came out of a graph.

    Attributes:
        view: the graph without pairs.
        scales: activation -> its scale.
        weights: weight -> its scale.
        estimated: activations whose scale was estimated without data.
        int8_nodes: first outputs of the weighted operators that read their weight through a pair.
    """

    view: GraphView
    scales: dict[str, Scale]
    weights: dict[str, Scale]
    estimated: tuple[str, ...]
    int8_nodes: tuple[str, ...]


def peel_pairs(view: GraphView, *, on_conflict: OnConflict = "error") -> Peeled:
    """Take every Q/DQ pair out of a graph; the proto is edited.

    Integer weights behind a DequantizeLinear become float32 initialisers under the name of its output, value scale * q.

    Raises:
        QdqError: asymmetric or unsigned quantisation, several scales on one tensor, a Q without its DQ, pairs in a
        body. The
            graph is untouched then.
    """
    _refuse_loose_ends(view)
    scales, weights, estimated = _collect(view, on_conflict)
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
    return Peeled(GraphView(view.graph, view.folder), scales, weights, tuple(estimated), int8_nodes)


def _refuse_loose_ends(view: GraphView) -> None:
    paired = {
        id(node) for pairs in view.pairs.values() for pair in pairs for node in (pair.quantize, pair.dequantize) if node
    }
    for node in view.every:
        if node.op in (QUANTIZE, DEQUANTIZE) and id(node) not in paired:
            other = "DQ" if node.op == QUANTIZE else "Q"
            raise QdqError(
                node.inputs[0],
                f"{node.op} {node.name} has no {other} next to it, which TensorRT refuses",
                "repair the model",
            )
    for pairs in view.pairs.values():
        for pair in pairs:
            if pair.quantize is not None and view.readers(pair.quantize.outputs[0]):
                reader = view.readers(pair.quantize.outputs[0])[0].node
                raise QdqError(
                    pair.tensor,
                    f"{reader.op} {reader.name} reads the integers of its Q",
                    "use Q/DQ, not integer operators",
                )
    for body in view.bodies():
        if any(node.op in (QUANTIZE, DEQUANTIZE) for node in body.every):
            raise QdqError(
                body.scope, "Q/DQ inside the body of control flow", "TensorRT runs such bodies in float: export them so"
            )


def _collect(view: GraphView, on_conflict: OnConflict) -> tuple[dict[str, Scale], dict[str, Scale], list[str]]:
    scales: dict[str, Scale] = {}
    weights: dict[str, Scale] = {}
    estimated: list[str] = []
    for tensor, pairs in view.pairs.items():
        constant = view.is_constant(tensor)
        for pair in pairs:
            _check_symmetric(view, pair)
            _check_one_scale(view, pair)
            scale = _traced(pair, pair_scale(view, pair))
            table = weights if constant else scales
            if not constant and scale.bits.ndim:
                raise QdqError(
                    tensor,
                    "one scale per channel on an activation, which TensorRT does not take",
                    "quantise it per tensor",
                )
            before = table.get(tensor)
            if before is not None and not constant and not before.same_bits(scale):
                if on_conflict == "error":
                    raise QdqError(
                        tensor, f"two scales, {before.hex()} and {scale.hex()}", "--on-conflict max takes the larger"
                    )
                scale = max(before, scale, key=lambda s: float(s.bits))
            table[tensor] = scale
            if not constant and scale.origin == "estimated" and tensor not in estimated:
                estimated.append(tensor)
    return scales, weights, estimated


def _traced(pair: Pair, scale: Scale) -> Scale:
    """The scale with what the trace on its Q says of it."""
    node = pair.quantize or pair.dequantize
    trace = {
        entry.key.removeprefix(TRACE): entry.value for entry in node.proto.metadata_props if entry.key.startswith(TRACE)
    }
    guessed = trace.get("origin") == "estimated" or node.inputs[1].startswith(pair.tensor + ESTIMATED)
    origin: Literal["estimated", "qdq"] = "estimated" if guessed else "qdq"
    return Scale(scale.bits, scale.axis, origin, trace.get("method", ""), trace.get("rule", ""))


def _check_symmetric(view: GraphView, pair: Pair) -> None:
    for node in (pair.quantize, pair.dequantize):
        if node is None:
            continue
        zero = view.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
        if zero is None and (node.op == QUANTIZE or len(node.inputs) > 2):
            raise QdqError(
                pair.tensor, "its Q has no constant zero point, so it is unsigned", "quantise it to symmetric int8"
            )
        if zero is not None and (zero.dtype != np.int8 or zero.any()):
            kind = str(zero.dtype) if zero.dtype != np.int8 else "a zero point that is not zero"
            raise QdqError(
                pair.tensor,
                f"quantised with {kind}, where TensorRT's caches know symmetric int8",
                "quantise it to symmetric int8",
            )


def _check_one_scale(view: GraphView, pair: Pair) -> None:
    if pair.quantize is None or pair.quantize.inputs[1] == pair.dequantize.inputs[1]:
        return
    into, back = pair_scale(view, pair), pair_scale(view, Pair(pair.tensor, None, pair.dequantize))
    if not into.same_bits(back):
        reason = f"its Q has the scale {into.hex()}, its DQ {back.hex()}: the pair computes"
        raise QdqError(pair.tensor, reason, "repair the model")


def _reads_weight_pair(view: GraphView, node: Node) -> bool:
    index = weight_index(view, node)
    if index is None:
        return False
    name = node.inputs[index]
    return view.root(name) != name or any(pair.quantize is None for pair in view.pairs.get(name, ()))


def _float_value(view: GraphView, pair: Pair) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Scale * q of an integer weight, in float32, along the axis of its DequantizeLinear."""
    value = view.array(pair.dequantize.outputs[0])
    if value is None:
        raise QdqError(pair.tensor, "an integer weight whose value cannot be read", "fold constants first")
    return value.astype(np.float32, copy=False)


def _take_out(view: GraphView, editor: Editor, pair: Pair, names: dict[str, str]) -> None:
    """Remove one pair and let its readers read what it was put on."""
    output = pair.dequantize.outputs[0]
    if pair.quantize is not None:
        for use in view.readers(pair.tensor):
            if use.node.inputs[use.index] == output:
                editor.reroute(use, pair.tensor)
        names[output] = pair.tensor
        editor.remove_node(pair.quantize)
    editor.remove_node(pair.dequantize)
    if view.is_output(output) and output != pair.tensor:
        editor.add_node("Identity", [pair.tensor], output, beside=pair.dequantize, after=False)


def _drop_unused(view: GraphView, editor: Editor) -> None:
    """Scales, zero points and integer weights that nobody reads any more."""
    gone = {
        id(node) for pairs in view.pairs.values() for pair in pairs for node in (pair.quantize, pair.dequantize) if node
    }
    kept = [node for node in view.every if id(node) not in gone]
    used = {name for node in kept for name in node.inputs} | set(view.outputs)
    used |= {name for node in kept for name in captured_names(node)} | {value.name for value in view.graph.input}
    lost = _operands(view) - used
    editor.drop_initializers(name for name in lost if name in view.initializers)
    for node in kept:
        if node.op == "Constant" and node.outputs[0] in lost:
            editor.remove_node(node)


def _operands(view: GraphView) -> set[str]:
    names: set[str] = set()
    for pairs in view.pairs.values():
        for pair in pairs:
            names.update(pair.dequantize.inputs[1:])
            names.update(pair.quantize.inputs[1:] if pair.quantize else pair.dequantize.inputs[:1])
    return names


def is_plain(proto: onnx.ModelProto) -> bool:
    """Whether a model holds no Q/DQ at all."""
    return not any(node.op_type in (QUANTIZE, DEQUANTIZE) for node in proto.graph.node)
