# SPDX-License-Identifier: Apache-2.0
"""Puts back activations that a converter took out because unsigned integers cut at zero anyway.

onnxruntime and TFLite drop Relu and ReLU6 in front of a Q whose range begins at 0. A symmetric range does not cut.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from qdqtool.errors import QdqError
from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Node, Pair
from qdqtool.match.flow import value_names
from qdqtool.passes.quant_params import QuantParams, coding_of, pair_scale
from qdqtool.rule_files import operator_set

_SIX = 6.0
_CLIP_INPUTS = 11  # from this opset on the bounds of Clip are inputs
_POSITIVE = frozenset({"Relu", "Sigmoid", "Softmax", "HardSigmoid", "Exp", "Abs", "ReduceL1", "ReduceL2", "Softplus"})
# What gives values without a sign where all that it reads is so, beside what moves, pools or resamples values.
_OF_ALL = frozenset({"Add", "Mul", "Max"})
_OF_FIRST = frozenset({"Pad", "ReduceMean", "ReduceMax"})


def restore_activations(view: GraphView, opset: int | None) -> tuple[str, ...]:
    """Add Relu, or Clip from 0 to 6 where the range ends there, in front of each Q that did its work.

    Not at inputs of the graph, and not where values have no sign by what makes them. Each tensor that was after such a
    pair is then the activation's output, `<tensor>_Relu`, for all who read it through the pair.
    """
    found: dict[str, tuple[Pair, QuantParams]] = {}
    for tensor, pairs in view.pairs.items():
        if view.is_constant(tensor) or view.producer(tensor) is None:
            continue
        try:
            codings = [coding_of(view, pair) for pair in pairs]
        except QdqError:
            continue
        if all(coding.kind != "int32" and bool((coding.zero == coding.low).all()) for coding in codings):
            found[tensor] = pairs[0], codings[0]
    known: dict[str, bool] = {}
    signed = [tensor for tensor in found if not _is_positive(view, view.producer(tensor), found.keys(), known)]
    editor = Editor(view)
    for tensor in signed:
        _add(view, editor, tensor, *found[tensor], opset)
    editor.commit()
    return tuple(signed)


def _is_positive(view: GraphView, node: Node | None, cut: Collection[str], known: dict[str, bool]) -> bool:
    """Whether all that a node makes is >= 0; a tensor after a pair of `cut` is."""
    if node is None or not node.key:
        return False
    if node.key not in known:
        known[node.key] = False  # for graphs with a cycle, which there are none of
        known[node.key] = _finds_positive(view, node, cut, known)
    return known[node.key]


def _finds_positive(view: GraphView, node: Node, cut: Collection[str], known: dict[str, bool]) -> bool:
    if node.op in _POSITIVE:
        return True
    if node.op == "Clip":
        low = view.bounds(node)[0]
        least = next(
            (item.f for item in node.proto.attribute if item.name == "min"), None if low is None else low.item()
        )
        return least is not None and float(least) >= 0
    handed_on = operator_set("moving") | operator_set("pooling") | operator_set("resampling") | _OF_FIRST
    if node.op not in handed_on | _OF_ALL:
        return False
    sources = node.inputs if node.op in _OF_ALL else value_names(node)
    return all(_source_is_positive(view, name, cut, known) for name in sources if name)


def _source_is_positive(view: GraphView, name: str, cut: Collection[str], known: dict[str, bool]) -> bool:
    root = view.root(name)
    if root in cut and root != name:
        return True
    if view.is_constant(name):
        value = view.array(name)
        return value is not None and bool((value.astype(np.float32) >= 0).all())
    return _is_positive(view, view.producers.get(root), cut, known)


def _add(view: GraphView, editor: Editor, tensor: str, pair: Pair, coding: QuantParams, opset: int | None) -> None:
    producer = view.producers[tensor]
    output = editor.unique_name(f"{tensor}_Relu")
    try:
        step = float(pair_scale(view, pair).bits.max())
    except QdqError:  # a scale that is no use: no bound follows from it
        step = 0.0
    highest = step * float(coding.high - coding.low)
    if abs(highest - _SIX) <= step and (opset or 0) >= _CLIP_INPUTS:
        node = pair.quantize or pair.dequantize
        scale = view.array(node.inputs[1])
        kind = np.float32 if scale is None else scale.dtype
        bounds = [
            editor.add_initializer(editor.unique_name(f"{output}_{end}"), np.asarray(value, kind))
            for end, value in (("min", 0), ("max", _SIX))
        ]
        editor.add_node("Clip", [tensor, *bounds], output, beside=producer, after=True)
    else:
        editor.add_node("Relu", [tensor], output, beside=producer, after=True)
    for each in view.pairs[tensor]:
        if each.quantize is not None and each.quantize.inputs[0] == tensor:
            editor.set_input(each.quantize, 0, output)
