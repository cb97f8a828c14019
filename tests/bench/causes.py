# SPDX-License-Identifier: Apache-2.0
"""Which causes `diagnose` names of healthy INT8 models, and of the same broken in one way each.

`python tests/bench/causes.py [--models M,M] [--ways W,W] [--work DIR]` over the labeled models of the shared corpus.
A healthy model is what `insert` makes by default of the calibration images; it is diagnosed on those, or with
`--held-out` on the images of the evaluation. Q/DQ models are kept in DIR.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from accuracy_subjects import SUBJECTS, AccuracySubject
from shared_material import SHARED

from qdqtool import CalibrationOptions, DataOptions, InsertOptions, PlanOptions, insert
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.diagnosis.diagnose import DiagnosisOptions, diagnose
from qdqtool.graph.io import open_model

LIMIT = 32
_INT8 = InsertOptions(keep_float=0)
WAYS: dict[str, InsertOptions] = {
    "default": InsertOptions(),
    "everything INT8": _INT8,
    "per-tensor": replace(_INT8, plan=PlanOptions(weights="per-tensor")),
    "max": replace(_INT8, calibration=CalibrationOptions(method="max")),
    "percentile": replace(_INT8, calibration=CalibrationOptions(method="percentile=97")),
    "heads": replace(_INT8, plan=PlanOptions(float_heads="none")),
    "2 images": _INT8,
    "255 times": _INT8,
}
EXPECTED = {
    "per-tensor": "per-tensor weights",
    "max": "outliers",
    "percentile": "saturated tensor",
    "heads": "head in INT8",
    "2 images": "calibration data",
    "255 times": "preprocessing",
}
LOST = 0.05  # at the outputs, from which on a cause is to be found


def data_of(subject: AccuracySubject, work: Path, *, held_out: bool = False) -> Path:
    """Images to calibrate with, or those of the evaluation."""
    place = SHARED / "corpus/datasets" / subject.data[int(held_out)]
    if place.suffix != ".npz":
        return place
    part = "x" if held_out else "calib"
    with np.load(place) as arrays:
        np.save(work / f"{place.stem}.{part}.npy", arrays[part])
    return work / f"{place.stem}.{part}.npy"


def models(names: list[str], ways: list[str], work: Path) -> Iterator[tuple[AccuracySubject, str, Path]]:
    """Each subject in each way, made where it is not there."""
    for name in names:
        subject = SUBJECTS[name]
        for way in ways:
            made = work / f"{name}.{way.replace(' ', '-')}.onnx"
            if not made.is_file():
                spec = parse_preprocess(subject.preprocess)
                if way == "255 times":
                    spec = replace(spec, scale=spec.scale * 255)
                reading = DataOptions(preprocess=spec, limit=2 if way == "2 images" else LIMIT)
                options = replace(WAYS[way], data_options=reading, advise=False)
                insert(SHARED / f"corpus/models/{name}.onnx", data=data_of(subject, work), options=options, output=made)
            yield subject, way, made


def main() -> int:
    """Print a line for each cause, and one for each model without."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default=",".join(SUBJECTS), help="with commas")
    parser.add_argument("--ways", default="default", help=f"with commas: {', '.join(WAYS)}")
    parser.add_argument("--work", type=Path, help="where Q/DQ models are kept")
    parser.add_argument("--held-out", action="store_true", help="diagnose on the images of the evaluation")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = args.work or Path(folder)
        work.mkdir(exist_ok=True)
        named = asked = 0
        for subject, way, made in models(args.models.split(","), args.ways.split(","), work):
            reading = DataOptions(preprocess=subject.preprocess, limit=LIMIT)
            since = time.process_time()
            data = data_of(subject, work, held_out=args.held_out)
            found = diagnose(open_model(made), data, DiagnosisOptions(data_options=reading))
            seconds = time.process_time() - since
            print(f"{subject.name}, {way}: loss {found.loss:.4f}, {seconds:.1f} s CPU", *found.notes, sep="; ")
            for one in found.causes:
                print(*(f"    {line}" for line in one.summary()), sep="\n")
            sys.stdout.flush()
            if way in EXPECTED and found.loss is not None and found.loss >= LOST:
                asked += 1
                named += bool(found.causes) and found.causes[0].name == EXPECTED[way]
        print(f"of {asked} models broken in one way that lose {LOST} or more, {named} have that cause first")
    return 0


if __name__ == "__main__":
    sys.exit(main())
