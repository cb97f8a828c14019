# SPDX-License-Identifier: Apache-2.0
"""What INT4 weights cost the bundled vision transformer, and what writing them costs. No test.

`python -m tests.bench.weight_formats [--count 10000]` draws pictures from a seed that nothing else uses, and gives
top-1 of FP32 and of INT4 rounded, with the search for scales, and smoothed as well (AWQ). Differences are of the same
pictures, with the interval of 95 %. `--cost MODEL --data D` gives user CPU seconds of `insert --data` in INT8 and in
INT4 instead.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.match.plan import PlanOptions
from tests.bench.vit_accuracy import MODELS, logits

SEED = 203
RUNS = (("rounded", False, ""), ("clip search", True, ""), ("clip search, smoothed (AWQ)", True, "smooth"))
HEAD = "| weights | blocks | top-1 | lost, points | as FP32 | dB |\n|---|---|---|---|---|---|"


def accuracy(count: int) -> None:
    """Print the table."""
    sys.path.insert(0, str(MODELS))
    import shapes

    images, labels = shapes.draw(SEED, count)
    calib = [{"images": one[None]} for one in shapes.draw(*shapes.CALIB)[0]]
    plain = onnx.load(MODELS / "shapes_vit.onnx")
    exact = logits(plain, images)
    right = exact.argmax(1) == labels
    print(f"{count} pictures\n\n{HEAD}\n| FP32 | | {right.mean():.4f} | | | |", flush=True)
    for block in (None, 16):
        for name, with_data, condition in RUNS:
            options = verbs.InsertOptions(PlanOptions("rtx", format="int4", block=block), condition=condition)
            done = verbs.insert(plain, data=calib if with_data else None, options=options)
            print(row(name, block, logits(done.model, images), exact, labels), flush=True)


def row(name: str, block: int | None, found: Any, exact: Any, labels: Any) -> str:
    """One line of the table."""
    lost = 100.0 * ((exact.argmax(1) == labels).astype(float) - (found.argmax(1) == labels))
    half = 1.96 * lost.std() / len(lost) ** 0.5
    decibel = 10 * np.log10(np.square(exact).sum() / np.square(exact - found).sum())
    same = (found.argmax(1) == exact.argmax(1)).mean()
    top1 = (found.argmax(1) == labels).mean()
    return (
        f"| {name} | {block or 'default'} | {top1:.4f} | {lost.mean():.2f} ± {half:.2f} | {same:.4f} | {decibel:.1f} |"
    )


def cost(model: Path, data: Path) -> None:
    """Print user CPU seconds of each format, each in a process of its own."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("int8", "int4"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            output = Path(folder) / f"{name}.onnx"
            words = ["insert", str(model), "--format", name, "--data", str(data), "--target", "rtx", "-o", str(output)]
            subprocess.run([sys.executable, "-m", "qdqtool", *words, "-q"], check=True)
            seconds[name] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    ratio = seconds["int4"] / seconds["int8"]
    print(f"user CPU: INT8 {seconds['int8']:.1f} s, INT4 {seconds['int4']:.1f} s, {ratio:.2f} times")


def main() -> int:
    """Print one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=10000, help="pictures that judge, whole hundreds")
    parser.add_argument("--cost", type=Path, help="model of which the costs are measured instead")
    parser.add_argument("--data", type=Path, help="its data")
    args = parser.parse_args()
    if args.cost is None:
        accuracy(args.count)
    else:
        cost(args.cost, args.data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
