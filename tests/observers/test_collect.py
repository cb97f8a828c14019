# SPDX-License-Identifier: Apache-2.0
"""Who counts, in how many passes and from where on changes nothing: workers, derivation, memory limits, checkpoints."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.amax import kernel
from qdqtool.calibration.engine import calibrate_scales
from qdqtool.data.loader import Batch, DataOptions, inputs_of, open_loader
from qdqtool.observers.collect import count_batches
from qdqtool.observers.options import CalibrationOptions
from qdqtool.observers.state_file import State, read_state, state_to_bytes

NET = """net (float[N,3,8,8] x) => (float[N,4,8,8] y) <float[4,3,3,3] w1, float[4,8,1,1] w2> {
 c = Conv<pads=[1,1,1,1]>(x, w1)  r = Relu(c)  n = Neg(c)  k = Concat<axis=1>(r, n)
 t = Transpose<perm=[0,1,3,2]>(k)  d = Conv(t, w2)  y = Sigmoid(d)  i = ArgMax(d)
}"""
FLOATS = ("x", "c", "r", "n", "k", "t", "d", "y")
ALL_METHODS = ["mse", "entropy"]

pytestmark = pytest.mark.usefixtures("heard")


def batches(count: int = 9) -> list[Batch]:
    r = np.random.default_rng(5)
    return [{"x": (r.normal(size=(2, 3, 8, 8)) * r.uniform(0.2, 3)).astype(np.float32)} for _ in range(count)]


def counted(feed: Any = None, proto: onnx.ModelProto | None = None, **options: Any) -> State:
    made = CalibrationOptions(**{"progress": False, **options})
    return count_batches(Model(proto or model_of(NET)), batches() if feed is None else feed, made)


def bits(state: State) -> dict[str, dict[str, bytes]]:
    found = state.observation.of_all(state.plan)
    return {kind: {name: one.state() for name, one in each.items()} for kind, each in found.items()}


@pytest.mark.parametrize("method", ALL_METHODS)
def test_what_follows_is_not_fetched_and_counts_the_same(method: str) -> None:
    derived, all_of_them = counted(method=method), counted(method=method, derive=False)
    assert all_of_them.plan.fetched == FLOATS
    assert derived.plan.fetched == (
        ("x", "c", "n", "d", "y") if method == "mse" else ("x", "c", "r", "n", "k", "d", "y")
    )
    assert derived.plan.names == FLOATS
    assert bits(derived) == bits(all_of_them)


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("workers", [2, 3, 20])
def test_workers_change_nothing(method: str, workers: int) -> None:
    alone = counted(method=method)
    together = counted(method=method, workers=workers)
    assert bits(together) == bits(alone)
    assert together.observation.samples == alone.observation.samples == 18
    assert len(together.observation.done) == 9


def test_the_table_of_both_kinds_is_the_same_too() -> None:
    tables = [
        calibrate_scales(
            Model(model_of(NET)), batches(), CalibrationOptions("entropy", beside="mse", workers=w, progress=False)
        )
        for w in (1, 2)
    ]
    assert tables[0].to_json() == tables[1].to_json()
    assert set(tables[0].provenance.predicted.decibel) == set(FLOATS)


def needed(limit: int = 1) -> int:
    """What a limit that is too small says would do, in bytes."""
    with pytest.raises(QdqError, match="give at least") as reported:
        counted(max_memory=limit)
    return int(reported.value.todo.split("at least ")[1].split("M")[0]) << 20


@pytest.mark.parametrize("workers", [1, 2])
def test_passes_change_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.observers.data_passes.HISTOGRAM_BYTES", 0)
    few = counted(max_memory=workers * 2 * 8 * 64 * 4, workers=workers)  # k, two images of it, and no more
    assert len(few.identity.passes) > 1
    assert sum(few.identity.passes) == len(few.plan.fetched)
    assert bits(few) == bits(counted())
    assert few.observation.samples == 18


def test_one_pass_where_all_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(max_memory=64 << 20, progress=None).identity.passes == (5,)
    assert capsys.readouterr().err == ""


def test_more_passes_are_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.observers.data_passes.HISTOGRAM_BYTES", 0)
    state = counted(max_memory=2 * 8 * 64 * 4, progress=None)
    assert f"{len(state.identity.passes)} passes" in capsys.readouterr().err


def test_a_limit_that_cannot_be_kept_says_what_can() -> None:
    assert counted(max_memory=needed()).identity.passes


def test_integers_are_no_activations() -> None:
    assert "i" not in counted().plan.names
    assert "i" not in counted(max_memory=1 << 30).plan.names


# Faults: the first in file order, whoever meets it.


def poisoned(at: int) -> list[Batch]:
    made = batches()
    for place in (at, at + 2):
        made[place]["x"][0, 0, 0, 0] = np.nan
    return made


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_nan_names_the_first_batch(method: str, workers: int) -> None:
    with pytest.raises(QdqError, match=r"^x: holds NaN \(batch from sample 6 on\)"):
        counted(poisoned(3), method=method, workers=workers)


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("workers", [1, 4])
def test_a_fault_while_reading_comes_after_what_was_read(method: str, workers: int) -> None:
    def feed() -> Iterator[Batch]:
        yield from poisoned(3)[:5]
        raise QdqError("data", "ends badly")

    with pytest.raises(QdqError, match="sample 6"):
        counted(feed(), method=method, workers=workers)

    def clean() -> Iterator[Batch]:
        yield from batches()[:5]
        raise QdqError("data", "ends badly")

    with pytest.raises(QdqError, match="ends badly"):
        counted(clean(), method=method, workers=workers)


@pytest.mark.parametrize("workers", [-1, 0, 1025, 2**63 - 1])
def test_numbers_that_are_no_threads(workers: int) -> None:
    with pytest.raises(QdqError, match=rf"--workers: {workers} .* 1 to 1024"):
        counted(workers=workers)


# Checkpoints.


class StopError(Exception):
    """What ends a run in the middle."""


def broken_off(at: int) -> Iterator[Batch]:
    yield from batches()[:at]
    raise StopError


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after each batch."""
    monkeypatch.setattr("qdqtool.observers.checkpoint.SECONDS", 0.0)
    monkeypatch.setattr("qdqtool.observers.checkpoint._SHARE", 0)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("at", [1, 4, 8])
def test_resumed_ends_as_if_it_had_run_through(tmp_path: Path, method: str, workers: int, at: int) -> None:
    path = tmp_path / "c"
    with pytest.raises(StopError):
        counted(broken_off(at), method=method, workers=workers, checkpoint=path)
    kept = read_state(path)
    assert 1 <= len(kept.observation.done) <= at
    assert not kept.complete
    resumed = counted(batches(), method=method, workers=workers, checkpoint=path, resume=True)
    assert bits(resumed) == bits(counted(method=method))
    assert resumed.observation.samples == 18
    assert read_state(path).complete


@pytest.mark.usefixtures("busy")
def test_resumed_in_a_later_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.observers.data_passes.HISTOGRAM_BYTES", 0)
    limit, walks = 2 * 8 * 64 * 4, []

    class Feed:
        """Walked again for each pass; the third walk (the first only looks) breaks off."""

        def __iter__(self) -> Iterator[Batch]:
            walks.append(1)
            yield from broken_off(4) if len(walks) == 3 else iter(batches())

    with pytest.raises(StopError):
        counted(Feed(), max_memory=limit, checkpoint=tmp_path / "c")
    kept = read_state(tmp_path / "c")
    assert (kept.observation.passed, len(kept.observation.done), kept.observation.samples) == (1, 4, 18)
    resumed = counted(batches(), max_memory=limit, checkpoint=tmp_path / "c", resume=True)
    assert bits(resumed) == bits(counted())
    assert resumed.observation.samples == 18


def test_first_checkpoint_after_the_first_batch_then_not_at_once(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        counted(broken_off(7), checkpoint=tmp_path / "c")
    assert len(read_state(tmp_path / "c").observation.done) == 1


def test_complete_work_is_not_done_again(tmp_path: Path) -> None:
    whole = counted(checkpoint=tmp_path / "c")
    again = counted(batches(), checkpoint=tmp_path / "c", resume=True)
    assert state_to_bytes(again) == state_to_bytes(whole)


def test_resume_without_a_checkpoint_begins(tmp_path: Path) -> None:
    assert bits(counted(checkpoint=tmp_path / "c", resume=True)) == bits(counted())


def test_a_checkpoint_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"precious")
    with pytest.raises(QdqError, match=r"c: .*unfinished .*--resume"):
        counted(checkpoint=tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"precious"
    with pytest.raises(QdqError, match="cannot be read"):
        counted(checkpoint=tmp_path / "c", resume=True)


def feed_of(folder: Path, data: npt.NDArray[np.float32], **options: Any) -> Any:
    np.savez(folder / "d.npz", x=data)
    return open_loader(folder / "d.npz", inputs_of(model_of(NET).graph), DataOptions(**options))


DATA = np.random.default_rng(1).normal(size=(6, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": "entropy"}, "method or set of tensors"),
        ({"derive": False}, "method or set of tensors"),
        ({"max_memory": 1 << 30}, ""),
        ({"proto": NET.replace("Sigmoid", "Tanh")}, "model"),
        ({"batch": 2}, "data"),
        ({"limit": 5}, "data"),
        ({"data": DATA[:5]}, "data"),
        ({"max_memory": 330_000}, "--max-memory"),
        ({"method": "max"}, ""),
        ({"workers": 2}, ""),
    ],
)
def test_only_the_same_calibration_is_resumed(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    counted(feed_of(tmp_path, DATA), checkpoint=tmp_path / "c")
    more = dict(change)
    proto = model_of(more.pop("proto", NET))
    feed = feed_of(tmp_path, more.pop("data", DATA), **{k: more.pop(k) for k in ("batch", "limit") if k in more})
    if not reason:
        counted(feed, proto, checkpoint=tmp_path / "c", resume=True, **more)
        return
    with pytest.raises(QdqError, match=f"different {reason}"):
        counted(feed, proto, checkpoint=tmp_path / "c", resume=True, **more)


# Signals.


def signaled(at: int, number: int) -> Iterator[Batch]:
    for place, batch in enumerate(batches()):
        if place == at:
            os.kill(os.getpid(), number)
        yield batch


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint(tmp_path: Path, number: int, workers: int) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt, match="--resume"):
        counted(signaled(4, number), checkpoint=tmp_path / "c", workers=workers)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    assert len(read_state(tmp_path / "c").observation.done) >= 4
    resumed = counted(checkpoint=tmp_path / "c", resume=True)
    assert bits(resumed) == bits(counted())


@pytest.mark.parametrize("workers", [1, 2])
def test_without_a_checkpoint_a_signal_interrupts_at_once(workers: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        counted(signaled(4, signal.SIGINT), workers=workers)
    assert threading.active_count() < 10


def test_a_thread_gets_no_signals_and_needs_none(tmp_path: Path) -> None:
    made: list[State] = []
    thread = threading.Thread(target=lambda: made.append(counted(checkpoint=tmp_path / "c")))
    thread.start()
    thread.join()
    assert bits(made[0]) == bits(counted())


# Progress.


def test_the_bar_starts_where_the_work_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feed = feed_of(tmp_path, DATA)
    counted(feed, checkpoint=tmp_path / "c")
    counted(feed, checkpoint=tmp_path / "c", resume=True, progress=True)
    assert "6/6" in capsys.readouterr().err


def test_provider_is_part_of_the_identity(tmp_path: Path) -> None:
    state = counted(checkpoint=tmp_path / "c")
    other = replace(state.identity, provider="cuda, onnxruntime 1")
    assert state.identity.differs(other) == "onnxruntime or provider"
    assert state.identity.differs(state.identity) == ""


@pytest.mark.parametrize("workers", [2, 5])
def test_threads_count_the_same_where_no_compiler_was(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    by_kernel = counted()
    monkeypatch.setattr(kernel, "choose", lambda: kernel.Kernel(None, "NumPy counts"))
    assert kernel.in_use() == "numpy"
    alone = counted()
    assert bits(counted(workers=workers)) == bits(alone) == bits(by_kernel)
