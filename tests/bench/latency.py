# SPDX-License-Identifier: Apache-2.0
"""FP32 against INT8 by onnxruntime on this machine's CPU: `bench` on models and on their Q/DQ models.

    python tests/bench/latency.py [NAME ...] [--folder DIR] [--threads 1] [--seconds 5] [--shapes x:1x3x320x320]
    python tests/bench/latency.py --write docs/bench.md

Q/DQ are inserted with estimated scales, which is enough for a time: kernels do not look at values. One table for each
model, and one for all, in Markdown; `--write` puts that one into a file, between two comments. A machine that does
something else at the same time gives other times: the load before the first run is told. onnxruntime's CPU is not
TensorRT.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from pages import rewrite

from qdqtool.errors import QdqError
from qdqtool.timing.options import Timing
from qdqtool.verbs.bench import BenchResult, BenchRun, bench
from qdqtool.verbs.bench_options import BenchOptions
from qdqtool.verbs.build_options import parse_shape_ranges
from qdqtool.verbs.insert import insert

NAMES = ("yolox_nano_coco", "nanodet_m_320_coco", "squeezenet11_fp32", "mobilenetv1_025_128", "cifar_resnet20_bn")
HEAD = (
    "| model | FP32: mean, 50 %, 99 % ms | INT8: mean, 50 %, 99 % ms | FP32 / INT8 a second | speed |",
    "|---|---|---|---|---|",
)


def main() -> int:
    """Print the tables; 1 where a model could not be measured."""
    args = _arguments()
    load = os.getloadavg()[0]
    shapes = {name: best for name, (_, best, _) in parse_shape_ranges(args.shapes).items()} if args.shapes else {}
    options = BenchOptions(threads=args.threads, timing=Timing(args.seconds), shapes=shapes)
    found: dict[str, BenchResult] = {}
    failed = []
    for name in args.names:
        try:
            found[name] = _measured(args.folder / f"{name}.onnx", options)
        except QdqError as error:
            failed.append(f"{name}: {error.line()}")
            continue
        print("\n".join(found[name].summary()), end="\n\n", flush=True)
    lines = [*section(found, args.threads, load)]
    print("\n".join([*lines, *failed]))
    if args.write is not None and found and not failed:
        rewrite(args.write, "latency.py", lines)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--folder", type=Path, default=shared / "corpus" / "models", help="where the models are")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured for each of the two")
    parser.add_argument("--shapes", default="", help="of inputs whose sides are open")
    parser.add_argument("--write", type=Path, help="a file with the two comments, between which the table is put")
    return parser.parse_args()


def section(found: dict[str, BenchResult], threads: int, load: float) -> list[str]:
    """The table of all models with what it was measured on, as Markdown."""
    if not found:
        return []
    machine = next(iter(found.values())).machine
    cores = "1 thread" if threads == 1 else f"{threads} threads"
    how = f"{machine}; onnxruntime {version('onnxruntime')}, {cores}, batch 1, load {load:.1f} before the first run."
    return [how, "", *HEAD, *(_row(name, *one.runs) for name, one in found.items())]


def _row(name: str, fp32: BenchRun, int8: BenchRun) -> str:
    speed = fp32.latency.p50 / int8.latency.p50
    rates = " / ".join(f"{one.latency.throughput(one.batch):,.0f}" for one in (fp32, int8))
    return f"| {name} | {_times(fp32)} | {_times(int8)} | {rates} | {speed:.2f}x |"


def _times(run: BenchRun) -> str:
    return ", ".join(f"{value:.2f}" for value in (run.latency.mean, run.latency.p50, run.latency.p99))


def _measured(path: Path, options: BenchOptions) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        int8 = Path(folder) / f"{path.stem}.int8.onnx"
        insert(path, output=int8)
        return bench([path, int8], options)


if __name__ == "__main__":
    sys.exit(main())
