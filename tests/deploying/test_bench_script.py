# SPDX-License-Identifier: Apache-2.0
"""`bench.sh`, run with a script in place of trtexec, and the ten lines of README.md."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from qdqtool.deploying.bench_script import BENCH, BuildScript, bench_script, readme
from qdqtool.emit.trtexec import FIND_TRTEXEC, build_script

TRTEXEC = """#!/bin/sh
for word in "$@"; do
  case "$word" in
    --saveEngine=*) echo built > "${word#--saveEngine=}" ;;
    --loadEngine=*int8*) time=0.5 ;;
    --loadEngine=*) time=0.75 ;;
  esac
done
echo "$@" >> calls
echo "[I] Latency: min = 1 ms, max = 9 ms, mean = 4 ms, median = 3 ms, percentile(99%) = 8 ms"
PRINTED
echo "[I] D2H Latency: min = 1 ms, max = 9 ms, mean = 4 ms, median = 2 ms, percentile(99%) = 8 ms"
"""
NEW = 'echo "[I] GPU Compute Time: min = 0.1 ms, max = 9 ms, mean = 4 ms, median = $time ms, percentile(99%) = 8 ms"'
OLD = """printf '[I] GPU Compute\\n[I] min: 0.1 ms\\n[I] max: 9 ms\\n[I] median: %s ms\\n' "$time\""""

pytestmark = pytest.mark.skipif(shutil.which("awk") is None, reason="bench.sh needs awk")


def build(stem: str, *words: str) -> BuildScript:
    text = build_script(
        ["x"], '"$trtexec"', [f"--onnx={stem}.onnx", *words, f"--saveEngine={stem}.engine"], FIND_TRTEXEC
    )
    return BuildScript(f"{stem}.trtexec.sh", text)


def run(folder: Path, printed: str, *builds: BuildScript, dla: bool = False) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    for one in builds:
        (folder / one.name).write_text(one.text)
    (folder / BENCH).write_text(bench_script(builds, dla=dla, rtx=False))
    (folder / "trtexec").write_text(TRTEXEC.replace("PRINTED", printed))
    (folder / "trtexec").chmod(0o755)
    environment = {**os.environ, "TRTEXEC": str(folder / "trtexec")}
    return subprocess.run(["sh", BENCH], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("printed", [NEW, OLD], ids=["new", "old"])
def test_both_engines_are_built_once_and_timed(tmp_path: Path, printed: str) -> None:
    builds = build("my net.int8"), build("my net.fp16")
    done = run(tmp_path / "d", printed, *builds)
    assert done.returncode == 0, done.stderr
    said = ["my net.int8: 0.5 ms", "my net.fp16: 0.75 ms", "1.50 times the speed of my net.fp16"]
    assert done.stdout.splitlines() == said
    assert done.stderr.splitlines() == ["building my net.int8.engine", "building my net.fp16.engine"]
    assert run(tmp_path / "d", printed, *builds).stderr == "", "what is there is not built again"


def test_flags_of_the_dla_and_of_open_shapes_go_with_the_engine(tmp_path: Path) -> None:
    done = run(tmp_path / "d", NEW, build("a", "--minShapes=x:1x3", "--optShapes=x:8x3", "--maxShapes=x:8x3"), dla=True)
    assert done.returncode == 0 and done.stdout == "a: 0.75 ms\n"
    assert (tmp_path / "d" / "calls").read_text().splitlines()[-1].endswith("--useDLACore=0 --shapes=x:8x3")


def test_a_build_that_fails_ends_with_its_last_lines(tmp_path: Path) -> None:
    done = run(tmp_path / "d", "echo no kernel; exit 1", build("a"), build("b"))
    assert done.returncode == 1 and "no kernel" in done.stderr and done.stdout == ""


def test_the_readme_has_ten_lines() -> None:
    text = readme("Jetson", ["INT8 pays.", "Kept a."], [build("a.int8"), build("a.fp16")], ["a.int8.deepstream.txt"])
    assert len(text.splitlines()) == 9 and "run `sh bench.sh`" in text
    assert "nvpmodel" in text and "nvpmodel" not in readme("GeForce", ["No."], [build("a.int8")], [])
    assert "`a.int8.engine` and `a.fp16.engine`" in text and "`sh a.int8.trtexec.sh`" in text
