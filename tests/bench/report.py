# SPDX-License-Identifier: Apache-2.0
"""What a report costs for large graphs: CPU seconds, megabytes of the file, and what a browser takes to show it.

A script, not a test: see README.md here. A residual network of N nodes with Q/DQ is made and reported, without data and
without NVIDIA's parser, each in a process of its own. The smallest
model takes as long as the start, which is told apart.
`--layout` measures libraries for layered layouts beside our own, where they are installed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NODES = (100, 2000, 10000)
_BLOCK = 7  # Conv, BatchNormalization, Relu, Conv, BatchNormalization, Add, Relu


def residual_net(nodes: int, channels: int = 8) -> onnx.ModelProto:
    """Blocks of seven nodes with a skip around each; the weights are seeded."""
    rng = np.random.default_rng(7)
    made, constants, last = [], [], "x"

    def constant(name: str, shape: tuple[int, ...], low: float, high: float) -> str:
        constants.append(numpy_helper.from_array(rng.uniform(low, high, shape).astype(np.float32), name))
        return name

    def node(op: str, inputs: list[str], output: str, **more: object) -> str:
        made.append(helper.make_node(op, inputs, [output], name=output, **more))
        return output

    for block in range(nodes // _BLOCK):
        skip = last
        for half in range(2):
            tag = f"layer{block}.conv{half}"
            weight = constant(f"{tag}.weight", (channels, channels, 3, 3), -0.1, 0.1)
            last = node("Conv", [last, weight], tag, pads=[1, 1, 1, 1])
            scale = [constant(f"{tag}.bn.{part}", (channels,), 0.5, 1.5) for part in ("scale", "b", "mean", "var")]
            last = node("BatchNormalization", [last, *scale], f"{tag}.bn")
            last = node("Relu", [last], f"{tag}.relu") if not half else node("Add", [last, skip], f"layer{block}.add")
        last = node("Relu", [last], f"layer{block}.relu")
    shape = [1, channels, 32, 32]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", last)]
    graph = helper.make_graph(made, "net", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reported(folder: Path, nodes: int) -> tuple[float, float, int]:
    """CPU seconds of the report, peak MiB, bytes of the file."""
    plain, model, page = folder / f"{nodes}.onnx", folder / f"{nodes}.qdq.onnx", folder / f"{nodes}.html"
    plain.write_bytes(residual_net(nodes).SerializeToString())
    run = [sys.executable, "-m", "qdqtool"]
    subprocess.run([*run, "insert", str(plain), "-o", str(model), "-q"], check=True, stderr=subprocess.DEVNULL)
    words = [*run, "report", str(model), "--no-parser", "-o", str(page), "-q"]
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime, u.ru_maxrss / 1024)"
    )
    out = subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True).stdout
    seconds, peak = map(float, out.split())
    return seconds, peak, page.stat().st_size


def shown(page: Path, browser: str) -> float:
    """Wall seconds until a headless browser has drawn the page and dumped it."""
    start = time.perf_counter()
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{page}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def layouts(nodes: int) -> dict[str, float | str]:
    """CPU seconds of each layout on the net's edges; the reason where one is missing or fails."""
    edges = []
    for start in range(0, nodes - _BLOCK, _BLOCK):
        edges += [(start + step, start + step + 1) for step in range(_BLOCK)]
        edges.append((start, start + _BLOCK - 1))
    ways: dict[str, Callable[[list[tuple[int, int]]], object]] = {
        "qdqtool": _by_lanes,
        "fast-sugiyama": _by_fast_sugiyama,
        "grandalf": _by_grandalf,
        "pyelk": _by_pyelk,
    }
    found: dict[str, float | str] = {}
    for name, way in ways.items():
        start_seconds = time.process_time()
        try:
            way(edges)
        except (ImportError, RecursionError) as error:
            found[name] = type(error).__name__
        else:
            found[name] = round(time.process_time() - start_seconds, 2)
    return found


def _by_lanes(edges: list[tuple[int, int]]) -> object:
    from qdqtool.reporting.lanes import place

    return place([30] * (1 + max(target for _, target in edges)), edges)


def _by_fast_sugiyama(edges: list[tuple[int, int]]) -> object:
    from fast_sugiyama import from_edges

    return from_edges(edges).to_dict()


def _by_grandalf(edges: list[tuple[int, int]]) -> object:
    from grandalf.graphs import Edge, Graph, Vertex
    from grandalf.layouts import SugiyamaLayout

    boxes = [Vertex(number) for number in range(1 + max(target for _, target in edges))]
    for one in boxes:
        one.view = type("Size", (), {"w": 10, "h": 10, "xy": (0, 0)})()
    layout = SugiyamaLayout(Graph(boxes, [Edge(boxes[a], boxes[b]) for a, b in edges]).C[0])
    layout.init_all()
    layout.draw(3)
    return layout


def _by_pyelk(edges: list[tuple[int, int]]) -> object:
    import pyelk

    children = [{"id": str(number), "width": 10, "height": 10} for number in range(1 + max(b for _, b in edges))]
    lines = [{"id": f"e{n}", "sources": [str(a)], "targets": [str(b)]} for n, (a, b) in enumerate(edges)]
    options = {"elk.algorithm": "layered", "elk.direction": "DOWN"}
    return pyelk.ELK().layout({"id": "root", "layoutOptions": options, "children": children, "edges": lines})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--browser", help="a Chromium, to time the page in it")
    parser.add_argument("--layout", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        floor = reported(folder, 2 * _BLOCK)[0]
        for nodes in args.nodes:
            seconds, peak, size = reported(folder, nodes)
            line = f"{nodes} nodes: {seconds:.2f} CPU s ({seconds - floor:.2f} without the start), {peak:.0f} MiB"
            line += f", {size / 1e6:.2f} MB"
            if args.browser:
                line += f", shown in {shown(folder / f'{nodes}.html', args.browser):.1f} s"
            print(line, flush=True)
    for nodes in args.nodes if args.layout else ():
        print(f"layout of {nodes} nodes, CPU s: {layouts(nodes)}", flush=True)
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
