# SPDX-License-Identifier: Apache-2.0
"""Models of real size in FP16 and INT8, by `insert --rest fp16` and nvidia-modelopt, as NVIDIA's compiler builds them.

A script: python tests/bench/real_engines.py FOLDER --photos DIR --work DIR [--peers-python P] [--models a,b]
[--samples 32] [--json F]. FOLDER holds what export_models.py wrote; QDQTOOL_RTX_PYTHON names the Python with TensorRT
for RTX. Counted from the layers of engines for SM89, built on this CPU and never run: products by type, fused
attentions by type, layers, bytes moved. SQNR is of the worst output on held-out samples, by onnxruntime with its Q/DQ
rewrites off; weights are random. `--work` keeps what the tools made, and a run goes on where another was stopped.
`--write PAGE` puts the table there.

- `fp16`: the whole model in FP16.
- `insert`: `insert --target rtx --rest fp16 --data`, all else as it is by default. `--attention auto` chooses with 32
  samples or more.
- `fp16 folded`, `insert folded`: the same with `--fold-constants`; where they are named.
- `modelopt`: INT8 with entropy, the rest in FP16, on the same samples.
- `insert as modelopt`: `insert` with the products in INT8 that modelopt has in INT8 and no others, so that layers are
  compared over the same set; its scales are those of four samples. A product is in INT8 where its engine says so.
  Attentions are INT8, where the rules have them so, if most of modelopt's are, else float. Where the sets differ by
  that, or by other products that no option of ours quantizes, the difference is counted, and layers are compared all
  the same.

Exit 1 where a gate is missed: fewer fused attentions than `fp16`, or more layers in `insert as modelopt` than there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from shutil import copyfile
from typing import Any, Literal

from cost import apart, measured
from pages import rewrite
from real_models import LIMIT, ONE_THREAD, PRODUCTS, as_sets, files_of, make_data

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT)]
TOOLS = "fp16,insert,modelopt,insert as modelopt"
JUDGED = 4  # samples that SQNR is of
SECONDS = 1800.0  # of one build
MODELOPT = ("--quantize_mode", "int8", "--high_precision_dtype", "fp16", "--calibration_method", "entropy")
HEAD = ["model", "tool", "products", "fused attentions", "layers", "MB moved", "SQNR dB", "missed"]


def write_fp16(model: Path, out: Path, *, folded: bool = False) -> None:
    """The whole model in FP16."""
    import onnx

    from qdqtool.graph.model import Model
    from qdqtool.passes.fold_constants import fold_constants
    from qdqtool.precision.assignment import TypeAssignment
    from qdqtool.precision.casts import apply_types

    proto = onnx.load(model)
    if folded:
        fold_constants(Model(proto))
    onnx.save(apply_types(Model(proto), TypeAssignment(int(onnx.TensorProto.FLOAT16))).proto, out)


def write_as(model: Path, data: Path, theirs: list[str], out: Path) -> None:
    """Our model with these products in INT8, and no others."""
    import onnx

    import qdqtool as verbs
    from qdqtool.data.loader import DataOptions
    from qdqtool.graph.view import GraphView
    from qdqtool.graph.weighted import weight_index
    from qdqtool.match.plan import PlanOptions
    from qdqtool.observers.options import CalibrationOptions

    view = GraphView(onnx.load(model).graph)
    weighted = {node.name: weight_index(view, node) is not None for node in view.every if node.op in PRODUCTS}
    left = [name for name, has_weight in weighted.items() if has_weight and name not in theirs]
    heads = (f"^(?:{'|'.join(map(re.escape, left))})$",) if left else ()
    computed = [name in theirs for name, has_weight in weighted.items() if not has_weight]
    attention: Literal["int8", "float"] = "int8" if 2 * sum(computed) > len(computed) else "float"
    options = verbs.InsertOptions(
        plan=PlanOptions("rtx", float_heads="none", heads=heads, attention=attention, decoder="int8"),
        calibration=CalibrationOptions(progress=False, method="max"),
        data_options=DataOptions(limit=JUDGED),
        keep_float=0,
        rest="fp16",
    )
    verbs.insert(model, data=data, options=options, output=out)


def command(tool: str, model: Path, folder: Path, peers: Path | None) -> list[str | Path]:
    """What a tool is called with."""
    if tool in ("insert", "insert folded"):
        more = ["--fold-constants"] if tool == "insert folded" else []
        ours: list[str | Path] = [sys.executable, "-m", "qdqtool", "insert", model, "--data", folder / "calib.npz"]
        return [*ours, "-q", "--target", "rtx", "--rest", "fp16", *more, "-o", folder / f"{tool}.onnx"]
    assert peers is not None
    theirs: list[str | Path] = [peers, "-m", "modelopt.onnx.quantization", *MODELOPT, "--onnx_path", model]
    return [*theirs, "--calibration_data_path", folder / "calib.npz", "--output_path", folder / "modelopt.onnx"]


def make(tool: str, model: Path, folder: Path, args: argparse.Namespace, rows: dict[str, Any]) -> str:
    """Write what a tool makes of a model; the last line that it said where it makes nothing."""
    out = folder / f"{tool}.onnx"
    if out.exists():
        return ""
    if tool in ("fp16", "fp16 folded"):
        apart(write_fp16, model, out, folded=tool == "fp16 folded")
    elif tool == "insert as modelopt":
        if "int8" not in rows.get("modelopt", {}):
            return "no set of modelopt's"
        apart(write_as, model, folder / "calib.npz", rows["modelopt"]["int8"], out)
    elif tool == "modelopt" and args.peers_python is None:
        return "not asked for"
    else:
        copies = [
            folder / f"in.{file.name}" if file == model else folder / file.name for file in apart(files_of, model)
        ]
        for file, copy in zip(apart(files_of, model), copies, strict=True):
            copyfile(file, copy)  # modelopt writes to its input
        own = {**ONE_THREAD, "PYTHONPATH": str(PROJECT)} if tool.startswith("insert") else ONE_THREAD
        cost = measured(command(tool, copies[0], folder, args.peers_python), environment=own, limit_seconds=LIMIT)
        copies[0].unlink()  # its data stay: what is made may point to them
        if cost.code != 0 or not out.exists():
            return f"exit {cost.code}: {cost.said}"[:200]
    return ""


def build(path: Path) -> dict[str, Any]:
    """What the layers of a model's engine are, and the names of its products in INT8."""
    import onnx

    from qdqtool.errors import QdqError
    from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine

    try:
        engine = build_engine(path, RtxBuildOptions(seconds=SECONDS))
    except QdqError as error:  # what the compiler refuses is a row, too
        return {"said": error.reason[:200]}
    nodes = onnx.load(path, load_external_data=False).graph.node
    names = {node.name for node in nodes if node.op_type in (*PRODUCTS, "Einsum")}
    products = [layer for layer in engine.layers if layer.is_product]
    fused = [layer for layer in products if "_mha" in layer.name]
    int8 = {name for layer in products if layer.product_type == "INT8" for name in layer.metadata} & names
    return {
        "products": dict(Counter(layer.product_type for layer in products if layer not in fused)),
        "fused": dict(Counter(layer.product_type for layer in fused)),
        "layers": len(engine.layers),
        "bytes": engine.bytes_moved,
        "int8": sorted(int8),
    }


def decibels(model: Path, made: Path, heldout: Path) -> float:
    """SQNR of the worst output; rows that a TopK picked are a set."""
    import numpy as np
    import onnx
    import onnxruntime

    from qdqtool.graph.model import Model
    from qdqtool.precision.rounded import as_run

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    sessions = [onnxruntime.InferenceSession(model, options)]
    sessions.append(onnxruntime.InferenceSession(as_run(Model(onnx.load(made))).proto.SerializeToString(), options))
    half = sessions[1].get_inputs()[0].type == "tensor(float16)"
    held, count = np.load(heldout)["x"][:JUDGED], len(sessions[0].get_outputs())
    signal, noise = np.zeros(count), np.zeros(count)
    put = as_sets(model, [one.name for one in sessions[0].get_outputs()])
    for index in range(len(held)):
        one = held[index : index + 1]
        exact = sessions[0].run(None, {"x": one})
        shown = put(exact, sessions[1].run(None, {"x": one.astype(np.float16) if half else one}))
        signal += [np.square(value, dtype=np.float64).sum() for value in exact]
        noise += [np.square(a.astype(np.float64) - b).sum() for a, b in zip(exact, shown, strict=True)]
    return float(10 * np.log10(signal / np.maximum(noise, 1e-30)).min())


def size_of(model: Path) -> int:
    """Bytes of a model and its data files."""
    return sum(path.stat().st_size for path in model.parent.glob(f"{model.name}*"))


def measure(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model: tool -> its figures."""
    folder = args.work / model.stem
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "heldout.npz").exists():
        apart(make_data, model, args.photos, folder, args.samples)
    rows: dict[str, Any] = {}
    for tool in args.tools.split(","):
        said = make(tool, model, folder, args, rows)
        if said:
            rows[tool] = {"said": said}
            continue
        rows[tool] = apart(build, folder / f"{tool}.onnx")
        if "layers" in rows[tool] and size_of(model) < args.sqnr_below:
            rows[tool]["sqnr"] = apart(decibels, model, folder / f"{tool}.onnx", folder / "heldout.npz")
    return rows


def missed(rows: dict[str, Any], tool: str) -> list[str]:
    """The gates that a row of ours misses."""
    own, plain, theirs = rows[tool], rows.get("fp16", {}), rows.get("modelopt", {})
    if not tool.startswith("insert") or "layers" not in own:
        return [own["said"]] if "said" in own and tool == "insert" else []
    found = []
    if "layers" in plain and sum(own["fused"].values()) < sum(plain["fused"].values()):
        found.append("fused attentions")
    if tool == "insert as modelopt" and own["layers"] > theirs["layers"]:
        found.append(f"layers +{own['layers'] - theirs['layers']}")
    return found


def lines(name: str, rows: dict[str, Any]) -> list[list[str]]:
    """The rows of one model."""
    made = []
    for tool, own in rows.items():
        if "layers" not in own:
            made.append([name, tool, own["said"], "", "", "", "", "; ".join(missed(rows, tool))])
            continue
        counts = [
            ", ".join(f"{count} {kind}" for kind, count in sorted(own[key].items())) or "0"
            for key in ("products", "fused")
        ]
        figures = [str(own["layers"]), f"{own['bytes'] / 1e6:.1f}", f"{own['sqnr']:.1f}" if "sqnr" in own else ""]
        notes = missed(rows, tool)
        if tool == "insert as modelopt":
            fewer, more = (
                set(rows["modelopt"]["int8"]) - set(own["int8"]),
                set(own["int8"]) - set(rows["modelopt"]["int8"]),
            )
            notes += [f"({len(fewer)} products fewer in INT8)"] if fewer else []
            notes += [f"({len(more)} more)"] if more else []
        made.append([name, tool, *counts, *figures, "; ".join(notes)])
    return made


def table(rows: list[list[str]]) -> str:
    """The rows as Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [HEAD, ["---"] * len(HEAD), *rows])


def main() -> int:
    """Measure one model after another, print each, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=Path, required=True, help="folder of .jpg")
    parser.add_argument("--work", type=Path, required=True, help="keeps what the tools made, and takes it from there")
    parser.add_argument("--models", help="beginnings of file names; default: all, the smallest files first")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt")
    parser.add_argument("--tools", default=TOOLS, help="which files are made and built")
    parser.add_argument("--sqnr-below", type=float, default=1e9, help="bytes; SQNR of smaller models only")
    parser.add_argument("--json", type=Path, help="file that gets a line for each model; those in it are not run again")
    parser.add_argument("--write", type=Path, help="page that gets the table")
    args = parser.parse_args()
    files = sorted(args.folder.glob("*.onnx"), key=size_of)
    if args.models:
        files = [path for name in args.models.split(",") for path in files if path.name.startswith(name)]
    known = args.json.read_text().splitlines() if args.json and args.json.exists() else []
    every = {found["model"]: found["rows"] for found in map(json.loads, known)}
    for path in files:
        if path.stem not in every:
            every[path.stem] = measure(path, args)
            print(table(lines(path.stem, every[path.stem])), flush=True)
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps({"model": path.stem, "rows": every[path.stem]}) + "\n")
    whole = table([line for name, rows in every.items() for line in lines(name.partition(".")[0], rows)])
    print(whole)
    if args.write:
        rewrite(args.write, Path(__file__).name, whole.splitlines())
    return int(any(missed(rows, tool) for rows in every.values() for tool in rows))


if __name__ == "__main__":
    sys.exit(main())
