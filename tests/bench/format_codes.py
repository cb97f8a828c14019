# SPDX-License-Identifier: Apache-2.0
"""Scales and codes of INT4 and NVFP4 that `insert` writes without data, beside nvidia-modelopt's functions. No test.

`python tests/bench/format_codes.py MODEL... --peers-python P`, P being an interpreter with nvidia-modelopt. `insert
--format F --target rtx` writes each model; for each weight in the format, modelopt's `find_scales` and `rtn` (INT4), or
`get_weights_scaling_factor_2`, `get_weights_scaling_factor` and `quantize` (NVFP4), make scales and codes of the same
float weight. Equal is equal to the bit. Exit 1 where one differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

FORMATS = ("int4", "nvfp4")


def in_float(tensor: onnx.TensorProto) -> Any:
    """The values of a tensor of any type in float32."""
    return numpy_helper.to_array(tensor).astype(np.float32)


def beside(source: Path, written: Path, name: str) -> tuple[int, int, int]:
    """Count a file's weights in a format, and those whose scales, and whose codes, equal modelopt's."""
    import ml_dtypes
    from modelopt.onnx.quantization import int4, quant_utils

    floats = {tensor.name: tensor for tensor in onnx.load(source).graph.initializer}
    graph = onnx.load(written).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    kind = onnx.TensorProto.INT4 if name == "int4" else onnx.TensorProto.FLOAT4E2M1
    weights = scales = codes = 0
    for node in graph.node:
        if node.op_type != "DequantizeLinear" or stored.get(node.input[0], onnx.TensorProto()).data_type != kind:
            continue
        # The name of a tensor of codes begins with that of its weight.
        plain = max((one for one in floats if node.input[0].startswith(one)), key=len)
        weight, ours = in_float(floats[plain]), in_float(stored[node.input[0]])
        settings = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        axis, block = settings["axis"] % weight.ndim, settings["block_size"]
        if name == "int4":
            scale = in_float(stored[node.input[1]])
            theirs = quant_utils.find_scales(weight, block, axis, 1.0, False, 4)[0].astype(np.float16)
            same = np.array_equal(theirs.astype(np.float32), scale)
            rounded = np.asarray(int4.rtn(weight, scale, block, axis, None, 4), np.float32)
        else:
            inner = makers[node.input[1]]
            rows, ours = (weight, ours) if axis == 1 else (weight.T, ours.T)
            scale = in_float(stored[inner.input[0]])
            whole = quant_utils.get_weights_scaling_factor_2(rows)
            parts = quant_utils.get_weights_scaling_factor(rows, block, whole)
            parts = parts.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            same = np.array_equal(parts, scale if axis == 1 else scale.T)
            same = same and bool(np.all(whole == in_float(stored[inner.input[1]])))
            rounded = quant_utils.quantize(rows, block, parts, whole)
            rounded = rounded.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
        weights, scales, codes = weights + 1, scales + same, codes + bool(np.array_equal(rounded, ours))
    return weights, scales, codes


def main() -> int:
    """Print a row for each model and format; 1 where a scale or a code differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt")
    parser.add_argument("--beside", nargs=2, help="a file that was written and its format: what that interpreter runs")
    args = parser.parse_args()
    if args.beside:
        print(*beside(args.models[0], Path(args.beside[0]), args.beside[1]))
        return 0
    equal = True
    print("| model | format | weights | scales equal | codes equal |\n|---|---|---|---|---|")
    for model in args.models:
        for name in FORMATS:
            with tempfile.TemporaryDirectory() as folder:
                out = str(Path(folder) / "out.onnx")
                ours = [sys.executable, "-m", "qdqtool", "insert", str(model), "--format", name, "--target", "rtx"]
                subprocess.run([*ours, "-o", out, "-q"], check=True)
                theirs = [str(args.peers_python), __file__, str(model), "--beside", out, name]
                done = subprocess.run(theirs, check=True, capture_output=True, text=True)
            counts = done.stdout.splitlines()[-1].split()
            print(f"| {model.name.partition('.')[0]} | {name} | {' | '.join(counts)} |", flush=True)
            equal = equal and len(set(counts)) == 1 and counts[0] != "0"
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
