# SPDX-License-Identifier: Apache-2.0
"""What formats with blocks, INT4 weights and NVFP4, cost the bundled vision transformer, and writing them. No test.

`python -m tests.bench.weight_formats [--count 10000]` draws pictures from a seed that nothing else uses, and gives
top-1 of FP32 and of both formats rounded, with the search for scales, INT4 smoothed as well (AWQ). Losses are
of the same pictures, with the interval of 95 %. `--cost MODEL --data D` gives user CPU seconds of `insert --data` in
INT8 and in both formats instead.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.match.plan import PlanOptions
from tests.bench.vit_accuracy import MODELS, logits

SEED = 203
RUNS = (("rounded", False, ""), ("clip search", True, ""), ("clip search, smoothed", True, "smooth"))
FORMATS = (("int4", "rtx", None), ("int4", "rtx", 16), ("nvfp4", "rtx", None), ("nvfp4", "gpu", None))
HEAD = "| model | blocks | scales | top-1 | lost, points | as FP32 | dB |\n|---|---|---|---|---|---|---|"


def accuracy(count: int, formats: Collection[str]) -> None:
    """Print the table."""
    sys.path.insert(0, str(MODELS))
    import shapes

    images, labels = shapes.draw(SEED, count)
    calib = [{"images": one[None]} for one in shapes.draw(*shapes.CALIB)[0]]
    plain = onnx.load(MODELS / "shapes_vit.onnx")
    exact = logits(plain, images)
    right = exact.argmax(1) == labels
    print(f"{count} pictures\n\n{HEAD}\n| FP32 | | | {right.mean():.4f} | | | |", flush=True)
    for name, target, block in FORMATS:
        if name not in formats:
            continue
        for way, searched, condition in RUNS if name == "int4" else RUNS[:2]:
            options = verbs.InsertOptions(PlanOptions(target, format=name, block=block), condition=condition)
            done = verbs.insert(plain, data=calib, options=options)
            if not searched:  # the scales of activations, and the largest magnitudes of blocks
                done = verbs.insert(plain, scales=done.table, options=options)
            model = f"{name}, {target}, {len(done.plan.weights)} weights"
            print(row(model, way, block, logits(done.model, images), exact, labels), flush=True)


def row(model: str, way: str, block: int | None, found: Any, exact: Any, labels: Any) -> str:
    """One line of the table."""
    lost = 100.0 * ((exact.argmax(1) == labels).astype(float) - (found.argmax(1) == labels))
    half = 1.96 * lost.std() / len(lost) ** 0.5
    decibel = 10 * np.log10(np.square(exact).sum() / np.square(exact - found).sum())
    same = (found.argmax(1) == exact.argmax(1)).mean()
    top1 = (found.argmax(1) == labels).mean()
    figures = f"{top1:.4f} | {lost.mean():.2f} ± {half:.2f} | {same:.4f} | {decibel:.1f}"
    return f"| {model} | {block or 'default'} | {way} | {figures} |"


def cost(model: Path, data: Path) -> None:
    """Print user CPU seconds of each format, each in a process of its own."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("int8", "int8 --rest fp16", "fp8", "int4", "nvfp4"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            output = Path(folder) / "out.onnx"
            words = ["insert", str(model), "--data", str(data), "--target", "rtx", "-o", str(output), "-q"]
            subprocess.run([sys.executable, "-m", "qdqtool", *words, "--format", *name.split()], check=True)
            seconds[name] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    for name, found in seconds.items():
        print(f"{name}: {found:.1f} s of user CPU, {found / seconds['int8']:.2f} times INT8's")


def main() -> int:
    """Print one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=10000, help="pictures that judge, whole hundreds")
    parser.add_argument("--formats", default="int4,nvfp4")
    parser.add_argument("--cost", type=Path, help="model of which the costs are measured instead")
    parser.add_argument("--data", type=Path, help="its data")
    args = parser.parse_args()
    if args.cost is None:
        accuracy(args.count, args.formats.split(","))
    else:
        cost(args.cost, args.data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
