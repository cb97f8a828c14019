# SPDX-License-Identifier: Apache-2.0
"""A Dask cluster to work on: found or started, looked at, closed. Not what is done there (dask_calibration.py).

`call_cluster` bounds how long a call of the client is waited for.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.limited_reading import SCHEDULER, read_json
from qdqtool.threads import usable_cores, useful_threads

_ADDRESS = re.compile(r"(?:tcp|tls|ws|wss|ucx)://[^/]+:\d+|[\w.-]+:\d+")
_DIGITS = 18
_COMPARED = ("qdqtool", "onnxruntime", "numpy")
_ANY_WORKER = 30.0  # seconds until a scheduler that answers must have a worker
_ASKED = 5  # times that workers are asked before all of them have ended
_ANSWER = 300.0  # seconds that workers may take to look at model and data
_CLOSED = 60.0  # seconds in which a cluster of our own ends its workers
_CLUSTER_ERRORS = (OSError, asyncio.TimeoutError)  # before Python 3.11 the second is no TimeoutError
_SEE = "start workers, then try again; see docs/distributed.md"


def check_installed() -> None:
    """Look for Dask before anything is read.

    Raises:
        MissingPackageError: there is none.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        reason = "Dask's distributed is not installed, and --dask runs on it"
        raise MissingPackageError("dask", reason, 'pip install "qdqtool[dask]"') from error


@contextmanager
def connected(where: str, seconds: float) -> Iterator[Any]:
    """A client of a cluster that has one worker at least; what was opened is closed.

    Raises:
        QdqError: it does not, or has no workers; `where` is neither an address nor such a file.
    """
    from distributed import Client

    with _quiet_dask(), _address(where) as address:
        try:
            client = Client(address, timeout=seconds, set_as_default=False)
        except (*_CLUSTER_ERRORS, ValueError) as error:
            reason = f"no scheduler answers within {seconds:g} s ({first_line(error)})"
            raise QdqError(where, reason, "check the address, and that dask scheduler runs") from error
        try:
            _wait_for_worker(client, where)
            yield client
        finally:
            with suppress(*_CLUSTER_ERRORS):  # the scheduler may be what failed
                client.close(timeout=seconds)


def _wait_for_worker(client: Any, where: str) -> None:
    if not has_workers(client, _ANY_WORKER):
        raise QdqError(where, f"has no workers after {_ANY_WORKER:g} s", _SEE)


def has_workers(client: Any, seconds: float) -> bool:
    """Whether there is a worker, or comes within so many seconds."""
    try:
        call_cluster(client, "wait_for_workers", 1, timeout=seconds, seconds=2 * seconds)
    except (QdqError, RuntimeError, ValueError):  # Dask's own where the client has closed meanwhile
        return False
    return bool(client.status == "running")


def call_cluster(client: Any, method: str, *arguments: Any, seconds: float, **named: Any) -> Any:
    """What a method of the client returns, by its name: Dask's own wait without end for a scheduler that stands still.

    Raises:
        QdqError: no answer within `seconds`, or the connection is lost.
    """
    todo = "check that the scheduler and its workers are running"
    if client.status not in ("running", "connecting"):
        raise QdqError("dask", "the connection to the scheduler is lost", todo)
    try:
        return client.sync(getattr(client, method), *arguments, callback_timeout=seconds, **named)
    except asyncio.TimeoutError as error:
        raise QdqError("dask", f"the scheduler has not answered within {seconds:g} s", todo) from error
    except OSError as error:
        raise QdqError("dask", f"the connection to the scheduler is lost ({first_line(error)})", todo) from error


def ask_workers(client: Any, question: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
    """What every worker of the moment answers, by address: one worker's answer at least.

    A worker that dies meanwhile is no fault of the user's: it is left out, and where all did, their successors are
    asked. A cluster without any would else pass every check.

    Raises:
        QdqError: no worker answers, or one takes longer than five minutes.
    """
    for _ in range(_ASKED):
        answers = sorted(call_cluster(client, "run", question, *arguments, on_error="ignore", seconds=_ANSWER).items())
        if answers:
            return answers
        _wait_for_worker(client, "dask")
    raise QdqError("dask", f"its workers ended {_ASKED} times while they answered", "see the workers' logs")


@contextmanager
def _address(where: str) -> Iterator[Any]:
    """What a client is given: an address, the one that a file tells, or a cluster of our own."""
    local = re.fullmatch(r"local:(\d+)", where)
    if local is None:
        yield where if _ADDRESS.fullmatch(where) else _from_file(Path(where))
        return
    most = useful_threads()
    if len(local[1]) > _DIGITS or not 1 <= int(local[1]) <= most:
        reason = f"is not a number of worker processes for the {usable_cores()} cores of this machine"
        raise QdqError(where, reason, f"give local:1 to local:{most}")
    from distributed import LocalCluster

    try:
        cluster = LocalCluster(
            n_workers=int(local[1]),
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=None,  # --max-memory bounds a shard; Dask's own limit would kill it
            silence_logs=logging.CRITICAL,
        )
    except (*_CLUSTER_ERRORS, RuntimeError) as error:
        raise QdqError(where, f"its workers do not start ({first_line(error)})", "try fewer of them") from error
    try:
        yield cluster
    finally:
        with suppress(*_CLUSTER_ERRORS):  # its processes end with this one
            cluster.close(timeout=_CLOSED)


def _from_file(path: Path) -> str:
    if not path.exists():
        reason = "is neither a scheduler's address nor an existing file"
        raise QdqError(path, reason, "give tcp://host:8786, a scheduler file, or local:4")
    try:
        return str(read_json(path, SCHEDULER)["address"])
    except (KeyError, TypeError) as error:
        raise QdqError(path, f"is not a scheduler file ({first_line(error)})", SCHEDULER.todo) from error


@contextmanager
def _quiet_dask() -> Iterator[None]:
    """Dask's own reports of what is reported here in one line, or mended without the user, stay away from stderr."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def print_dashboard(client: Any) -> None:
    """Say on stderr where the cluster shows what it does; that page needs a package of its own."""

    def has_bokeh() -> bool:
        import importlib.util

        return importlib.util.find_spec("bokeh") is not None

    link = client.dashboard_link
    if link and call_cluster(client, "run_on_scheduler", has_bokeh, seconds=_ANY_WORKER):
        sys.stderr.write(f"qdqtool: dashboard: {link}\n")
    else:
        sys.stderr.write("qdqtool: no dashboard: bokeh is not installed where the scheduler runs\n")


def check_versions(client: Any) -> None:
    """Refuse workers that would count otherwise: by other versions than here, or, what is not here, than one another.

    Raises:
        QdqError: a worker has another version; it is named.
        MissingPackageError: a worker lacks a package.
    """

    def versions() -> dict[str, str]:  # made here, so that it travels as code: a worker may lack all of ours
        import importlib

        found = {}
        for name in ("qdqtool", "onnxruntime", "numpy"):
            try:
                found[name] = str(importlib.import_module(name).__version__)
            except Exception:
                found[name] = ""
        return found

    answers = ask_workers(client, versions)
    here = versions()
    for name in _COMPARED:
        whose = "this machine"
        if not here[name]:
            here[name], whose = answers[0][1][name], answers[0][0]
        for worker, found in answers:
            if not found[name]:
                raise MissingPackageError(f"worker {worker}", f"has no {name}", f"install {name} {here[name]} there")
            if found[name] != here[name]:
                reason = f"has {name} {found[name]}, {whose} has {here[name]}"
                raise QdqError(f"worker {worker}", reason, "install the same versions on every machine")


def first_line(error: object) -> str:
    """What an exception says, on one line; its name where it is empty."""
    text = next(iter(str(error).splitlines()), "")
    return text or type(error).__name__
