# SPDX-License-Identifier: Apache-2.0
"""What parsing and building cost on this CPU: seconds and memory of TensorRT for RTX, a row per model.

`python -m tests.bench.rtx_cost`: yolox_nano of the corpus (QDQTOOL_SHARED), and a chain of matrix products of 100 MB.
Each figure is of a child process that did nothing else; nothing of an engine is run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qdqtool
from qdqtool.tensorrt_rtx.child import run_worker
from qdqtool.tensorrt_rtx.installed import NAME, RtxLibrary, require_library

SIDE, PRODUCTS, SECONDS = 1024, 25, 600.0  # 25 weights of 4 MiB
HEAD = "| model | file MB | parse CPU s | parse MB | build CPU s | build MB | engine MB |"


def large_model(products: int = PRODUCTS, side: int = SIDE) -> onnx.ModelProto:
    """A chain of matrix products, each with its Relu: weights of products x side x side x 4 bytes, seeded."""
    rng = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for number in range(products):
        weight = rng.standard_normal((side, side), np.float32) / np.float32(side**0.5)
        weights.append(onnx.numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(onnx.helper.make_node("MatMul", [name, f"w{number}"], [f"m{number}"], f"m{number}"))
        name = "y" if number == products - 1 else f"r{number}"
        nodes.append(onnx.helper.make_node("Relu", [f"m{number}"], [name], f"r{number}"))
    ends = [onnx.helper.make_tensor_value_info(one, onnx.TensorProto.FLOAT, [16, side]) for one in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "large", ends[:1], ends[1:], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def row(library: RtxLibrary, name: str, path: Path) -> str:
    """One model: parsed alone, then parsed and built."""
    job: dict[str, Any] = {"model": str(path), "sm": ["89"], "shapes": {}}
    parsed = run_worker(library, {**job, "action": "parse"}, name, SECONDS)
    built = run_worker(library, {**job, "action": "build"}, name, SECONDS)
    sizes = [path.stat().st_size / 1e6, built["build"]["engine_bytes"] / 1e6]
    figures = [f"{one['cpu_seconds']:.2f} | {one['peak_bytes'] / 1e6:.0f}" for one in (parsed, built)]
    return f"| {name} | {sizes[0]:.1f} | {figures[0]} | {figures[1]} | {sizes[1]:.1f} |"


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Each model, in float and with Q/DQ, as a file."""
    large = folder / "large.onnx"
    onnx.save(large_model(), large)
    found = {"100 MB of products": large}
    shared = os.environ.get("QDQTOOL_SHARED")
    if shared:
        found = {"yolox_nano": Path(shared) / "corpus" / "models" / "yolox_nano_coco.onnx", **found}
    for name, path in found.items():
        yield f"{name}, float", path
        quantized = folder / f"{path.stem}.qdq.onnx"
        qdqtool.insert(path, output=quantized)
        yield f"{name}, Q/DQ", quantized


def main() -> None:
    """Print the table."""
    library = require_library()
    print(f"{NAME} {library.version}, {os.cpu_count()} CPUs, {sys.platform}; engines for SM89, not run\n")
    print(f"{HEAD}\n|{'---|' * HEAD.count(' | ')}---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(Path(folder)):
            print(row(library, name, path))


if __name__ == "__main__":
    main()
