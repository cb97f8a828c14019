# SPDX-License-Identifier: Apache-2.0
"""Gives weights one scale for all channels, with factors after the product; and back: `match/common_scale.py`.

A Div by the factors stands between a weight and its pair, a Mul after the product; a bias is added after that. What
is behind keeps its names.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from qdqtool.formats import INT8, NumberFormat, format_of_element
from qdqtool.graph.edit import Editor, count_uses, release, traced_rule
from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.match.common_scale import (
    BIAS,
    COMMON_SCALE,
    ChannelScales,
    CommonScaleWeight,
    channel_scales,
    common_scale_weights,
)
from qdqtool.match.late_bias import LATE_BIAS, LateBias, placed_biases
from qdqtool.passes.insert import zero_point_name
from qdqtool.rulebook import RuleBook

_TRACE = (("rule", COMMON_SCALE),)


def place_common_scales(view: GraphView, rules: RuleBook) -> int:
    """Give weights one scale where they have one for each channel; edits the graph, whose function stays."""
    late = {one.product.key: one for one in placed_biases(view)}
    found, editor, uses = channel_scales(view, rules), Editor(view), count_uses(view)
    zeros = {row: _zero_point(view, editor, row) for row in dict.fromkeys(one.format for one in found)}
    for one in found:
        read = [name for node in one.pair.nodes for name in node.inputs[1:]]
        _rescale(editor, one, zeros[one.format])
        for name in read:
            release(editor, uses, name)
        _multiply(editor, one, late.get(one.node.key))
    if found:
        editor.commit()
    return len(found)


def _zero_point(view: GraphView, editor: Editor, row: NumberFormat) -> str:
    """The zero point of pairs with one scale."""
    name = zero_point_name(row)
    if name in view.initializers and view.shape(name) == ():
        return name
    return editor.add_initializer(editor.unique_name(name), row.zero_point())


def _rescale(editor: Editor, one: ChannelScales, zero: str) -> None:
    """Divide a weight by its factors, and let its pair have the one scale."""
    tensor, quantize = one.pair.tensor, one.pair.quantize
    scale = editor.add_initializer(editor.unique_name(f"{tensor}_common_scale"), np.asarray(one.scale))
    if quantize is not None:
        shape = [-1 if axis == one.axis else 1 for axis in range(one.rank)]
        factors = editor.add_initializer(editor.unique_name(f"{tensor}_factors"), one.factors.reshape(shape))
        divided = editor.unique_name(f"{tensor}_divided")
        editor.add_node("Div", [tensor, factors], divided, beside=quantize, after=False, trace=_TRACE)
        editor.reroute(Use(quantize, 0), divided)
    for node in one.pair.nodes:
        editor.reroute(Use(node, 1), scale)
        editor.reroute(Use(node, 2), zero)
        editor.drop_attribute(node, "axis")


def _multiply(editor: Editor, one: ChannelScales, late: LateBias | None) -> None:
    """Multiply what a product makes by the factors, and add its bias after them."""
    node, shape = one.node, [-1] + [1] * (one.rank - 2 if one.node.op == "Conv" else 0)
    if late is not None and late.add is not None:
        made = editor.unique_name(f"{late.add.key}_scaled")
        factors = editor.add_initializer(editor.unique_name(f"{node.key}_factors"), one.factors)
        editor.add_node("Mul", [late.add.inputs[0], factors], made, beside=late.add, after=False, trace=_TRACE)
        editor.reroute(Use(late.add, 0), made)
        return
    name, bias = node.key, editor.cut_inputs(node, BIAS)
    product = editor.unique_name(f"{name}_product")
    editor.rename_output(node, 0, product)
    factors = editor.add_initializer(editor.unique_name(f"{name}_factors"), one.factors.reshape(shape))
    scaled = editor.unique_name(f"{name}_scaled") if bias else name
    editor.add_node("Mul", [product, factors], scaled, beside=node, after=True, trace=_TRACE)
    if bias:
        added = bias[0]
        if len(shape) > 1:
            axes = editor.add_initializer(editor.unique_name(f"{name}_axes"), np.arange(1, len(shape)))
            added = editor.unique_name(f"{bias[0]}_column")
            editor.add_node("Unsqueeze", [bias[0], axes], added, beside=node, after=True, trace=_TRACE)
        editor.add_node("Add", [scaled, added], name, beside=node, after=True, trace=_TRACE)


# ---------------------------------------------------------------------- back


def restore_scales(view: GraphView) -> int:
    """Give every weight the scales back that `place_common_scales` divided it by; edits the graph, typed or not."""
    found = list(common_scale_weights(view))
    editor, uses = Editor(view), count_uses(view)
    for weight, multiplied in found:
        _restore_pair(view, editor, uses, weight)
        _restore_product(view, editor, uses, multiplied)
    if found:
        editor.commit()
    return len(found)


def _restore_pair(view: GraphView, editor: Editor, uses: Counter[str], weight: CommonScaleWeight) -> None:
    quantize, divide = weight.pair.quantize, weight.divide
    tensor = weight.pair.tensor if divide is None else divide.inputs[0]
    scales = editor.add_initializer(editor.unique_name(f"{tensor}_scale"), weight.scales)
    zero = view.constant_tensor(weight.pair.dequantize.inputs[2])
    row = (None if zero is None else format_of_element(zero.data_type)) or INT8
    zeros = editor.add_initializer(editor.unique_name(f"{tensor}_zeros"), row.zero_point(weight.scales.size))
    for node in weight.pair.nodes:
        for place, name in ((1, scales), (2, zeros)):
            release(editor, uses, node.inputs[place])
            editor.reroute(Use(node, place), name)
        editor.set_attribute(node, "axis", weight.axis)
    if divide is not None and quantize is not None:
        editor.reroute(Use(quantize, 0), tensor)
        release(editor, uses, divide.inputs[1])
        editor.remove_node(divide)


def _restore_product(view: GraphView, editor: Editor, uses: Counter[str], multiplied: Node) -> None:
    """Take the Mul out; a bias goes back into the product where both have one type."""
    source, name = multiplied.inputs[0], multiplied.key
    maker = view.producers[source]
    release(editor, uses, multiplied.inputs[1])
    editor.remove_node(multiplied)
    readers = view.consumers(name)
    add = readers[0].node if len(readers) == 1 and traced_rule(readers[0].node) == COMMON_SCALE else None
    late = bool(readers) and traced_rule(readers[0].node) == LATE_BIAS
    if add is None and not late:
        editor.rename_output(maker, maker.outputs.index(source), name)
        return
    if add is None or maker.op == "Cast":
        editor.reroute(Use(readers[0].node, 0), source)
        return
    bias, column = add.inputs[1], view.producers.get(add.inputs[1])
    if column is not None and traced_rule(column) == COMMON_SCALE:
        bias = column.inputs[0]
        release(editor, uses, column.inputs[1])
        editor.remove_node(column)
    editor.remove_node(add)
    editor.set_input(maker, BIAS, bias)
    editor.rename_output(maker, 0, add.key)
