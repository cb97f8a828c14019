# SPDX-License-Identifier: Apache-2.0
"""Sums of INT8 matrix products that FP16 does not hold, in Q/DQ models of real size.

A script: python tests/bench/half_sums.py WORK [--tool modelopt] [--write PAGE]; WORK is that of real_engines.py. Where
a file has FP16 scales, the compiler of TensorRT for RTX writes the sums of a matrix product in FP16, and multiplies by
the scales after (tests/rtx/test_matrix_sums.py). A sum is the product's value over the scales of its operands, here
from onnxruntime on held-out samples; nothing of an engine is run. Counted where weights have one scale per channel.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT)]

from pages import rewrite  # noqa: E402

from qdqtool.graph.model import Model  # noqa: E402
from qdqtool.graph.view import DEQUANTIZE, GraphView  # noqa: E402
from qdqtool.precision.rounded import as_run  # noqa: E402

LARGEST, SAMPLES = 65504, 4
PASSED = ("Cast", "Transpose", "Reshape")
HEAD = ["| model | matrix products | with a sum beyond 65504 | of all sums | largest |", "|---|---|---|---|---|"]


def scale_behind(view: GraphView, name: str) -> np.ndarray | None:
    """The scale of the DequantizeLinear that a tensor comes from; None where it comes from none."""
    node = view.producers.get(name)
    while node is not None and node.op in PASSED:
        node = view.producers.get(node.inputs[0])
    return view.array(node.inputs[1]) if node is not None and node.op == DEQUANTIZE else None


def row(model: onnx.ModelProto, samples: np.ndarray) -> str | None:
    """The figures of one model; None where it has no such product."""
    view = GraphView(model.graph)
    scales: dict[str, np.ndarray] = {}
    for node in view.every:
        found = [scale_behind(view, name) for name in node.inputs[:2]] if node.op in ("MatMul", "Gemm") else []
        if found and all(scale is not None for scale in found) and found[1].ndim == 1:
            scales[node.outputs[0]] = found[0].astype(np.float64) * found[1]
    if not scales:
        return None
    biases = {node.outputs[0]: node.inputs[2] for node in view.every if node.op == "Gemm" and len(node.inputs) > 2}
    kept = onnx.ModelProto()
    kept.CopyFrom(model)
    kept.graph.output.extend(onnx.ValueInfoProto(name=name) for name in scales if name not in _outputs(model))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(kept.SerializeToString(), options)
    beyond, sums, largest = dict.fromkeys(scales, 0), 0, 0.0
    for index in range(min(SAMPLES, len(samples))):
        values = session.run(list(scales), {session.get_inputs()[0].name: samples[index : index + 1]})
        for (name, scale), value in zip(scales.items(), values, strict=True):
            added = view.array(biases[name]) if name in biases else 0
            size = np.abs((value.astype(np.float64) - added) / scale)
            beyond[name] += int((size > LARGEST).sum())
            sums, largest = sums + size.size, max(largest, float(size.max()))
    share = sum(beyond.values()) / sums
    return f"{len(scales)} | {sum(map(bool, beyond.values()))} | {share:.2%} | {largest:,.0f} |"


def _outputs(model: onnx.ModelProto) -> set[str]:
    return {one.name for one in model.graph.output}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("work", type=Path, help="folder that real_engines.py kept")
    parser.add_argument("--tool", default="modelopt", help="whose files")
    parser.add_argument("--write", type=Path, help="page that gets the table")
    args = parser.parse_args()
    rows = []
    for path in sorted(args.work.glob(f"*/{args.tool}.onnx")):
        model = as_run(Model(onnx.load(path))).proto
        figures = row(model, np.load(path.with_name("heldout.npz"))["x"])
        if figures is not None:
            rows.append(f"| {path.parent.name.partition('.')[0]} | {figures}")
            print(rows[-1], flush=True)
    if args.write:
        rewrite(args.write, Path(__file__).name, [*HEAD, *rows])


if __name__ == "__main__":
    main()
