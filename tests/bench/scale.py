# SPDX-License-Identifier: Apache-2.0
"""How insert and lint grow with the nodes of a graph, beside load + save of the same file, in CPU seconds.

    python tests/bench/scale.py [--nodes 10000,50000,100000] [--graphs relu,mixed,sigmoid] [--tools insert,lint]
    python tests/bench/scale.py --entries 500000

A process for each figure, which does a small graph first and counts from there. `growth` is the power of the number of
nodes between two rows: 1 is linear, 2 quadratic. --entries: a cache of so many entries for a graph of 30 nodes, in
`cache check` and `report`, with the bytes of the page. PYTHONPATH names another checkout to measure.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SCRIPT = Path(__file__).resolve()
SMALL = 30


def write_graph(kind: str, nodes: int, path: Path) -> None:
    """A chain, or operators side by side.

    Chains are of Relu; of Add, Relu, Mul, Concat and Slice in turn (mixed); of Conv, Sigmoid, Mul, all with one weight
    (sigmoid); of Conv and Add of the first tensor, which all read (skip); side by side are Conv, all read by one Concat
    (wide) or outputs of the graph (outputs).
    """
    made: list[onnx.NodeProto] = []

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        made.append(helper.make_node(op, inputs, [f"t{len(made)}"], name=f"{op}_{len(made)}", **attributes))
        return str(made[-1].output[0])

    held = {"w": np.ones((4, 4, 1, 1), np.float32), "one": np.ones(1, np.float32)}
    held |= {"start": np.array([0]), "end": np.array([4]), "axis": np.array([1])}
    tensor, before, ends = "x", "x", list[str]()
    while len(made) < nodes:
        if kind == "relu":
            tensor = add("Relu", tensor)
        elif kind == "sigmoid":
            conv = add("Conv", tensor, "w")
            tensor = add("Mul", conv, add("Sigmoid", conv))
        elif kind == "skip":
            tensor = add("Add", add("Conv", tensor, "w"), "x")
        elif kind in ("wide", "outputs"):
            ends.append(add("Relu", add("Conv", "x", "w")))
        else:
            tensor, before = add("Relu", add("Add", tensor, before)), tensor
            tensor = add("Slice", add("Concat", add("Mul", tensor, "one"), tensor, axis=1), "start", "end", "axis")
    if kind == "wide":
        tensor = add("Concat", *ends, axis=2)
    shape = [1, 4, 8, 8]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    names = ends if kind == "outputs" else [tensor]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    graph = helper.make_graph(
        made, "g", inputs, outputs, [numpy_helper.from_array(value, name) for name, value in held.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    scale = {"scale": "3d4ccccd", "value": 0.05, "origin": "ptq"}
    tensors = dict.fromkeys(["x", *(name for node in made for name in node.output)], scale)
    path.with_suffix(".scales.json").write_text(json.dumps({"schema": 1, "tensors": tensors}))


def act(tool: str, path: Path) -> None:
    """Do what is measured."""
    if tool == "load-save":
        path.with_suffix(".out").write_bytes(onnx.load(path).SerializeToString(deterministic=True))
        return
    import qdqtool

    if tool in ("cache check", "report"):
        from qdqtool.cli.main import main as run

        page = path.with_suffix(".html")
        cache = path.with_suffix(".cache")
        words = ["cache", "check", str(cache), str(path)]
        run(words if tool != "report" else ["report", str(path), "--cache", str(cache), "-o", str(page), "--no-parser"])
        return
    if tool == "lint":
        qdqtool.lint(path)
        return
    table = qdqtool.load_table(path.with_suffix(".scales.json"))
    options = qdqtool.InsertOptions(allow_empty=True)
    qdqtool.insert(path, scales=table, options=options, output=path.with_suffix(".qdq.onnx"))


def seconds_of(tool: str, path: Path, small: Path) -> float:
    """CPU seconds, in a process of its own."""
    words = [sys.executable, str(SCRIPT), "--child", tool, str(path), str(small)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    """Measure, and print a row for each graph and size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", default="10000,50000,100000")
    parser.add_argument("--graphs", default="relu,mixed,sigmoid")
    parser.add_argument("--tools", default="insert,lint")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--entries", type=int, help="of a cache, in place of graphs")
    args = parser.parse_args()
    if args.child:
        tool, path, small = args.child
        act(tool, Path(small))
        begun = time.process_time()
        act(tool, Path(path))
        print(time.process_time() - begun)
        return
    if args.entries:
        with tempfile.TemporaryDirectory() as folder:
            small, large = Path(folder, "small.onnx"), Path(folder, "large.onnx")
            for path, entries in ((small, SMALL), (large, args.entries)):
                write_graph("relu", SMALL, path)
                lines = "".join(f"t{number}: 3d4ccccd\n" for number in range(entries))
                path.with_suffix(".cache").write_text(f"TRT-8502-EntropyCalibration2\n{lines}")
            for tool in ("cache check", "report"):
                print(f"{tool}, {args.entries:,} entries: {seconds_of(tool, large, small):.1f} CPU s")
            print(f"page: {large.with_suffix('.html').stat().st_size / 1e6:.2f} MB")
        return
    print("| graph | nodes | load + save | tool | CPU s | times load + save | growth |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.graphs.split(","):
            small, last = Path(folder, "small.onnx"), dict[str, tuple[int, float]]()
            write_graph(kind, SMALL, small)
            for nodes in map(int, args.nodes.split(",")):
                path = Path(folder, f"{kind}{nodes}.onnx")
                write_graph(kind, nodes, path)
                floor = seconds_of("load-save", path, small)
                for tool in args.tools.split(","):
                    spent = seconds_of(tool, path, small)
                    before, was = last.get(tool, (0, 0.0))
                    growth = f"{math.log(spent / was) / math.log(nodes / before):.2f}" if before else ""
                    last[tool] = (nodes, spent)
                    print(
                        f"| {kind} | {nodes} | {floor:.2f} | {tool} | {spent:.2f} | {spent / floor:.1f} | {growth} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
