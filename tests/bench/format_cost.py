# SPDX-License-Identifier: Apache-2.0
"""What number formats and an FP16 rest cost `insert --data`: user CPU beside the default and beside INT8. No test.

`python -m tests.bench.format_cost MODEL... [--rounds 3] [--samples 16]`: each way runs in a process of its own, the
ways in turn, on samples of noise; medians of their user CPU seconds. Exit code 1 where an FP16 rest takes more than 1.3
times the default, FP8 more than 1.2 times INT8, or INT4 with its search more than 2 times.

`--memory` writes a model of 2.6 GB and gives the peak memory of plain inference and of `insert --format int4` instead;
exit code 1 where that takes more than 1.3 times the lesser of what two levels of optimization take.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from tests.bench.format_engines import noise
from tests.bench.large_models import make_external

MEMORY = 1.3
RTX = ["--target", "rtx"]
# Way -> options, the way that it is held against, and how many times that it may take.
WAYS: dict[str, tuple[list[str], str, float]] = {
    "default": ([], "default", 1.0),
    "FP16 rest": (["--rest", "fp16"], "default", 1.3),
    "rtx, FP16 rest": ([*RTX, "--rest", "fp16"], "default", 1.3),
    "rtx, INT8": (RTX, "rtx, INT8", 1.0),
    "rtx, FP8": ([*RTX, "--format", "fp8"], "rtx, INT8", 1.2),
    "rtx, INT4": ([*RTX, "--format", "int4"], "rtx, INT8", 2.0),
    "rtx, NVFP4": ([*RTX, "--format", "nvfp4"], "rtx, INT8", float("inf")),
}


def seconds(model: Path, data: Path, options: list[str], folder: Path) -> float | None:
    """User CPU of one run; None where the format has no operator in the model."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    (folder / "out.onnx").unlink(missing_ok=True)
    words = ["insert", str(model), "--data", str(data), "-o", str(folder / "out.onnx"), "-q", *options]
    done = subprocess.run([sys.executable, "-m", "qdqtool", *words], capture_output=True, text=True)
    if done.returncode and "has nothing to quantize" not in done.stderr:
        raise SystemExit(done.stderr)
    return None if done.returncode else resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


PLAIN = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
data = numpy.load(sys.argv[2])
for at in range(len(data[data.files[0]])):
    session.run(None, {name: data[name][at : at + 1] for name in data.files})
"""


def peak(*words: str) -> int:
    """Peak resident bytes of a process."""
    process = subprocess.Popen([sys.executable, *words])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words[0]}: exit status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_maxrss * 1024


def memory(samples: int) -> int:
    """Print what plain inference and INT4 take of a model of 2.6 GB; 1 where INT4 takes more than it may."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_external(folder / "m.onnx")
        np.savez(folder / "data.npz", **noise(folder / "m.onnx", samples))
        files = str(folder / "m.onnx"), str(folder / "data.npz")
        plain = {level: peak("-c", PLAIN, *files, level) for level in ("ORT_ENABLE_BASIC", "ORT_ENABLE_ALL")}
        words = ["insert", str(folder / "m.onnx"), "--data", str(folder / "data.npz"), "--format", "int4", *RTX]
        ours = peak("-m", "qdqtool", *words, "-o", str(folder / "out.onnx"), "-q")
    for level, held in plain.items():
        print(f"{level} {held >> 20} MiB, INT4 {ours >> 20} MiB: {ours / held:.3f} times, at most {MEMORY}")
    return int(ours > MEMORY * min(plain.values()))


def main() -> int:
    """Print a table; 1 where a way takes more than it may."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--ways", default=";".join(WAYS))
    parser.add_argument("--memory", action="store_true")
    args = parser.parse_args()
    if args.memory:
        return memory(args.samples)
    ways, held = args.ways.split(";"), True
    print("| model | way | user CPU s | times | at most |\n|---|---|---|---|---|")
    for model in args.models:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.savez(folder / "data.npz", **noise(model, args.samples))
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for way in ways * args.rounds:
                found = seconds(model, folder / "data.npz", WAYS[way][0], folder)
                if found is not None:
                    taken[way].append(found)
        for way in ways:
            _, beside, most = WAYS[way]
            if not taken[way]:
                print(f"| {model.stem} | {way} | nothing to quantize | | |")
                continue
            times = median(taken[way]) / median(taken[beside])
            spread = f"{median(taken[way]):.1f} ({min(taken[way]):.1f} to {max(taken[way]):.1f})"
            print(f"| {model.stem} | {way} | {spread} | {times:.2f} | {most:g} |", flush=True)
            held = held and times <= most
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
