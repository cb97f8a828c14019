# SPDX-License-Identifier: Apache-2.0
"""What an engine costs by its compiler's plan: layers, conversions, bytes moved, products and multiply-adds by type.

Built on a CPU; nothing was run, and nothing here is a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from qdqtool.engine.built_info import built_line, info_of
from qdqtool.engine.onnx_nodes import OnnxNodes
from qdqtool.engine.totals import totals_of
from qdqtool.tensorrt_rtx.build import BuiltEngine
from qdqtool.tensorrt_rtx.installed import NAME

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_IN_A_KERNEL = "kernel"  # the type of a product that has no layer of its own
_UNTOLD = "?"


@dataclass(frozen=True)
class EngineCost:
    """What one engine costs.

    Attributes:
        layers: how many, without those that only wait.
        conversions: those that only turn one type or format into another.
        bytes_moved: read and written in one inference, weights included.
        products: type -> layers that multiply in it, such as {"INT8": 106, "FP32": 7}.
        told: what was built where, and that it was not run.
    """

    layers: int
    conversions: int
    bytes_moved: int
    products: Mapping[str, int]
    told: str

    def text(self) -> str:
        """`224 layers (3 only convert), 126.1 MB moved, 106 of 113 products in INT8`."""
        total = sum(self.products.values())
        return (
            f"{self.layers} layers ({self.conversions} only convert), {self.bytes_moved / 1e6:.1f} MB moved,"
            f" {self.products.get('INT8', 0)} of {total} products in INT8"
        )

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "layers": self.layers,
            "conversions": self.conversions,
            "bytes_moved": self.bytes_moved,
            "products": dict(self.products),
        }


def cost_of(built: BuiltEngine) -> EngineCost:
    """The sums over the layers that the compiler's log names."""
    told = built_line(NAME, built.version, built.sm)
    totals = totals_of(info_of(built.layers, Path(), built.version, told))
    return EngineCost(totals.layers, totals.conversions, totals.bytes_moved, totals.products, told)


def macs_by_type(model: onnx.ModelProto, built: BuiltEngine) -> dict[str, int]:
    """Multiply-adds of the products of a model by the type that the engine multiplies them in, most first.

    Products whose shapes onnx cannot infer are left out. Those inside a generated kernel count as "kernel", those that
    the log does not name as "?".

    Args:
        model: what was built; its weights are constants or pass a DequantizeLinear.
        built: its engine.
    """
    nodes = OnnxNodes(model)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    known = {one.name: one.type.tensor_type for one in (*inferred.value_info, *inferred.input, *inferred.output)}
    shapes = {name: tuple(side.dim_value for side in one.shape.dim) for name, one in known.items()}
    shapes |= {one.name: tuple(one.dims) for one in model.graph.initializer}
    types: dict[str, str] = {}
    for layer in sorted(built.layers, key=lambda layer: not layer.is_product):
        for label in layer.nodes:
            node = nodes.find(label)
            if node is not None:
                types.setdefault(node.output[0], layer.product_type if layer.is_product else _IN_A_KERNEL)
    found: Counter[str] = Counter()
    for node in model.graph.node:
        if node.op_type in _PRODUCTS:
            found[types.get(node.output[0], _UNTOLD)] += _macs(node, shapes)
    return {kind: count for kind, count in found.most_common() if count}


def _macs(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Multiply-adds of one product: the values it writes times those that each sums."""
    written, read, weight = (shapes.get(name, ()) for name in (node.output[0], node.input[0], node.input[1]))
    if not written or not read or not weight:
        return 0
    if node.op_type == "Conv":
        return math.prod(written) * math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(read) * math.prod(weight[1:])
    transposed = any(one.name == "transA" and one.i for one in node.attribute)
    return math.prod(written) * (read[0] if transposed else read[-1])
