# SPDX-License-Identifier: Apache-2.0
"""Transformers in FP16, by `insert --rest fp16` and by nvidia-modelopt, as NVIDIA's compiler builds them on this CPU.

`python -m tests.bench.attention_peers --torch-python T --peers-python P [--models A,B] [--tools A,B] [--layers N]
[--work DIR]`: random weights (attention_exports.py), four random samples to calibrate, four others to judge. Counted
from the built engines, for SM89: products by type, fused attentions by type, layers, bytes; and SQNR of the output
beside FP32. Exit code 1 where ours has fewer fused attentions than FP16. Nothing of an engine is run. `--layers 0` is
the whole model; `--work` keeps what the tools made, so that a run goes on where one was stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.casts import apply_types
from qdqtool.precision.rounded import as_run
from qdqtool.tensorrt_rtx.build import BuiltEngine, build_engine

MODELS = "vit_b,deit_s,swin_t,bert_base,bert_base_sdpa,whisper_base,dinov2_s"
TOOLS = "fp16,attention-float,attention-int8,attention-auto,modelopt"
SAMPLES, SECONDS = 4, 3000
HEAD = "| model | tool | products | fused attentions | layers | MB moved | SQNR dB |\n|---|---|---|---|---|---|---|"
MODELOPT = ("--quantize_mode", "int8", "--calibration_eps", "cpu", "--high_precision_dtype", "fp16")
EXPORTS = Path(__file__).with_name("attention_exports.py")


def samples(proto: onnx.ModelProto, first: int) -> list[dict[str, Any]]:
    """Seeded samples: normal numbers, words below 30000, masks of ones."""
    found = []
    for seed in range(first, first + SAMPLES):
        draw, batch = np.random.default_rng(seed), {}
        for one in proto.graph.input:
            shape = [side.dim_value for side in one.type.tensor_type.shape.dim]
            if one.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                batch[one.name] = draw.standard_normal(shape).astype(np.float32)
            else:
                top = 2 if "mask" in one.name else 30000
                batch[one.name] = draw.integers(1, top, shape)
        found.append(batch)
    return found


def run(proto: onnx.ModelProto, batches: list[dict[str, Any]]) -> list[Any]:
    """The first output of each sample in onnxruntime, Q/DQ computed as they stand."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    types = {one.name: np.float16 if one.type == "tensor(float16)" else None for one in session.get_inputs()}
    cast = [{name: value.astype(types[name] or value.dtype) for name, value in batch.items()} for batch in batches]
    return [session.run(None, batch)[0].astype(np.float32) for batch in cast]


def decibels(exact: list[Any], shown: list[Any]) -> float:
    """Signal over error in decibels, over all values of all samples."""
    lost = sum(float(np.square(one - other).sum()) for one, other in zip(exact, shown, strict=True))
    return float(10 * np.log10(sum(float(np.square(one).sum()) for one in exact) / max(lost, 1e-30)))


def half(plain: onnx.ModelProto) -> onnx.ModelProto:
    """The whole model in FP16."""
    copy = onnx.ModelProto()
    copy.CopyFrom(plain)
    return apply_types(copy, TypeAssignment(int(onnx.TensorProto.FLOAT16)), None)


def ours(plain: onnx.ModelProto, attention: Literal["auto", "int8", "float"]) -> onnx.ModelProto:
    """What `insert --rest fp16` makes of a model."""
    keep: Literal["auto", 0] = "auto" if attention == "auto" else 0
    options = verbs.InsertOptions(
        plan=PlanOptions("rtx", float_heads="none", attention=attention),
        calibration=CalibrationOptions(progress=False),
        keep_float=keep,
        rest="fp16",
    )
    made: onnx.ModelProto = verbs.insert(plain, data=samples(plain, 0), options=options).model
    return made


def modelopt(source: Path, out: Path, peers: Path) -> None:
    """What nvidia-modelopt makes of a file; says so where it makes none."""
    plain, data, copy = onnx.load(source), out.with_suffix(".npz"), out.with_name("copy.onnx")
    batches = samples(plain, 0)
    np.savez(data, **{name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]})
    copy.write_bytes(source.read_bytes())
    words = ["-m", "modelopt.onnx.quantization", *MODELOPT, "--onnx_path", copy]
    words += ["--calibration_data_path", data, "--output_path", out]
    done = subprocess.run([peers, *map(str, words)], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode or not out.exists():
        print(f"modelopt made no model: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", flush=True)


def made_by(tool: str, source: Path, peers: Path | None) -> onnx.ModelProto | None:
    """The file that a tool makes of another, made where it is not there yet; None where it makes none."""
    out = source.with_name(f"{tool}.onnx")
    if not out.exists():
        if tool == "modelopt":
            if peers is not None:
                modelopt(source, out, peers)
        else:
            plain = onnx.load(source)
            made = half(plain) if tool == "fp16" else ours(plain, tool.removeprefix("attention-"))  # type: ignore[arg-type]
            out.write_bytes(made.SerializeToString())
    return onnx.load(out) if out.exists() else None


def row(model: str, tool: str, engine: BuiltEngine, decibel: float) -> tuple[str, int]:
    """One line of the table, and how many attentions are one kernel."""
    products = [layer for layer in engine.layers if layer.is_product]
    fused = Counter(layer.product_type for layer in products if "_mha" in layer.name)
    others = Counter(layer.product_type for layer in products if "_mha" not in layer.name)
    cells = [
        ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "0" for counts in (others, fused)
    ]
    moved = (engine.bytes_moved or 0) / 1e6
    text = f"| {model} | {tool} | {' | '.join(cells)} | {len(engine.layers)} | {moved:.1f} | {decibel:.1f} |"
    return text, sum(fused.values())


def compare(name: str, source: Path, tools: list[str], peers: Path | None) -> tuple[list[str], bool]:
    """The rows of one model, and whether the gate held."""
    judged = samples(onnx.load(source), SAMPLES)
    exact = run(onnx.load(source), judged)
    rows, fused = [], {}
    for tool in tools:
        proto = made_by(tool, source, peers)
        if proto is None:
            continue
        try:
            engine = build_engine(proto)
        except QdqError as error:
            rows.append(f"| {name} | {tool} | {error.reason[:120]} | | | | |")
            continue
        text, fused[tool] = row(name, tool, engine, decibels(exact, run(as_run(proto), judged)))
        rows.append(text)
    return rows, all(count >= fused.get("fp16", 0) for tool, count in fused.items() if tool.startswith("attention"))


def main() -> int:
    """Compare every model; 1 where the gate is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--torch-python", type=Path, required=True, help="interpreter with torch and transformers")
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--tools", default=TOOLS, help="which files are made and built")
    parser.add_argument("--layers", type=int, default=2, help="layers of the same form; 0: all")
    parser.add_argument("--work", type=Path, help="keeps what the tools made, and takes it from there")
    args = parser.parse_args()
    print(HEAD)
    held = True
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.models.split(","):
            source = (args.work or Path(scratch)) / f"{name}_{args.layers}" / "model.onnx"
            source.parent.mkdir(parents=True, exist_ok=True)
            if not source.exists():
                words = [args.torch_python, EXPORTS, name, args.layers, source]
                subprocess.run(list(map(str, words)), check=True, capture_output=True)
            rows, good = compare(name, source, args.tools.split(","), args.peers_python)
            print(*rows, sep="\n", flush=True)
            held = held and good
    print("gate: held" if held else "gate: missed")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
