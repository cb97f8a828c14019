# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402 - threads are turned off, and the tests' folder is found, before anything else is imported
"""Attacks the command line with damaged inputs, and its saving with errors and kills. A script: `make fuzz`.

Exits with 1 if any run ended with exit code 70, a signal or no end, left or changed files that it should not, or wrote
messages that a terminal should not get.
"""

from __future__ import annotations

import os

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a process with threads cannot be forked safely

import argparse
import importlib
import json
import pkgutil
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(PROJECT), str(PROJECT / "tests")]

import qdqtool
from tests.fuzz.count_options import count_runs, count_tasks
from tests.fuzz.fork_server import Ended, FuzzTask, Limits, run_all
from tests.fuzz.fuzz_commands import COMMANDS
from tests.fuzz.fuzz_report import Report
from tests.fuzz.fuzz_seeds import families
from tests.fuzz.heavy_models import CASES, heavy_faults, heavy_tasks
from tests.fuzz.mutants import Source, digest, tasks
from tests.fuzz.save_faults import save_faults
from tests.fuzz.verdict import Fault, faults_of

_LEFT_OUT = ("qdqtool.__main__", "qdqtool.testing", "qdqtool.polygraphy", "qdqtool.distributed.dask_cluster")
PARTS = ("mutants", "counts", "saving", "heavy")


def main(argv: Sequence[str]) -> int:
    """Run what was asked for; 0 where nothing was found."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _import_all()
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    # No TemporaryDirectory: children run the functions that are called at exit, and it is one of them.
    place = Path(tempfile.mkdtemp(prefix="qdqtool-fuzz-", dir=arguments.work))
    try:
        made = families(place / "seeds", shared if (shared / "corpus").is_dir() and not arguments.alone else None)
        source = Source(made, arguments.seed)
        print(f"{len(made)} families of seeds ({digest(made)}), seed {arguments.seed}", flush=True)
        if arguments.replay:
            return _replay(source, arguments, place)
        reports = {part: _part(part, source, arguments, place) for part in arguments.parts.split(",")}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for part, report in reports.items():
        print(f"\n{part}\n{report.table()}\n{report.faults() or 'no faults'}")
    if arguments.json:
        text = json.dumps({part: report.to_json() for part, report in reports.items()}, indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return int(any(report.faulty for report in reports.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz.py", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="mutants (1000)")
    parser.add_argument("--skip", type=int, default=0, help="mutants that other runs try: the first of them (0)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (1)")
    parser.add_argument("--only", metavar="NAME", help="commands whose name begins so; see fuzz_commands.py")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)} (all)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--cpu", type=int, default=20, help="seconds after which a run counts as hanging (20)")
    parser.add_argument("--memory", type=int, default=3072, help="MiB of address space that a run may add (3072)")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which the part `saving` ends (60)")
    parser.add_argument("--replay", metavar="ID", help="make one mutant again, such as peel:17, and keep its files")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files of faulty runs, a few of each group")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON too")
    parser.add_argument("--alone", action="store_true", help="without the shared folder")
    parser.add_argument("--work", type=Path, help="where temporary files go")
    return parser


def _import_all() -> None:
    """Import what runs import, so that a child need not."""
    for module in pkgutil.walk_packages(qdqtool.__path__, "qdqtool."):
        if not module.name.startswith(_LEFT_OUT):
            importlib.import_module(module.name)
    for name in ("onnxruntime", "onnx.shape_inference", "onnx.version_converter", "PIL.Image", "pycocotools.cocoeval"):
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"without {name}: runs that need it end with exit code 3", file=sys.stderr)


def _part(part: str, source: Source, arguments: argparse.Namespace, place: Path) -> Report:
    limits = Limits(arguments.cpu, 15 * arguments.cpu, arguments.memory << 20)
    keep = arguments.keep / part if arguments.keep else None
    if part == "saving":
        seconds = 60.0 * arguments.minutes
        return save_faults(source.families, place, limits, arguments.only, Report(keep), seconds)
    if part == "counts":
        return _run(count_tasks(source.families), count_runs(), place, limits, arguments.jobs, Report(keep))
    if part == "heavy":
        return _run(heavy_tasks(), len(CASES), place, limits, 1, Report(keep), heavy_faults)
    wanted = tasks(source, arguments.count, arguments.only, arguments.skip)
    return _run(wanted, arguments.count, place, limits, arguments.jobs, Report(keep))


def _run(
    wanted: Iterable[FuzzTask],
    count: int,
    place: Path,
    limits: Limits,
    jobs: int,
    report: Report,
    judge: Callable[[Ended], list[Fault]] = faults_of,
) -> Report:
    start = shown = time.monotonic()
    try:
        for ended in run_all(wanted, place, limits, jobs):
            report.add(ended, judge(ended))
            if sys.stderr.isatty() and time.monotonic() > shown + 0.5:
                shown = time.monotonic()
                rate = report.runs / (shown - start)
                sys.stderr.write(f"\r{report.runs} of {count} runs, {report.faulty} faulty, {rate:.1f} a second ")
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; what was found so far:\n")
    return report


def _replay(source: Source, arguments: argparse.Namespace, place: Path) -> int:
    name, _, index = arguments.replay.partition(":")
    command = next((one for one in COMMANDS if one.name == name), None)
    if command is None or not index.isdigit():
        sys.stderr.write(f"no such mutant: {arguments.replay}; it is COMMAND:NUMBER, such as peel:17\n")
        return 2
    kept = (arguments.keep or Path("out/fuzz")) / f"replay-{name}-{index}"
    limits = Limits(arguments.cpu, 15 * arguments.cpu, arguments.memory << 20)
    for ended in run_all([source.task(command, int(index))], place, limits):
        faults = faults_of(ended)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(ended.folder, kept, symlinks=True)
        job = json.loads(ended.text("job.json"))
        print(f"{job['done']}\ncd {kept / 'run'}; qdqtool", *map(ascii, job["argv"]))
        print(ended.text("out.txt")[-3000:], ended.text("err.txt")[-6000:], sep="\n")
        print(f"exit code {ended.code}, {ended.cpu_seconds:.2f} CPU s, {ended.peak_mb:.0f} MB", *faults, sep="\n")
        return int(bool(faults))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
