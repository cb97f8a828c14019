# SPDX-License-Identifier: Apache-2.0
"""What can only be rewritten once shapes are known: pads that an operator works out, outputs of Split left out.

Gradient builders get both wrong without a word: they ignore auto_pad, and forget the part of a Split nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from qdqtool.autodiff.backend import Shapes
from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.order import reads_of
from qdqtool.graph.tensors import array_of
from qdqtool.graph.validate import label
from qdqtool.training.batchnorm import lower_batch_norms

_PADDED = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"})
_SAME = ("SAME_UPPER", "SAME_LOWER")
_DEFAULT = ("", "ai.onnx")


def make_concrete(proto: onnx.ModelProto, shapes: Shapes) -> bool:
    """Write out pads and splits; the proto is edited.

    Args:
        proto: a flat graph.
        shapes: of every tensor, from a run.

    Returns:
        Whether anything was changed.
    """
    draft = GraphBuilder(proto)
    used = {name for node in proto.graph.node for name in reads_of(node)}
    used.update(value.name for value in proto.graph.output)
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in proto.graph.node:
        if node.domain in _DEFAULT and node.op_type in _PADDED and _auto_pad(node) != "NOTSET":
            _write_pads(node, shapes)
            changed = True
        if node.domain in _DEFAULT and node.op_type == "Split" and not used.issuperset(node.output):
            nodes += _slices(draft, node, shapes, used)
            changed = True
        else:
            nodes.append(node)
    draft.set_nodes(nodes)
    return bool(lower_batch_norms(draft, shapes)) or changed


def _value(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def _auto_pad(node: onnx.NodeProto) -> str:
    text = _value(node, "auto_pad", b"NOTSET")
    return str(text.decode())


def _write_pads(node: onnx.NodeProto, shapes: Shapes) -> None:
    """Pads in place of auto_pad, as the ONNX text defines them."""
    mode, source, made = _auto_pad(node), shapes[node.input[0]][2:], shapes[node.output[0]][2:]
    rank = len(source)
    begin, end = [0] * rank, [0] * rank
    if mode in _SAME:
        for axis, total in enumerate(_totals(node, source, made, shapes)):
            less = total // 2
            begin[axis], end[axis] = (less, total - less) if mode == "SAME_UPPER" else (total - less, less)
    gone = {"auto_pad", "pads", "output_shape"} if node.op_type == "ConvTranspose" else {"auto_pad", "pads"}
    kept = [item for item in node.attribute if item.name not in gone]
    fresh = onnx.NodeProto(attribute=[*kept, helper.make_attribute("pads", [*begin, *end])])
    node.ClearField("attribute")
    node.attribute.extend(fresh.attribute)


def _totals(node: onnx.NodeProto, source: Sequence[int], made: Sequence[int], shapes: Shapes) -> Iterator[int]:
    """How much is added along each spatial axis, so that the output has the length that it has.

    Forward: (out - 1) * stride + (kernel - 1) * dilation + 1 - in. Transposed: the same with in and out changed over,
    and what output_padding adds.
    """
    rank = len(source)
    kernel = _value(node, "kernel_shape", None) or shapes[node.input[1]][2:]
    stride, dilation = _value(node, "strides", [1] * rank), _value(node, "dilations", [1] * rank)
    extra = _value(node, "output_padding", [0] * rank)
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        if node.op_type == "ConvTranspose":
            total = (source[axis] - 1) * stride[axis] + extra[axis] + reach - made[axis]
        else:
            total = (made[axis] - 1) * stride[axis] + reach - source[axis]
        yield max(0, total)


def _slices(draft: GraphBuilder, node: onnx.NodeProto, shapes: Shapes, used: set[str]) -> list[onnx.NodeProto]:
    """A Slice for each output of a Split that somebody reads."""
    whole = shapes[node.input[0]]
    axis = int(_value(node, "axis", 0)) % len(whole)
    lengths = _lengths(draft, node, whole[axis])
    nodes, start = [], 0
    for name, length in zip(node.output, lengths, strict=True):
        if name in used:
            ends = [draft.constant("qdqtool_slice", np.array([at], np.int64)) for at in (start, start + length, axis)]
            nodes.append(draft.node("Slice", [node.input[0], *ends], name))
        start += length
    return nodes


def _lengths(draft: GraphBuilder, node: onnx.NodeProto, whole: int) -> list[int]:
    """How long each output of a Split is along its axis."""
    if len(node.input) > 1 and node.input[1]:
        tensor = next((t for t in draft.proto.graph.initializer if t.name == node.input[1]), None)
        if tensor is None:
            raise QdqError(
                label(node), "lengths are computed, and not all of its outputs are read", "fold constants first"
            )
        return [int(length) for length in array_of(tensor, None)]
    count = len(node.output)
    each = -(-whole // count)
    return [max(0, min(each, whole - place * each)) for place in range(count)]
