# SPDX-License-Identifier: Apache-2.0
"""Takes NVFP4 activations out of a graph, whose blocks get their scales at run time, and makes scales of blocks float.

Enters the main graph only.
"""

from __future__ import annotations

import numpy as np

from qdqtool.formats import NVFP4
from qdqtool.graph.edit import Editor, count_uses, release, traced
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import DYNAMIC_FP4
from qdqtool.graph.view import DEQUANTIZE, GraphView, Node, attribute
from qdqtool.scales import Scale


def dequantizers(view: GraphView, node: Node) -> list[Node]:
    """The DequantizeLinears of blocks, then those of their scales, of a TRT_FP4DynamicQuantize that they alone read.

    Empty where anything else reads its codes or scales: then the tensor is not what it quantizes.
    """
    codes, scales = ([use.node for use in view.consumers(name)] for name in node.outputs[:2])
    read = {one.inputs[1] for one in codes if one.op == DEQUANTIZE and len(one.inputs) > 1}
    shown = any(view.is_output(name) or name in view.captured for name in node.outputs)
    if shown or any(one.op != DEQUANTIZE for one in (*codes, *scales)):
        return []
    if read != {one.outputs[0] for one in scales} or any(one.inputs[0] != node.outputs[0] for one in codes):
        return []
    return [*codes, *scales]


def restore_blocks(model: Model) -> dict[str, Scale]:
    """Let readers of NVFP4 activations read the tensor, which gives back its scale; the model is edited.

    The scales of a weight's blocks become float: a DequantizeLinear of the weight alone stays.
    """
    view = model.view
    editor, uses, found, made = Editor(view), count_uses(view), dict[str, Scale](), False
    for node in view.every:
        parts = dequantizers(view, node) if node.op == DYNAMIC_FP4 else []
        level = view.array(node.inputs[1]) if parts else None
        if level is None or level.size != 1:
            continue
        tensor = node.inputs[0]
        for part in parts:
            for use in view.consumers(part.outputs[0]) if part.inputs[0] == node.outputs[0] else ():
                editor.reroute(use, tensor)
            if part.inputs[0] == node.outputs[0] and view.is_output(part.outputs[0]):
                editor.add_node("Identity", [tensor], part.outputs[0], beside=part, after=False)
        for part in (node, *parts):
            editor.remove_node(part)
            release(editor, uses, part.inputs[1])
        origin = "estimated" if traced(node, "origin") == "estimated" else "qdq"
        bits = np.asarray(level, np.float32).reshape(())
        found[tensor] = Scale.of(bits, origin=origin, method=traced(node, "method"), format=NVFP4)
    for node in block_scales(view):
        if (value := view.array(node.outputs[0])) is not None:
            editor.remove_node(node)
            editor.add_initializer(node.outputs[0], value)
            for name in node.inputs:
                release(editor, uses, name)
            made = True
    if found or made:
        editor.commit()
    if found and not any(node.domain == "trt" for node in model.graph.node):
        imported = [entry for entry in model.proto.opset_import if entry.domain != "trt"]
        del model.proto.opset_import[:]
        model.proto.opset_import.extend(imported)
    return found


def block_scales(view: GraphView) -> list[Node]:
    """The DequantizeLinears of constants that DequantizeLinears of blocks alone read, as their scales."""
    scales = {node.inputs[1] for node in view.every if node.op == DEQUANTIZE and attribute(node, "block_size", 0)}
    others = {
        name for node in view.every for at, name in enumerate(node.inputs) if node.op != DEQUANTIZE or at != 1
    } | {*view.outputs, *view.captured}
    return [
        node
        for node in view.every
        if node.op == DEQUANTIZE
        and node.outputs[0] in scales - others
        and view.constant_tensor(node.inputs[0]) is not None
    ]
