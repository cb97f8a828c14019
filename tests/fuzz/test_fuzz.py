# SPDX-License-Identifier: Apache-2.0
"""A few mutants show no fault. The run itself is `make fuzz`, which is not part of the suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of address space hold on Linux only")


def run(folder: Path, *words: str) -> tuple[int, str, dict[str, dict[str, object]]]:
    """Run the script on seeds of the project alone; its exit code, its text, its JSON."""
    report = folder / "report.json"
    command = [sys.executable, str(SCRIPT), "--alone", "--work", str(folder), "--json", str(report), *words]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=folder)
    assert done.stderr == "" or "without" in done.stderr, done.stderr
    return done.returncode, done.stdout, json.loads(report.read_text()) if report.exists() else {}


@pytest.mark.slow  # making the seeds takes seven CPU seconds
def test_a_few_mutants_show_no_fault(tmp_path: Path) -> None:
    code, text, report = run(tmp_path, "--parts", "mutants", "--count", "16", "--seed", "3")
    assert code == 0, text
    assert report["mutants"]["runs"] == 16
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
