# SPDX-License-Identifier: Apache-2.0
"""Several processes that count for one calibration, where threads would wait for one another: without the C kernel.

Each one is this module run by a new interpreter. It reads one line of JSON and writes frames: a batch counted, all it
has counted so far, a fault. Nothing is pickled.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import onnx

from qdqtool.data.json_inputs import JsonInputs
from qdqtool.data.loader import DataLoader, DataOptions, inputs_of, open_feed
from qdqtool.decisions import Provenance
from qdqtool.errors import QdqError
from qdqtool.observers.interruption import Interruption
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.observe import Keeper, Run, observe
from qdqtool.observers.observer_state import BatchSet, ObserverState
from qdqtool.observers.state_file import State, StateIdentity, state_from_bytes, state_to_bytes
from qdqtool.runtime.activations import ObservableModel, OrtActivations

_TICK, _STATE, _FAULT = b"t", b"s", b"f"
_HEAD = 9  # one letter and the length
_PATIENCE = 0.2
_SECONDS = 2.0


@dataclass(frozen=True)
class Share:
    """What one process is to do; plain values only.

    Attributes:
        model: the file of the model.
        folder: where its external data lie.
        where: what messages call it.
        provider: what onnxruntime runs on.
        data: what `open_feed` opens; a list for Polygraphy's JSON inputs.
        feed: the fields of `DataOptions`.
        names: the tensors to fetch.
        survey: what is counted.
        shard: which batches belong to the calibration: (number from 0, of how many).
        part: which of those to this process, likewise.
        done: the batches that are counted already, base64 of their bits.
        passed: complete passes before this one.
    """

    model: str
    folder: str | None
    where: str
    provider: str
    data: str | list[str]
    feed: dict[str, Any]
    names: list[str]
    survey: dict[str, Any]
    shard: tuple[int, int]
    part: tuple[int, int]
    done: str
    passed: int


@dataclass(frozen=True)
class SharedWork:
    """What the processes share among them.

    Attributes:
        proto: the model, external data not loaded.
        folder: where its external data lie.
        feed: data that another process can open (`DataLoader.origin`).
        names: the tensors to fetch.
        survey: what is counted.
        shard: which batches belong to the calibration.
        provider: what onnxruntime runs on.
        where: what messages call the model.
    """

    proto: onnx.ModelProto
    folder: Path | None
    feed: DataLoader
    names: Sequence[str]
    survey: ObservationPlan
    shard: tuple[int, int]
    provider: str
    where: str


def observe_in_processes(
    work: SharedWork, observation: ObserverState, workers: int, keeper: Keeper | None, tick: Callable[[], object]
) -> ObserverState:
    """Count every batch that is not counted yet, by several processes.

    Args:
        work: what is shared.
        observation: what is counted already; it is not changed.
        workers: how many processes.
        keeper: keeps the sum now and then; None where nothing is kept.
        tick: is told each batch.

    Returns:
        The sum.

    Raises:
        QdqError: a fault of any process; the others are stopped.
        KeyboardInterrupt: a signal came; where there is a keeper, it has kept what was counted.
    """
    with tempfile.TemporaryDirectory(prefix="qdqtool-") as place:
        model = Path(place, "model.onnx")
        model.write_bytes(work.proto.SerializeToString())
        crew = [_Child(_share(work, observation, model, (number, workers))) for number in range(workers)]
        try:
            if keeper is None:
                _gather(crew, observation, work.survey, None, tick, None)
            else:
                with Interruption() as stop:
                    _gather(crew, observation, work.survey, keeper, tick, stop)
                    if stop.requested:
                        keeper.keep(_sum(observation, crew, work.survey))
                        raise KeyboardInterrupt("the work is in the checkpoint: continue with --resume")
            return _sum(observation, crew, work.survey)
        finally:
            for child in crew:
                child.end()


def _share(work: SharedWork, observation: ObserverState, model: Path, part: tuple[int, int]) -> Share:
    options = asdict(work.feed.options)
    options["preprocess"] = None if work.feed.options.preprocess is None else str(work.feed.options.preprocess)
    origin = work.feed.origin
    return Share(
        model=str(model),
        folder=None if work.folder is None else str(work.folder.resolve()),
        where=work.where,
        provider=work.provider,
        data=[str(path) for path in origin.paths] if isinstance(origin, JsonInputs) else str(origin),
        feed=options,
        names=list(work.names),
        survey=work.survey.to_json(),
        shard=work.shard,
        part=part,
        done=base64.b64encode(observation.done.to_bytes()).decode(),
        passed=observation.passed,
    )


class _Child:
    """One process, and the last that it told."""

    def __init__(self, share: Share) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.counted: ObserverState | None = None
        self.hall: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(share)).encode() + b"\n")
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, frames: IO[bytes]) -> None:
        while len(head := frames.read(_HEAD)) == _HEAD:
            self.hall.put((head[:1], frames.read(int.from_bytes(head[1:], "little"))))
        self.hall.put((b"", b""))

    def end(self) -> None:
        """Stop the process, wherever it is."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _gather(
    crew: Sequence[_Child],
    base: ObserverState,
    survey: ObservationPlan,
    keeper: Keeper | None,
    tick: Callable[[], object],
    stop: Interruption | None,
) -> None:
    """Hear the processes until each has ended, and keep what they have counted."""
    alive = list(crew)
    while alive and not (stop is not None and stop.requested):
        heard = [(child, *child.hall.get()) for child in alive if not child.hall.empty()]
        if not heard:
            time.sleep(_PATIENCE / 10)
        for child, kind, content in heard:
            if kind == _TICK:
                tick()
            elif kind == _FAULT:
                raise QdqError(**json.loads(content))
            elif kind == _STATE:
                child.counted = state_from_bytes(content).observation
                if keeper is not None and keeper.due():
                    keeper.keep(_sum(base, crew, survey))
            else:
                alive.remove(child)
                _check_ended(child)


def _check_ended(child: _Child) -> None:
    code = child._process.wait()
    if code:
        raise QdqError("--workers", f"a worker process ended with {code}", "use --workers 1 to see why")


def _sum(base: ObserverState, crew: Sequence[_Child], survey: ObservationPlan) -> ObserverState:
    total = ObserverState(survey)
    total.passed = base.passed
    for part in (base, *(child.counted for child in crew)):
        if part is not None:
            total.merge(part)
    return total


class _Teller:
    """Keeps a worker's observation by telling it to the parent."""

    def __init__(self, survey: ObservationPlan, out: IO[bytes]) -> None:
        self._survey, self._out = survey, out
        self._next = 0.0

    def due(self) -> bool:
        """Whether it is time to tell."""
        return time.monotonic() >= self._next

    def keep(self, observation: ObserverState) -> None:
        """Tell all that was counted."""
        state = State(StateIdentity("", "", ""), self._survey, observation, (0, 1), False, Provenance())
        _frame(self._out, _STATE, state_to_bytes(state))
        self._next = time.monotonic() + _SECONDS


def _frame(out: IO[bytes], kind: bytes, content: bytes = b"") -> None:
    out.write(kind + len(content).to_bytes(_HEAD - 1, "little") + content)
    out.flush()


def main(line: str, out: IO[bytes]) -> int:
    """Do one share, told in a line of JSON, and tell what was counted in frames."""
    share = Share(**json.loads(line))
    try:
        survey = ObservationPlan.from_json(share.survey)
        observation = ObserverState(survey)
        observation.passed = share.passed
        teller = _Teller(survey, out)
        observe(_run_of(share, survey, teller, lambda: _frame(out, _TICK)), observation)
        teller.keep(observation)
    except QdqError as error:
        told = {"where": error.where, "reason": error.reason, "todo": error.todo}
        _frame(out, _FAULT, json.dumps(told).encode())
    except BrokenPipeError:  # nobody listens any more
        return 1
    return 0


def _run_of(share: Share, survey: ObservationPlan, teller: _Teller, tick: Callable[[], object]) -> Run:
    proto = onnx.ModelProto.FromString(Path(share.model).read_bytes())
    data = JsonInputs(tuple(map(Path, share.data))) if isinstance(share.data, list) else share.data
    feed = open_feed(data, inputs_of(proto.graph), DataOptions(**share.feed))
    model = ObservableModel(proto, None if share.folder is None else Path(share.folder), share.provider, share.where)
    done = BatchSet(base64.b64decode(share.done))
    (number, total), (part, parts) = share.shard, share.part
    tasks = (
        task
        for task in feed.tasks()
        if task.index % total == number and task.index // total % parts == part and task.index not in done
    )
    return Run(OrtActivations.of(model, share.names), tasks, survey, 1, teller, tick)


def _private_stdout() -> IO[bytes]:
    """The pipe to the parent; what a loader script prints goes to stderr from here on."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


if __name__ == "__main__":
    raise SystemExit(main(sys.stdin.readline(), _private_stdout()))
