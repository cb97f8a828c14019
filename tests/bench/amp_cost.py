# SPDX-License-Identifier: Apache-2.0
"""What `amp` costs: beside one calibration of the same model and data, and by a table on 2.6 GB of external data.

`python -m tests.bench.amp_cost [--models A,B] [--no-external] [--work DIR]`: models of the corpus (QDQTOOL_SHARED) with
random samples. CPU seconds of whole processes, imports included. Exit code 1 where `amp --data` takes more than twice
the CPU of `calibrate` with its default method, or `amp --scales` more than 200 MB of anonymous memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.cost import apart, measured
from tests.bench.large_models import make_external
from tests.bench.shared_material import SHARED

MODELS = "yolox_nano_coco,nanodet_m_320_coco,mobilenetv1_025_128"
SAMPLES = 16
MOST_TIMES, MOST_MB = 2.0, 200.0
QDQTOOL = (sys.executable, "-m", "qdqtool")


def write_samples(model: Path, data: Path) -> None:
    """Write random samples of the input shapes; free sides are 1 for the batch and 64."""
    import numpy as np
    import onnx

    from qdqtool.data.model_inputs import inputs_of

    values, arrays = np.random.default_rng(0), {}
    for one in inputs_of(onnx.load(model).graph):
        sides = [side if isinstance(side, int) and side else 64 if at else 1 for at, side in enumerate(one.shape or ())]
        shape, kind = (SAMPLES * sides[0], *sides[1:]), np.dtype(one.dtype)
        made = values.normal(size=shape) if kind.kind == "f" else values.integers(0, 2, shape)
        arrays[one.name] = made.astype(kind)
    np.savez(data, **arrays)


def beside_calibration(model: Path, folder: Path) -> Iterator[str]:
    """Print both figures; what is missed."""
    data = folder / "samples.npz"
    apart(write_samples, model, data)
    words = (model, "--data", data, "-q", "-o")
    amp = measured([*QDQTOOL, "amp", *words, folder / "half.onnx"])
    calibrate = measured([*QDQTOOL, "calibrate", *words, folder / "scales.json"])
    ratio = amp.cpu_seconds / calibrate.cpu_seconds
    sys.stdout.write(f"| {model.stem} | {amp.cpu_seconds:.2f} | {calibrate.cpu_seconds:.2f} | {ratio:.2f} |\n")
    if amp.code or calibrate.code:
        yield f"{model.stem}: {amp.tail or calibrate.tail}"
    elif ratio > MOST_TIMES:
        yield f"{model.stem}: {ratio:.2f} times a calibration"


def by_table(folder: Path) -> Iterator[str]:
    """The model with external data; what is missed."""
    model = folder / "big.onnx"
    apart(make_external, model)
    words = [model, "--scales", folder / "big.scales.json", "-o", folder / "half.onnx"]
    cost = measured([*QDQTOOL, "amp", *words], anonymous=True)
    sys.stdout.write(f"2.6 GB by a table: {cost.cpu_seconds:.1f} s CPU, {cost.anonymous_mb:.0f} MB anonymous\n")
    if cost.code:
        yield f"external data: {cost.tail}"
    elif cost.anonymous_mb > MOST_MB:
        yield f"external data: {cost.anonymous_mb:.0f} MB"


def main(words: list[str]) -> int:
    """Print the table; 1 where a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--no-external", action="store_true")
    parser.add_argument("--work", type=Path)
    args = parser.parse_args(words)
    corpus = SHARED / "corpus" / "models"
    missed: list[str] = []
    sys.stdout.write("| model | amp, CPU s | calibrate, CPU s | ratio |\n|---|---|---|---|\n")
    with tempfile.TemporaryDirectory(dir=args.work) as made:
        for name in filter(None, args.models.split(",")):
            missed += beside_calibration(corpus / f"{name}.onnx", Path(made))
        if not args.no_external:
            missed += by_table(Path(made))
    sys.stdout.write("".join(f"missed: {one}\n" for one in missed))
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
