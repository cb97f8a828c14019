# SPDX-License-Identifier: Apache-2.0
"""FP32 against INT8 by onnxruntime on this machine's CPU: `bench` on models of a folder and on their Q/DQ models.

    python tests/bench/latency.py FOLDER NAME ... [--threads 1] [--seconds 5] [--shapes x:1x3x320x320]

Q/DQ are inserted with estimated scales, which is enough for a time: kernels do not look at values. One table for each
model, and one line for all: median FP32, median INT8, their ratio. onnxruntime's CPU is not TensorRT.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.timing.latency import Timing
from qdqtool.verbs.bench import BenchOptions, BenchResult, bench
from qdqtool.verbs.build_options import parse_shape_ranges
from qdqtool.verbs.insert import insert


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--shapes", default="")
    args = parser.parse_args()
    shapes = {name: best for name, (_, best, _) in parse_shape_ranges(args.shapes).items()} if args.shapes else {}
    options = BenchOptions(threads=args.threads, timing=Timing(args.seconds), shapes=shapes)
    lines = []
    for name in args.names:
        try:
            found = _measured(args.folder / f"{name}.onnx", options)
        except QdqError as error:
            lines.append(f"{name:28} {error.line()[:90]}")
            continue
        print("\n".join(found.summary()), end="\n\n", flush=True)
        fp32, int8 = (one.latency.p50 for one in found.runs)
        lines.append(f"{name:28} {fp32:10.3f} {int8:10.3f} {fp32 / int8:8.2f}x")
    print(f"{'model':28} {'FP32 ms':>10} {'INT8 ms':>10} {'speed':>9}  (medians)")
    print("\n".join(lines))
    return 0


def _measured(path: Path, options: BenchOptions) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        int8 = Path(folder) / f"{path.stem}.int8.onnx"
        insert(path, output=int8)
        return bench([path, int8], options)


if __name__ == "__main__":
    sys.exit(main())
