# SPDX-License-Identifier: Apache-2.0
"""A program in the place of the Python that has TensorRT for RTX: what a child does to the job, as lines of Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from qdqtool.tensorrt_rtx.installed import RtxLibrary

HEAD = """#!{python}
import json, os, pathlib, signal, sys, time
job = json.load(sys.stdin)
def give(result): pathlib.Path(job["result"]).write_text(json.dumps(result))
"""
ACCEPTED: dict[str, Any] = {
    "version": "1.7.1.116",
    "accepted": True,
    "network_layers": 3,
    "errors": [],
    "warnings": [],
    "log_errors": [],
    "cpu_seconds": 0.5,
    "peak_bytes": 1 << 27,
}


def library(folder: Path, body: str) -> RtxLibrary:
    """An installation whose child runs these lines; `job` is what it was asked, `give` writes a result."""
    path = folder / "child"
    path.write_text(HEAD.format(python=sys.executable) + body)
    path.chmod(0o755)
    return RtxLibrary(str(path), "1.7.1.116")


def giving(folder: Path, result: object) -> RtxLibrary:
    """An installation whose child gives this result and notes each job in a file `jobs` of the folder."""
    note = f"open({str(folder / 'jobs')!r}, 'a').write(json.dumps(job) + chr(10))"
    return library(folder, f"{note}\ngive({result!r})\n")
