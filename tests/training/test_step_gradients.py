# SPDX-License-Identifier: Apache-2.0
"""W workers give the bytes of one that accumulates W batches, whatever exchanges the vectors."""

from __future__ import annotations

import itertools
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.training.averages import MovingMaxima
from qdqtool.training.batches import Batches, BatchOptions
from qdqtool.training.launch import LostWorkerError, chosen_reducer, launched
from qdqtool.training.loss_scale import LOSS_SCALE, LossScale
from qdqtool.training.optimizers import AdamW
from qdqtool.training.options import RunOptions, TrainingOptions, UpdateOptions
from qdqtool.training.parameters import Parameters
from qdqtool.training.reducers import open_reducer
from qdqtool.training.schedules import Schedule
from qdqtool.training.state import TrainingIdentity
from qdqtool.training.step_gradients import StepGradients
from qdqtool.training.train import Trained, train
from qdqtool.training.training_run import Computed, TrainingRun, Values
from qdqtool.training.weight_update import WeightUpdate
from tests.training.test_batches import feed
from tests.training.test_loop import F

MODELS = Path(__file__).parents[2] / "models"
SIZE = 257
MAKE_SCALE: Callable[[], LossScale | None] = lambda: None  # noqa: E731


class Threads:
    """A reducer of threads: what `reducers.py` does by MPI and torch.distributed."""

    def __init__(self, size: int) -> None:
        self.queues = {(a, b): queue.Queue[Any]() for a in range(size) for b in range(size)}
        self.size = size

    def of(self, rank: int) -> Rank:
        return Rank(self, rank)


class Rank:
    def __init__(self, group: Threads, rank: int) -> None:
        self.group, self.rank, self.size, self.failed = group, rank, group.size, False

    def broadcast(self, array: Any) -> None:
        if self.rank:
            array[...] = self._received(0)
            return
        for other in range(1, self.size):
            self.group.queues[0, other].put(array.copy())

    def gather(self, array: Any) -> Iterator[Any]:
        if self.rank:
            self.group.queues[self.rank, 0].put(array.copy())
            return
        yield array
        for other in range(1, self.size):
            yield self._received(other)

    def added(self, first: Any, gradient: Any) -> Any:
        return gradient.numpy().copy() if first is None else first + gradient.numpy()

    def all_reduce(self, array: Any) -> Any:
        if not self.rank:
            array[...] = sum(reversed([one.copy() for one in self.gather(array)]))
        elif not list(self.gather(array)):
            array[...] = self._received(0)
            return array
        for other in range(1, self.size):
            self.group.queues[0, other].put(array.copy())
        return array

    def _received(self, rank: int) -> Any:
        found = self.group.queues[rank, self.rank].get(timeout=60)
        if found is None:
            raise LostWorkerError
        return found

    def close(self, *, failed: bool) -> None:
        self.failed = failed
        for other in range(self.size):
            self.group.queues[self.rank, other].put(None)


class Noisy:
    """Gradients whose sum depends on the order in which float32 adds them."""

    def __init__(self, broken: int = -1) -> None:
        self.seen: list[int] = []
        self.broken = broken

    def compute(self, batch: Batch, values: Values) -> Computed:
        number = int(batch["x"][0, 0])
        if number == self.broken:
            raise QdqError("data", "is torn")
        self.seen.append(number)
        draw = np.random.default_rng(number)
        gradient = (values["w"] - 1 + 0.3 * draw.normal(size=SIZE) * 10 ** draw.uniform(-3, 0, SIZE)).astype(F)
        return Computed(
            float(gradient @ gradient), {"a": float(gradient[0]), "b": 2.0}, {"w": gradient}, (float(number),)
        )


class Half(Noisy):
    """The same times the loss scale; the sample 7 overflows above 2^12."""

    def compute(self, batch: Batch, values: Values) -> Computed:
        found, scale = super().compute(batch, values), values[LOSS_SCALE]
        overflow = scale > 2**12 and 7 in batch["x"][:, 0]
        scaled = found.gradients["w"] * (np.float32(np.inf) if overflow else scale)
        return Computed(found.loss, found.parts, {"w": scaled}, found.largest)


def far(values: Values) -> float:
    return float(np.square(values["w"] - 1).sum())


def run_of(student: Noisy, batch: int, source: int) -> TrainingRun:
    ones = np.ones(SIZE, F)
    maxima = MovingMaxima({"s": np.array(0.1, F)}, {"s": 127})
    batches = Batches(feed(source), BatchOptions(batch, augment=None))
    parameters = Parameters({"w": np.zeros(SIZE, F)})
    measure = lambda values: float(np.square(values["w"] - 1).sum()) + float(values["s"])  # noqa: E731
    return TrainingRun(
        parameters,
        student,
        batches,
        measure,
        AdamW(SIZE),
        ones,
        ones.copy(),
        maxima,
        loss_scale=MAKE_SCALE(),
        exported=("w", "s"),
    )


def options_of(accumulated: int, **more: Any) -> TrainingOptions:
    how = {"steps": 11, "evaluate_every": 3, **more}
    run = RunOptions(grad_accum=accumulated, schedule=Schedule(warmup=0), **how)
    return TrainingOptions(update=UpdateOptions(lr=0.01, ema_decay=0.0), run=run)


def trained_by(workers: int, accumulated: int, batch: int = 2, **more: Any) -> tuple[list[Trained], list[Noisy]]:
    """What each rank gets, and the student of each."""
    ranks, students, _ = runs_by(workers, accumulated, batch, **more)
    return ranks, students


def runs_by(
    workers: int, accumulated: int, batch: int = 2, **more: Any
) -> tuple[list[Trained], list[Noisy], list[TrainingRun]]:
    """The same, and the run of each rank as it was left."""
    group, students = Threads(workers), [Noisy() for _ in range(workers)]
    runs = [run_of(student, batch, 45) for student in students]
    done: dict[int, Trained] = {}

    def work(rank: int) -> None:
        training = runs[rank]
        done[rank] = train(training, training.batches, options_of(accumulated, **more), None, group.of(rank))  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(1, workers)]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
    return [done[rank] for rank in range(workers)], students, runs


def bytes_of(done: Trained) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in done.best.items()}


@pytest.mark.parametrize(("workers", "accumulated"), [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)])
def test_workers_give_the_bytes_of_one_that_accumulates_as_many_batches(workers: int, accumulated: int) -> None:
    alone = run_of(Noisy(), 2, 45)
    one = train(alone, alone.batches, options_of(workers * accumulated), None)  # type: ignore[arg-type]
    ranks, _ = trained_by(workers, accumulated)
    assert one.progress.best_step > 0 and bytes_of(one) != bytes_of(trained_by(workers, accumulated + 1)[0][0])
    for rank in ranks:
        assert bytes_of(rank) == bytes_of(one)
        assert (rank.progress.best, rank.progress.step, rank.planned) == (one.progress.best, 11, 11)


def test_an_overflow_of_one_worker_takes_the_step_of_all_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run_of(Noisy(), 2, 45)
    exact = train(plain, plain.batches, options_of(3), None)  # type: ignore[arg-type]
    monkeypatch.setattr(sys.modules[__name__], "Noisy", Half)
    monkeypatch.setattr(sys.modules[__name__], "MAKE_SCALE", LossScale)
    alone = run_of(Half(), 2, 45)
    one = train(alone, alone.batches, options_of(3), None)  # type: ignore[arg-type]
    ranks, students = trained_by(3, 1)
    assert alone.loss_scale is not None and alone.loss_scale.value == 2**12, "it has overflowed"
    assert len(students[0].seen) == len(students[1].seen) == len(alone.student.seen) / 3 > 11  # type: ignore[attr-defined]
    for rank in ranks:
        assert bytes_of(rank) == bytes_of(one) == bytes_of(exact)


def arrays_of(run: TrainingRun) -> list[bytes]:
    return [run.parameters.vector.tobytes(), *(one.tobytes() for one in run.optimizer.state().values())]


@pytest.mark.parametrize(("workers", "accumulated"), [(2, 1), (3, 1), (2, 2)])
def test_by_all_reduce_each_rank_takes_the_same_steps_near_those_of_one(workers: int, accumulated: int) -> None:
    alone = run_of(Noisy(), 2, 45)
    one = train(alone, alone.batches, options_of(workers * accumulated), None)  # type: ignore[arg-type]
    # nothing is measured, and so sent again, before the last step
    how = {"reducer": "mpi=all-reduce", "evaluate_every": 11}
    ranks, students, runs = runs_by(workers, accumulated, **how)
    assert [len(student.seen) for student in students] == [11 * accumulated] * workers
    for rank, run in zip(ranks, runs, strict=True):
        assert arrays_of(run) == arrays_of(runs[0]) and bytes_of(rank) == bytes_of(ranks[0])
        np.testing.assert_allclose(run.parameters.vector, alone.parameters.vector, atol=1e-5)
    assert one.progress.step == 11


def test_by_all_reduce_an_overflow_moves_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Noisy", Half)
    monkeypatch.setattr(sys.modules[__name__], "MAKE_SCALE", LossScale)
    _, students, runs = runs_by(3, 1, reducer="torch=all-reduce", evaluate_every=11)
    assert len(students[1].seen) > 11, "it has overflowed"
    assert {float(run.loss_scale.value) for run in runs if run.loss_scale is not None} == {2.0**12}
    assert len({tuple(arrays_of(run)) for run in runs}) == 1


def test_by_all_reduce_all_ranks_go_on_from_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn(Noisy):
        def compute(self, batch: Batch, values: Values) -> Computed:
            found = super().compute(batch, values)
            once = len(self.seen) == 5
            return Computed(math.nan if once else found.loss, found.parts, found.gradients, found.largest)

    monkeypatch.setattr(sys.modules[__name__], "Noisy", Torn)
    ranks, _, runs = runs_by(2, 1, reducer="mpi=all-reduce", evaluate_every=11)
    assert ranks[1].progress.halvings == 1 and arrays_of(runs[1]) == arrays_of(runs[0])


@pytest.mark.parametrize("exchange", ["mpi", "torch=all-reduce"])
@pytest.mark.parametrize(("workers", "accumulated"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_vectors_that_stay_on_a_device_give_the_bytes_of_arrays(
    workers: int, accumulated: int, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="its OrtValue holds the vectors")

    class Held(Noisy):
        def compute(self, batch: Batch, values: Values) -> Computed:
            found = super().compute(batch, values)
            return replace(found, gradients=runtime.OrtValue.ortvalue_from_numpy(found.gradients["w"]))

    arrays = runs_by(workers, accumulated, reducer=exchange)
    monkeypatch.setattr(sys.modules[__name__], "Noisy", Held)
    held = runs_by(workers, accumulated, reducer=exchange)
    for rank in range(workers):
        assert bytes_of(held[0][rank]) == bytes_of(arrays[0][rank])
        assert arrays_of(held[2][rank]) == arrays_of(arrays[2][rank])


def test_a_checkpoint_of_another_exchange_goes_on_with_a_note(tmp_path: Path) -> None:
    identity, kept = TrainingIdentity("m", "d", "", "o"), tmp_path / "c.npz"
    notes = []
    for reducer, steps in (("mpi=all-reduce", 4), ("mpi=all-reduce", 6), ("mpi", 8)):
        group = Threads(2)
        done: list[Trained] = []

        def work(
            rank: int, group: Threads = group, how: str = reducer, steps: int = steps, done: list[Trained] = done
        ) -> None:
            run = run_of(Noisy(), 2, 45)
            options = options_of(1, reducer=how, checkpoint=kept, resume=True, steps=steps)
            found = train(run, run.batches, options, identity, group.of(rank))  # type: ignore[arg-type]
            if not rank:
                done.append(found)

        other = threading.Thread(target=work, args=(1,))
        other.start()
        work(0)
        other.join()
        notes.append([note for note in done[0].notes if "exchange" in note])
    assert [len(one) for one in notes] == [0, 0, 1] and "all-reduce" in notes[2][0]


def test_each_rank_computes_its_share_alone() -> None:
    alone = Noisy()
    run = run_of(alone, 1, 45)
    train(run, run.batches, options_of(3), None)  # type: ignore[arg-type]
    _, students = trained_by(3, 1, batch=1)
    assert [one.seen for one in students] == [alone.seen[rank::3] for rank in range(3)]


def test_samples_of_other_ranks_are_not_read(tmp_path: Path) -> None:
    read: list[int] = []

    class Counted(Batches):
        def _changed(self, number: int, sample: Batch) -> Batch:
            read.append(number)
            return super()._changed(number, sample)

    batches = Counted(feed(45), BatchOptions(2))
    list(itertools.islice(batches.from_batch(3, 1, 3), 2))
    assert read == [8, 9, 14, 15]  # the fourth batch begins at sample 6


def test_a_batch_that_cannot_be_made_ends_all_ranks_and_rank_0_saves(tmp_path: Path) -> None:
    group, seen = Threads(2), dict[int, BaseException]()

    def work(rank: int, broken: int) -> None:
        training = run_of(Noisy(broken), 1, 45)
        reducer = group.of(rank)
        try:
            train(training, training.batches, options_of(1), None, reducer)  # type: ignore[arg-type]
        except QdqError as error:
            seen[rank] = error
            reducer.close(failed=True)

    numbers = Noisy()
    run = run_of(numbers, 1, 45)
    train(run, run.batches, options_of(2), None)  # type: ignore[arg-type]
    other = threading.Thread(target=work, args=(1, numbers.seen[5]))
    other.start()
    work(0, -1)
    other.join()
    assert isinstance(seen[0], LostWorkerError) and seen[1].where == "data"  # type: ignore[attr-defined]


def test_stop_and_interrupt_reach_the_other_ranks() -> None:
    for interrupted in (False, True):
        group = Threads(2)
        run = run_of(Noisy(), 1, 45)
        served, update = StepGradients(run, 1, group.of(1)), WeightUpdate(run, UpdateOptions())
        StepGradients(run_of(Noisy(), 1, 45), 1, group.of(0)).stop(interrupted=interrupted)
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                served.serve(update)
        else:
            served.serve(update)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}, (0, 8)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, (3, 4)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
        ({"WORLD_SIZE": "many", "RANK": "x"}, (0, 1)),
    ],
)
def test_the_launcher_is_known_by_its_variables(
    variables: dict[str, str], found: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in os.environ if one.startswith(("PMI_", "OMPI_", "SLURM_", "RANK", "WORLD"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched() == found


def test_workers_without_a_launcher_are_refused_in_python() -> None:
    assert open_reducer("auto", 1) is None
    with pytest.raises(QdqError, match="no launcher"):
        open_reducer("auto", 2)
    with pytest.raises(QdqError, match="--workers"):
        RunOptions(workers=0).check()
    with pytest.raises(QdqError, match="--workers"):
        TrainingOptions(run=RunOptions(workers=2), blocks=True).check()
    for wrong in ("nccl", "mpi=gather", "torch=", "=all-reduce"):
        with pytest.raises(QdqError, match="--reducer"):
            RunOptions(reducer=wrong).check()  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- processes, by the command


def is_there(reducer: str) -> bool:
    try:
        chosen_reducer(reducer)  # type: ignore[arg-type]
    except QdqError:
        return False
    return True


REDUCERS = [
    pytest.param(name, marks=pytest.mark.skipif(not is_there(name), reason=f"{package} is not installed"))
    for name, package in (("mpi", "mpi4py"), ("torch", "PyTorch"))
]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("workers") / "q.onnx"
    data = MODELS / "digits8_calib.npz"
    command(
        "insert",
        MODELS / "tiny_classifier.onnx",
        "--data",
        data,
        "--weights",
        "per-tensor",
        "--method",
        "max",
        "-o",
        out,
    )
    return out


STEPS = ("--steps", 60, "--evaluate-every", 30)


@pytest.fixture(scope="module")
def whole(quantized: Path) -> Path:
    out = quantized.with_name("whole.onnx")
    command(*tuning(quantized, out, *STEPS, "--grad-accum", 2))
    return out


def arguments(*words: object) -> list[str]:
    return [sys.executable, "-m", "qdqtool", *map(str, words)]


def command(*words: object) -> str:
    return subprocess.run(arguments(*words), check=True, capture_output=True, text=True, timeout=300).stdout


def tuning(model: Path, out: Path, *words: object) -> list[object]:
    how = ("--equalize", "none", "--ranges", "learn", "--batch", 4, "--patience", 0)
    return ["finetune", model, "--data", MODELS / "digits8_calib.npz", *how, *words, "-o", out]


@pytest.mark.slow
@pytest.mark.parametrize("reducer", REDUCERS)
def test_the_command_starts_workers_that_write_the_file_of_one(reducer: str, quantized: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    command(*tuning(quantized, one, "--steps", 12, "--grad-accum", 2))
    printed = command(*tuning(quantized, two, "--steps", 12, "--workers", 2, "--reducer", reducer))
    assert one.read_bytes() == two.read_bytes() != quantized.read_bytes()
    assert "two.onnx" in printed and printed.count("gradients by") == 1


EXCHANGE = """
import sys, numpy as np
from onnxruntime import OrtValue
from qdqtool.training.reducers import joined
with joined(sys.argv[1], int(sys.argv[2])) as ranks:
    draw = np.random.default_rng(ranks.rank)
    own = (draw.normal(size=100_003) * 10 ** draw.uniform(-4, 2, 100_003)).astype(np.float32)
    added = np.zeros_like(own)
    for one in ranks.gather(own):
        added += one
    ranks.broadcast(added)
    held = OrtValue.ortvalue_from_numpy(own.copy())
    held = ranks.all_reduce(ranks.added(None, held))
    own = ranks.all_reduce(own)
    assert held.tobytes() == own.tobytes()
    apart = [float(np.linalg.norm(own - added) / np.linalg.norm(added))]
    for one in ranks.gather(own):
        apart.append(float(np.any(one != own)))
    if not ranks.rank:
        print(apart)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("reducer", REDUCERS)
def test_all_reduce_gives_all_ranks_one_gradient_near_that_of_gather(reducer: str, workers: int) -> None:
    launchers = {
        "mpi": [str(Path(sys.executable).with_name("mpiexec")), "-n", str(workers), sys.executable],
        "torch": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(workers), "--no-python"],
    }
    more = [] if reducer == "mpi" else [sys.executable]
    command = [*launchers[reducer], *more, "-c", EXCHANGE, reducer, str(workers)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    apart, *unequal = json.loads(printed)
    assert apart <= 1e-6 and unequal == [0.0] * workers


@pytest.mark.slow
@pytest.mark.parametrize("reducer", REDUCERS)
def test_a_benchmark_measures_one_worker_and_several(reducer: str, quantized: Path) -> None:
    words = ("--benchmark", 3, "--batch", 4, "--workers", 2, "--reducer", reducer, "--json")
    rows = json.loads(command("finetune", quantized, *words))["rows"]
    assert [row["workers"] for row in rows] == [1, 2]
    assert rows[0]["shares"]["exchange"] == 0 < rows[1]["shares"]["exchange"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize(
    ("number", "exchange"), [(signal.SIGKILL, ""), (signal.SIGINT, ""), (signal.SIGKILL, "=all-reduce")]
)
def test_a_run_whose_worker_ends_goes_on_with_resume(
    reducer: str, exchange: str, number: signal.Signals, quantized: Path, whole: Path, tmp_path: Path
) -> None:
    """All-reduce of two workers adds two gradients, as gather does, so that its file is the same, too."""
    broken, checkpoint = tmp_path / "broken.onnx", tmp_path / "c.npz"
    words = tuning(quantized, broken, *STEPS, "--checkpoint-every", 10, "--workers", 2, "--reducer", reducer + exchange)
    words += ["--checkpoint", checkpoint]
    run = subprocess.Popen(arguments(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not checkpoint.exists():
        assert run.poll() is None
        time.sleep(0.02)
    victim = run.pid if number == signal.SIGINT else worker_of(run.pid)
    os.kill(victim, number)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == (130 if number == signal.SIGINT else 2)
    assert len([line for line in said.splitlines() if "--resume" in line]) == 1 and not broken.exists()
    command(*words, "--resume")
    assert broken.read_bytes() == whole.read_bytes()


def worker_of(parent: int) -> int:
    """The process of rank 1 below another one."""
    for folder in Path("/proc").iterdir():
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        mine = any(one in variables for one in (b"RANK=1", b"PMI_RANK=1"))
        if mine and b"c.npz" in line and os.getpgid(int(folder.name)) and descends(int(folder.name), parent):
            return int(folder.name)
    raise AssertionError("no worker")


def descends(process: int, parent: int) -> bool:
    while process > 1:
        if process == parent:
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False
