# SPDX-License-Identifier: Apache-2.0
"""stdout and stderr that take nothing: the command does its work, and its exit code says what was lost."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.cli.streams import CheckedStream
from tests.cli.command import contents, write_net

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
FULL = "qdqtool: error: stdout: cannot be written (No space left on device); send it to another place\n"


def shell(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    """`qdqtool WORDS` in a shell, for its redirections; stdout is buffered."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["sh", "-c", f"{sys.executable} -m qdqtool {words}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["insert m.onnx -o q.onnx", "-h", "--version"])
def test_stdout_on_a_full_disk_is_2_with_one_line(tmp_path: Path, words: str) -> None:
    write_net(tmp_path)
    said = shell(tmp_path, f"{words} > /dev/full")
    assert (said.returncode, said.stderr.splitlines()[-1] + "\n", "Traceback" in said.stderr) == (2, FULL, False)
    assert shell(tmp_path, f"{words} > /dev/full 2>&1").returncode == 2


@pytest.mark.slow
def test_stderr_on_a_full_disk_changes_nothing_else(tmp_path: Path) -> None:
    write_net(tmp_path)
    assert shell(tmp_path, "insert m.onnx -o q.onnx 2> /dev/full").returncode == 0
    assert shell(tmp_path, "insert no.onnx -o r.onnx 2> /dev/full").returncode == 2
    assert (tmp_path / "q.onnx").exists()


@pytest.mark.slow
def test_closed_streams_are_as_dev_null(tmp_path: Path) -> None:
    write_net(tmp_path)
    assert shell(tmp_path, "insert m.onnx -o open.onnx").returncode == 0
    for closed in (">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
        assert shell(tmp_path, f"insert m.onnx -o closed.onnx {closed}").returncode == 0
        found = contents(tmp_path)
        assert found["open.onnx"] == found.pop("closed.onnx"), f"{closed}: nobody printed into the file"
    assert shell(tmp_path, "insert no.onnx <&- >&- 2>&-").returncode == 2


def test_a_stream_drops_what_is_not_taken_and_keeps_the_first_fault() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, f"full {text}")

    stream = CheckedStream(Full())
    assert stream.write("a") == 1 and stream.write("bc") == 2
    assert stream.fault is not None and stream.fault.strerror == "full a"


def test_a_reader_that_is_gone_is_a_fault_like_others() -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    stream = CheckedStream(Gone())
    stream.flush()
    assert isinstance(stream.fault, BrokenPipeError)
