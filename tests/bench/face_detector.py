# SPDX-License-Identifier: Apache-2.0
"""The face detector in INT8: qdqtool beside nvidia-modelopt, onnxruntime and NNCF, judged against FP32 in one run.

A script, not a test: see README.md here. Heavy libraries are imported in the functions that use them (see cost.py).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost import Cost, apart, measured, table
from faces import CALIBRATION_IMAGES, Verdict, judge, prepare, scales_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

    Floats = npt.NDArray[np.floating[Any]]

PROJECT = Path(__file__).resolve().parents[2]
MODEL = "corpus/models/ultraface_rfb320_raw.onnx"
DECODED = "corpus/models/ultraface_rfb320.onnx"  # the same detector, its boxes decoded in the graph
IMAGES = "corpus/datasets/ultraface_imgs/imgs"


@dataclass(frozen=True)
class FaceRow:
    """A tool's name, what it cost, and the judgment on its model; none where it made no model."""

    tool: str
    cost: Cost
    verdict: Verdict | None

    def cells(self) -> list[str]:
        if self.verdict is None:
            return [self.tool, *["-"] * 9]
        v = self.verdict
        figures = [
            f"{v.scores_db:.1f}",
            f"{v.boxes_db:.1f}",
            f"{v.recall:.3f}",
            f"{v.precision:.3f}",
            f"{v.mean_iou:.3f}",
        ]
        cost = [f"{self.cost.cpu_seconds:.1f}", f"{self.cost.peak_mb:.0f}"]
        return [self.tool, *figures, str(v.activation_pairs), *cost, v.objections or "none"]

    def failure(self) -> str | None:
        """Why no model is given, or None where there is one."""
        code = "time limit" if self.cost.code is None else f"exit {self.cost.code}"
        return None if self.verdict else f"{self.tool}: no model, {code}: {self.cost.tail}"


# The tools. Each gets a copy of the model: nvidia-modelopt writes to its input.


def modelopt_command(python: Path, model: Path, samples: Path, method: str, out: Path) -> list[str | Path]:
    """nvidia-modelopt at its defaults, but for float32 instead of float16 in the rest of the model."""
    options = ["--quantize_mode", "int8", "--calibration_eps", "cpu", "--high_precision_dtype", "fp32"]
    files: list[str | Path] = ["--onnx_path", model, "--calibration_data_path", samples, "--output_path", out]
    return [python, "-m", "modelopt.onnx.quantization", *files, "--calibration_method", method, *options]


def quantize_with_onnxruntime(model: Path, samples: Path, out: Path) -> None:
    """Onnxruntime with the options that its documentation gives for TensorRT, at opset 13."""
    import numpy as np
    import onnx
    from onnx import version_converter
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class FaceReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(np.load(samples))

        def get_next(self) -> dict[str, Floats] | None:
            sample = next(self.rest, None)
            return None if sample is None else {"input": sample[None]}

    lifted = model.with_suffix(".13.onnx")
    onnx.save(version_converter.convert_version(onnx.load(str(model)), 13), str(lifted))
    quantize_static(
        lifted,
        out,
        FaceReader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        calibrate_method=CalibrationMethod.Entropy,
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "AddQDQPairToWeight": True,
            "QuantizeBias": False,
        },
    )


def quantize_with_nncf(model: Path, samples: Path, out: Path) -> None:
    """NNCF at its defaults for a CPU at opset 13, its uint8 ranges then turned into symmetric int8 ones."""
    import nncf  # type: ignore[import-not-found]
    import numpy as np
    import onnx
    from onnx import version_converter

    lifted = version_converter.convert_version(onnx.load(str(model)), 13)
    data = nncf.Dataset([{"input": sample[None]} for sample in np.load(samples)])
    quantized = nncf.quantize(lifted, data, subset_size=CALIBRATION_IMAGES)
    _make_symmetric(quantized.graph)
    onnx.save(quantized, str(out))


def _make_symmetric(graph: onnx.GraphProto) -> None:
    """[lo, hi] = scale * ([0, 255] - zero) becomes scale = max(|lo|, |hi|) / 127 with an int8 zero of 0."""
    import numpy as np
    import onnx

    constants = {value.name: value for value in graph.initializer}
    pairs = {node.input[1]: node.input[2] for node in graph.node if node.op_type == "QuantizeLinear"}
    zeros = {name: onnx.numpy_helper.to_array(constants[name]).copy() for name in pairs.values()}
    for scale_name, zero_name in pairs.items():
        scale, zero = onnx.numpy_helper.to_array(constants[scale_name]), zeros[zero_name]
        if zero.dtype == np.uint8:
            reach = np.maximum(zero.astype(np.int32), 255 - zero.astype(np.int32))
            wide = (scale * reach / 127).astype(np.float32)
            constants[scale_name].CopyFrom(onnx.numpy_helper.from_array(wide, scale_name))
            constants[zero_name].CopyFrom(onnx.numpy_helper.from_array(np.zeros_like(zero, np.int8), zero_name))
    for value in graph.value_info:
        if value.type.tensor_type.elem_type == onnx.TensorProto.UINT8:
            value.type.tensor_type.elem_type = onnx.TensorProto.INT8


def with_project(command: Sequence[str | Path]) -> Cost:
    """Run a command that finds this project's package."""
    return measured(command, environment={"PYTHONPATH": f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"})


@dataclass(frozen=True)
class FaceBench:
    """Where things lie: the plain model, the prepared data, and the interpreters of the tools."""

    plain: Path
    work: Path
    peers: Path | None
    nncf: Path | None
    qdqtool: Path
    decoded: bool = False

    def row(self, tool: str, command: Sequence[str | Path], out: Path) -> FaceRow:
        """Run one tool and judge what it wrote."""
        print(f"{tool} ...", file=sys.stderr)
        cost = with_project(command)
        if cost.code != 0 or not out.is_file():
            return FaceRow(tool, cost, None)
        return FaceRow(tool, cost, apart(judge, out, self.plain, self.work / "evaluation.npy", decoded=self.decoded))

    def copy(self, name: str) -> Path:
        """A copy of the model in a folder of its own, for a tool that may write beside it."""
        folder = self.work / name.replace(" ", "_").replace(",", "")
        folder.mkdir()
        return Path(shutil.copyfile(self.plain, folder / "model.onnx"))

    def insert(self, method: str, order: str) -> FaceRow:
        """`insert` with the samples in one order, other verbs around it: `[condition+]METHOD[+finetune]`."""
        tool = f"qdqtool {method}" + (", reversed" if order == "reversed" else "")
        model = self.copy(tool)
        data = self.work / order / "samples.npz"
        plain = method.removeprefix("condition+").removesuffix("+finetune")
        how: list[str | Path] = ["--method", plain]
        steps: list[tuple[str, list[str | Path]]] = [("insert", how)]
        if method.startswith("condition+"):
            steps.insert(0, ("condition", how))
        if method.endswith("+finetune"):  # what `condition` moved learns from the model from before
            steps.append(("finetune", ["--teacher", model] if len(steps) > 1 else []))
        spent: list[Cost] = []
        for verb, options in steps:
            given, model = model, model.with_name(f"{verb}.onnx")
            command = [self.qdqtool, "-m", "qdqtool", verb, given, "--data", data, *options, "-o", model]
            if verb == steps[-1][0]:
                row = self.row(tool, command, model)
            else:
                spent.append(with_project(command))
        seconds = row.cost.cpu_seconds + sum(cost.cpu_seconds for cost in spent)
        peak = max(cost.peak_mb for cost in (row.cost, *spent))
        return replace(row, cost=replace(row.cost, cpu_seconds=seconds, peak_mb=peak))

    def modelopt(self, python: Path, method: str, order: str) -> FaceRow:
        """`modelopt.onnx.quantization` with the samples in one order."""
        tool = f"modelopt {method}" + (", reversed" if order == "reversed" else "")
        model = self.copy(tool)
        out = model.with_name("q.onnx")
        return self.row(tool, modelopt_command(python, model, self.work / order / "samples.npy", method, out), out)

    def by_script(self, python: Path, tool: str, verb: str) -> FaceRow:
        """A peer that is a library: this script runs itself under that peer's interpreter."""
        model = self.copy(tool)
        out = model.with_name("q.onnx")
        return self.row(
            tool, [python, Path(__file__).resolve(), verb, model, self.work / "forward" / "samples.npy", out], out
        )

    def rows(self, methods: Sequence[str], *, backwards: bool) -> Iterator[FaceRow]:
        """Every tool that is at hand, ours first."""
        orders = ("forward", "reversed") if backwards else ("forward",)
        yield from (self.insert(method, "forward") for method in methods)
        if backwards and "mse" in methods:
            yield self.insert("mse", "reversed")
        if self.peers:
            yield from (self.modelopt(self.peers, "entropy", order) for order in orders)
            yield self.modelopt(self.peers, "max", "forward")
            yield self.by_script(self.peers, "onnxruntime entropy", "peer-onnxruntime")
        if self.nncf:
            yield self.by_script(self.nncf, "nncf made int8", "peer-nncf")


def gate(rows: Sequence[FaceRow]) -> str:
    """Whether `mse` lies above modelopt's and onnxruntime's entropy in scores, boxes and mean IoU."""
    by_tool = {row.tool: row.verdict for row in rows}
    ours = by_tool.get("qdqtool mse")
    peers = [v for name in ("modelopt entropy", "onnxruntime entropy") if (v := by_tool.get(name))]
    if ours is None or len(peers) < 2:
        return "gate: not judged, it needs qdqtool mse, modelopt entropy and onnxruntime entropy"
    above = [
        all(getattr(ours, figure) > getattr(peer, figure) for peer in peers)
        for figure in ("scores_db", "boxes_db", "mean_iou")
    ]
    return f"gate (mse above both peers in scores, boxes, mean IoU): {'held' if all(above) else f'MISSED {above}'}"


def order_check(work: Path) -> str:
    """Whether `mse` gave the same scales for the images in reverse order."""
    files = [work / folder / "insert.onnx" for folder in ("qdqtool_mse", "qdqtool_mse_reversed")]
    if not all(file.is_file() for file in files):
        return "order: not judged, qdqtool mse made no model"
    one, other = (apart(scales_of, file) for file in files)
    differing = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    same_file = files[0].read_bytes() == files[1].read_bytes()
    verdict = f"DIFFERENT at {len(differing)}: {differing[:3]}" if differing else "the same to the bit"
    return f"order: {len(one)} scales of mse, images reversed: {verdict}; files {'equal' if same_file else 'differ'}"


def environment() -> dict[str, str]:
    """Versions that the judge runs with."""
    import numpy as np
    import onnx
    import onnxruntime as ort

    versions = {"onnx": onnx.__version__, "onnxruntime": ort.__version__, "numpy": np.__version__}
    return {"python": sys.version.split()[0], **versions}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt and onnxruntime")
    parser.add_argument("--nncf-python", type=Path, help="interpreter with nncf")
    parser.add_argument("--qdqtool-python", type=Path, default=Path(sys.executable), help="default: this one")
    parser.add_argument("--methods", default="mse,entropy,max", help="of qdqtool, with commas; empty for peers only")
    parser.add_argument("--decoded", action="store_true", help="the model that decodes its boxes in the graph")
    parser.add_argument("--reverse", action="store_true", help="also run with the images in reverse order")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the bench; 1 where a gate is missed."""
    workers = {"peer-onnxruntime": quantize_with_onnxruntime, "peer-nncf": quantize_with_nncf}
    if argv and argv[0] in workers:
        model, samples, out = map(Path, argv[1:])
        workers[argv[0]](model, samples, out)
        return 0
    args = arguments(argv)
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    model = shared / (DECODED if args.decoded else MODEL)
    if not model.is_file():
        print(f"face_detector: {model} is absent; set QDQTOOL_SHARED", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        apart(prepare, shared / IMAGES, work)
        bench = FaceBench(model, work, args.peers_python, args.nncf_python, args.qdqtool_python, args.decoded)
        rows = list(bench.rows([m for m in args.methods.split(",") if m], backwards=args.reverse))
        verdicts = [gate(rows), *([order_check(work)] if args.reverse else [])]
    facts = apart(environment)
    head = ["tool", "scores dB", "boxes dB", "recall", "prec", "mIoU", "pairs", "CPU s", "MB", "legality, fusion"]
    print(table(head, [row.cells() for row in rows]))
    notes = [*filter(None, (row.failure() for row in rows)), *verdicts]
    print(*notes, "  ".join(f"{name} {version}" for name, version in facts.items()), sep="\n")
    if args.json:
        document = {"environment": facts, "verdicts": verdicts, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(any("MISSED" in line or "DIFFERENT" in line for line in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
