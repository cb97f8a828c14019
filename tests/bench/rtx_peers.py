# SPDX-License-Identifier: Apache-2.0
"""Q/DQ models of nvidia-modelopt and onnxruntime beside ours, as NVIDIA's compiler builds them on this CPU.

`python -m tests.bench.rtx_peers --peers-python P [--models A,B] [--work DIR]`: each tool gets a copy of a model of the
corpus (QDQTOOL_SHARED) and random samples; where pairs stand depends on no value. Counted from the built engines, for
SM89: products in INT8, layers, layers that only convert, bytes moved. `ours` is `insert --target rtx`; `ours as X` has
the products of X in INT8 and no others, and is compared with X. Exit code 1 where a gate is missed: fewer INT8
products than a peer's although `ours` has no head in float there, or more layers, conversions or bytes on the same
products. Nothing of an engine is run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from qdqtool import verbs
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.tensorrt_rtx.build import build_engine
from qdqtool.tensorrt_rtx.cost import EngineCost, cost_of

MODELS = (
    "yolox_nano_coco,nanodet_m_320_coco,fastestdet_coco,ultraface_rfb320,ppocrv3_det,mlperf_resnet8_fp32,"
    "mobilenetv1_025_128,cifar_resnet20_bn,stm_mbv2_128_flowers,yunet_s_320"
)
SECONDS = 600
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
HEAD = (
    "| model | tool | INT8 products | of | layers | convert only | MB moved | held |\n|---|---|---|---|---|---|---|---|"
)
MODELOPT = ("--quantize_mode", "int8", "--calibration_eps", "cpu", "--high_precision_dtype", "fp32")


def peer_models(name: str, folder: Path, python: Path, source: Path) -> Iterator[tuple[str, Path]]:
    """Each peer's model, made from a copy; a peer that fails is left out with a line."""
    source_copy, samples = folder / "in.onnx", folder / "samples.npz"
    source_copy.write_bytes(source.read_bytes())
    proto = onnx.load(source)
    weights = {one.name for one in proto.graph.initializer}
    rng, inputs = np.random.default_rng(0), {}
    for one in proto.graph.input:
        if one.name not in weights:
            sides = [side.dim_value or (320 if axis else 1) for axis, side in enumerate(one.type.tensor_type.shape.dim)]
            inputs[one.name] = rng.standard_normal(sides, np.float32)
    np.savez(samples, **inputs)
    ort = Path(__file__).with_name("accuracy_peers.py")
    commands: dict[str, list[str | Path]] = {
        "modelopt": ["-m", "modelopt.onnx.quantization", *MODELOPT, "--calibration_method", "max"],
        "onnxruntime": [ort, "onnxruntime", "MinMax", source_copy, samples, folder / "onnxruntime.onnx"],
    }
    commands["modelopt"] += ["--onnx_path", folder / "modelopt_in.onnx", "--calibration_data_path", samples]
    commands["modelopt"] += ["--output_path", folder / "modelopt.onnx"]
    for tool, command in commands.items():
        out = folder / f"{tool}.onnx"
        if not out.exists():
            (folder / "modelopt_in.onnx").write_bytes(source.read_bytes())
            done = subprocess.run([python, *map(str, command)], capture_output=True, text=True, timeout=SECONDS)
            if done.returncode or not out.exists():
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                print(f"{name}: {tool} made no model: {last}", flush=True)
                continue
        yield tool, out


def quantized_products(path: Path) -> set[str]:
    """Names and first outputs of the products whose weight comes out of a DequantizeLinear."""
    graph = onnx.load(path).graph
    dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    found: set[str] = set()
    for node in graph.node:
        if node.op_type in PRODUCTS and set(node.input[:2]) <= dequantized:
            found |= {node.name, node.output[0]} - {""}
    return found


def ours_as(source: Path, out: Path, theirs: set[str]) -> None:
    """Our model with the products of a peer in INT8 and no others."""
    graph = onnx.load(source).graph
    left = [node.name or node.output[0] for node in graph.node if node.op_type in PRODUCTS]
    left = [name for name in left if name not in theirs]
    heads = (f"^(?:{'|'.join(map(re.escape, left))})$",) if left else ()
    options = verbs.InsertOptions(plan=PlanOptions("rtx", float_heads="none", heads=heads))
    verbs.insert(source, options=options, output=out)


def row(model: str, tool: str, cost: EngineCost, held: str) -> str:
    """One line of the table."""
    counts = (cost.products.get("INT8", 0), sum(cost.products.values()), cost.layers, cost.conversions)
    return f"| {model} | {tool} | {' | '.join(map(str, counts))} | {cost.bytes_moved / 1e6:.2f} | {held} |"


def missed(ours: EngineCost, theirs: EngineCost) -> list[str]:
    """What the same products cost more in ours."""
    sides = {
        "products": (theirs.products.get("INT8", 0), ours.products.get("INT8", 0)),
        "layers": (ours.layers, theirs.layers),
        "conversions": (ours.conversions, theirs.conversions),
        "bytes": (ours.bytes_moved, theirs.bytes_moved),
    }
    return [f"{word} {more:,} > {fewer:,}" for word, (more, fewer) in sides.items() if more > fewer]


def compare(name: str, folder: Path, python: Path) -> tuple[list[str], bool]:
    """The rows of one model, and whether every gate held."""
    source = Path(os.environ["QDQTOOL_SHARED"]) / "corpus" / "models" / f"{name}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    made = verbs.insert(source, options=verbs.InsertOptions(plan=PlanOptions("rtx")), output=folder / "ours.onnx")
    mine = cost_of(build_engine(folder / "ours.onnx"))
    floats = len(made.plan.float_nodes)
    rows, held = [row(name, "ours", mine, f"{floats} left in float by rule" if floats else "")], True
    for tool, path in peer_models(name, folder, python, source):
        try:
            theirs = cost_of(build_engine(path))
        except QdqError as error:
            rows.append(f"| {name} | {tool} | {error.reason} | | | | | |")
            continue
        ours_as(source, folder / f"ours_as_{tool}.onnx", quantized_products(path))
        forced = cost_of(build_engine(folder / f"ours_as_{tool}.onnx"))
        faults = missed(forced, theirs)
        fewer = theirs.products.get("INT8", 0) - mine.products.get("INT8", 0) - floats
        faults += [f"{fewer} INT8 products fewer outside float heads"] if fewer > 0 else []
        held = held and not faults
        rows.append(row(name, tool, theirs, ""))
        rows.append(row(name, f"ours as {tool}", forced, "; ".join(faults) or "held"))
    return rows, held


def main() -> int:
    """Compare every model.

    Returns:
        1 where a gate is missed.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--peers-python", type=Path, required=True, help="interpreter with nvidia-modelopt and onnxruntime"
    )
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--work", type=Path, help="keeps what the tools made")
    args = parser.parse_args()
    print(HEAD)
    held = True
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.models.split(","):
            rows, good = compare(name, (args.work or Path(scratch)) / name, args.peers_python)
            print(*rows, sep="\n", flush=True)
            held = held and good
    print("gate: held" if held else "gate: missed")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
