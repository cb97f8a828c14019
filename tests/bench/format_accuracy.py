# SPDX-License-Identifier: Apache-2.0
"""What number formats cost a task: the bundled vision transformer and two detectors of the corpus. No test.

`python tests/bench/format_accuracy.py [--models shapes_vit,yolox_nano_coco] [--count 2500] [--runs "INT8;FP8"]`:
`insert --target rtx` calibrates on other pictures than those that judge; onnxruntime computes Q/DQ as they stand. A
loss is FP32's figure minus the model's over the same resamples, with 95 % of them. "kept": operators in float, by
search or as heads, then by rules for the format.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from accuracy_judge import figure, figures_file, judge, loss, prepare
from accuracy_subjects import SUBJECTS, AccuracySubject
from shared_material import SHARED

import qdqtool
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions

MODELS = Path(__file__).resolve().parents[2] / "models"
FP32 = "FP32"
HEAD = "| {} | {} | loss | loss at the outputs | in the format | kept |\n|---|---|---|---|---|---|"
# name -> options of the plan, calibration method, --keep-float, --condition
RUNS: dict[str, tuple[dict[str, Any], str, Any, str]] = {
    "INT8": ({}, "", "auto", ""),
    "INT8, nothing kept": ({}, "", 0, ""),
    "FP8": ({"format": "fp8"}, "", "auto", ""),
    "FP8, nothing kept": ({"format": "fp8"}, "", 0, ""),
    "FP8, --condition auto": ({"format": "fp8"}, "", "auto", "auto"),
    "FP8, --condition shift,correct": ({"format": "fp8"}, "", "auto", "shift,correct"),
    "FP8, every attention": ({"format": "fp8", "attention": "int8"}, "", 0, ""),
    "FP8, 99.99 % of values": ({"format": "fp8"}, "percentile=99.99", 0, ""),
    "FP8, 99.9 % of values": ({"format": "fp8"}, "percentile=99.9", 0, ""),
    "FP8, ranges of INT8 by mse": ({"format": "fp8"}, "mse", 0, ""),
    "mixed": ({"format": "mixed"}, "", "auto", ""),
    "mixed, --target gpu": ({"format": "mixed", "target": "gpu"}, "", "auto", ""),
}


def judge_classes(model: onnx.ModelProto, work: Path, tool: str, count: int) -> None:
    """Keep the top-1 of the vision transformer with its resamples."""
    import shapes
    from vit_accuracy import logits

    images, labels = shapes.draw(shapes.TEST[0], count)
    right = logits(model, images).argmax(1) == labels
    picks = np.random.default_rng(0).integers(0, count, (1000, count))
    np.savez(figures_file(work, tool), top1=np.concatenate([[right.mean()], right[picks].mean(1)]))


def calibration(name: str, subject: AccuracySubject | None, work: Path) -> Any:
    """The samples that scales are chosen by."""
    if subject is None:
        import shapes

        return [{"images": one[None]} for one in shapes.draw(*shapes.CALIB)[0]]
    prepare(subject, SHARED / "corpus", work)
    return str(work / "samples.npz")


def judged(subject: AccuracySubject | None, model: Path, work: Path, tool: str, count: int) -> None:
    """Keep the figures of a model."""
    if subject is None:
        judge_classes(onnx.load(model), work, tool, count)
    else:
        judge(subject, model, SHARED / "corpus", work, tool)


def main() -> int:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default="shapes_vit,yolox_nano_coco,nanodet_m_320_coco")
    parser.add_argument("--count", type=int, default=2500, help="pictures that judge the transformer, whole hundreds")
    parser.add_argument("--runs", default=";".join(RUNS))
    args = parser.parse_args()
    sys.path.insert(0, str(MODELS))
    for name in args.models.split(","):
        subject = SUBJECTS.get(name)
        metric = "top1" if subject is None else subject.metric
        path = (MODELS if subject is None else SHARED / "corpus" / "models") / f"{name}.onnx"
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            data = calibration(name, subject, work)
            judged(subject, path, work, FP32, args.count)
            print(f"\n{HEAD.format(name, metric)}")
            print(f"| {FP32} | {figure(work, metric, FP32).value:.4f} | | | | |", flush=True)
            for run in args.runs.split(";"):
                placing, method, keep, condition = RUNS[run]
                options = qdqtool.InsertOptions(
                    plan=PlanOptions(**{"target": "rtx", **placing}),
                    calibration=CalibrationOptions(method=method, progress=False),
                    keep_float=keep,
                    condition=condition,
                    allow_empty=True,  # by forecast no format may pay
                )
                done = qdqtool.insert(path, data=data, options=options, output=work / "made.onnx")
                judged(subject, work / "made.onnx", work, run, args.count)
                mine, lost = figure(work, metric, run), loss(work, metric, FP32, run)
                at_outputs = done.output_loss.value if done.output_loss is not None else None
                spread = "" if lost is None else f"{lost.value:+.4f} ({lost.low:+.4f} to {lost.high:+.4f})"
                inside = sum(len(point.reads) for point in done.plan.weights)
                inside += sum(one.int8 for one in done.plan.attentions)
                kept = sum(one.rule in ("keep-float", "float-head") for one in done.plan.refusals)
                rules = sum(one.rule.endswith("-float") and one.rule != "keep-float" for one in done.plan.refusals)
                cells = (f"{mine.value:.4f}", spread, f"{at_outputs:.4g}", str(inside), f"{kept}, by rule {rules}")
                print(f"| {run} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
