# SPDX-License-Identifier: Apache-2.0
"""A child that crashes, is killed, hangs or writes nonsense leaves one line, exit code 2 and no file."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from qdqtool.errors import QdqError
from qdqtool.tensorrt_rtx.child import run_worker
from qdqtool.tensorrt_rtx.installed import RtxLibrary
from tests.tensorrt_rtx.fake_python import library

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV while it built the engine"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL while it built the engine"),
        ("sys.exit('out of memory')", "ended with exit code 1 while it built the engine (out of memory)"),
        ("pass", "ended without a result while it built the engine"),
        ("open(job['result'], 'w').write('{')", "ended without a result while it built the engine"),
        ("time.sleep(60)", "was ended after 1 s"),
        ("give({'refused': 'has no input z'})", "has no input z"),
    ],
)
def test_a_child_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: str
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with pytest.raises(QdqError) as caught:
        run_worker(library(tmp_path, body), {"action": "build"}, "m.onnx", 1 if "sleep" in body else 30)
    assert caught.value.line().startswith("m.onnx: ") and expected in caught.value.line()
    assert (caught.value.exit_code, list(scratch.iterdir())) == (2, [])


def test_noise_of_the_child_goes_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    child = library(tmp_path, "print('noise'); print('more', file=sys.stderr); give({'seen': job['model']})")
    assert run_worker(child, {"action": "parse", "model": "m"}, "m", 30) == {"seen": "m"}
    assert capfd.readouterr() == ("", "")


def test_a_child_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="does not run"):
        run_worker(RtxLibrary(str(tmp_path / "no"), "1"), {"action": "parse"}, "m", 30)


HUNGRY = "held = bytearray(200 << 20)\ntime.sleep(30)"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells how much memory a process has")
def test_a_child_with_more_memory_than_it_may_have_is_ended(tmp_path: Path) -> None:
    with pytest.raises(QdqError) as caught:
        run_worker(library(tmp_path, HUNGRY), {"action": "build", "memory": 100_000_000}, "m.onnx", 60)
    assert caught.value.exit_code == 2 and "memory" in caught.value.todo
    assert "the 100 MB" in caught.value.line() and "built the engine" in caught.value.line()


@pytest.mark.parametrize(("memory", "body"), [(None, "give({})"), (1 << 33, "give({})"), (1 << 33, "time.sleep(60)")])
def test_within_its_memory_a_child_ends_as_ever(tmp_path: Path, memory: int | None, body: str) -> None:
    job = {"action": "parse", "memory": memory}
    if "sleep" not in body:
        assert run_worker(library(tmp_path, body), job, "m.onnx", 60) == {}
        return
    with pytest.raises(QdqError, match="was ended after 1 s"):
        run_worker(library(tmp_path, body), job, "m.onnx", 1)
