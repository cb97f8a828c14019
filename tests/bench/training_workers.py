# SPDX-License-Identifier: Apache-2.0
"""`finetune` by several processes: are files equal, how fast is it, and what does a killed worker leave.

    python -m tests.bench.training_workers [--models resnet20,cells] [--steps 16] [--kills 10] [--seed 0]
    python -m tests.bench.training_workers --kills-only mpi,torch,mpi=all-reduce,torch=all-reduce [...]

mpi4py with mpiexec and torch have to be installed beside this project's packages. Two models in INT8, cifar_resnet20
and the blood-cell detector of `models/`, are trained without labels by 1 to 4 processes. `equal` compares the file with
that of one process with as many `--grad-accum`; by all-reduce it is required of 2 processes, whose two gradients have
one sum. Images/s are the median of the steps after the first; `exchange` is the share of rank 0's time that goes into
sending, adding and waiting for other ranks. Then one of two workers is killed (SIGKILL) at random moments, by each
reducer and exchange in turn, or by those of `--kills-only` without the rest, and the same command with `--resume` ends
the run. 1 where a file differs. What was made below `--work` is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.accuracy_subjects import CIFAR_NORM

PROJECT = Path(__file__).resolve().parents[2]
_MODULE = ["-m", "qdqtool"]
_WAYS = ["mpi", "torch", "mpi=all-reduce", "torch=all-reduce"]


def main() -> int:
    """Print a table of files and one of kills for each model."""
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared")) / "corpus"
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default="resnet20,cells")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--kills-only", type=lambda text: text.split(","), metavar="REDUCERS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=shared)
    parser.add_argument("--work", type=Path, default=Path("out/training_workers"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    off = False
    for name in args.models.split(","):
        model, data, batch = subject(name, args.corpus, args.work.resolve())
        given = ["finetune", model, *data, "--batch", batch, "--steps", args.steps, "--equalize", "none", "-q"]
        words, work, ways = list(map(str, given)), args.work.resolve(), args.kills_only or _WAYS
        off |= not args.kills_only and _files(name, words, work, args.steps)
        off |= _kills(words, work, [ways[number % len(ways)] for number in range(args.kills)], random.Random(args.seed))
    return int(off)


def subject(name: str, corpus: Path, work: Path) -> tuple[Path, list[object], int]:
    """A model in INT8, made below `work`, its data as options, and samples in a batch."""
    int8 = work / f"{name}.onnx"
    if name == "resnet20":
        import numpy as np

        plain, data, batch = corpus / "models/cifar_resnet20.onnx", work / "cifar.npz", 16
        np.savez(data, x=np.load(corpus / "datasets/cifar10_1000.npz")["calib"])
        how: list[object] = ["--data", data, "--preprocess", CIFAR_NORM]
    else:
        plain, batch = PROJECT / "models/bccd_detector.onnx", 4
        photographs = corpus / "datasets/bccd/BCCD/JPEGImages"
        how = ["--data", photographs, "--limit", 64, "--preprocess", "yolox,interpolation=area"]
    if not int8.is_file():
        _checked([sys.executable, *_MODULE, "insert", plain, *how, "-q", "-o", int8])
    return int8, how, batch


def _files(name: str, words: list[str], work: Path, steps: int) -> bool:
    """Train by 1 to 4 processes; whether a file is not that of one process."""
    beside = Path(sys.executable).parent
    launchers: dict[str, list[object]] = {
        "mpiexec": [beside / "mpiexec", "-n", 2, sys.executable, *_MODULE],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "-m", "--", "qdqtool"],
    }
    print(f"\n{name}, {steps} steps\n\n| processes | by | equal | images/s | exchange |\n|---|---|---|---|---|")
    off = False
    for size in (1, 2, 3, 4):
        alone = work / f"{name}_{steps}_alone{size}.onnx"
        one: list[object] = [sys.executable, *_MODULE, *words, "--grad-accum", size]
        print(f"| 1 | `--grad-accum {size}` | | {_trained(one, alone)} |", flush=True)
        for by in ("mpi", "torch") if size > 1 else ():
            ways: dict[str, list[object]] = {}
            for how in (by, f"{by}=all-reduce"):
                own = [sys.executable, *_MODULE, *words, "--workers", size, "--reducer", how]
                ways[f"`--workers {size} --reducer {how}`"] = own
                if size == 2:
                    launcher = "mpiexec" if by == "mpi" else "torchrun"
                    ways[f"`{launcher}`, `--reducer {how}`"] = [*launchers[launcher], *words, "--reducer", how]
            for number, (way, command) in enumerate(ways.items()):
                made = work / f"{name}_{steps}_{by}{size}_{number}.onnx"
                speed = _trained(command, made)
                equal = made.read_bytes() == alone.read_bytes()
                off |= not equal and not (size > 2 and "all-reduce" in way)
                print(f"| {size} | {way} | {'yes' if equal else 'NO'} | {speed} |", flush=True)
    return off


def _trained(command: list[object], target: Path) -> str:
    """Train unless it was done; images/s and the share of exchange, as cells of a row."""
    log = target.with_suffix(".jsonl")
    if not target.is_file():
        _checked([*command, "--log", log, "-o", target])
    steps = [one for one in map(json.loads, log.read_text().splitlines()) if one["event"] == "step"][1:]
    exchange = sum(one["exchange_seconds"] for one in steps)
    whole = exchange + sum(one[f"{part}_seconds"] for one in steps for part in ("data", "gradient", "update"))
    return f"{statistics.median(one['images_per_second'] for one in steps):.1f} | {exchange / whole:.0%}"


def _kills(words: list[str], work: Path, ways: list[str], draw: random.Random) -> bool:
    """Kill one of two workers by each way and go on; whether a file differs."""
    print("\n| killed after steps | by | rank | ended within | equal |\n|---|---|---|---|---|")
    off, whole = False, dict[str, bytes]()
    steps = int(words[words.index("--steps") + 1])
    for by in ways:
        kept, log, made = files = tuple(work / f"killed.{end}" for end in ("npz", "jsonl", "onnx"))
        command: list[object] = [sys.executable, *_MODULE, *words, "--workers", 2, "--reducer", by, "--log", log]
        command += ["--checkpoint", kept, "--checkpoint-every", 1, "--resume", "-o", made]
        if by not in whole:
            _removed(files)
            _checked(command)
            whole[by] = made.read_bytes()
        _removed(files)
        after, rank = draw.randrange(steps - 1), draw.randrange(2)
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (_steps(log) < after or rank not in dict(_ranks(process.pid))):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.3))
        os.kill(dict(_ranks(process.pid))[rank], signal.SIGKILL)
        begun = time.monotonic()
        code = process.wait()
        ended, done = time.monotonic() - begun, _steps(log)
        _checked(command)
        equal = made.read_bytes() == whole[by]
        off |= not (equal and code)
        print(f"| {done} | {by} | {rank} | {ended:.1f} s, code {code} | {'yes' if equal else 'NO'} |", flush=True)
    return off


def _removed(files: tuple[Path, ...]) -> None:
    for one in files:
        one.unlink(missing_ok=True)


def _steps(log: Path) -> int:
    return log.read_text().count('"event": "step"') if log.is_file() else 0


def _ranks(launcher: int) -> Iterator[tuple[int, int]]:
    """Rank and process of the workers below a process, as Linux tells them."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for process in parents:
        above = process
        while above in parents and above != launcher:
            above = parents[above]
        if above != launcher or process == launcher:
            continue
        try:
            variables = (Path("/proc") / str(process) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [one.partition(b"=")[2] for one in variables if one.startswith((b"RANK=", b"PMI_RANK="))]
        if ranks:
            yield int(ranks[0]), process


def _checked(command: list[object]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=PROJECT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
