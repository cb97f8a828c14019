# SPDX-License-Identifier: Apache-2.0
"""Operators that quantize in other ways than Q/DQ pairs, and why no clean model and cache can be had of them."""

from __future__ import annotations

from qdqtool.errors import QdqError
from qdqtool.graph.nodes import DYNAMIC_FP4
from qdqtool.graph.view import GraphView
from qdqtool.passes.dynamic_blocks import dequantizers

_AS_PAIRS = "export or quantize the model in the QDQ format"
_INTEGER = ("QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger")
_DYNAMIC = ("DynamicQuantize",)
_BREVITAS = ("Quant", "BipolarQuant")
# TensorRT's plugin operators of these types, and the first version that has the type: NvInfer.h at these
# tags of NVIDIA/TensorRT (8.6.1 has FP8 as "not supported yet"; 10.12 is the first with the scales of MXFP8, kE8M0).
_PLUGINS = {
    "TRT_FP8": ("FP8", "9.1"),
    "TRT_INT4": ("INT4", "10"),
    "TRT_FP4": ("FP4", "10.8"),
    "TRT_MXFP8": ("MXFP8", "10.12"),
}


def refuse_outsiders(view: GraphView) -> None:
    """Raise for the first operator of the graph that quantizes in another way than by Q/DQ pairs.

    Raises:
        QdqError: names it, with what it is.
    """
    for node in view.every:
        if node.op == DYNAMIC_FP4 and dequantizers(view, node):
            continue  # `restore_blocks` takes it out
        found = _reason(node.op)
        if found:
            raise QdqError(node.name, f"{node.op} {found[0]}", found[1])


def quantizes_by_operators(view: GraphView) -> bool:
    """Whether operators of TensorRT alone quantize to a format that has no Q/DQ, such as NVFP4 activations."""
    return any("::" in node.op and node.op.rpartition("::")[2].startswith(tuple(_PLUGINS)) for node in view.every)


def _reason(op: str) -> tuple[str, str] | None:
    domain, _, name = op.rpartition("::")
    if domain in ("", "com.microsoft"):
        if name.startswith(_INTEGER):
            return "computes with integers, which TensorRT does not import", _AS_PAIRS
        if name.startswith(_DYNAMIC):
            return "quantizes dynamically, with ranges found at run time", _AS_PAIRS
    elif name in _BREVITAS:
        return "is an operator of Brevitas or QONNX only", "export with Brevitas' QCDQ exporter, to 8 bits"
    for start, (kind, version) in _PLUGINS.items():
        if domain and name.startswith(start):
            todo = f"give the Q/DQ model itself to TensorRT {version} or later"
            return f"quantizes to {kind}, which no calibration cache can hold", todo
    return None
