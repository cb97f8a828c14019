# SPDX-License-Identifier: Apache-2.0
"""A calibration's shards on a Dask cluster, merged as they come. What a shard is, shard_job.py says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.data.json_inputs import JsonInputs
from qdqtool.distributed.dask_cluster import (
    ask_workers,
    call_cluster,
    check_installed,
    check_versions,
    connected,
    first_line,
    has_workers,
    print_dashboard,
)
from qdqtool.distributed.file_bundle import FileBundle, pack, remove, unpack
from qdqtool.distributed.shard_answers import WaitLimits, answers
from qdqtool.distributed.shard_job import (
    JobFingerprint,
    ShardError,
    ShardJob,
    look_at,
    make_job,
    run_shard,
    try_fingerprint,
)
from qdqtool.distributed.shards import ShardSum, mergeable_method
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.observers.options import CalibrationOptions, with_method
from qdqtool.observers.state_file import state_from_bytes
from qdqtool.progress import bar
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.data.loader import DataOptions

__all__ = ["DaskOptions", "calibrate_on_dask"]

_PER_THREAD = 4  # shards: a lost one costs little, and the last ones end together
_ROUNDS = 3  # times that shards are asked for which the scheduler gave up
_REPLACED = 10.0  # seconds in which a worker that ended has a successor
_SLOWEST = 1e6  # bytes a second at which a bundle is sent at least
_LIMITS = WaitLimits()


@dataclass(frozen=True)
class DaskOptions:
    """On which machines, and in how many pieces.

    Attributes:
        where: a scheduler's address (``tcp://host:8786``), the file that ``dask scheduler --scheduler-file`` writes, or
            ``local:N`` for N worker processes on this machine.
        shards: into how many pieces the batches are cut; None for 4 per thread of the workers. Never more than batches.
        ship: whether model and data are sent, for workers that do not see them under the same paths.
        seconds: how long the scheduler may take to answer.
    """

    where: str
    shards: int | None = None
    ship: bool = False
    seconds: float = 10.0


def calibrate_on_dask(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] | JsonInputs,
    dask_options: DaskOptions,
    options: CalibrationOptions | None = None,
    data_options: DataOptions | None = None,
) -> ScaleTable:
    """The table that `calibrate` gives, to the bit, counted by the workers of a Dask cluster.

    A worker that dies costs the shards it was at; others count them again.

    Raises:
        QdqError: what `calibrate` refuses (of several shards' faults the lowest one's); no scheduler or no workers;
            workers that have other versions, or do not see the files; a shard that ends every worker it comes to.
        MissingPackageError: no dask.distributed here, or something else is missing on a worker.
        KeyboardInterrupt: interrupted; what was asked of the cluster is taken back.
    """
    options = with_method(options)
    method = mergeable_method(options.method)
    if options.checkpoint is not None:
        raise QdqError("--dask", "keeps no checkpoint", "leave --checkpoint out")
    if dask_options.shards is not None and dask_options.shards < 1:
        raise QdqError("--dask-shards", f"{dask_options.shards} is not a number of shards", "give 1 or more")
    check_installed()
    job = make_job(os.fspath(model), data if isinstance(data, JsonInputs) else os.fspath(data), options, data_options)
    seen = _seen_here(job)
    shipped, bundle = pack(job, job.data_options.max_bytes) if dask_options.ship else (job, None)
    with connected(dask_options.where, dask_options.seconds) as client:
        check_versions(client)
        if bundle is None:
            _check_seen(client, job, seen)
        if options.progress is not False:
            print_dashboard(client)
        wanted = dask_options.shards or _PER_THREAD * sum(client.nthreads().values())
        total = wanted if seen.batches is None else max(1, min(wanted, seen.batches))
        with _bar(total, options) as on_batch:
            return _counted(_Round(client, shipped, bundle, total, on_batch)).table(method)


def _seen_here(job: ShardJob) -> JobFingerprint:
    """What the job's files are, with the names that the user gave in messages."""
    try:
        return look_at(job)
    except QdqError as error:
        raise ShardError.of(error, job).error() from error


def _check_seen(client: Any, job: ShardJob, seen: JobFingerprint) -> None:
    """Refuse workers that do not see the model and the data that are here."""
    todo = "put the files where every worker sees them under the same paths, or send them with --dask-ship"
    for worker, found in ask_workers(client, try_fingerprint, job):
        where = f"worker {worker}"
        if isinstance(found, ShardError):
            if found.missing:
                raise MissingPackageError(where, found.reason, found.todo)
            raise QdqError(where, f"does not see the files: {found.where} {found.reason}", todo)
        if found != seen:
            what = job.called[0][1] if found.model != seen.model else job.called[1][1]
            raise QdqError(where, f"sees another {what} than this machine", todo)


@dataclass(frozen=True)
class _Round:
    """What the shards of one calibration are done with."""

    client: Any
    job: ShardJob
    bundle: FileBundle | None
    total: int
    on_batch: Callable[[], object]


def _counted(work: _Round) -> ShardSum:
    """The sum of all shards.

    What the scheduler gave up, and what nobody works on, is asked for again: where the workers that held the bundle
    ended, so did all that wait for it, and no shard is to blame.
    """
    shards, wanted = ShardSum(), list(range(work.total))
    for again in reversed(range(_ROUNDS)):
        given_up = _count(work, wanted, shards)
        if not given_up:
            break
        number, answer = min(given_up.items())
        if not again or not has_workers(work.client, _REPLACED):
            reason = f"was abandoned by the scheduler ({first_line(answer)})"
            todo = "check that the scheduler and its workers are running"
            raise QdqError(f"shard {number + 1}/{work.total}", reason, todo)
        wanted = sorted(given_up)
    return shards


def _count(work: _Round, wanted: list[int], shards: ShardSum) -> dict[int, Any]:
    """Add some shards up; those that were given up come back with what is said of them.

    A fault of the user's ends the work, once all shards before it have come: the same one is reported each time.
    """
    fault, lowest = None, work.total
    given_up: dict[int, Any] = {}
    with _submitted(work, wanted) as pending:
        for future, answer in answers(work.client, pending, _limits(work)):
            number = pending.pop(future)
            if number > lowest:
                continue
            if future.status == "error":
                raise _failed(f"shard {number + 1}/{work.total}", answer)
            if isinstance(answer, Exception):
                given_up[number] = answer
                continue
            if isinstance(answer, ShardError):
                fault, lowest = answer, number
                work.client.cancel([one for one, other in pending.items() if other > lowest])
            elif fault is None:
                shards.add(state_from_bytes(answer), f"shard {number + 1}/{work.total}")
            work.on_batch()
    before = {number: answer for number, answer in given_up.items() if number < lowest}
    if fault is not None and not before:
        raise fault.error()
    return {**before, lowest: None} if fault is not None else before


def _limits(work: _Round) -> WaitLimits:
    """A worker that fetches the bundle works on nothing meanwhile."""
    size = 0 if work.bundle is None else sum(map(len, work.bundle.files.values()))
    return replace(_LIMITS, stalled=_LIMITS.stalled + size / _SLOWEST)


@contextmanager
def _submitted(work: _Round, wanted: list[int]) -> Iterator[dict[Any, int]]:
    """The futures of all shards and their numbers; those that are left at the end are taken back, files too."""
    client = work.client
    bundle = None
    if work.bundle is not None:
        seconds = _limits(work).stalled
        bundle = call_cluster(client, "scatter", work.bundle, broadcast=True, hash=False, seconds=seconds)
    futures = client.map(_on_worker, wanted, job=work.job, total=work.total, bundle=bundle, pure=False, batch_size=1000)
    pending = dict(zip(futures, wanted, strict=True))
    del futures
    try:
        yield pending
    finally:
        with suppress(QdqError):  # the connection may be what failed
            call_cluster(client, "cancel", list(pending), force=True, seconds=_REPLACED)
            if work.bundle is not None:
                call_cluster(client, "run", _clean, work.bundle.digest, on_error="ignore", seconds=_REPLACED)


def _on_worker(number: int, job: ShardJob, total: int, bundle: FileBundle | None) -> bytes | ShardError:
    if bundle is not None:
        from distributed import get_worker

        job = unpack(job, bundle, _folder_of(get_worker()))
    return run_shard(job, number, total)


def _clean(digest: str, dask_worker: Any) -> None:
    """What is run on each worker at the end; Dask passes the last argument by its name."""
    remove(digest, _folder_of(dask_worker))


def _folder_of(worker: Any) -> Path:
    """The folder of a worker's own, which Dask takes away with it."""
    return Path(worker.local_directory)


def _failed(shard: str, error: Exception) -> Exception:
    """Why a shard failed: an exception of ours as it is, one line where it ended its workers."""
    from distributed import KilledWorker

    if not isinstance(error, KilledWorker):
        return error
    reason = f"ended {error.allowed_failures + 1} workers, one after the other"
    return QdqError(shard, reason, "see the workers' logs: is their memory enough? --max-memory bounds it")


@contextmanager
def _bar(total: int, options: CalibrationOptions) -> Iterator[Callable[[], object]]:
    """Progress of each shard: a bar on stderr moves on."""
    with bar("calibrate", "shard", total, options.progress) as drawn:
        yield drawn.advance
