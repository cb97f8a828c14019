# SPDX-License-Identifier: Apache-2.0
"""Runs the command line in forked children under limits of time and memory. Not what they run, nor what is judged.

The parent has imported everything and starts no thread, so that a run costs milliseconds beside the verb's own work.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import io
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HARNESS = 99  # exit code of a child whose preparation failed: a fault of this program
POLL_SECONDS = 0.002
GRACE_SECONDS = 2.0  # between asking a late child where it is, and ending it


@dataclass(frozen=True)
class Limits:
    """What one run may take; `memory` is address space in bytes beyond what the parent has mapped."""

    cpu_seconds: int = 20
    wall_seconds: int = 300
    memory: int = 3 << 30


@dataclass(frozen=True)
class FuzzRun:
    """The words after `qdqtool`, and what is called immediately before the command line."""

    argv: Sequence[str]
    arm: Callable[[], None] | None = None


@dataclass(frozen=True)
class FuzzTask:
    """One run. `prepare` is called in the child with its folder, and writes the inputs below `folder/run`."""

    id: str
    prepare: Callable[[Path], FuzzRun]


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        task: what was run.
        folder: `run/` with all files, `out.txt`, `err.txt`, `tmp/`; it is gone when the next result is asked for.
        code: exit code, negative for a signal.
        late: whether it was ended for its wall time.
        cpu_seconds: user and system time.
        peak_mb: highest resident memory.
    """

    task: FuzzTask
    folder: Path
    code: int
    late: bool
    cpu_seconds: float
    peak_mb: float

    def text(self, name: str) -> str:
        """What was written to `out.txt` or `err.txt`."""
        return (self.folder / name).read_bytes().decode("utf-8", errors="replace")


@dataclass
class _Child:
    task: FuzzTask
    folder: Path
    start: float
    asked: float = 0.0


def run_all(tasks: Iterable[FuzzTask], place: Path, limits: Limits, jobs: int = 1) -> Iterator[Ended]:
    """Run tasks, `jobs` at a time, and give each result as it ends. No child outlives this generator."""
    gc.collect()
    gc.freeze()  # a child's first collection would otherwise copy every page of the parent
    waiting, running = iter(tasks), dict[int, _Child]()
    free = [place / f"slot{index}" for index in range(jobs)]
    try:
        while True:
            while free and (task := next(waiting, None)) is not None:
                folder = free.pop()
                running[_fork(task, folder, limits)] = _Child(task, folder, time.monotonic())
            if not running:
                return
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid not in running:
                _end_late(running, limits)
                time.sleep(POLL_SECONDS)
                continue
            child = running.pop(pid)
            _end_group(pid)
            cpu = usage.ru_utime + usage.ru_stime
            code = os.waitstatus_to_exitcode(status)
            yield Ended(child.task, child.folder, code, child.asked > 0, cpu, usage.ru_maxrss * 1024 / 1e6)
            free.append(child.folder)
    finally:
        for pid in running:
            _end_group(pid)
            os.waitpid(pid, 0)


def _end_late(running: dict[int, _Child], limits: Limits) -> None:
    """Ask a child that takes too long where it is (SIGXCPU prints the Python stack), then end it."""
    now = time.monotonic()
    for pid, child in running.items():
        if child.asked and now > child.asked + GRACE_SECONDS:
            _end_group(pid)
        elif not child.asked and now > child.start + limits.wall_seconds:
            child.asked = now
            os.kill(pid, signal.SIGXCPU)


def _end_group(pid: int) -> None:
    """End a child and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _fork(task: FuzzTask, folder: Path, limits: Limits) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "run").mkdir(parents=True)
    (folder / "tmp").mkdir()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = HARNESS
        try:
            os.setpgid(0, 0)
            code = _child(task, folder, limits)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return pid


def _child(task: FuzzTask, folder: Path, limits: Limits) -> int:
    from qdqtool.cli.main import main

    _redirect(folder)
    os.environ["TMPDIR"] = str(folder / "tmp")
    plan = task.prepare(folder)
    os.ftruncate(2, 0)  # what preparing said is not the command's
    os.lseek(2, 0, os.SEEK_SET)
    os.chdir(folder / "run")
    _limit(limits)
    if plan.arm:
        plan.arm()
    code = main(list(plan.argv))
    atexit._run_exitfuncs()
    return code


def _redirect(folder: Path) -> None:
    """Standard streams as a shell's redirection leaves them, in files."""
    for number, name in ((0, os.devnull), (1, folder / "out.txt"), (2, folder / "err.txt")):
        handle = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it ends with the process
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    errors = io.FileIO(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(errors, encoding="utf-8", errors="backslashreplace", write_through=True)


def _limit(limits: Limits) -> None:
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGXCPU, file=2, chain=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))
    statm = Path("/proc/self/statm")
    mapped = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (mapped + limits.memory,) * 2)
