# SPDX-License-Identifier: Apache-2.0
"""INT8 with its rest in FP16 beside INT8 with its rest in FP32: one command each, no option of its own for a model.

`python -m tests.bench.typed_insert [--models A,B] [--limit N]`: trained models of the corpus (QDQTOOL_SHARED),
calibrated and judged as the accuracy bench does, by the executor that rounds. Agreement is that with the FP32 model's
own detections. Products by type and by MACs are the compiler's own words (TensorRT for RTX, SM89, nothing run). Codes:
how many INT8 codes differ when every group is given the same codes, and by how many steps. Exit code 1 where a figure
falls by more than .005, a product is built in FP32, an engine is not built, or a code differs by more than one step.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from qdqtool import verbs
from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.errors import QdqError
from qdqtool.evaluation.nms import Selection
from qdqtool.evaluation.samples import open_samples
from qdqtool.match.plan import PlanOptions
from qdqtool.precision.casts import count_casts
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine
from qdqtool.tensorrt_rtx.cost import cost_of
from qdqtool.verbs.evaluate import EvaluateOptions, evaluate
from tests.bench.accuracy_subjects import SUBJECTS, Subject
from tests.bench.rtx_costs import macs_by_type
from tests.laws.int8_codes import compare_codes

MODELS = "yolox_nano_coco,nanodet_m_320_coco,ultraface_rfb320,cifar_resnet20"
MOST_LOST = 0.005
HEAD = (
    "| model | rest | figure | agreement | Casts | FP32 operators | products | MACs by type | MB moved | layers |"
    " codes that differ |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Row:
    """One file: its figures, its engine.

    Attributes:
        figures: name of a metric -> value.
        floats: products that the engine has in FP32.
        text: the cells behind the figures.
    """

    figures: Mapping[str, float]
    floats: int
    text: str


def figures_of(subject: Subject, path: Path, corpus: Path, limit: int | None) -> dict[str, float]:
    """What a file is worth on the labeled data, and how far its detections agree with those of the FP32 model."""
    data = corpus / "datasets" / subject.data[1]
    feed = DataOptions(preprocess=subject.preprocess, limit=limit)
    if not subject.detector:
        return {"top1": evaluate(path, data, subject.data[2], EvaluateOptions(metric="top1"), feed).value("top1")}
    selection = Selection(score=subject.score, iou=subject.iou)
    options = EvaluateOptions(metric="coco", names=subject.data[3], selection=selection)
    plain = corpus / "models" / f"{subject.name}.onnx"
    beside = EvaluateOptions(metric="agreement", names=subject.data[3], selection=selection, baseline=plain)
    labels = corpus / "datasets" / str(subject.data[2])
    figures = {"map": evaluate(path, data, labels, options, feed).value("map")}
    return {**figures, "agreement": evaluate(path, data, None, beside, feed).value("agreement")}


def calibration_of(subject: Subject, corpus: Path, work: Path) -> Path:
    """The calibration samples as the model takes them: images of a folder, or the part of an archive called `calib`."""
    data: Path = corpus / "datasets" / subject.data[0]
    if data.suffix == ".npz":
        pixels = work / "pixels.npz"
        np.savez(pixels, x=np.load(data)["calib"])
        data = pixels
    inputs = inputs_of(onnx.load(corpus / "models" / f"{subject.name}.onnx").graph)
    samples = open_samples(data, inputs, DataOptions(preprocess=subject.preprocess))
    found = np.concatenate([chunk.batch[inputs[0].name] for chunk in samples.chunks()])
    np.savez(work / "samples.npz", **{inputs[0].name: found})
    return work / "samples.npz"


def row_of(path: Path, result: verbs.InsertResult[Path], figures: Mapping[str, float], codes: str) -> Row:
    """A file's line, with what the compiler makes of it."""
    model = onnx.load(path)
    built = build_engine(path, RtxBuildOptions(("89",)))
    cost = cost_of(built)
    products = ", ".join(f"{count} {kind}" for kind, count in cost.products.items())
    macs = macs_by_type(model, built)
    shares = ", ".join(f"{count / sum(macs.values()):.1%} {kind}" for kind, count in macs.items())
    stays = "all" if result.rest is None else len(result.rest.choice.reasons)
    worth = next((f"{value:.4f} {name}" for name, value in figures.items()), "")
    agreement = f"{figures['agreement']:.4f}" if "agreement" in figures else ""
    cells = [worth, agreement, count_casts(model), stays, products, shares, f"{cost.bytes_moved / 1e6:.1f}"]
    return Row(figures, cost.products.get("FP32", 0), " | ".join(map(str, [*cells, cost.layers, codes])))


def compared_codes(paths: list[Path], data: Path) -> tuple[str, int]:
    """How many INT8 codes of one sample differ, in words; by how many steps at most."""
    models = [onnx.load(path) for path in paths]
    loader = open_loader(data, inputs_of(models[0].graph), DataOptions(limit=1))
    counted = compare_codes(models[0], models[1], next(iter(loader)))
    share = counted.different / max(1, counted.codes)
    return f"{counted.different} of {counted.codes} ({share:.3%}), by {counted.largest}", counted.largest


def judge(subject: Subject, corpus: Path, work: Path, limit: int | None) -> list[str]:
    """Print both rows of a model; what is missed, a sentence each."""
    rows: dict[str, Row] = {}
    data = calibration_of(subject, corpus, work)
    paths = [work / f"{rest}.onnx" for rest in ("fp32", "fp16")]
    steps = 0
    for rest, path in zip(("fp32", "fp16"), paths, strict=True):
        options = verbs.InsertOptions(plan=PlanOptions("rtx"), rest=rest, advise=False)
        result = verbs.insert(corpus / "models" / f"{subject.name}.onnx", data=data, options=options, output=path)
        codes, steps = ("", 0) if rest == "fp32" else compared_codes(paths, data)
        rows[rest] = row_of(path, result, figures_of(subject, path, corpus, limit), codes)
        print(f"| {subject.name} | {rest.upper()} | {rows[rest].text} |", flush=True)
    full, half = rows["fp32"], rows["fp16"]
    missed = [
        f"{subject.name}: {name} falls from {value:.4f} to {half.figures[name]:.4f}"
        for name, value in full.figures.items()
        if half.figures[name] < value - MOST_LOST
    ]
    if half.floats:
        missed.append(f"{subject.name}: {half.floats} products are built in FP32")
    if steps > 1:
        missed.append(f"{subject.name}: codes differ by {steps} steps")
    return missed


def main() -> int:
    """Print every row, then what is missed.

    Returns:
        1 where anything is.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--limit", type=int, help="samples that are judged (default: all)")
    args = parser.parse_args()
    corpus = Path(os.environ["QDQTOOL_SHARED"]) / "corpus"
    print(HEAD)
    missed: list[str] = []
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            try:
                missed += judge(SUBJECTS[name], corpus, Path(folder), args.limit)
            except QdqError as error:
                missed.append(f"{name}: {error}")
    print("\n".join(missed) or "nothing is missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
