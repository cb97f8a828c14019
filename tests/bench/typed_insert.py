# SPDX-License-Identifier: Apache-2.0
"""INT8 with its rest in FP16 beside INT8 with its rest in FP32: one command each, no option of its own for a model.

`python -m tests.bench.typed_insert [--models A,B] [--limit N] [--seeds N]`: trained models of the corpus
(QDQTOOL_SHARED), calibrated and judged as the accuracy bench does, by the executor that rounds. Agreement is that with
the FP32 model's own detections. Figures are means over `--seeds` calibrations (typed_figures.py), their change has its
paired interval; the last column is the change with the first calibration alone, which nothing moved. Products by type
and by MACs are the compiler's own words (TensorRT for RTX, SM89, nothing run). Codes: how many INT8 codes differ when
every group is given the same codes, and by how many steps. Exit code 1 where a figure falls by more than .005, on the
mean or with the first calibration, a product is built in FP32, an engine is not built, or a code differs by more than
one step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.errors import QdqError
from qdqtool.evaluation.samples import open_samples
from qdqtool.match.plan import PlanOptions
from qdqtool.precision.casts import count_casts
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine
from qdqtool.tensorrt_rtx.cost import cost_of
from tests.bench.accuracy_subjects import SUBJECTS, AccuracySubject
from tests.bench.rtx_costs import macs_by_type
from tests.bench.shared_material import SHARED
from tests.bench.typed_figures import Figures, differences
from tests.laws.int8_codes import compare_codes

MODELS = "yolox_nano_coco,nanodet_m_320_coco,ultraface_rfb320,cifar_resnet20"
MOST_LOST = 0.005
SEEDS = 8
HEAD = (
    "| model | rest | Casts | FP32 operators | products | MACs by type | MB moved | layers | codes that differ |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
FIGURES = (
    "| model | figure | rest FP32 | rest FP16 | change | its 95 % interval | change, one calibration |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class TypedRow:
    """One file and its engine.

    Attributes:
        floats: products that the engine has in FP32.
        text: the cells.
    """

    floats: int
    text: str


def calibration_of(subject: AccuracySubject, corpus: Path, work: Path) -> Path:
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


def row_of(path: Path, result: verbs.InsertResult[Path], codes: str) -> TypedRow:
    """A file's line, with what the compiler makes of it."""
    model = onnx.load(path)
    built = build_engine(path, RtxBuildOptions(("89",)))
    cost = cost_of(built)
    products = ", ".join(f"{count} {kind}" for kind, count in cost.products.items())
    macs = macs_by_type(model, built)
    shares = ", ".join(f"{count / sum(macs.values()):.1%} {kind}" for kind, count in macs.items())
    stays = "all" if result.rest is None else len(result.rest.choice.rows()) - 1
    cells = [count_casts(model), stays, products, shares, f"{cost.bytes_moved / 1e6:.1f}", cost.layers, codes]
    return TypedRow(cost.products.get("FP32", 0), " | ".join(map(str, cells)))


def compared_codes(paths: list[Path], data: Path) -> tuple[str, int]:
    """How many INT8 codes of one sample differ, in words; by how many steps at most."""
    models = [onnx.load(path) for path in paths]
    loader = open_loader(data, inputs_of(models[0].graph), DataOptions(limit=1))
    counted = compare_codes(models[0], models[1], next(iter(loader)))
    share = counted.different / max(1, counted.codes)
    return f"{counted.different} of {counted.codes} ({share:.3%}), by {counted.largest}", counted.largest


def judge(subject: AccuracySubject, corpus: Path, work: Path, args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Print both files of a model; its rows of figures, and what is missed, a sentence each."""
    data = calibration_of(subject, corpus, work)
    paths = [work / f"{rest}.onnx" for rest in ("fp32", "fp16")]
    missed = []
    for rest, path in zip(("fp32", "fp16"), paths, strict=True):
        options = verbs.InsertOptions(plan=PlanOptions("rtx"), rest=rest, advise=False)
        result = verbs.insert(corpus / "models" / f"{subject.name}.onnx", data=data, options=options, output=path)
        codes, steps = ("", 0) if rest == "fp32" else compared_codes(paths, data)
        row = row_of(path, result, codes)
        print(f"| {subject.name} | {rest.upper()} | {row.text} |", flush=True)
        if rest == "fp16" and row.floats:
            missed.append(f"{subject.name}: {row.floats} products are built in FP32")
        if steps > 1:
            missed.append(f"{subject.name}: codes differ by {steps} steps")
    rows = []
    models = [onnx.load(path) for path in paths]
    for name, one in differences(Figures(subject, corpus, args.limit), *models, args.seeds).items():
        change = one.after - one.before
        cells = [subject.name, name, f"{one.before:.4f}", f"{one.after:.4f}", f"{change:+.4f}"]
        rows.append(f"| {' | '.join(cells)} | {one.change.low:+.4f} {one.change.high:+.4f} | {one.unmoved:+.4f} |")
        if change < -MOST_LOST:
            missed.append(f"{subject.name}: {name} falls from {one.before:.4f} to {one.after:.4f}")
        if one.unmoved < -MOST_LOST:
            missed.append(f"{subject.name}: {name} falls by {-one.unmoved:.4f} with the scales as they were calibrated")
    return rows, missed


def main() -> int:
    """Print every row, then what is missed.

    Returns:
        1 where anything is.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--limit", type=int, help="samples that are judged (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"calibrations that figures are means of ({SEEDS})")
    args = parser.parse_args()
    corpus = SHARED / "corpus"
    print(HEAD)
    missed: list[str] = []
    rows: list[str] = []
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            try:
                told, failed = judge(SUBJECTS[name], corpus, Path(folder), args)
                rows, missed = rows + told, missed + failed
            except QdqError as error:
                missed.append(f"{name}: {error}")
    print("\n".join(["", FIGURES, *rows, ""]))
    print("\n".join(missed) or "nothing is missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
