# SPDX-License-Identifier: Apache-2.0
"""FP16 models of nvidia-modelopt (AutoCast) and onnxconverter-common beside `amp`, judged by one executor.

`python -m tests.bench.amp_peers --peers-python P [--models A,B] [--real] [--torch-python T] [--work DIR]`: each tool
gets the same model of the corpus (QDQTOOL_SHARED) and the same samples, random ones of the model's input shapes (peers
without data ignore them); `--real` adds a ResNet-50 and a ViT-B with random weights, `--torch-python` the exports of
amp_exports.py. Counted: Casts between float types, operators in FP32, tensors that are not finite in
`precision/rounded.py` though they are in FP32, the least SQNR of an output there, the share of rows of the first output
whose largest value is where FP32 has it, bytes of the file, CPU seconds without imports, and the Casts that
`apply_types` needs for the FP32 operators of that tool. Exit code 1 where a gate is missed: more Casts than a peer for
its own FP32 operators, or an overflow where a peer has none.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from qdqtool import AmpOptions, CalibrationOptions, amp
from qdqtool.data.loader import inputs_of
from qdqtool.display import figure
from qdqtool.graph.model import Model
from qdqtool.precision.element_types import infer_types
from qdqtool.precision.fixed_types import fixed_float32
from qdqtool.precision.float_graph import FloatGraph, float_graph
from qdqtool.precision.rounded import rounded
from qdqtool.runtime.activations import OrtActivations
from tests.bench.amp_models import make_vit
from tests.bench.large_models import make_resnet50
from tests.bench.shared_material import SHARED

MODELS = (
    "yolox_nano_coco,nanodet_m_320_coco,fastestdet_coco,ultraface_rfb320,ppocrv3_det,bert_toy,"
    "mobilenetv1_025_128,cifar_resnet20_bn,gtcrn,yunet_s_320"
)
REAL = {"resnet50": make_resnet50, "vit_b": make_vit}
EXPORTS = ("yolov8s", "rtdetr", "dinov2")
PEERS = ("modelopt", "onnxconverter")
SAMPLES, SECONDS = 4, 1800
HEAD = (
    "| model | tool | casts | operators in FP32 | of | overflows | SQNR dB | same top-1 | MB | CPU s | casts of ours,"
    " same FP32 |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Row:
    """What is counted of one tool's model; `fault` where there is none."""

    tool: str
    casts: int = 0
    float32: int = 0
    overflows: int = 0
    decibel: float = float("nan")
    same: float = float("nan")
    megabytes: float = 0.0
    seconds: float = 0.0
    ours: int = 0
    fault: str = ""


class Judge:
    """One FP32 model, its samples, and what it computes on them."""

    def __init__(self, proto: onnx.ModelProto, samples: list[dict[str, Any]]) -> None:
        self.proto, self.samples = proto, samples
        self.graph: FloatGraph = float_graph(Model(proto), TensorProto.FLOAT16, {})
        self.fixed = set(fixed_float32(Model(proto), TensorProto.FLOAT16)) & set(self.graph.nodes)
        self._outputs = [value.name for value in proto.graph.output]
        self._plain, self._infinite = self._run(proto)

    def row(self, tool: str, made: onnx.ModelProto, size: int, seconds: float) -> Row:
        """Count one tool's model."""
        float32 = self._in_float32(made)
        given, infinite = self._run(rounded(Model(made)).proto)
        pairs = {name: (self._plain[name], given[name]) for name in self._outputs if name in self._plain}
        decibel = min((_sqnr(*both) for both in pairs.values()), default=float("nan"))
        same = next((_same_largest(*both) for both in pairs.values()), float("nan"))
        overflows = len(infinite - self._infinite)
        types = infer_types(made).types
        casts = sum(_is_float_cast(node, types) for node in made.graph.node)
        ours = self.graph.casts(float32 | self.fixed)
        return Row(tool, casts, len(float32), overflows, decibel, same, size / 1e6, seconds, ours)

    def _in_float32(self, made: onnx.ModelProto) -> set[str]:
        """The operators that compute in FP32 in another file: by name, else by the first output."""
        types = infer_types(made).types
        names = {node.name: node for node in made.graph.node if node.name}
        makers = {name: node for node in made.graph.node for name in node.output}
        found = set()
        for key, node in self.graph.nodes.items():
            there = names.get(node.proto.name) or makers.get(key)
            if there is not None and there.op_type == node.op:
                ends = [*there.output, *there.input]
                kinds = [types.get(name) for name in ends if types.get(name) in (1, 10)]
                if kinds and kinds[0] == TensorProto.FLOAT:
                    found.add(key)
        return found

    def _run(self, proto: onnx.ModelProto) -> tuple[dict[str, Any], set[str]]:
        """The float outputs over all samples, and the tensors that are not finite."""
        runner = OrtActivations(Model(proto))
        infinite: set[str] = set()
        outputs: dict[str, list[Any]] = {}
        for sample in self.samples:
            for name, values in runner.run(sample):
                if not np.isfinite(values).all():
                    infinite.add(name)
                if name in self._outputs:
                    outputs.setdefault(name, []).append(values)
        return {name: np.stack(arrays) for name, arrays in outputs.items()}, infinite


def _is_float_cast(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    ends = (*node.input, *node.output)
    return node.op_type == "Cast" and all(types.get(name) in (TensorProto.FLOAT, TensorProto.FLOAT16) for name in ends)


def _sqnr(plain: Any, given: Any) -> float:
    wanted, got = (values.reshape(-1).astype(np.float64) for values in (plain, given))
    if not np.isfinite(got).all():
        return float("-inf")
    noise = float(np.square(wanted - got).sum())
    return float(10 * np.log10(np.square(wanted).sum() / noise)) if noise else float("inf")


def _same_largest(plain: Any, given: Any) -> float:
    """The share of rows, along the shortest axis that has more than one value, with the same largest value."""
    lengths = [length if length > 1 else np.inf for length in plain.shape[1:]]
    axis = 1 + int(np.argmin(lengths)) if lengths else 0
    return float((plain.argmax(axis) == given.argmax(axis)).mean())


def samples_for(proto: onnx.ModelProto, count: int) -> list[dict[str, Any]]:
    """Random samples of the input shapes; free sides are 1 for the batch and 64."""
    values, found = np.random.default_rng(0), []
    for _ in range(count):
        sample = {}
        for one in inputs_of(proto.graph):
            shape = [
                side if isinstance(side, int) and side else 64 if at else 1 for at, side in enumerate(one.shape or ())
            ]
            kind = np.dtype(one.dtype)
            sample[one.name] = (values.normal(size=shape) if kind.kind == "f" else values.integers(0, 2, shape)).astype(
                kind
            )
        found.append(sample)
    return found


def prepared(source: Path, copy: Path) -> tuple[Path, onnx.ModelProto]:
    """A model as modelopt takes it, which is none whose weights are listed as inputs; that is written to `copy`."""
    proto = onnx.load(source)
    weights = {tensor.name for tensor in proto.graph.initializer}
    fed = [value for value in proto.graph.input if value.name not in weights]
    if len(fed) == len(proto.graph.input):
        return source, proto
    del proto.graph.input[:]
    proto.graph.input.extend(fed)
    proto.ir_version = max(proto.ir_version, 8)
    onnx.save(proto, copy)
    return copy, proto


def converted(peer: str, source: Path, samples: Path, out: Path, python: Path) -> subprocess.CompletedProcess[str]:
    """Let a peer write its FP16 model, in an environment of its own."""
    words = [python, Path(__file__).with_name("amp_peer_tools.py"), peer, source, samples, out]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=SECONDS, cwd=out.parent)


def rows_of(source: Path, folder: Path, python: Path, count: int) -> Iterator[Row]:
    """One row for each tool."""
    source, proto = prepared(source, folder / "in.onnx")
    samples = samples_for(proto, count)
    judge = Judge(proto, samples)
    begin = time.process_time()
    done = amp(
        source, samples, options=AmpOptions(calibration=CalibrationOptions(progress=False)), output=folder / "o.onnx"
    )
    seconds = time.process_time() - begin
    yield judge.row("amp", onnx.load(done.model), (folder / "o.onnx").stat().st_size, seconds)
    np.savez(folder / "samples.npz", **samples[0])
    for peer in PEERS:
        out = folder / f"{peer}.onnx"
        out.unlink(missing_ok=True)
        ran = converted(peer, source, folder / "samples.npz", out, python)
        if ran.returncode or not out.exists():
            yield Row(peer, fault=(ran.stderr.strip().splitlines() or ["no message"])[-1][:120])
            continue
        seconds = float(next(line.split()[1] for line in ran.stdout.splitlines() if line.startswith("seconds")))
        conflicts = infer_types(onnx.load(out)).conflicts
        if conflicts:
            yield Row(peer, fault=f"{len(conflicts)} places of two types, such as {conflicts[0].node}")
            continue
        try:
            yield judge.row(peer, onnx.load(out), out.stat().st_size, seconds)
        except Exception as error:  # a peer's file that nobody runs is a row, too
            yield Row(peer, fault=f"does not run: {str(error)[:120]}")


def line_of(name: str, row: Row, operators: int) -> str:
    """One row of the table."""
    if row.fault:
        return f"| {name} | {row.tool} | {row.fault} | | {operators} | | | | | | |"
    cells = [row.casts, row.float32, operators, row.overflows, figure(row.decibel, 1), f"{row.same:.4f}"]
    told = " | ".join(map(str, cells))
    return f"| {name} | {row.tool} | {told} | {row.megabytes:.2f} | {row.seconds:.2f} | {row.ours} |"


def misses(name: str, rows: list[Row]) -> Iterator[str]:
    """The gates that one model misses."""
    ours = rows[0]
    for row in rows[1:]:
        if row.fault:
            continue
        if row.ours > row.casts:
            yield f"{name}: {row.ours} casts for the FP32 operators of {row.tool}, which needs {row.casts}"
        if ours.overflows and not row.overflows:
            yield f"{name}: {ours.overflows} overflows, and {row.tool} has none"


def main(words: list[str]) -> int:
    """Print the table; 1 where a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers-python", type=Path, required=True)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--torch-python", type=Path, help="a Python with torch, ultralytics, transformers and timm")
    parser.add_argument("--work", type=Path, help="where exports are kept for the next run")
    args = parser.parse_args(words)
    corpus = SHARED / "corpus" / "models"
    missed: list[str] = []
    sys.stdout.write(HEAD + "\n")
    with tempfile.TemporaryDirectory(dir=args.work) as made:
        folder = Path(made)
        sources = {name: corpus / f"{name}.onnx" for name in filter(None, args.models.split(","))}
        for name, make in REAL.items() if args.real else ():
            sources[name] = folder / f"{name}.onnx"
            make(sources[name])
        for name in EXPORTS if args.torch_python else ():
            sources[name] = (args.work or folder) / f"{name}.onnx"
            if not sources[name].exists():
                script = Path(__file__).with_name("amp_exports.py")
                subprocess.run([args.torch_python, script, name, sources[name]], check=True, capture_output=True)
        for name, source in sources.items():
            operators = len(float_graph(Model(onnx.load(source)), TensorProto.FLOAT16, {}).nodes)
            rows = []
            for row in rows_of(source, folder, args.peers_python, SAMPLES if name in args.models.split(",") else 1):
                rows.append(row)
                sys.stdout.write(line_of(name, row, operators) + "\n")
                sys.stdout.flush()
            missed += misses(name, rows)
    sys.stdout.write("".join(f"missed: {one}\n" for one in missed))
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
