# SPDX-License-Identifier: Apache-2.0
"""Q/DQ models of nvidia-modelopt and onnxruntime beside ours, as NVIDIA's compiler builds them on this CPU.

`python -m tests.bench.rtx_peers --peers-python P [--models A,B] [--work DIR]`: each tool gets a copy of a model of the
corpus (QDQTOOL_SHARED) and random samples; where pairs stand depends on no value. Counted from the built engines, for
SM89: products in INT8, layers, layers that only convert, bytes moved. `ours` is `insert --target rtx`; `ours as X` has
the products of X in INT8 and no others; behind the last of them it rounds what X rounds, such as outputs of heads, with
the scales of X, and is compared with X. Exit code 1 where a gate is missed: fewer INT8 products than a peer's although
`ours` has no head in float there, or more layers, conversions or bytes on the same products. Nothing of an engine is
run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.tensorrt_rtx.build import build_engine
from qdqtool.tensorrt_rtx.cost import EngineCost, cost_of
from tests.bench.shared_material import SHARED

MODELS = (
    "yolox_nano_coco,nanodet_m_320_coco,fastestdet_coco,ultraface_rfb320,ppocrv3_det,mlperf_resnet8_fp32,"
    "mobilenetv1_025_128,cifar_resnet20_bn,stm_mbv2_128_flowers,yunet_s_320"
)
SECONDS = 600
OUTPUT = -1  # in place of the number of an input
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


def ours_as(source: Path, out: Path, peer: Path) -> None:
    """Our model with the products of a peer in INT8 and no others, and what it rounds behind the last of them."""
    graph, theirs = onnx.load(source).graph, quantized_products(peer)
    left = [node.name or node.output[0] for node in graph.node if node.op_type in PRODUCTS]
    left = [name for name in left if name not in theirs]
    heads = (f"^(?:{'|'.join(map(re.escape, left))})$",) if left else ()
    options = verbs.InsertOptions(plan=PlanOptions("rtx", float_heads="none", heads=heads))
    made = verbs.insert(onnx.load(source), options=options).model
    onnx.save(round_behind(made, theirs, rounded_reads(peer)), out)


def rounded_reads(path: Path) -> dict[tuple[str, int], np.ndarray]:
    """Node (name, or first output) and input that a peer reads through a pair, or output of the graph -> the scale."""
    graph = onnx.load(path).graph
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    quantized = {node.output[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    scales = {
        node.output[0]: arrays[node.input[1]]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in quantized and node.input[1] in arrays
    }
    found: dict[tuple[str, int], np.ndarray] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in scales and not node.op_type.endswith("quantizeLinear"):
                found |= {(key, index): scales[name] for key in {node.name, node.output[0]} - {""}}
    return found | {(one.name, OUTPUT): scales[one.name] for one in graph.output if one.name in scales}


def round_behind(model: onnx.ModelProto, theirs: set[str], reads: dict[tuple[str, int], np.ndarray]) -> onnx.ModelProto:
    """Pairs on the places that a peer rounds and from which no product in INT8 is reached."""
    graph = model.graph
    behind = _leads_to_none(graph, theirs)
    sources = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    made = {node.output[0]: sources.get(node.input[0]) for node in graph.node if node.op_type == "DequantizeLinear"}
    pairs = {source: name for name, source in made.items() if source}
    for node in [one for one in graph.node if not {one.name, *one.output} & theirs]:
        for index, name in enumerate(node.input):
            scale = reads.get((node.name, index), reads.get((node.output[0], index)))
            if scale is not None and scale.ndim == 0 and name not in made and set(node.output) <= behind:
                node.input[index] = _pair(graph, name, scale, pairs, before=node)
    for output in list(graph.output):
        scale = reads.get((output.name, OUTPUT))
        if scale is not None and output.name not in made:
            inner = f"{output.name}_before_rounding"
            for node in graph.node:
                node.input[:] = [inner if name == output.name else name for name in node.input]
                node.output[:] = [inner if name == output.name else name for name in node.output]
            _pair(graph, inner, scale, pairs, output=output.name)
    return model


def _leads_to_none(graph: onnx.GraphProto, theirs: set[str]) -> set[str]:
    """Tensors from which no product of the peer is reached."""
    leads: set[str] = set()
    for node in reversed(graph.node):
        if {node.name, *node.output} & theirs or leads & set(node.output):
            leads |= set(node.input)
    return {name for node in graph.node for name in node.output} - leads


def _pair(
    graph: onnx.GraphProto,
    name: str,
    scale: np.ndarray,
    pairs: dict[str, str],
    *,
    before: onnx.NodeProto | None = None,
    output: str = "",
) -> str:
    """The output of a pair on a tensor, which is put before a node, or at the end."""
    if name not in pairs:
        end = output or f"{name}_rounded"
        inside, step, zero = (f"{end}_{word}" for word in ("quantized", "step", "zero"))
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(scale, np.float32), step))
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(0, np.int8), zero))
        pair = [
            onnx.helper.make_node("QuantizeLinear", [name, step, zero], [inside], inside),
            onnx.helper.make_node("DequantizeLinear", [inside, step, zero], [end], f"{end}_dequantized"),
        ]
        place = len(graph.node) if before is None else list(graph.node).index(before)
        for node in reversed(pair):
            graph.node.insert(place, node)
        pairs[name] = end
    return pairs[name]


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
    source = SHARED / "corpus" / "models" / f"{name}.onnx"
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
        ours_as(source, folder / f"ours_as_{tool}.onnx", path)
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
