# SPDX-License-Identifier: Apache-2.0
"""Inserting Q/DQ into large graphs beside load + save, onnx-graphsurgeon and onnxruntime: CPU, memory, slope.

A script, not a test: see README.md here. Each figure is of a process of its own; a run on a tiny model gives the
start-up that `net` leaves out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cost import Cost, apart, measured, table

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).resolve()
TINY = 42
CHANNELS, SIDE = 4, 8
ACTIVATION_SCALE = 0.05
SEED = 7
BIG_SIDE, BIG_WEIGHTS = 2048, 155  # 155 float32 matrices of 2048 x 2048: 2.6 GB
ANONYMOUS_LIMIT_MB = 200
ENOUGH_SECONDS, ENOUGH_RUNS = 3.0, 9  # a short run is repeated until one of the two is reached


# The models: what they look like is decided here, and nowhere else.


def make_graph(path: Path, nodes: int) -> None:
    """Write a chain of `nodes` nodes at opset 13: blocks of three 1x1 Conv-Relu with a residual Add, tiny weights."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(SEED)
    made: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(op: str, *inputs: str) -> str:
        index = len(made)
        made.append(helper.make_node(op, inputs, [f"t{index}"], name=f"{op}_{index}"))
        return f"t{index}"

    def conv(tensor: str) -> str:
        name = f"w{len(weights)}"
        values = random.standard_normal((CHANNELS, CHANNELS, 1, 1)).astype(np.float32) / 2
        weights.append(numpy_helper.from_array(values, name))
        return add("Conv", tensor, name)

    tensor = "input"
    while nodes - len(made) >= 7:
        inner = add("Relu", conv(add("Relu", conv(tensor))))
        tensor = add("Relu", add("Add", conv(inner), tensor))
    while len(made) < nodes:
        tensor = add("Relu", tensor) if made[-1].op_type == "Conv" else conv(tensor)
    shape = [1, CHANNELS, SIDE, SIDE]
    first, last = (helper.make_tensor_value_info(name, 1, shape) for name in ("input", tensor))
    _write(path, helper.make_graph(made, "chain", [first], [last], weights))


def make_external(path: Path) -> None:
    """Write a 2.6 GB model beside its data file: one branch of MatMul, one of 1x1 Conv, Relu between, added up."""
    import numpy as np
    import onnx
    from onnx import helper

    random = np.random.default_rng(SEED)
    size = BIG_SIDE * BIG_SIDE * 4
    weights, made = [], []
    last = {"MatMul": "rows", "Conv": "image"}
    with path.with_suffix(".bin").open("wb") as data:
        for index in range(BIG_WEIGHTS):
            op = "Conv" if index % 3 == 2 else "MatMul"
            dims = [BIG_SIDE, BIG_SIDE] + [1, 1] * (op == "Conv")
            weight = onnx.TensorProto(name=f"w{index}", data_type=1, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
            facts = {"location": path.with_suffix(".bin").name, "offset": str(data.tell()), "length": str(size)}
            weight.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in facts.items())
            data.write(((random.random(BIG_SIDE * BIG_SIDE, np.float32) - 0.5) / BIG_SIDE).data)
            weights.append(weight)
            made.append(helper.make_node(op, [last[op], f"w{index}"], [f"a{index}"], name=f"{op}_{index}"))
            made.append(helper.make_node("Relu", [f"a{index}"], [f"t{index}"], name=f"Relu_{index}"))
            last[op] = f"t{index}"
    shapes = {"rows": [1, 16, BIG_SIDE], "image": [1, BIG_SIDE, 4, 4]}
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    ends = zip(last.values(), shapes.values(), strict=True)
    outputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in ends]
    _write(path, helper.make_graph(made, "external", inputs, outputs, weights))


def _write(path: Path, graph: Any) -> None:
    """The model file and, beside it, the scale table with one scale for each of its activations."""
    import onnx

    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString(deterministic=True))
    bits = struct.pack(">f", ACTIVATION_SCALE).hex()
    names = [value.name for value in graph.input] + [name for node in graph.node for name in node.output]
    tensors = {name: {"scale": bits, "value": ACTIVATION_SCALE, "origin": "ptq"} for name in names}
    path.with_suffix(".scales.json").write_text(json.dumps({"schema": 1, "tensors": tensors}, indent=1))


# The tools, each run as `python large_graphs.py VERB MODEL OUT` in a process of its own.


def load_and_save(model: Path, out: Path) -> None:
    """The floor under every tool: parse, serialise deterministically, write."""
    import onnx

    proto = onnx.load(str(model), load_external_data=False)
    out.write_bytes(proto.SerializeToString(deterministic=True))


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
    """`quantize_static` with one sample of zeros and ones: its graph editing is what is timed."""
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter([np.eye(SIDE, dtype=np.float32) * np.ones((1, CHANNELS, 1, 1), np.float32)])

        def get_next(self) -> dict[str, Any] | None:
            sample = next(self.rest, None)
            return None if sample is None else {"input": sample}

    options = {"ActivationSymmetric": True, "AddQDQPairToWeight": True, "QuantizeBias": False}
    kinds = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    quantize_static(
        model, out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, extra_options=options, **kinds
    )


def count_quantizers(model: Path) -> int:
    """How many QuantizeLinear a model holds."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    return sum(node.op_type == "QuantizeLinear" for node in graph.node)


WORKERS = {
    "load-save": load_and_save,
    "graphsurgeon": insert_with_graphsurgeon,
    "onnxruntime": quantize_with_onnxruntime,
}
TOOLS = ("load-save", "qdqtool", "graphsurgeon", "onnxruntime")


def command(tool: str, qdqtool_python: Path, model: Path, out: Path) -> list[str | Path]:
    """The command line of one tool on one model."""
    if tool == "qdqtool":
        scales = model.with_suffix(".scales.json")
        return [qdqtool_python, "-m", "qdqtool", "insert", model, "--scales", scales, "-o", out]
    return [sys.executable, SCRIPT, tool, model, out]


@dataclass(frozen=True)
class Timing:
    """One tool on one model: what it cost, beside its own start-up; pairs it placed, None where it made no model."""

    tool: str
    nodes: int
    cost: Cost
    startup: float
    pairs: int | None

    @property
    def net(self) -> float:
        """CPU seconds without the start-up."""
        return max(self.cost.cpu_seconds - self.startup, 1e-3)

    @property
    def end(self) -> str:
        """The number of pairs, or how the run ended without a model."""
        if self.pairs is not None:
            return str(self.pairs)
        return "time limit" if self.cost.code is None else f"exit {self.cost.code}"


@dataclass(frozen=True)
class Bench:
    """Where the models lie, how often and for how long each tool may run."""

    work: Path
    qdqtool: Path
    limit: float
    repeats: int

    def cheapest(self, tool: str, nodes: int) -> Cost:
        """The run with the fewest CPU seconds: `repeats` runs, more of short ones; a failure ends them."""
        line = command(tool, self.qdqtool, self.work / f"chain{nodes}.onnx", self.work / f"{tool}{nodes}.onnx")
        costs: list[Cost] = []
        while not costs or self._again(costs):
            costs.append(measured(line, limit_seconds=self.limit, environment=project_on_path()))
            if costs[-1].code != 0:
                return costs[-1]
        return min(costs, key=lambda cost: cost.cpu_seconds)

    def _again(self, costs: Sequence[Cost]) -> bool:
        short = sum(cost.cpu_seconds for cost in costs) < ENOUGH_SECONDS and len(costs) < ENOUGH_RUNS
        return len(costs) < self.repeats or short

    def timings(self, tools: Sequence[str], sizes: Sequence[int]) -> Iterator[Timing]:
        """Every tool on the tiny model and then on every size."""
        for nodes in (TINY, *sizes):
            apart(make_graph, self.work / f"chain{nodes}.onnx", nodes)
        for tool in tools:
            startup = self.cheapest(tool, TINY)
            for nodes in sizes:
                print(f"{tool}, {nodes} nodes ...", file=sys.stderr)
                cost = self.cheapest(tool, nodes)
                pairs = apart(count_quantizers, self.work / f"{tool}{nodes}.onnx") if cost.code == 0 else None
                yield Timing(tool, nodes, cost, startup.cpu_seconds, pairs)

    def external(self) -> tuple[str, Cost]:
        """`qdqtool insert` on the 2.6 GB model: a line with its peak of anonymous memory, and the cost."""
        model, out = self.work / "external.onnx", self.work / "external.q.onnx"
        print("writing the 2.6 GB model ...", file=sys.stderr)
        apart(make_external, model)
        before = sum(file.stat().st_size for file in self.work.iterdir())
        line = command("qdqtool", self.qdqtool, model, out)
        cost = measured(line, limit_seconds=self.limit, anonymous=True, environment=project_on_path())
        if cost.code != 0:
            return f"external data: no model, exit {cost.code}: {cost.said}", cost
        written = sum(file.stat().st_size for file in self.work.iterdir()) - before
        verdict = "held" if cost.anonymous_mb < ANONYMOUS_LIMIT_MB else "MISSED"
        return (
            f"external data: {model.with_suffix('.bin').stat().st_size / 1e9:.2f} GB in {BIG_WEIGHTS} weights, "
            f"{apart(count_quantizers, out)} Q: {cost.anonymous_mb:.0f} MB anonymous at most "
            f"(limit {ANONYMOUS_LIMIT_MB}: {verdict}), {cost.peak_mb:.0f} MB with mapped pages, "
            f"{cost.cpu_seconds:.1f} CPU s, {cost.wall_seconds:.1f} s, {written / 1e6:.1f} MB written"
        ), cost


def project_on_path() -> dict[str, str]:
    """PYTHONPATH with the source tree first, so that the tree is what is measured."""
    return {"PYTHONPATH": f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def rows(timings: Sequence[Timing]) -> Iterator[list[str]]:
    """The table's lines: ratios are to load + save of the same size."""
    floor = {t.nodes: t for t in timings if t.tool == "load-save"}
    for t in timings:
        base = floor.get(t.nodes) if t.pairs is not None else None
        cost = [f"{t.cost.cpu_seconds:.2f}", f"{t.net:.3f}", f"{t.cost.peak_mb:.0f}"]
        ratios = [f"{t.net / base.net:.1f}", f"{t.cost.peak_mb / base.cost.peak_mb:.1f}"] if base else ["-", "-"]
        yield [t.tool, f"{t.nodes:,}", *cost, *ratios, t.end]


def failures(timings: Sequence[Timing]) -> Iterator[str]:
    """What the tools said that ended with a fault."""
    return (f"{t.tool}, {t.nodes:,} nodes: {t.end}: {t.cost.said}" for t in timings if t.cost.code)


def slopes(timings: Sequence[Timing]) -> Iterator[str]:
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
    parser.add_argument("--parts", default="graphs,external", help="graphs, external or both, with a comma")
    parser.add_argument("--nodes", default="5000,10000,100000", help="sizes, with commas")
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"of {', '.join(TOOLS)}, with commas")
    parser.add_argument("--qdqtool-python", type=Path, default=Path(sys.executable), help="default: this one")
    parser.add_argument("--limit", type=float, default=120, help="seconds that one run may take")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the cheapest counts")
    parser.add_argument("--folder", type=Path, help="where to write the models (needs 3 GB); default: temporary")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the parts asked for; 1 where the limit of memory is missed."""
    if argv and argv[0] in WORKERS:
        WORKERS[argv[0]](*map(Path, argv[1:]))
        return 0
    args = arguments(argv)
    parts, tools = args.parts.split(","), args.tools.split(",")
    document: dict[str, Any] = {"environment": environment()}
    print("  ".join(f"{name} {version}" for name, version in document["environment"].items()))
    memory = ""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        bench = Bench(Path(folder), args.qdqtool_python, args.limit, args.repeats)
        if "graphs" in parts:
            timings = list(bench.timings(tools, [int(size) for size in args.nodes.split(",")]))
            head = ["tool", "nodes", "CPU s", "net s", "MB", "net / load-save", "MB / load-save", "Q placed"]
            print(table(head, list(rows(timings))), *failures(timings), *slopes(timings), sep="\n")
            print(
                f"CPU seconds of the cheapest run; net of start-up ({TINY} nodes); limit {args.limit:.0f} s of wall time"
            )
            document["graphs"] = [asdict(t) for t in timings]
        if "external" in parts:
            memory, cost = bench.external()
            print(memory)
            document["external"] = asdict(cost)
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return int("MISSED" in memory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
