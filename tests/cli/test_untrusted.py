# SPDX-License-Identifier: Apache-2.0
"""`--untrusted`: whatever ends the child is one line and exit code 2 here, and nothing that it began is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.cli import untrusted
from qdqtool.cli.commands import Commands
from qdqtool.cli.main import main
from qdqtool.cli.untrusted import VARIABLE, Limits, is_untrusted, limits_of, missing_limits
from tests.cli.command import LINE, refused, run, write_net

resource = pytest.importorskip("resource", reason="this system limits no process")

Capfd = pytest.CaptureFixture[str]


def play(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the child run Python code in place of the command."""
    monkeypatch.setattr(untrusted, "_CHILD", f"import json, os, signal, sys\n{code}")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE", "SIGKILL", "SIGXCPU"])
def test_a_signal_is_one_line(capfd: Capfd, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    play(monkeypatch, f"os.kill(os.getpid(), signal.{name})")
    said = run(capfd, "lint", "m.onnx", "--untrusted")
    refused(said, "CPU time" if name == "SIGXCPU" else "by the system" if name == "SIGKILL" else name)


def test_a_code_that_no_command_has_is_one_line(capfd: Capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader of libraries ends a process with 127 where memory runs out, Windows a crash with more."""
    play(monkeypatch, "sys.exit(127)")
    refused(run(capfd, "lint", "m.onnx", "--untrusted"), "0x7f")


def test_what_the_child_began_is_removed(capfd: Capfd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    places = (tmp_path, tmp_path / "there")
    made = [str(place / ".qdqtool-00000000000000aa.tmp") for place in places]
    play(
        monkeypatch,
        f"for place in {made}: os.mkdir(place); open(place + '/lock', 'w').close()\n"
        "open(os.environ['TMPDIR'] + '/large', 'w').close()\n"
        "print(os.environ['TMPDIR'], flush=True)\n"
        "os.abort()",
    )
    said = run(capfd, "insert", "m.onnx", "-o", "there/out.onnx", "--untrusted")
    assert said.code == 2
    assert not Path(said.out.strip()).exists()
    assert [*tmp_path.iterdir(), *(tmp_path / "there").iterdir()] == [tmp_path / "there"]


def test_an_endless_wait_is_one_line(capfd: Capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "limits_of", lambda words: Limits(1 << 30, 1, 1 << 30))
    monkeypatch.setattr(untrusted, "_WALL_FACTOR", 0.1)
    play(monkeypatch, "import time; time.sleep(60)")
    refused(run(capfd, "lint", "m.onnx", "--untrusted"), "took more than")


def test_code_and_streams_of_a_command_go_through(capfd: Capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    """What native code says is printed at the end, without escape sequences."""
    play(
        monkeypatch,
        f"sys.path[:] = {sys.path!r}\n"
        "from qdqtool.cli.untrusted import begin_child\n"
        "begin_child(json.loads(sys.argv[1])['limits'])\n"
        "os.write(2, b'native \\x1b[2J\\n')\n"
        "print('out'); print('err', file=sys.stderr); sys.exit(1)",
    )
    said = run(capfd, "lint", "m.onnx", "--untrusted")
    assert (said.code, said.out, said.err) == (1, "out\n", "err\nnative \\x1b[2J\n")


def test_the_child_has_the_limits(capfd: Capfd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An allocation, a loop and a file beyond them fail there."""
    monkeypatch.setattr(untrusted, "limits_of", lambda words: Limits(1 << 30, 7, 1 << 20))
    play(
        monkeypatch,
        f"sys.path[:] = {sys.path!r}\n"
        "from qdqtool.cli.untrusted import begin_child\n"
        "import resource\n"
        "begin_child(json.loads(sys.argv[1])['limits'])\n"
        "kinds = resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE\n"
        "print(json.dumps([resource.getrlimit(kind)[0] for kind in kinds]))\n"
        "try: bytearray(2 << 30)\n"
        "except MemoryError: print('no memory')\n"
        f"file = open({str(tmp_path / 'large')!r}, 'wb', 0)\n"
        "print(file.write(bytes(2 << 20)))",
    )
    said = run(capfd, "lint", "m.onnx", "--untrusted")
    limits, *rest = said.out.splitlines()
    assert json.loads(limits) == [1 << 30, 7, 1 << 20, 0]
    assert rest == ["no memory", str(1 << 20)]


def test_limits_grow_with_the_input_and_hold_those_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = tmp_path / "m.onnx", tmp_path / "images"
    data.mkdir()
    for path, size in ((model, 1_000_000), (tmp_path / "m.onnx.data", 2_000_000), (data / "1.png", 4_000_000)):
        path.write_bytes(bytes(size))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    empty = limits_of(["lint", "none.onnx"])
    assert empty.seconds == 300
    assert limits_of(["lint", str(model)]).file == empty.file + 4 * 3_000_000
    assert limits_of(["insert", str(model), f"--data=x:{data}"]).seconds == 300 + 70
    assert limits_of(["finetune", "none.onnx"]).seconds == 20 * 300
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (60, 60))
    assert limits_of(["finetune", str(model)]) == Limits(59, 59, 59)


def test_a_bug_is_one_line_of_an_untrusted_file(capsys: Capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: list[str]) -> int:
        raise RecursionError("deep")

    monkeypatch.setattr("qdqtool.cli.main.dispatch", fail)
    assert main(["lint", "m.onnx"], limited=True) == 2
    said = capsys.readouterr().err
    assert LINE.fullmatch(said) and "RecursionError" in said


@pytest.mark.parametrize(("value", "asked"), [("", False), ("0", False), ("1", True)])
def test_the_environment_asks_for_limits(monkeypatch: pytest.MonkeyPatch, value: str, asked: bool) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert is_untrusted(["lint"]) is asked
    assert is_untrusted(["lint", "--untrusted"])


def test_a_system_without_limits_says_so(capfd: Capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_limits() == ""
    monkeypatch.setattr(untrusted, "resource", None)
    play(monkeypatch, "sys.exit(0)")
    for words, notes in (([], 1), (["-q"], 0)):
        said = run(capfd, "lint", "m.onnx", "--untrusted", *words)
        assert (said.code, said.err.count("note:")) == (0, notes)
    play(monkeypatch, "sys.exit(0)")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert missing_limits() == "limits of memory"


def test_a_step_of_a_recipe_has_no_limits_of_its_own() -> None:
    commands = Commands()
    assert not any("untrusted" in commands.shape(verb).options for verb in commands.verbs())


def test_a_command_does_the_same_with_limits(tmp_path: Path) -> None:
    model = write_net(tmp_path)
    words = [sys.executable, "-m", "qdqtool", "lint", str(model), "--untrusted"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seconds", "part"),
    [
        ("crash-smallest-by-minus-one", 30, "SIGFPE"),
        ("crash-deep-tree", 30, "SIGSEGV"),
        ("endless-loop-compare", 3, "CPU time"),
        ("memory-expand", 30, "allocate memory"),
    ],
)
def test_hostile_models_are_one_line(tmp_path: Path, name: str, seconds: int, part: str) -> None:
    from tests.fuzz.hostile_models import attack

    ended = attack(name, tmp_path, ["--untrusted"], seconds)
    assert (ended.code, len(ended.lines), ended.left) == (2, 1, ())
    assert part in ended.lines[0]
