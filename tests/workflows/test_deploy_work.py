# SPDX-License-Identifier: Apache-2.0
"""A deploy that is stopped goes on when it is started again: nothing is done twice, and the bytes are the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import DeployOptions, deploy
from qdqtool.cli.commands import Commands
from qdqtool.cli.main import main
from qdqtool.errors import QdqError
from qdqtool.workflows.deploy_work import unfinished
from qdqtool.workflows.judge import Judge
from tests.cli.command import contents
from tests.workflows.deploy_net import write_net

WORK = ".out.deploying"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_net(tmp_path_factory.mktemp("work"))


class Stopped:
    """Counts the steps and measurements of deployments, and interrupts before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.at = 0
        call, judged = Commands.call, Judge.judgment

        def counted_call(commands: Commands, words: Sequence[str]) -> int:
            self.count(words[0])
            return call(commands, words)

        def counted_judged(judge: Judge, model: Any) -> Any:
            self.count("judged")
            return judged(judge, model)

        monkeypatch.setattr(Commands, "call", counted_call)
        monkeypatch.setattr(Judge, "judgment", counted_judged)

    def count(self, what: str) -> None:
        if len(self.done) + 1 == self.at:
            raise KeyboardInterrupt
        self.done.append(what)

    def during(self, call: Callable[[], object], at: int = 0) -> list[str]:
        """What is done by a call, which is interrupted at one of it."""
        self.done, self.at = [], at
        if at:
            with pytest.raises(KeyboardInterrupt, match=r"^run the same command to continue$"):
                call()
        else:
            call()
        return self.done


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopped]:
    yield Stopped(monkeypatch)


def run(here: Path, folder: Path, place: str = "8.6.1", data: Any = None, **more: Any) -> None:
    options = DeployOptions(place, effort="fast", progress=False, **more)
    deploy(here / "net.onnx", here / "data.npy" if data is None else data, folder / "out", options)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "more"), [("xavier-nx:jp4.6.1", {"dla": True}), ("11.4", {})])
def test_nothing_is_done_twice_and_the_bytes_are_the_same(
    here: Path, tmp_path: Path, stopped: Stopped, place: str, more: dict[str, Any]
) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    wanted = stopped.during(lambda: run(here, tmp_path / "whole", place, **more))
    assert len(wanted) > 5 and wanted.count("judged") >= 3
    parts = list[str]()
    for _ in wanted:
        parts += stopped.during(lambda: run(here, tmp_path / "parts", place, **more), at=2)
        assert [one.name for one in (tmp_path / "parts").iterdir()] == [WORK]
        if len(parts) == len(wanted) - 1:
            break
    assert stopped.during(lambda: run(here, tmp_path / "parts", place, **more)) == wanted[-1:]
    assert parts == wanted[:-1]
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def given(folder: Path, *, times: float = 1.0) -> Callable[[], Iterator[dict[str, np.ndarray]]]:
    """Data in memory: the samples one by one, made anew by each call."""
    samples = np.load(folder / "data.npy") * np.float32(times)
    return lambda: ({"x": row[None]} for row in samples)


@pytest.mark.slow
def test_what_was_given_in_memory_goes_on_too(here: Path, tmp_path: Path, stopped: Stopped) -> None:
    options = DeployOptions("8.6.1", effort="fast", progress=False)

    def call(name: str, times: float = 1.0) -> Callable[[], object]:
        (tmp_path / name).mkdir(exist_ok=True)
        model = onnx.load(here / "net.onnx")
        return lambda: deploy(model, given(here, times=times), tmp_path / name / "out", options)

    wanted = stopped.during(call("whole"))
    first = stopped.during(call("parts"), at=4)
    assert first + stopped.during(call("parts")) == wanted
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert stopped.during(call("other"), at=4) == wanted[:3]
    assert stopped.during(call("other", times=2.0)) == wanted, "other data"


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"max_loss": 0.5}, {"place": "8.6.0"}, {"data": "other.npy"}])
def test_the_work_of_another_command_is_dropped(
    here: Path, tmp_path: Path, stopped: Stopped, other: dict[str, Any]
) -> None:
    np.save(tmp_path / "other.npy", np.load(here / "data.npy")[:20])
    other = {name: tmp_path / value if name == "data" else value for name, value in other.items()}
    stopped.during(lambda: run(here, tmp_path), at=5)
    done = stopped.during(lambda: run(here, tmp_path, **other))
    assert len(done) == 7 and not (tmp_path / WORK).exists()


@pytest.mark.slow
def test_a_second_call_for_the_same_folder_is_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    call = Commands.call

    def second(commands: Commands, words: Sequence[str]) -> int:
        with pytest.raises(QdqError, match="another run is using it"):
            run(here, tmp_path)
        said.append(words[0])
        return call(commands, words)

    monkeypatch.setattr(Commands, "call", second)
    run(here, tmp_path)
    assert said == ["insert", "insert"] and [one.name for one in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_wrong_input_leaves_the_work_of_another_command_and_none_of_its_own(
    here: Path, tmp_path: Path, stopped: Stopped
) -> None:
    with pytest.raises(QdqError):
        run(here, tmp_path, data=np.zeros((2, 4, 8, 8), np.float32))
    assert not list(tmp_path.iterdir())
    done = stopped.during(lambda: run(here, tmp_path), at=4)
    with pytest.raises(QdqError):
        run(here, tmp_path, data=np.zeros((2, 4, 8, 8), np.float32))
    assert len(done + stopped.during(lambda: run(here, tmp_path))) == 7


def test_a_folder_of_that_name_that_holds_something_else_is_refused(here: Path, tmp_path: Path) -> None:
    (tmp_path / WORK).mkdir()
    (tmp_path / WORK / "mine.txt").write_text("mine")
    with pytest.raises(QdqError, match="is where deploy works, and holds other files; move it away"):
        run(here, tmp_path)
    assert [one.name for one in (tmp_path / WORK).iterdir()] == ["mine.txt"]


def test_an_interrupted_command_says_in_one_line_how_it_goes_on(
    here: Path, tmp_path: Path, stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["deploy", here / "net.onnx", "--data", here / "data.npy", "--for", "8.6.1", "-o", tmp_path / "out", "-q"]
    stopped.at = 3
    assert main([*map(str, words), "--effort", "fast"]) == 130
    assert capsys.readouterr().err == "qdqtool: interrupted; run the same command to continue\n"


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.slow
def test_killed_at_random_moments_the_results_are_the_same(here: Path, tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "qdqtool", "deploy", here / "net.onnx", "--data", here / "data.npy"]
        return subprocess.Popen([*words, "--for", "8.6.1", "--effort", "fast", "-o", folder / "out", "-q"])

    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    before = time.perf_counter()
    assert start(tmp_path / "whole").wait() == 0
    took = time.perf_counter() - before
    draw = random.Random(0)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        process = start(tmp_path / "parts")
        time.sleep(took * draw.uniform(0.2, 0.6))
        process.send_signal(number)
        process.wait()
    if not (tmp_path / "parts" / "out").exists():
        assert start(tmp_path / "parts").wait() == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_work_that_cannot_be_moved_away_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`improve` ended with exit code 2 there, after it had written its file."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    staging = tmp_path / "staging"
    staging.mkdir()
    with unfinished(tmp_path / "out.onnx", staging, "improve") as work:
        work.folder("tried")
        monkeypatch.setattr(Path, "rename", refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["staging"]
