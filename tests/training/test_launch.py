# SPDX-License-Identifier: Apache-2.0
"""Workers end with the process that started them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

_LAUNCH = """
import sys, time
from qdqtool.training.launch import _start
worker = _start([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], {})
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process that its parent ended")
def test_a_worker_ends_where_its_launcher_is_killed() -> None:
    launcher = subprocess.Popen([sys.executable, "-c", _LAUNCH], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    worker = int(launcher.stdout.readline())
    assert is_running(worker)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    end = time.monotonic() + 20
    while is_running(worker):
        assert time.monotonic() < end
        time.sleep(0.01)
