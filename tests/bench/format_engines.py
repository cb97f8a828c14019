# SPDX-License-Identifier: Apache-2.0
"""Products of engines beside what `insert --format F` planned, as TensorRT for RTX builds them. No test.

`python -m tests.bench.format_engines MODEL... [--json F] [--write PAGE]`; MODELs are ONNX files, such as those that
export_models.py writes. QDQTOOL_RTX_PYTHON names the Python with TensorRT for RTX. Each model goes through `insert
--format F --target rtx --rest fp16 --attention int8 --keep-float 0` with two samples of noise, and is built on this CPU
for SM89 (FP8, INT4) and SM120 (FP8, INT4, NVFP4, mixed), never run. `fp16` is the whole model in FP16.

With `--peers-python`, nvidia-modelopt quantizes each model in FP8 and INT4 as well, on the same samples, the rest in
FP16, and `fp8 as modelopt` is what `insert` writes of the same products: it has no more layers, and moves at most 2 %
more bytes. modelopt writes INT4 without samples (`rtn_dq`).

What is planned is read from the file, product by product: the format of the DequantizeLinear on both sides; "INT4" for
a weight alone. What is built is the type of the layer whose metadata names the product. Fused attentions are layers.
Exit 1 where a product has another type than planned, or fewer attentions are fused than in FP16.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.engine.layer_info import EngineLayer
from qdqtool.errors import QdqError
from qdqtool.formats import INT4, format_of_element, number_format
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import DEQUANTIZE
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import is_product, weight_index
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.casts import apply_types
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine
from tests.bench.pages import rewrite

BUILDS = {"89": ("fp16", "fp8", "int4"), "120": ("fp16", "fp8", "int4", "nvfp4", "mixed")}
MOVES = {
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape"),
    *("Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
}
FP4_ACTIVATION = "TRT_FP4DynamicQuantize"
PEERS = tuple(f"{name}|{tool}" for name in ("fp8", "int4") for tool in ("modelopt", "as modelopt"))
PEER_WORDS = {
    name: ("--calibration_method", method, "--high_precision_dtype", "fp16")
    for name, method in (("fp8", "max"), ("int4", "rtn_dq"))
}
MOST_BYTES = 1.02  # beside a peer's
SECONDS = 1800.0  # of one build
HEAD = [
    "model",
    "SM",
    "format",
    "products planned",
    "built",
    "fused attentions",
    "layers",
    "MB moved",
    "other than planned",
]


def noise(model: Path, samples: int = 2) -> dict[str, Any]:
    """Samples of every input; free sides are 1, and integers below 200."""
    draw, made = np.random.default_rng(0), dict[str, Any]()
    proto = open_model(model).proto
    stored = {one.name for one in proto.graph.initializer}
    for one in proto.graph.input:
        if one.name in stored:
            continue
        shape = [side.dim_value or 1 for side in one.type.tensor_type.shape.dim]
        shape[0] = samples
        dtype = onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        values = draw.integers(0, 200, shape) if np.issubdtype(dtype, np.integer) else draw.normal(size=shape)
        made[one.name] = values.astype(dtype)
    return made


def made_as(model: Path, name: str) -> onnx.ModelProto:
    """The model in FP16, or as `insert --format` writes it."""
    if name == "fp16":
        opened = open_model(model)
        return apply_types(Model(opened.proto), TypeAssignment(int(onnx.TensorProto.FLOAT16))).proto
    return written(model, PlanOptions("rtx", format=name, attention="int8"))


def written(model: Path, plan: PlanOptions) -> onnx.ModelProto:
    """The model as `insert` writes it, with two samples of noise."""
    calibration = CalibrationOptions(progress=False)
    options = verbs.InsertOptions(plan=plan, calibration=calibration, keep_float=0, rest="fp16", advise=False)
    return verbs.insert(onnx.load(model), data=noise(model), options=options).model


def peer(model: Path, name: str, python: Path, samples: Mapping[str, Any], words: Sequence[str]) -> onnx.ModelProto:
    """What nvidia-modelopt writes of a model in a format.

    Raises:
        QdqError: it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, data, out = (Path(folder) / one for one in ("in.onnx", "calib.npz", "out.onnx"))
        onnx.save(onnx.load(model), source)
        np.savez(data, **samples)
        files: list[str | Path] = ["--onnx_path", source, "--calibration_data_path", data, "--output_path", out]
        command: list[str | Path] = [
            python,
            "-m",
            "modelopt.onnx.quantization",
            "--quantize_mode",
            name,
            *words,
            *files,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode or not out.exists():
            raise QdqError("modelopt", (done.stderr.strip().splitlines() or ["says nothing"])[-1][:200])
        return onnx.load(out)


def as_peer(model: Path, name: str, theirs: onnx.ModelProto) -> onnx.ModelProto:
    """What `insert` writes with the products in a format that a peer has in it, and no others."""
    title = number_format(name).title
    wanted = {product for product, kind in planned(theirs).items() if kind == title}
    view = open_model(model).view
    products = {node.proto.name: weight_index(view, node) is not None for node in view.every if is_product(node)}
    left = [re.escape(product) for product, weighted in products.items() if weighted and product not in wanted]
    computed = [product in wanted for product, weighted in products.items() if not weighted]
    plan = PlanOptions(
        "rtx",
        format=name,
        attention="int8" if 2 * sum(computed) > len(computed) else "float",
        decoder="int8",
        float_heads="none",
        heads=(f"^(?:{'|'.join(left)})$",) if left else (),
    )
    return written(model, plan)


def planned(proto: onnx.ModelProto) -> dict[str, str]:
    """Product -> the format that its operands have in the file, "" in float."""
    view = GraphView(proto.graph)
    types = {one.name: one.data_type for one in proto.graph.initializer}

    def format_of(name: str) -> str:
        node = view.producers.get(name)
        if node is not None and node.op in MOVES:
            found = {format_of(one) for one in (node.inputs if node.op == "Concat" else node.inputs[:1])}
            return found.pop() if len(found) == 1 else ""
        if node is None or node.op != DEQUANTIZE:
            return ""
        behind = view.producers.get(node.inputs[0])
        if behind is not None and behind.op.endswith(FP4_ACTIVATION):
            return "FP4"
        code = types.get(node.inputs[0], types.get(node.inputs[2] if len(node.inputs) > 2 else "", 0))
        row = format_of_element(code) if code else None
        return "" if row is None else row.title

    found = {}
    for node in view.every:
        if is_product(node) and len(node.inputs) > 1:
            sides = [format_of(name) for name in node.inputs[:2]]
            found[node.proto.name or f"node_of_{node.outputs[0]}"] = (
                sides[0] if sides[0] == sides[1] else INT4.title * (INT4.title in sides)
            )
    return found


def holds_int4(layer: EngineLayer) -> bool:
    """Whether a layer holds a weight of INT4 codes; a product of one row is then one by its weight alone."""
    return any(one.type == INT4.title for one in (*layer.inputs, *layer.constants))


def build(proto: onnx.ModelProto, sm: str) -> dict[str, Any]:
    """What an engine has: products by type, planned and built, fused attentions, layers, bytes."""
    plan = planned(proto)
    engine = build_engine(proto, RtxBuildOptions((sm,), seconds=SECONDS))
    layers = [layer for layer in engine.layers if layer.is_product]
    types = {
        name: INT4.title for layer in engine.layers if holds_int4(layer) for name in layer.metadata if name in plan
    }
    for layer in layers:
        kind = INT4.title if holds_int4(layer) else layer.product_type
        types.update({name: kind for name in layer.metadata if name in plan})
    floats = {"FP16", "FP32", "BF16"}
    wrong = [
        f"{name}: {wanted or 'float'} -> {types.get(name) or 'no product'}"
        for name, wanted in plan.items()
        if (types.get(name, "") != wanted if wanted else types.get(name, "FP16") not in floats)
    ]
    return {
        "planned": dict(Counter(kind or "float" for kind in plan.values())),
        "built": dict(Counter(types.get(name, "none") for name in plan)),
        "fused": dict(Counter(layer.product_type for layer in layers if "_mha" in layer.name)),
        "layers": len([layer for layer in engine.layers if not layer.is_scheduling]),
        "bytes": engine.bytes_moved,
        "wrong": wrong,
        "cpu": engine.cpu_seconds,
    }


def make(model: Path, name: str, files: Mapping[str, onnx.ModelProto | str], python: Path | None) -> onnx.ModelProto:
    """A model in a format, of a peer, or of ours as a peer has it; `files` holds what was made before."""
    form, _, tool = name.rpartition("|")
    if tool == "modelopt":
        assert python is not None
        return peer(model, form, python, noise(model), PEER_WORDS[form])
    if tool == "as modelopt":
        theirs = files[f"{form}|modelopt"]
        if isinstance(theirs, str):
            raise QdqError("modelopt", "gives no set of products")
        return as_peer(model, form, theirs)
    return made_as(model, name)


def measure(model: Path, builds: Mapping[str, Sequence[str]], python: Path | None) -> dict[str, Any]:
    """What was built of a model: a row for each capability and format."""
    rows: dict[str, Any] = {}
    files: dict[str, onnx.ModelProto | str] = {}
    for key in (f"{sm} {name}" for sm, names in builds.items() for name in names):
        sm, _, name = key.partition(" ")
        start = time.process_time()
        try:
            if name not in files:
                files[name] = make(model, name, files, python)
            found = files[name]
            rows[key] = {"said": found} if isinstance(found, str) else build(found, sm)
        except QdqError as error:
            rows[key] = {"said": error.reason}
            files.setdefault(name, error.reason)
        said = {kind: count for kind, count in rows[key].items() if kind not in ("planned", "bytes", "wrong")}
        print(f"{model.name} {key}: {time.process_time() - start:.0f} CPU s {said}", flush=True, file=sys.stderr)
    return rows


def missed(rows: dict[str, Any], key: str) -> list[str]:
    """The gates that an engine misses."""
    row, plain = rows[key], rows.get(f"{key.partition(' ')[0]} fp16", {})
    if "said" in row:
        return []
    fused = [sum(one["fused"].values()) for one in (row, plain) if "fused" in one]
    lost = [f"{fused[0]} of {fused[1]} attentions fused"] if fused[0] < fused[-1] else []
    if key.endswith("|modelopt"):
        return []
    theirs = rows.get(key.replace("|as ", "|"), {}) if "|as " in key else {}
    if "layers" in theirs:
        more, ratio = row["layers"] - theirs["layers"], row["bytes"] / theirs["bytes"]
        lost += [f"{more} more layers than modelopt"] if more > 0 else []
        lost += [f"{ratio:.2f} of modelopt's bytes"] if ratio > MOST_BYTES else []
    return [*lost, *row["wrong"]]


def counted(counts: dict[str, int]) -> str:
    """Counts by type, as text."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "0"


def lines(name: str, rows: dict[str, Any]) -> list[list[str]]:
    """The rows of one model; what is built alike for two capabilities is one."""
    made: dict[str, list[str]] = {}
    for key, row in rows.items():
        sm, _, form = key.replace("|", ", ").partition(" ")
        cells = [form]
        if "said" in row:
            cells += [" ".join(row["said"].split()).partition(" (")[0].partition(":")[0], *[""] * 5]
        else:
            wrong = missed(rows, key)
            text = "; ".join(wrong[:2]) + (f"; {len(wrong) - 2} more" if len(wrong) > 2 else "")
            figures = [counted(row[part]) for part in ("planned", "built", "fused")]
            cells += [*figures, str(row["layers"]), f"{row['bytes'] / 1e6:.2f}", text]
        alike = next((one for one in made.values() if one[2:] == cells), None)
        if alike is None:
            made[key] = [name, sm, *cells]
        else:
            alike[1] += f", {sm}"
    return list(made.values())


def main() -> int:
    """Build one model after another, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--builds", help="such as 89:fp16,fp8;120:mixed")
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt; its files alone are built")
    parser.add_argument("--json", type=Path, help="file that gets a line for each model; those in it are not run again")
    parser.add_argument("--write", type=Path, help="page that gets the table")
    args = parser.parse_args()
    builds: dict[str, Sequence[str]] = {"89": ("fp16", *PEERS)} if args.peers_python else dict(BUILDS)
    if args.builds:
        builds = {sm: names.split(",") for sm, _, names in (one.partition(":") for one in args.builds.split(";"))}
    known = args.json.read_text().splitlines() if args.json and args.json.exists() else []
    every = {found["model"]: found["rows"] for found in map(json.loads, known)}
    for path in args.models:
        name = path.name.partition(".")[0]
        if name not in every:
            every[name] = measure(path, builds, args.peers_python)
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps({"model": name, "rows": every[name]}) + "\n")
    rows = [line for name, found in every.items() for line in lines(name, found)]
    table = [f"| {' | '.join(row)} |" for row in [HEAD, ["---"] * len(HEAD), *rows]]
    print("\n".join(table))
    if args.write:
        rewrite(args.write, Path(__file__).name + " --peers-python" * bool(args.peers_python), table)
    return int(any(missed(rows, key) for rows in every.values() for key in rows))


if __name__ == "__main__":
    sys.exit(main())
