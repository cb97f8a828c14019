# SPDX-License-Identifier: Apache-2.0
"""What a command costs: CPU seconds and peak memory of one child process. Not what it computes.

Only the standard library is imported here and at the top of the scripts: a child inherits its parent's size as the
floor of its own `ru_maxrss`, so the parent must stay small for the figures to mean something.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

POLL_SECONDS = 0.005
TAIL_LINES = 3


@dataclass(frozen=True)
class Cost:
    """One run of one command: seconds are CPU (user + system) and wall, memory is in MB of 10^6 bytes.

    Attributes:
        cpu_seconds: user and system time of the process and the children that it waited for.
        wall_seconds: from start to end.
        peak_mb: `ru_maxrss`: everything resident, mapped files included.
        anonymous_mb: highest RssAnon seen in /proc, sampled; 0 where nobody asked or the system has no /proc.
        code: exit code, negative for a signal, None where the limit ended it.
        tail: the last lines the command wrote, for a failure's sake.
    """

    cpu_seconds: float
    wall_seconds: float
    peak_mb: float
    anonymous_mb: float
    code: int | None
    tail: str

    @property
    def said(self) -> str:
        """The last line the command wrote."""
        return self.tail.rpartition("\n")[2]


def measured(
    command: Sequence[str | Path],
    *,
    limit_seconds: int | None = None,
    anonymous: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Cost:
    """Run a command to its end, or to a limit of CPU seconds (a busy machine is no excuse), and say what it cost."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        child = subprocess.Popen(
            [str(part) for part in command], stdout=output, stderr=output, env={**os.environ, **(environment or {})}
        )
        if limit_seconds:
            resource.prlimit(child.pid, resource.RLIMIT_CPU, (limit_seconds, limit_seconds))
        peak_anonymous = [0.0]
        if anonymous:
            threading.Thread(target=_watch_anonymous, args=(child.pid, peak_anonymous), daemon=True).start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - start
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    cpu = usage.ru_utime + usage.ru_stime
    ended = limit_seconds is not None and child.returncode == -signal.SIGKILL and cpu > limit_seconds - 1
    return Cost(
        cpu_seconds=cpu,
        wall_seconds=wall,
        peak_mb=usage.ru_maxrss * 1024 / 1e6,
        anonymous_mb=peak_anonymous[0],
        code=None if ended else child.returncode,
        tail="\n".join(lines[-TAIL_LINES:]),
    )


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The function's answer, computed in a process of its own, so that this one stays small."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text under a head, the first column left, the others right."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def _watch_anonymous(pid: int, peak: list[float]) -> None:
    """Keep the highest RssAnon of a process until it is gone."""
    status = Path(f"/proc/{pid}/status")
    while True:
        try:
            text = status.read_text()
        except OSError:
            return
        found = text.partition("RssAnon:")[2].split(None, 1)
        if not found:
            return  # a zombie: the process has ended and holds no memory
        peak[0] = max(peak[0], int(found[0]) * 1024 / 1e6)
        time.sleep(POLL_SECONDS)
