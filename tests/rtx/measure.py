# SPDX-License-Identifier: Apache-2.0
"""Measures the minimal graphs on NVIDIA's compiler and writes what was built: `python -m tests.rtx.measure [NAME ...]`.

Needs TensorRT for RTX, no GPU. Each graph is built for three compute capabilities; what a product reads is recorded as
the compiler's log tells it, "none" for one that is no layer of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx

from qdqtool.engine.layer_info import EngineLayer
from qdqtool.errors import QdqError
from qdqtool.formats import FP8, NVFP4
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine
from qdqtool.tensorrt_rtx.installed import require_library
from tests.rtx.attention_graphs import ATTENTIONS
from tests.rtx.minimal_graphs import SMS, all_models, products_of
from tests.rtx.weight_graphs import BLOCKS, WEIGHTS

EVIDENCE = Path(__file__).with_name("evidence.json")


def main(words: list[str]) -> int:
    """Measure the named graphs, or all, and write the file; exit 1 where something differs from what stood in it."""
    library = require_library()
    before = json.loads(EVIDENCE.read_text(encoding="utf-8"))["graphs"] if EVIDENCE.exists() else {}
    models = {**all_models(), **{name: case.model() for name, case in ATTENTIONS.items()}, **WEIGHTS, **BLOCKS}
    graphs = {
        name: measured(model) if not words or name in words else before.get(name) for name, model in models.items()
    }
    EVIDENCE.write_text(written(library.version, graphs), encoding="utf-8", newline="\n")
    changed = sorted(name for name, found in graphs.items() if before.get(name, found) != found)
    sys.stdout.write(
        f"{len(graphs)} graphs by TensorRT for RTX {library.version}; changed: {' '.join(changed) or 'none'}\n"
    )
    return 1 if changed else 0


def measured(model: onnx.ModelProto) -> dict[str, dict[str, object]]:
    """Compute capability -> the number of layers and, product by product, what it reads; or the refusal."""
    return {sm: _built(model, sm) for sm in SMS}


def _built(model: onnx.ModelProto, sm: str) -> dict[str, object]:
    try:
        engine = build_engine(model, RtxBuildOptions(sm=(sm,)))
    except QdqError as error:
        return {"refused": error.reason}
    types = dict.fromkeys(products_of(model), "none")
    for layer in engine.layers:
        types.update({name: _type(layer) for name in layer.metadata if name in types and layer.is_product})
    fused = sum(layer.is_product and "_mha" in layer.name for layer in engine.layers)
    operators = {node.op_type for node in model.graph.node}
    counted = {"attentions": fused} if operators & {"Softmax", "Attention"} and "Conv" not in operators else {}
    return {"layers": len(engine.layers), "bytes": engine.bytes_moved, **counted, **types}


def _type(layer: EngineLayer) -> str:
    """What a product multiplies; "mixed" where its two operands are of two types, of which one is converted.

    FP4 has its scales in FP8 beside it.
    """
    operands = {tensor.type for tensor in layer.inputs[:2]}
    if operands == {NVFP4.title, FP8.title}:
        return NVFP4.title
    return "mixed" if len(operands) > 1 else layer.product_type


def written(version: str, graphs: dict[str, object]) -> str:
    """The file's text: a line for each graph."""
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in graphs.items()]
    rows = ",\n".join(lines)
    return f'{{\n"version": {json.dumps(version)},\n"sm": {json.dumps(list(SMS))},\n"graphs": {{\n{rows}\n}}}}\n'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
