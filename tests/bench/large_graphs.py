# SPDX-License-Identifier: Apache-2.0
"""Inserting Q/DQ into large graphs beside load + save, onnx-graphsurgeon and onnxruntime: CPU, memory, slope.

A script, not a test: see README.md here. Each figure is of a process of its own. `net` leaves out the start-up: the
process does the tiny model first, which imports what the tool needs, and counts its CPU seconds from there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cost import Cost, apart, measured, table
from large_models import BIG_WEIGHTS, INSIDE_WEIGHTS, make_external, make_graph

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).resolve()
TINY = 42
ANONYMOUS_LIMIT_MB = 200
WHERE = {"external": "beside the model", "inside": "in the model"}
ENOUGH_SECONDS, ENOUGH_RUNS = 3.0, 9  # a short run is repeated until one of the two is reached


# The tools, each run as `python large_graphs.py VERB MODEL OUT` in a process of its own.


def load_and_save(model: Path, out: Path) -> None:
    """The floor under every tool: parse, serialize deterministically, write. No node becomes a Python object."""
    import onnx

    proto = onnx.load(str(model), load_external_data=False)
    out.write_bytes(proto.SerializeToString(deterministic=True))


def load_and_save_by_onnx(model: Path, out: Path) -> None:
    """`onnx.load` and `onnx.save` as most people call them: both walk all nodes in search of external data."""
    import onnx

    onnx.save(onnx.load(str(model)), str(out))


def insert_with_graphsurgeon(model: Path, out: Path) -> None:
    """Q/DQ on the input and the weight of every Conv with onnx-graphsurgeon: scales from the table, one list rebuild.

    A tensor that several nodes read has one pair; the residual Add reads the pair of the skip, as TensorRT wants it.
    """
    import numpy as np
    import onnx
    import onnx_graphsurgeon as gs

    tensors = json.loads(model.with_suffix(".scales.json").read_text())["tensors"]
    graph = gs.import_onnx(onnx.load(str(model)))
    zero = gs.Constant("zero", np.zeros((), np.int8))
    pairs: dict[str, Any] = {}
    nodes: list[Any] = []

    def pair(tensor: Any, scale: Any, zero: Any, **attributes: int) -> Any:
        if tensor.name not in pairs:
            step = gs.Constant(f"{tensor.name}_scale", scale)
            small, wide = gs.Variable(f"{tensor.name}_Q", np.int8), gs.Variable(f"{tensor.name}_DQ", np.float32)
            nodes.append(gs.Node("QuantizeLinear", small.name, attributes, [tensor, step, zero], [small]))
            nodes.append(gs.Node("DequantizeLinear", wide.name, attributes, [small, step, zero], [wide]))
            pairs[tensor.name] = wide
        return pairs[tensor.name]

    def scale_of(tensor: Any) -> Any:
        return np.array(int(tensors[tensor.name]["scale"], 16), np.uint32).view(np.float32)

    for node in graph.nodes:
        if node.op == "Conv":
            values = node.inputs[1].values
            steps = (np.abs(values).reshape(len(values), -1).max(axis=1) / 127).astype(np.float32)
            zeros = gs.Constant(f"{node.inputs[1].name}_zero", np.zeros(len(values), np.int8))
            node.inputs[0] = pair(node.inputs[0], scale_of(node.inputs[0]), zero)
            node.inputs[1] = pair(node.inputs[1], steps, zeros, axis=0)
        elif node.op == "Add" and node.inputs[1].name in pairs:
            node.inputs[1] = pairs[node.inputs[1].name]
        nodes.append(node)
    graph.nodes = nodes
    onnx.save(gs.export_onnx(graph), str(out))


def quantize_with_onnxruntime(model: Path, out: Path) -> None:
    """`quantize_static` of the Conv nodes with one sample of ones: its graph editing is what is timed."""
    import numpy as np
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    dims = onnx.load(str(model)).graph.input[0].type.tensor_type.shape.dim
    samples = iter([{"input": np.ones([dim.dim_value for dim in dims], np.float32)}])

    class LargeGraphReader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(samples, None)

    options = {"ActivationSymmetric": True, "AddQDQPairToWeight": True, "QuantizeBias": False}
    kinds = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "op_types_to_quantize": ["Conv"]}
    quantize_static(
        model, out, LargeGraphReader(), quant_format=QuantFormat.QDQ, per_channel=True, extra_options=options, **kinds
    )


def insert_with_qdqtool(model: Path, out: Path) -> None:
    """`qdqtool insert --scales`, by the function after the command line."""
    from qdqtool.cli.main import main as qdqtool

    scales = model.with_suffix(".scales.json")
    code = qdqtool(["insert", str(model), "--scales", str(scales), "-o", str(out)])
    if code:
        sys.exit(code)


def count_quantizers(model: Path) -> int:
    """How many QuantizeLinear a model holds."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    return sum(node.op_type == "QuantizeLinear" for node in graph.node)


WORKERS = {
    "load-save": load_and_save,
    "onnx-load-save": load_and_save_by_onnx,
    "qdqtool": insert_with_qdqtool,
    "graphsurgeon": insert_with_graphsurgeon,
    "onnxruntime": quantize_with_onnxruntime,
}
FLOORS = ("load-save", "onnx-load-save")
TOOLS = tuple(WORKERS)


def work(tool: str, tiny: Path, model: Path, out: Path) -> None:
    """Run a tool on the tiny model and then on the real one; the last line printed is the CPU seconds of the second."""
    WORKERS[tool](tiny, out.with_suffix(".tiny.onnx"))
    start = time.process_time()
    WORKERS[tool](model, out)
    print(f"\nnet {time.process_time() - start:.4f}")


@dataclass(frozen=True)
class GraphTiming:
    """One tool on one model: what it cost, and the pairs it placed, None where it made no model."""

    tool: str
    nodes: int
    cost: Cost
    pairs: int | None

    @property
    def net(self) -> float:
        """CPU seconds without the start-up, nan where no model is given."""
        return float(self.cost.said.removeprefix("net ")) if self.pairs is not None else math.nan

    @property
    def end(self) -> str:
        """The number of pairs, or how the run ended without a model."""
        if self.pairs is not None:
            return str(self.pairs)
        return f"no end in {self.cost.cpu_seconds:.0f} s" if self.cost.code is None else f"exit {self.cost.code}"


@dataclass(frozen=True)
class LargeGraphBench:
    """Where the models lie, how often and for how long each tool may run."""

    work: Path
    qdqtool: Path
    limit: int
    repeats: int
    channels: int

    def model(self, nodes: int) -> Path:
        """Where the chain of this many nodes lies."""
        return self.work / f"chain{nodes}.onnx"

    def cheapest(self, tool: str, nodes: int) -> Cost:
        """The run with the fewest CPU seconds: `repeats` runs, more of short ones; a failure ends them."""
        python = self.qdqtool if tool == "qdqtool" else Path(sys.executable)
        files = [self.model(TINY), self.model(nodes), self.work / f"{tool}{nodes}.onnx"]
        line: list[str | Path] = [python, SCRIPT, tool, *files]
        costs: list[Cost] = []
        while not costs or self._again(costs):
            costs.append(measured(line, limit_seconds=self.limit, environment=project_on_path()))
            if costs[-1].code != 0:
                return costs[-1]
        return min(costs, key=lambda cost: cost.cpu_seconds)

    def _again(self, costs: Sequence[Cost]) -> bool:
        short = sum(cost.cpu_seconds for cost in costs) < ENOUGH_SECONDS and len(costs) < ENOUGH_RUNS
        return len(costs) < self.repeats or short

    def timings(self, tools: Sequence[str], sizes: Sequence[int]) -> Iterator[GraphTiming]:
        """Every tool on the tiny model and then on growing sizes, until one has no end."""
        for nodes in (TINY, *sizes):
            apart(make_graph, self.model(nodes), nodes, self.channels)
        for tool in tools:
            for nodes in sizes:
                print(f"{tool}, {nodes} nodes ...", file=sys.stderr)
                cost = self.cheapest(tool, nodes)
                pairs = apart(count_quantizers, self.work / f"{tool}{nodes}.onnx") if cost.code == 0 else None
                yield GraphTiming(tool, nodes, cost, pairs)
                if cost.code is None:
                    break

    def weights(self, part: str) -> tuple[str, Cost]:
        """`qdqtool insert` on gigabytes of weights: a line with its peak of anonymous memory, and the cost.

        Args:
            part: "external", where they lie beside the model, or "inside".
        """
        model, out = self.work / f"{part}.onnx", self.work / f"{part}.q.onnx"
        print(f"writing the model of {part} ...", file=sys.stderr)
        apart(make_external, model, inside=part == "inside")
        before = sum(file.stat().st_size for file in self.work.iterdir())
        scales = model.with_suffix(".scales.json")
        line: list[str | Path] = [self.qdqtool, "-m", "qdqtool", "insert", model, "--scales", scales, "-o", out]
        cost = measured(line, limit_seconds=self.limit, anonymous=True, environment=project_on_path())
        if cost.code != 0:
            return f"weights {WHERE[part]}: no model, exit {cost.code}: {cost.tail}", cost
        written = sum(file.stat().st_size for file in self.work.iterdir()) - before
        verdict = "held" if cost.anonymous_mb < ANONYMOUS_LIMIT_MB else "MISSED"
        count, data = (INSIDE_WEIGHTS, model) if part == "inside" else (BIG_WEIGHTS, model.with_suffix(".bin"))
        return (
            f"weights {WHERE[part]}: {data.stat().st_size / 1e9:.2f} GB in {count}, "
            f"{apart(count_quantizers, out)} Q: {cost.anonymous_mb:.0f} MB anonymous at most "
            f"(limit {ANONYMOUS_LIMIT_MB}: {verdict}), {cost.peak_mb:.0f} MB with mapped pages, "
            f"{cost.cpu_seconds:.1f} CPU s, {cost.wall_seconds:.1f} s, {written / 1e6:.1f} MB written"
        ), cost


def project_on_path() -> dict[str, str]:
    """PYTHONPATH with the source tree first, so that the tree is what is measured."""
    return {"PYTHONPATH": f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def rows(timings: Sequence[GraphTiming]) -> Iterator[list[str]]:
    """The table's lines: the ratios are net CPU seconds to each way of load + save at the same size."""
    net = {(t.tool, t.nodes): t.net for t in timings}
    for t in timings:
        made = t.pairs is not None
        cost = [f"{t.cost.cpu_seconds:.2f}", f"{t.net:.3f}" if made else "-", f"{t.cost.peak_mb:.0f}"]
        floors = [net.get((floor, t.nodes)) if made else None for floor in FLOORS]
        yield [t.tool, f"{t.nodes:,}", *cost, *(f"{t.net / floor:.1f}" if floor else "-" for floor in floors), t.end]


def failures(timings: Sequence[GraphTiming]) -> Iterator[str]:
    """What the tools said that ended with a fault."""
    return (f"{t.tool}, {t.nodes:,} nodes: {t.end}: {t.cost.tail}" for t in timings if t.cost.code)


def slopes(timings: Sequence[GraphTiming]) -> Iterator[str]:
    """The exponent of net CPU seconds between the two largest sizes that a tool ended."""
    for tool in TOOLS:
        ended = sorted((t for t in timings if t.tool == tool and t.pairs is not None), key=lambda t: t.nodes)[-2:]
        if len(ended) == 2:
            small, large = ended
            exponent = math.log(large.net / small.net) / math.log(large.nodes / small.nodes)
            yield f"slope of {tool} from {small.nodes:,} to {large.nodes:,} nodes: exponent {exponent:.2f}"


def environment() -> dict[str, str]:
    """Versions of what the peers run with."""
    from importlib import metadata

    packages = ("onnx", "onnx-graphsurgeon", "onnxruntime", "protobuf", "numpy")
    return {"python": sys.version.split()[0], **{name: metadata.version(name) for name in packages}}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="graphs,external,inside", help="some of graphs,external,inside")
    parser.add_argument("--nodes", default="1000,5000,10000,100000", help="sizes, with commas")
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"of {', '.join(TOOLS)}, with commas")
    parser.add_argument("--qdqtool-python", type=Path, default=Path(sys.executable), help="default: this one")
    parser.add_argument("--limit", type=int, default=120, help="CPU seconds that one run may take")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the cheapest counts")
    parser.add_argument("--channels", type=int, default=16, help="of every Conv: how large the weights are")
    parser.add_argument("--folder", type=Path, help="where to write the models (needs 3 GB); default: temporary")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the parts asked for; 1 where the limit of memory is missed."""
    if argv and argv[0] in WORKERS:
        tiny, model, out = map(Path, argv[1:])
        work(argv[0], tiny, model, out)
        return 0
    args = arguments(argv)
    parts, tools = args.parts.split(","), args.tools.split(",")
    document: dict[str, Any] = {"environment": environment()}
    print("  ".join(f"{name} {version}" for name, version in document["environment"].items()))
    memory = ""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        bench = LargeGraphBench(Path(folder), args.qdqtool_python, args.limit, args.repeats, args.channels)
        if "graphs" in parts:
            timings = list(bench.timings(tools, sorted(int(size) for size in args.nodes.split(","))))
            head = ["tool", "nodes", "CPU s", "net s", "MB", *(f"/ {floor}" for floor in FLOORS), "Q placed"]
            print(table(head, list(rows(timings))), *failures(timings), *slopes(timings), sep="\n")
            print(f"CPU seconds of the cheapest run, net of start-up; limit {args.limit} CPU s a run")
            document["graphs"] = [asdict(t) for t in timings]
        for part in (one for one in WHERE if one in parts):
            line, cost = bench.weights(part)
            print(line)
            memory += line
            document[part] = asdict(cost)
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return int("MISSED" in memory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
