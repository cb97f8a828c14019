# SPDX-License-Identifier: Apache-2.0
"""Runs `worker.py` in a process of its own: a crash, a kill, noise and memory of the library stay there.

What comes back is the worker's result; what went wrong is one line.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.tensorrt_rtx.installed import NAME, RtxLibrary

WORKER = Path(__file__).with_name("worker.py")
_POLL = 0.02  # seconds between two looks at the child's memory
_TAIL = 4000  # bytes of the child's stderr that are looked at


def run_worker(library: RtxLibrary, job: Mapping[str, Any], where: object, seconds: float) -> dict[str, Any]:
    """Do one job.

    Args:
        library: which installation runs it.
        job: what `worker.py` reads, without `result`; `memory` is how many bytes the child may have.
        where: what messages call the model.
        seconds: how long it may take; the child is killed then.

    Raises:
        QdqError: the child was killed, crashed, took too long, or refused the job.
    """
    with tempfile.TemporaryDirectory(prefix="qdqtool-rtx-") as folder:
        result, noise = Path(folder) / "result.json", Path(folder) / "stderr"
        code = _run(library, {**job, "result": str(result)}, noise, where, seconds)
        # The last line that the child wrote to stderr, in brackets; "" where there is none
        with noise.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = [line for line in file.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
        said = f" ({lines[-1].strip()[:300]})" if lines else ""
        if code:
            raise QdqError(where, f"{NAME} {library.version} {_end_of(code)} {_doing(job)}{said}", _todo(code))
        try:
            done: dict[str, Any] = json.loads(result.read_text(encoding="ascii"))
        except (OSError, ValueError):
            raise QdqError(where, f"{NAME} {library.version} ended without a result {_doing(job)}{said}") from None
    if "refused" in done:
        raise QdqError(where, done["refused"], "see docs/tensorrt_rtx.md")
    return done


def _run(library: RtxLibrary, job: Mapping[str, Any], noise: Path, where: object, seconds: float) -> int:
    own = library.python == sys.executable
    command = [library.python, "-B" if own else "-BI", str(WORKER)]  # this one's PYTHONPATH is none of another's
    with noise.open("wb") as errors, tempfile.TemporaryFile() as asked:
        asked.write(json.dumps(job).encode())
        asked.seek(0)
        try:
            child = subprocess.Popen(command, stdin=asked, stdout=subprocess.DEVNULL, stderr=errors)
        except OSError as error:
            raise QdqError(library.python, f"does not run ({error.strerror})") from None
        with child:
            try:
                return _wait(child, seconds, job.get("memory"))
            except subprocess.TimeoutExpired:
                reason = f"{NAME} {library.version} was ended after {seconds:g} s"
                raise QdqError(where, reason, "give it more time, or a smaller model") from None
            except MemoryError:
                had = f"{_doing(job)}: it used more than the {job['memory'] / 1e6:.0f} MB that it may use"
                reason = f"{NAME} {library.version} was ended {had}"
                raise QdqError(where, reason, "allow it more memory, or give a smaller model") from None
            finally:
                child.kill()


def _wait(child: subprocess.Popen[bytes], seconds: float, most: int | None) -> int:
    """The child's exit code."""
    if most is None:
        return child.wait(seconds)
    status, end = Path(f"/proc/{child.pid}/status"), time.monotonic() + seconds
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_POLL)
        if _memory_of(status) > most:
            raise MemoryError
        if time.monotonic() > end:
            raise subprocess.TimeoutExpired(child.args, seconds)


def _memory_of(status: Path) -> int:
    """Bytes that a process has in memory by its status file; 0 where the system has none."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


def _doing(job: Mapping[str, Any]) -> str:
    return {"build": "while it built the engine", "parse": "while it parsed the model"}.get(
        job["action"], "at its start"
    )


def _end_of(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _todo(code: int) -> str:
    if code == -9:
        return "the system does that when memory runs out"
    if code == -11:
        return "a scale that is computed or an input of the graph crashes it; run qdqtool lint on the model"
    return "run qdqtool doctor"
