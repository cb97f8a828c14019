# SPDX-License-Identifier: Apache-2.0
"""What number formats cost a task: the bundled transformers and two detectors of the corpus. No test.

`python -m tests.bench.format_accuracy [--models shapes_vit,yolox_nano_coco] [--runs "INT8;FP8"] [--peers-python P]`:
`insert` calibrates on other pictures than those that judge; onnxruntime computes Q/DQ as they stand, local functions
the operators that it lacks. A loss is FP32's figure minus the model's over the same resamples, with 95 % of them; "as
FP32" is the figure with what FP32 finds as the truth. "Kept": operators in float, by search or as heads, then by rules
for the format. MXFP8, which `insert` does not write, is made here of the products by weights.

With `--peers-python`, nvidia-modelopt quantizes each model in FP8 and INT4 on the same samples.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.evaluation.agreement import agreement
from qdqtool.evaluation.bootstrap import bootstrap
from qdqtool.evaluation.detection_ap import coco
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.ground_truth import Truth
from qdqtool.formats import FP8
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions

BENCH = Path(__file__).resolve().parent
MODELS = BENCH.parents[1] / "models"
sys.path += [str(BENCH), str(MODELS)]

from accuracy_judge import figure, figures_file, judge, loss, prepare  # noqa: E402
from accuracy_subjects import SUBJECTS  # noqa: E402
from shared_material import SHARED  # noqa: E402

from tests.bench.format_engines import peer  # noqa: E402
from tests.bench.vit_accuracy import logits  # noqa: E402

FP32, SAME = "FP32", "same"
SEED = 203  # of pictures that nothing else uses
HEAD = "| {} | {} | loss | as FP32 | loss at the outputs | in the format | kept |\n|---|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Run:
    """A way to quantize: options of the plan, and how scales are chosen.

    Attributes:
        plan: options.
        method: of calibration; "" for the format's own.
        keep: operators that stay in float; None for those of the format's default.
        condition: steps before.
        rounded: whether scales of blocks are those of the largest magnitudes, not searched for.
    """

    plan: dict[str, Any] = field(default_factory=dict)
    method: str = ""
    keep: Any = None
    condition: str = ""
    rounded: bool = False


INT4, NVFP4 = {"format": "int4"}, {"format": "nvfp4"}
RUNS = {
    "INT8": Run(),
    "INT8, nothing kept": Run(keep=0),
    "FP8": Run({"format": "fp8"}),
    "FP8, nothing kept": Run({"format": "fp8"}, keep=0),
    "FP8, `--condition auto`": Run({"format": "fp8"}, condition="auto"),
    "FP8, `--condition shift,correct`": Run({"format": "fp8"}, condition="shift,correct"),
    "FP8, every attention": Run({"format": "fp8", "attention": "int8"}, keep=0),
    "FP8, ranges that hold 99.99 % of the values": Run({"format": "fp8"}, "percentile=99.99", 0),
    "FP8, ranges that hold 99.9 %": Run({"format": "fp8"}, "percentile=99.9", 0),
    "FP8, ranges that `mse` chooses for INT8": Run({"format": "fp8"}, "mse", 0),
    "INT4, rounded": Run(INT4, rounded=True),
    "INT4": Run(INT4),
    "INT4, smoothed (AWQ)": Run(INT4, condition="smooth"),
    "INT4, blocks of 16, rounded": Run({**INT4, "block": 16}, rounded=True),
    "INT4, blocks of 16": Run({**INT4, "block": 16}),
    "INT4, blocks of 16, smoothed (AWQ)": Run({**INT4, "block": 16}, condition="smooth"),
    "NVFP4, rounded": Run(NVFP4, rounded=True),
    "NVFP4": Run(NVFP4),
    "NVFP4, `--target gpu`, rounded": Run({**NVFP4, "target": "gpu"}, rounded=True),
    "NVFP4, `--target gpu`": Run({**NVFP4, "target": "gpu"}),
    "`mixed`": Run({"format": "mixed"}),
    "`mixed`, `--target gpu`": Run({"format": "mixed", "target": "gpu"}),
}
MXFP8 = "MXFP8"
# Row -> format and method. The scales that awq_clip writes of a Gemm have a shape that onnxruntime refuses.
PEERS = {
    "FP8, modelopt": ("fp8", ["max"]),
    "INT4, modelopt rtn_dq": ("int4", ["rtn_dq"]),
    "INT4, modelopt awq_clip": ("int4", ["awq_clip", "--nodes_to_exclude", ".*Gemm.*"]),
}
MX_BLOCK, MX_OPSET = 32, 21


def in_mxfp8(model: onnx.ModelProto) -> onnx.ModelProto:
    """The products by weights in MXFP8: activations rounded at run time, weights as codes with a power of two a block.

    Those whose sum is no multiple of 32 stay float.
    """
    made = version_converter.convert_version(model, MX_OPSET)
    view, nodes, trt = GraphView(made.graph), [], {"domain": "trt", "axis": -1, "block_size": MX_BLOCK}
    for node in view.every:
        proto = node.proto
        weight = view.array(node.inputs[1]) if weight_index(view, node) == 1 and node.op in ("MatMul", "Gemm") else None
        turned = any(one.name == "transB" and one.i for one in proto.attribute)
        if weight is None or weight.ndim != 2 or (rows := weight if turned else weight.T).shape[1] % MX_BLOCK:
            nodes.append(proto)
            continue
        blocks = rows.reshape(len(rows), -1, MX_BLOCK).astype(np.float32)
        exponent = np.ceil(np.log2(np.maximum(np.abs(blocks).max(-1) / FP8.largest, 2.0**-126)))
        codes = (blocks / np.exp2(exponent)[..., None]).astype(FP8.dtype).reshape(rows.shape)
        names = {part: f"{node.outputs[0]}/{part}" for part in ("codes", "scales", "w", "turned", "q", "e", "x")}
        made.graph.initializer.append(numpy_helper.from_array(codes, names["codes"]))
        made.graph.initializer.append(numpy_helper.from_array((exponent + 127).astype(np.uint8), names["scales"]))
        x, w = proto.input[0], names["w"] if turned else names["turned"]
        nodes += [
            helper.make_node("TRT_MXFP8DequantizeLinear", [names["codes"], names["scales"]], [names["w"]], **trt),
            helper.make_node("TRT_MXFP8DynamicQuantize", [x], [names["q"], names["e"]], **trt),
            helper.make_node("TRT_MXFP8DequantizeLinear", [names["q"], names["e"]], [names["x"]], **trt),
        ]
        if not turned:
            nodes.append(helper.make_node("Transpose", [names["w"]], [w], perm=[1, 0]))
        proto.input[0], proto.input[1] = names["x"], w
        nodes.append(proto)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.opset_import.append(helper.make_opsetid("trt", 1))
    return made


class Transformer:
    """A bundled transformer, judged on pictures or scenes that nothing else uses."""

    def __init__(self, name: str, count: int) -> None:
        """Draw what calibrates and what judges."""
        import shape_scenes
        import shapes

        self.path, self.metric = MODELS / f"{name}.onnx", "top1" if name == "shapes_vit" else "map"
        drawn = (
            shapes.draw(*shapes.CALIB)[0] if self.metric == "top1" else shape_scenes.draw(*shape_scenes.CALIB)["images"]
        )
        self.samples = {"images": drawn}
        if self.metric == "top1":
            self.images, self._labels = shapes.draw(SEED, count)
        else:
            scenes = shape_scenes.draw(SEED + 1000, max(1, count // 5))
            self.images = scenes["images"]
            every = [np.flatnonzero(scenes["scene"] == number) for number in range(len(self.images))]
            none = [np.zeros(len(rows), np.bool_) for rows in every]
            self._truths = [
                Truth(scenes["boxes"][rows].astype(np.float64), scenes["labels"][rows], no, no)
                for rows, no in zip(every, none, strict=True)
            ]
        self._exact: Any = None

    def judge(self, model: Path, work: Path, tool: str) -> None:
        """Keep the figures of a model with their resamples."""
        kept = self._classes(onnx.load(model)) if self.metric == "top1" else self._boxes(onnx.load(model))
        np.savez(figures_file(work, tool), **kept)

    def _classes(self, model: onnx.ModelProto) -> dict[str, Any]:
        best = logits(model, self.images).argmax(1)
        self._exact = best if self._exact is None else self._exact
        picks = np.random.default_rng(0).integers(0, len(best), (1000, len(best)))
        right = {"top1": best == self._labels, SAME: best == self._exact}
        return {key: np.concatenate([[one.mean()], one[picks].mean(1)]) for key, one in right.items()}

    def _boxes(self, model: onnx.ModelProto) -> dict[str, Any]:
        import shape_detections

        from qdqtool.precision.rounded import as_run
        from qdqtool.runtime.emulated_formats import emulated

        run = emulated(as_run(Model(model))).proto.SerializeToString()
        boxes = shape_detections.detections(*shape_detections.run(run, self.images))
        found = []
        for number in range(len(self.images)):
            rows = np.flatnonzero(boxes.scene == number)
            rows = rows[np.argsort(-boxes.score[rows], kind="stable")]
            found.append(Detections(boxes.box[rows], boxes.score[rows], boxes.label[rows].astype(np.int64)))
        self._exact = found if self._exact is None else self._exact
        kept = {}
        for key, metric, one in (
            ("map", "map", coco(found, self._truths)),
            (SAME, "agreement", agreement(found, self._exact)),
        ):
            drawn = bootstrap(one.resampled, one.images)[:, :, 0]
            kept[key] = np.concatenate([[one.value(metric)], drawn[:, one.metrics.index(metric)]])
        return kept


class Detector:
    """A labeled model of the corpus."""

    def __init__(self, name: str, work: Path) -> None:
        """Prepare what calibrates."""
        self._subject, self.path = SUBJECTS[name], SHARED / "corpus" / "models" / f"{name}.onnx"
        self.metric = self._subject.metric
        prepare(self._subject, SHARED / "corpus", work)
        held = np.load(work / "samples.npz")
        self.samples = {key: held[key] for key in held.files}

    def judge(self, model: Path, work: Path, tool: str) -> None:
        """Keep the figures of a model with their resamples."""
        judge(self._subject, model, SHARED / "corpus", work, tool)
        kept = dict(np.load(figures_file(work, tool)))
        if "agreement" in kept:
            np.savez(figures_file(work, tool), **kept, **{SAME: kept["agreement"]})


def made_as(run: Run, subject: Transformer | Detector, out: Path) -> list[str]:
    """Write a model in a format.

    Returns:
        the cells of the table: loss at the outputs, operators in the format, those that are kept.
    """
    data = [{name: values[at : at + 1] for name, values in subject.samples.items()}
            for at in range(len(next(iter(subject.samples.values()))))]  # fmt: skip
    options = qdqtool.InsertOptions(
        plan=PlanOptions(**{"target": "rtx", **run.plan}),
        calibration=CalibrationOptions(method=run.method, progress=False),
        condition=run.condition,
        allow_empty=True,  # by forecast no format may pay
        **({} if run.keep is None else {"keep_float": run.keep}),
    )
    done = qdqtool.insert(subject.path, data=data, options=options, output=out)
    if run.rounded:  # the scales of activations, and the largest magnitudes of blocks
        out.unlink()
        done = qdqtool.insert(subject.path, scales=done.table, options=options, output=out)
    at_outputs = done.output_loss.value if done.output_loss is not None else None
    inside = sum(len(point.reads) for point in done.plan.weights) + sum(one.int8 for one in done.plan.attentions)
    kept = sum(one.rule in ("keep-float", "float-head") for one in done.plan.refusals)
    rules = sum(one.rule.endswith("-float") and one.rule != "keep-float" for one in done.plan.refusals)
    return ["" if at_outputs is None else f"{at_outputs:.4g}", str(inside), f"{kept}, by rule {rules}"]


def write(name: str, subject: Transformer | Detector, out: Path, python: Path | None) -> list[str]:
    """Write a model as a row of the table says."""
    if name in RUNS:
        return made_as(RUNS[name], subject, out)
    if name == MXFP8:
        model = in_mxfp8(onnx.load(subject.path))
        count = sum(node.op_type == "TRT_MXFP8DynamicQuantize" for node in model.graph.node)
    else:
        assert python is not None
        form, words = PEERS[name]
        words = ["--high_precision_dtype", "fp32", "--calibration_method", *words]
        model = peer(subject.path, form, python, subject.samples, words)
        count = weights_of(model)
    onnx.save(model, out)
    return ["", str(count), ""]


def weights_of(model: onnx.ModelProto) -> int:
    """How many products read a weight through a pair of its own."""
    view = GraphView(model.graph)
    return sum(
        weight_index(view, node) is not None and bool(view.producers.get(node.proto.input[1])) for node in view.every
    )


def main() -> int:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default="shapes_vit,shapes_detr,yolox_nano_coco,nanodet_m_320_coco")
    parser.add_argument(
        "--count", type=int, default=10000, help="pictures that judge the ViT, whole hundreds; a fifth as many scenes"
    )
    parser.add_argument("--runs", help="rows of the table; default all")
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt")
    args = parser.parse_args()
    every = [*RUNS, MXFP8, *(PEERS if args.peers_python else ())]
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            subject = Detector(name, work) if name in SUBJECTS else Transformer(name, args.count)
            subject.judge(subject.path, work, FP32)
            print(f"\n{HEAD.format(name, subject.metric)}")
            print(f"| {FP32} | {figure(work, subject.metric, FP32).value:.4f} | | | | | |", flush=True)
            for run in args.runs.split(";") if args.runs else every:
                out = work / "made.onnx"
                out.unlink(missing_ok=True)
                try:
                    cells = write(run, subject, out, args.peers_python)
                except QdqError as error:
                    print(f"| {run} | {' '.join(error.reason.split())[:80]} | | | | | |", flush=True)
                    continue
                subject.judge(out, work, run)
                lost = loss(work, subject.metric, FP32, run)
                assert lost is not None
                spread = f"{lost.value:+.4f} ({lost.low:+.4f} to {lost.high:+.4f})"
                mine, same = (f"{figure(work, metric, run).value:.4f}" for metric in (subject.metric, SAME))
                print(f"| {run} | {mine} | {spread} | {same} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
