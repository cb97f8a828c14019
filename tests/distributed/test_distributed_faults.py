# SPDX-License-Identifier: Apache-2.0
"""What is said of shards and workers that fail, on clusters that are generated: no process is started."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.calibration.engine import CalibrationOptions
from qdqtool.distributed import dask_calibration, dask_cluster, shard_job
from qdqtool.errors import MissingPackageError, QdqError
from tests.graphs import model_of

dask = pytest.importorskip("distributed", reason='needs pip install "qdqtool[dask]"')


# Shards.


class Cluster:
    """A client that calls what it is asked for at once."""

    status = "running"

    def sync(self, call: Callable[..., Any], *arguments: Any, callback_timeout: float, **named: Any) -> Any:
        assert callback_timeout > 0
        return call(*arguments, **named)


class Rounds(Cluster):
    """A scheduler that answers shard by shard: what each round of futures comes to, by number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rounds: dict[int, Any]) -> None:
        self.rounds = list(rounds)
        self.asked: list[list[int]] = []
        self.added: list[str] = []
        monkeypatch.setattr(
            dask_calibration, "_submitted", lambda _, wanted: contextlib.nullcontext(self.submit(wanted))
        )
        monkeypatch.setattr(dask_calibration, "state_from_bytes", bytes.decode)
        monkeypatch.setattr(dask_calibration.ShardSum, "add", lambda _, state, where: self.added.append(state))

    def submit(self, wanted: list[int]) -> dict[Any, int]:
        self.asked.append(wanted)
        answers = self.rounds.pop(0) if self.rounds else {}
        futures = [EndedFuture(answers.get(number, f"{number}".encode())) for number in wanted]
        return dict(zip(futures, wanted, strict=True))

    def wait_for_workers(self, count: int, timeout: float) -> None:
        """There are some."""

    def cancel(self, some: object) -> None:
        """Nothing is left of them."""

    def count(self) -> object:
        return dask_calibration._counted(dask_calibration._Round(self, None, None, 3, lambda: None))


class EndedFuture:
    """A future that has its answer: an exception where it was given up."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.status = "cancelled" if isinstance(answer, Exception) else "finished"

    def add_done_callback(self, call: Callable[[EndedFuture], None]) -> None:
        call(self)

    def result(self, timeout: float) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


FORGOTTEN = RuntimeError("cancelled for reason: already forgotten")


def test_what_the_scheduler_gave_up_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Rounds(monkeypatch, {1: FORGOTTEN, 2: FORGOTTEN}, {2: FORGOTTEN})
    cluster.count()
    assert cluster.asked == [[0, 1, 2], [1, 2], [2]]
    assert cluster.added == ["0", "1", "2"]


def test_what_is_given_up_each_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Rounds(monkeypatch, *[{1: FORGOTTEN}] * 3)
    with pytest.raises(QdqError, match=r"shard 2/3: was abandoned .*\(cancelled"):
        cluster.count()
    assert cluster.asked == [[0, 1, 2], [1], [1]]


@pytest.mark.parametrize("way", ["no worker", "no scheduler"])
def test_a_cluster_that_is_gone_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    cluster = Rounds(monkeypatch, {0: FORGOTTEN})
    if way == "no scheduler":
        cluster.status = "closed"
    else:
        monkeypatch.setattr(cluster, "wait_for_workers", lambda count, timeout: (_ for _ in ()).throw(TimeoutError))
    with pytest.raises(QdqError, match="shard 1/3: was abandoned"):
        cluster.count()
    assert cluster.asked == [[0, 1, 2]]


def test_a_fault_waits_for_what_was_given_up_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = shard_job.ShardError("d.npz", "is bad", "", False)
    cluster = Rounds(monkeypatch, {0: FORGOTTEN, 1: fault, 2: FORGOTTEN}, {1: fault})
    with pytest.raises(QdqError, match=r"d\.npz: is bad"):
        cluster.count()
    assert cluster.asked == [[0, 1, 2], [0, 1]]


def test_every_lower_shard_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [shard_job.ShardError(str(number), "is bad", "", False) for number in range(3)]

    cancelled: list[Any] = []
    client = type("Client", (Cluster,), {"cancel": lambda self, some: cancelled.append(len(some))})()
    for order, reported in (((2, 0, 1), [0, 1]), ((1, 2, 0), [1, 0]), ((0, 1, 2), [2])):
        cancelled.clear()
        pending = {EndedFuture(answers[number]): number for number in order}
        monkeypatch.setattr(dask_calibration, "_submitted", lambda *_, p=pending: contextlib.nullcontext(p))
        with pytest.raises(QdqError, match="0: is bad"):
            dask_calibration._counted(dask_calibration._Round(client, None, None, 3, lambda: None))
        assert cancelled == reported


def test_a_fault_of_ours_stays_what_it_is() -> None:
    bug = ZeroDivisionError("ours")
    assert dask_calibration._failed("shard 2/3", bug) is bug


# Clusters of our own.


@pytest.mark.parametrize("fault", [RuntimeError("Nanny failed to start."), OSError("no port"), asyncio.TimeoutError()])
def test_workers_that_do_not_start_are_one_line(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def fail(**_: object) -> None:
        raise fault

    monkeypatch.setattr(dask, "LocalCluster", fail)
    with (
        pytest.raises(QdqError, match=r"local:1: its workers .*\(.+\)"),
        dask_cluster.connected("local:1", 1.0),
    ):
        pass


def test_a_cluster_that_does_not_close_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been counted is kept: neither the client nor the cluster turn it into a fault."""
    waited = []

    class Standing(Cluster):
        def close(self, timeout: float) -> None:
            waited.append(timeout)
            raise asyncio.TimeoutError

        def wait_for_workers(self, count: int, timeout: float) -> None:
            """There are some."""

    monkeypatch.setattr(dask, "LocalCluster", lambda **_: Standing())
    monkeypatch.setattr(dask, "Client", lambda *_, **__: Standing())
    with dask_cluster.connected("local:1", 3.0) as client:
        assert client.status == "running"
    assert waited == [3.0, dask_cluster._CLOSED]


# Machines that are not alike.


class Told(Cluster):
    """A client whose workers answer what the test says."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def run(self, *_: object, **_more: object) -> dict[str, Any]:
        return self.answers


class Dying(Told):
    """A client whose workers all end while they are asked, `ends` times."""

    def __init__(self, answers: dict[str, Any], ends: int) -> None:
        super().__init__(answers)
        self.ends = ends
        self.waited = 0

    def run(self, *_: object, **_more: object) -> dict[str, Any]:
        return self.answers if self.waited >= self.ends else {}

    def wait_for_workers(self, count: int, timeout: float) -> None:
        self.waited += count


def test_no_answer_is_no_consent() -> None:
    client = Dying({"tcp://b": 2, "tcp://a": 1}, ends=3)
    assert dask_cluster.ask_workers(client, print) == [("tcp://a", 1), ("tcp://b", 2)]
    assert client.waited == 3
    with pytest.raises(QdqError, match="workers ended 5 times"):
        dask_cluster.ask_workers(Dying({}, ends=99), print)


def versions_here() -> dict[str, str]:
    found: dict[str, dict[str, str]] = {}

    class Spy(Cluster):
        def run(self, ask: Callable[[], dict[str, str]], on_error: str = "raise") -> dict[str, Any]:
            found["here"] = ask()
            return {"tcp://a": found["here"]}

    dask_cluster.check_versions(Spy())
    return found["here"]


def test_versions() -> None:
    same = versions_here()
    assert set(same) == {"qdqtool", "onnxruntime", "numpy"}
    dask_cluster.check_versions(Told({"tcp://a": same, "tcp://b": same}))
    with pytest.raises(QdqError, match=r"worker tcp://b: has numpy 1.0"):
        dask_cluster.check_versions(Told({"tcp://b": {**same, "numpy": "1.0"}, "tcp://a": same}))
    with pytest.raises(MissingPackageError, match="worker tcp://b: has no qdqtool"):
        dask_cluster.check_versions(Told({"tcp://a": same, "tcp://b": {**same, "qdqtool": ""}}))


def test_files_that_a_worker_does_not_see(tmp_path: Path) -> None:
    onnx.save(model_of("net (float[N,3,8,8] x) => (float[N,3,8,8] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 3, 8, 8), np.float32))
    job = shard_job.make_job(str(tmp_path / "m.onnx"), str(tmp_path / "d.npz"), CalibrationOptions())
    seen = shard_job.look_at(job)
    dask_calibration._check_seen(Told({"w": seen}), job, seen)
    cases: list[tuple[Any, type[QdqError], str]] = [
        (
            shard_job.ShardError("m.onnx", "does not exist", "", False),
            QdqError,
            "does not see the files: m.onnx does not",
        ),
        (
            replace(seen, data="other"),
            QdqError,
            r"sees another \S*d.npz than this machine; put the .* with --dask-ship",
        ),
        (replace(seen, model=("other",)), QdqError, r"sees another \S*m.onnx than this machine"),
        (
            shard_job.ShardError("images", "needs Pillow", "pip", True),
            MissingPackageError,
            "worker w: needs Pillow; pip",
        ),
    ]
    for found, kind, message in cases:
        with pytest.raises(kind, match=message):
            dask_calibration._check_seen(Told({"v": seen, "w": found}), job, seen)
