# SPDX-License-Identifier: Apache-2.0
"""Models of real size: what `insert --data` costs over plain inference, and what it gives, beside nvidia-modelopt.

A script: python tests/bench/real_models.py FOLDER --photos DIR [--models a,b] [--samples 16] [--peers-python P]
[--json F]. FOLDER holds what export_models.py wrote. Each figure of cost is of a process of its own, on
one thread, imports and all, with bytecode as an installation has it; of plain inference and of the default the median
of three runs, since single ones differ by a tenth. Memory is the peak above that of plain inference, in sizes of the
model. The gates are for the default; `--rest fp16` is shown beside it. SQNR is that of the outputs on held-out samples,
by onnxruntime with its Q/DQ rewrites off; weights are random, so that it ranks ways to quantize one file, and says
nothing of a task. Exit 1 where a model misses a gate.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from cost import Cost, apart, measured, table

PROJECT = Path(__file__).resolve().parents[2]
HELD_OUT = 8
GATE = 4.0  # CPU of the default over plain inference
MEMORY_GATE = 1.5  # peak above that of plain inference, in sizes of the model
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
LIMIT = 3600  # CPU seconds of one run
RUNS = 3
MODELOPT = ("--quantize_mode", "int8", "--high_precision_dtype", "fp32", "--calibration_method", "entropy")
WHO = {
    "qdqtool": "qdqtool",
    "trt11": "qdqtool --trt-version 11.0",
    "typed": "qdqtool --rest fp16 --target rtx",
    "modelopt": "modelopt",
}
TYPED = ("trt11", "typed")  # with FP16, which is no matter of onnxruntime's CPU kernels: cost alone
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
MOVES = (
    "Transpose",
    "Reshape",
    "Cast",
    "Concat",
    "Split",
    "Slice",
    "MaxPool",
    "Resize",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PLAIN = """import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
held = numpy.load(sys.argv[2])
for index in range(len(held["x"])):
    session.run(None, {"x": held["x"][index : index + 1]})
"""


def make_data(model: Path, photos: Path, folder: Path, samples: int) -> None:
    """Write calib.npz and heldout.npz: photographs for images, numbers of tokens, smooth noise for spectra."""
    import numpy as np
    import onnx

    given = onnx.load(model, load_external_data=False).graph.input[0].type.tensor_type
    shape = [dim.dim_value for dim in given.shape.dim]
    draw, count = np.random.default_rng(0), samples + HELD_OUT
    if given.elem_type == onnx.TensorProto.INT64:
        every = draw.integers(5, 250, (count, *shape[1:]))
    elif len(shape) == 4:
        from PIL import Image

        files = sorted(path for path in photos.iterdir() if path.suffix == ".jpg")[:count]
        pictures = [np.asarray(Image.open(path).convert("RGB").resize(shape[:1:-1])) / 255 for path in files]
        scale = (0, 1) if model.name.startswith(("yolo", "rtdetr")) else (MEAN, DEVIATION)
        every = ((np.stack(pictures) - scale[0]) / scale[1]).transpose(0, 3, 1, 2)
    else:
        every = draw.normal(size=(count, *shape[1:])) * draw.uniform(0.3, 1.5, (count, 1, 1))
        every = (every + np.roll(every, 1, -1) + np.roll(every, 2, -1)) / 2
    every = every if every.dtype == np.int64 else every.astype(np.float32)
    np.savez(folder / "calib.npz", x=every[:samples])
    np.savez(folder / "heldout.npz", x=every[samples:])


def as_sets(model: Path, names: list[str]) -> Callable[[list[Any], list[Any]], list[Any]]:
    """What puts the rows that a TopK picked of another model's outputs into the order of the reference's."""
    import onnx

    from qdqtool.graph.view import GraphView
    from qdqtool.simulation.picked_rows import in_order, picked_rows

    picked = picked_rows(GraphView(onnx.load(model, load_external_data=False).graph, model.parent))

    def put(ours: list[Any], theirs: list[Any]) -> list[Any]:
        made = in_order(picked, dict(zip(names, ours, strict=True)), dict(zip(names, theirs, strict=True)))
        return [made[name] for name in names]

    return put


def judge(model: Path, quantized: Path, heldout: Path) -> dict[str, Any]:
    """Pairs on activations, products of two INT8 operands, and the SQNR of the worst and the mean output.

    Rows that a TopK picked are a set: each is held against the nearest one.
    """
    import numpy as np
    import onnx
    import onnxruntime

    def session(path: Path) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    graph = onnx.load(quantized, load_external_data=False).graph
    maker = {name: node for node in graph.node for name in node.output}
    stored = {tensor.name for tensor in graph.initializer} | {
        n.output[0] for n in graph.node if n.op_type == "Constant"
    }

    def dequantized(name: str) -> bool:
        """Whether every way back meets a DequantizeLinear, across what moves or selects values."""
        node = maker.get(name)
        if node is None or node.op_type not in MOVES:
            return node is not None and node.op_type == "DequantizeLinear"
        return all(dequantized(one) for one in (node.input if node.op_type == "Concat" else node.input[:1]))

    pairs = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in stored]
    products = [n for n in graph.node if n.op_type in PRODUCTS and all(dequantized(name) for name in n.input[:2])]
    float_model, int8_model, held = session(model), session(quantized), np.load(heldout)["x"]
    signal: list[float] = [0.0] * len(float_model.get_outputs())
    noise = list(signal)
    put = as_sets(model, [one.name for one in float_model.get_outputs()])
    for index in range(len(held)):
        feed = {"x": held[index : index + 1]}
        exact = float_model.run(None, feed)
        for place, (one, other) in enumerate(zip(exact, put(exact, int8_model.run(None, feed)), strict=True)):
            signal[place] += float(np.square(one, dtype=np.float64).sum())
            noise[place] += float(np.square(one.astype(np.float64) - other).sum())
    sqnr = [float(10 * np.log10(s / n)) if n else 200.0 for s, n in zip(signal, noise, strict=True)]
    return {"pairs": len(pairs), "products": len(products), "sqnr": min(sqnr), "outputs": sqnr}


def commands(model: Path, folder: Path, peers: Path | None) -> dict[str, list[str | Path]]:
    """Who quantizes -> how."""
    ours: list[str | Path] = [sys.executable, "-m", "qdqtool", "insert", model, "--data", folder / "calib.npz"]
    found = {"qdqtool": [*ours, "-o", folder / "qdqtool.onnx"]}
    found["trt11"] = [*ours, "--trt-version", "11.0", "-o", folder / "trt11.onnx"]
    found["typed"] = [*ours, "--rest", "fp16", "--target", "rtx", "-o", folder / "typed.onnx"]
    if peers is not None:
        theirs: list[str | Path] = [peers, "-m", "modelopt.onnx.quantization", *MODELOPT, "--onnx_path", model]
        found["modelopt"] = [*theirs, "--calibration_data_path", folder / "calib.npz"]
        found["modelopt"] += ["--output_path", folder / "modelopt.onnx"]
    return found


def files_of(model: Path) -> list[Path]:
    """The model and its data files."""
    import onnx

    tensors = onnx.load(model, load_external_data=False).graph.initializer
    names = {entry.value for one in tensors for entry in one.external_data if entry.key == "location"}
    return [model, *(model.with_name(name) for name in sorted(names))]


def middle(command: Sequence[str | Path], environment: dict[str, str], runs: int) -> Cost:
    """The cost of a command: of several runs the medians of CPU and of peak memory; of a failed one that run's."""
    costs = [measured(command, environment=environment, limit_seconds=LIMIT) for _ in range(runs)]
    failed = [cost for cost in costs if cost.code != 0]
    if failed:
        return failed[0]
    cpu, peak = median(cost.cpu_seconds for cost in costs), median(cost.peak_mb for cost in costs)
    return replace(costs[0], cpu_seconds=cpu, peak_mb=peak)


def measure(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model."""
    with tempfile.TemporaryDirectory(dir=args.work) as name:
        folder = Path(name)
        apart(make_data, model, args.photos, folder, args.samples)
        files = apart(files_of, model)
        copied = folder / model.name
        for file in files:
            shutil.copyfile(file, folder / file.name)  # data behind links are refused, and modelopt writes to its input
        plain = middle([sys.executable, "-c", PLAIN, model, folder / "calib.npz"], ONE_THREAD, RUNS)
        row: dict[str, Any] = {"model": model.stem, "plain": plain.cpu_seconds, "plain_mb": plain.peak_mb}
        row["model_mb"] = sum(file.stat().st_size for file in files) / 1e6
        environment = {**ONE_THREAD, "PYTHONPATH": str(PROJECT)}
        found = commands(copied, folder, args.peers_python)
        for who, command in ((who, found[who]) for who in args.tools.split(",") if who in found):
            own, runs = (ONE_THREAD if who == "modelopt" else environment), (RUNS if who == "qdqtool" else 1)
            cost = middle(command, own, runs)
            made = folder / f"{who}.onnx"
            row[who] = {"code": cost.code, "cpu": cost.cpu_seconds, "peak_mb": cost.peak_mb, "said": cost.said}
            if made.exists() and cost.code == 0 and who not in TYPED:
                row[who] |= apart(judge, model, made, folder / "heldout.npz")
        return row


def above_plain(row: dict[str, Any], one: dict[str, Any]) -> float:
    """Peak memory above that of plain inference, in sizes of the model."""
    return float((one["peak_mb"] - row["plain_mb"]) / row["model_mb"])


def missed(row: dict[str, Any]) -> list[str]:
    """The gates that a model misses."""
    ours, theirs = row["qdqtool"], row.get("modelopt", {})
    if ours["code"] != 0:
        return [f"exit {ours['code']}"]
    found = [f"more than {GATE:g} times plain"] if ours["cpu"] > GATE * row["plain"] else []
    found += ["memory"] if above_plain(row, ours) > MEMORY_GATE else []
    if theirs.get("code") == 0 and "sqnr" in theirs:
        found += ["slower"] if ours["cpu"] > theirs["cpu"] else []
        found += ["SQNR"] if ours["sqnr"] < theirs["sqnr"] and ours["products"] >= theirs["products"] else []
    return found


def lines(row: dict[str, Any]) -> list[list[str]]:
    """The rows of one model."""
    made = [[row["model"], "plain", "", f"{row['plain']:.1f}", "1.0", f"{row['plain_mb']:.0f}", "", "", "", "", ""]]
    for who in WHO:
        if who not in row:
            continue
        one = row[who]
        figures = [f"{one['cpu']:.1f}", f"{one['cpu'] / row['plain']:.1f}", f"{one['peak_mb']:.0f}"]
        figures.append(f"{above_plain(row, one):.1f}")
        judged = [str(one.get(key, "")) for key in ("pairs", "products")] + [
            f"{one['sqnr']:.1f}" if "sqnr" in one else ""
        ]
        note = ", ".join(missed(row)) if who == "qdqtool" else ("" if one["code"] == 0 else one["said"][:60])
        made.append(["", WHO[who], str(one["code"]), *figures, *judged, note])
    return made


def main() -> int:
    """Measure one model after another, print each, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=Path, required=True, help="folder of .jpg")
    parser.add_argument("--models", help="beginnings of file names; default: all, the smallest files first")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt")
    parser.add_argument("--json", type=Path, help="file that gets a line for each model; those in it are not run again")
    parser.add_argument("--work", type=Path, help="folder for the files of a run; default: the system's")
    parser.add_argument("--tools", default=",".join(WHO), help="who quantizes")
    args = parser.parse_args()
    if args.work is not None:
        args.work.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", PROJECT / "qdqtool"], check=True)
    files = sorted(args.folder.glob("*.onnx"), key=lambda path: path.stat().st_size)
    if args.models:
        files = [path for name in args.models.split(",") for path in files if path.name.startswith(name)]
    known = args.json.read_text().splitlines() if args.json and args.json.exists() else []
    rows = {row["model"]: row for row in map(json.loads, known)}
    for path in files:
        if path.stem not in rows:
            rows[path.stem] = measure(path, args)
            print(table([""] * 11, lines(rows[path.stem])), flush=True)
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps(rows[path.stem]) + "\n")
    head = [
        "model",
        "by",
        "exit",
        "CPU s",
        "/ plain",
        "peak MB",
        "above / model",
        "pairs",
        "INT8 products",
        "SQNR dB",
        "missed",
    ]
    print(table(head, [line for row in rows.values() for line in lines(row)]))
    return int(any(missed(row) for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
