# SPDX-License-Identifier: Apache-2.0
"""What INT8 costs and gives by the compiler's plan: FP32, FP16, INT8 and its variants, a row each.

`python -m tests.bench.rtx_costs [--models A,B] [--sm 89]`: models of the corpus (QDQTOOL_SHARED), engines built on this
CPU, nothing run. FP16 rows are of models whose every operator is FP16, whatever its values. Conditioned with random
samples: the edits that follow depend on them, the shape of the engine hardly does.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.engine.onnx_nodes import OnnxNodes
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.common_scale import place_common_scales
from qdqtool.passes.late_bias import place_late_biases
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.casts import apply_types
from qdqtool.rulebook import load_rules
from qdqtool.tensorrt_rtx.build import BuiltEngine, RtxBuildOptions, build_engine
from qdqtool.tensorrt_rtx.cost import EngineCost, cost_of
from tests.bench.shared_material import SHARED

MODELS = (
    "yolox_nano_coco,nanodet_m_320_coco,fastestdet_coco,mobilenetv1_025_128,stm_mbv2_128_flowers,yunet_s_320,"
    "ultraface_rfb320,ppocrv3_det,squeezenet11_fp32,cifar_resnet20_bn"
)
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
HEAD = (
    "| model | file | layers | convert only | INT8 products | MB moved | MACs by type |\n|---|---|---|---|---|---|---|"
)


def samples_of(model: onnx.ModelProto) -> np.ndarray:
    """Two random samples for the network's only input."""
    weights = {one.name for one in model.graph.initializer}
    (given,) = [one for one in model.graph.input if one.name not in weights]
    sides = [side.dim_value or 320 for side in given.type.tensor_type.shape.dim]
    return np.random.default_rng(0).standard_normal([2, *sides[1:]], np.float32)


def half_precision(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in FP16 between inputs and outputs in FP32; pairs as `insert --rest fp16` has them."""
    fitted, rules = onnx.ModelProto(), load_rules("rtx")
    fitted.CopyFrom(model)
    place_late_biases(GraphView(fitted.graph), rules)
    place_common_scales(GraphView(fitted.graph), rules)
    return apply_types(Model(fitted), TypeAssignment(onnx.TensorProto.FLOAT16)).proto


def files_of(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model in each of its types."""

    def int8(plan: PlanOptions) -> onnx.ModelProto:
        return verbs.insert(model, options=verbs.InsertOptions(plan=plan)).model

    yield "FP32", model
    yield "FP16", half_precision(model)
    whole = int8(PlanOptions("rtx"))
    yield "INT8", whole
    yield "INT8, rest FP16", half_precision(whole)
    for reported, plan in (
        ("depthwise float", PlanOptions("rtx", depthwise="float")),
        ("per tensor", PlanOptions("rtx", weights="per-tensor")),
        ("both", PlanOptions("rtx", weights="per-tensor", depthwise="float")),
    ):
        yield f"INT8, rest FP16, {reported}", half_precision(int8(plan))
    for steps, reported in (("auto", "INT8 conditioned"), ("auto,shift", "INT8 conditioned and shifted")):
        options = verbs.InsertOptions(plan=PlanOptions("rtx"), condition=steps, keep_float=0, whole_table=False)
        conditioned = verbs.insert(model, data=samples_of(model), options=options).model
        yield reported, conditioned
        yield f"{reported}, rest FP16", half_precision(conditioned)


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
    shapes = {name: tuple(side.dim_value or 1 for side in one.shape.dim) for name, one in known.items()}
    shapes |= {one.name: tuple(one.dims) for one in model.graph.initializer}
    types: dict[str, str] = {}
    for layer in sorted(built.layers, key=lambda layer: not layer.is_product):
        for label in layer.metadata:
            node = nodes.find(label)
            if node is not None:
                types.setdefault(node.output[0], layer.product_type if layer.is_product else "kernel")
    found: Counter[str] = Counter()
    for node in model.graph.node:
        if node.op_type in PRODUCTS:
            found[types.get(node.output[0], "?")] += _macs(node, shapes)
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


def row(model: str, reported: str, cost: EngineCost, macs: dict[str, int]) -> str:
    """One line of the table."""
    products = f"{cost.products.get('INT8', 0)} of {sum(cost.products.values())}"
    shares = ", ".join(f"{count / 1e6:.1f} M {kind}" for kind, count in macs.items())
    bytes_moved = f"{cost.bytes_moved / 1e6:.2f}"
    return f"| {model} | {reported} | {cost.layers} | {cost.conversions} | {products} | {bytes_moved} | {shares} |"


def verdict(costs: dict[str, EngineCost]) -> str:
    """Which file moves the fewest bytes."""
    best = min(costs, key=lambda reported: costs[reported].bytes_moved)
    if "FP16" not in costs:
        return f"fewest bytes: {best}"
    share = costs[best].bytes_moved / costs["FP16"].bytes_moved
    return f"fewest bytes: {best}" + ("" if best == "FP16" else f", {share:.2f} of FP16's")


def main() -> int:
    """Print every row.

    Returns:
        1 where an engine was not built.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--sm", default="89")
    args = parser.parse_args()
    print(HEAD)
    failed = 0
    for name in args.models.split(","):
        costs: dict[str, EngineCost] = {}
        model = onnx.load(SHARED / "corpus" / "models" / f"{name}.onnx")
        for reported, file in files_of(model):
            try:
                built = build_engine(file, RtxBuildOptions((args.sm,)))
            except QdqError as error:
                failed += 1
                print(f"| {name} | {reported} | {error.reason} | | | | |", flush=True)
                continue
            costs[reported] = cost_of(built)
            print(row(name, reported, costs[reported], macs_by_type(file, built)), flush=True)
        print(f"| {name} | {verdict(costs)} | | | | | |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
