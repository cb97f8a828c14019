# SPDX-License-Identifier: Apache-2.0
"""Puts the bodies of local functions that hold Q/DQ in place of their calls, as TensorRT does. Other functions stay."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.inliner

from qdqtool.errors import QdqError
from qdqtool.graph.validate import subgraphs_of
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE

_Key = tuple[str, str]


def inline_quantized(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Inline every local function that holds Q/DQ, itself or in what it calls; the proto is edited.

    Tensors outside of these functions keep their names; those inside get new ones.

    Returns:
        The names of the functions that were put in place; empty where nothing was changed.

    Raises:
        QdqError: the functions cannot be inlined. The model is unchanged then.
    """
    inside = {(f.domain, f.name): list(_every_node(f.node)) for f in proto.functions}
    wanted = {key for key, nodes in inside.items() if any(node.op_type in (QUANTIZE, DEQUANTIZE) for node in nodes)}
    size = -1
    while size != len(wanted):  # callers of these, and theirs
        size = len(wanted)
        wanted.update(key for key, nodes in inside.items() if any((n.domain, n.op_type) in wanted for n in nodes))
    if not wanted:
        return ()
    names = [key for key in inside if key in wanted]
    try:
        inlined = onnx.inliner.inline_selected_functions(proto, names)
    except Exception as error:  # what onnx's C++ raises has no common type
        reason = f"its Q/DQ are in local functions that cannot be inlined ({str(error).splitlines()[0]})"
        raise QdqError(names[0][1], reason, "export the model without functions") from None
    _keep_names(proto, inlined)
    proto.CopyFrom(inlined)
    return tuple(name for _, name in names)


def _every_node(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        for graph in subgraphs_of(node):
            stack.extend(graph.node)


def _keep_names(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Refuse a result that lost an input, an output or an initializer."""
    for field in ("input", "output", "initializer"):
        there = {item.name for item in getattr(after.graph, field)}
        for item in getattr(before.graph, field):
            if item.name not in there:
                raise QdqError(item.name, "is lost when local functions are inlined", "export without functions")
