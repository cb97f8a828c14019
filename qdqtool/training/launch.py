# SPDX-License-Identifier: Apache-2.0
"""Starts the workers of a training on this machine; the rank of this process. `-h` reads it: no numpy here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.training.options import ReducerName

_LOOK, _PATIENCE = 0.05, 20.0  # seconds
_INTERRUPTED = 130  # the exit code of a command that a signal ended
LOST = 64  # that of a process that `launch` started and that lost another one: `launch` says so, once
STARTED = "QDQTOOL_STARTED"  # a variable of such processes
_BANNER = f"\n{'=' * 83}\n=   BAD TERMINATION"  # of MPICH, where a signal ended a rank: it ends the others
_LAUNCHERS = (  # variables of rank, size and rank on this machine: torchrun, MPICH, Open MPI, Slurm
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
_GPUS = "CUDA_VISIBLE_DEVICES"


def launched() -> tuple[int, int]:
    """The rank of this process and how many its launcher started; 0 and 1 without a launcher."""
    for *names, _ in _LAUNCHERS:
        rank, size = (os.environ.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal() and int(size) > 1:
            return int(rank), int(size)
    return 0, 1


def take_gpu() -> None:
    """Show CUDA one GPU of this machine, by the rank of this process on it; one that is visible alone is taken."""
    local = next((int(one) for *_, name in _LAUNCHERS if (one := os.environ.get(name, "")).isdecimal()), 0)
    visible = [one for one in os.environ.get(_GPUS, "").split(",") if one]
    os.environ[_GPUS] = visible[local % len(visible)] if visible else str(local)


def chosen_reducer(name: ReducerName) -> Literal["torch", "mpi"]:
    """The package that the name begins with; for "auto" the launcher's, or the one that is installed, MPI first.

    Raises:
        MissingPackageError: it is not installed, or none is.
    """
    modules: dict[Literal["torch", "mpi"], str] = {"mpi": "mpi4py", "torch": "torch"}
    if name == "auto":
        by_torch = "MASTER_ADDR" in os.environ
        found = [one for one, module in modules.items() if importlib.util.find_spec(module) is not None]
        name = "torch" if by_torch else found[0] if found else "mpi"
    package: Literal["torch", "mpi"] = "torch" if name.startswith("torch") else "mpi"
    if importlib.util.find_spec(modules[package]) is None:
        raise missing_reducer(package)
    return package


def missing_reducer(name: Literal["torch", "mpi"]) -> MissingPackageError:
    """The error of a reducer whose package is not installed."""
    package, extra = {"mpi": ("mpi4py", "mpi"), "torch": ("PyTorch", "distributed")}[name]
    return MissingPackageError("--workers", f"{package} is not installed", f'pip install "qdqtool[{extra}]"')


def launch(words: Sequence[str], workers: int, reducer: ReducerName) -> int:
    """Run a command in so many processes, and print what rank 0 prints; its exit code, or that of another that failed.

    Raises:
        LostWorkerError: rank 0 was ended by a signal, or by MPI because another rank was.
        MissingPackageError: the reducer's package is not installed, or has no mpiexec.
    """
    command = [sys.executable, "-m", "qdqtool", *words]
    if chosen_reducer(reducer) == "mpi":
        beside = Path(sys.executable).with_name("mpiexec")
        launcher = str(beside) if beside.is_file() else shutil.which("mpiexec")
        if launcher is None:
            raise missing_reducer("mpi")
        quiet = {"MPIR_CVAR_SUPPRESS_ABORT_MESSAGE": "1"}  # `launch` says it
        return _wait([_start([launcher, "-n", str(workers), *command], quiet)])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(workers)}
    ranks = ({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers))
    return _wait([_start(command, rank) for rank in ranks])


def _start(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process that gets signals from this one alone, not from the terminal; on Linux it ends with this one."""
    return subprocess.Popen(
        command,
        env={**os.environ, STARTED: "1", **variables},
        stdout=subprocess.PIPE if variables.get("RANK", "0") == "0" else subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )


def _end_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Hand on what the first prints; once one fails, the others have some seconds to end by themselves."""
    printed: list[bytes] = []
    output = processes[0].stdout
    assert output is not None
    reader = threading.Thread(target=lambda: printed.append(output.read()), daemon=True)
    reader.start()
    failed_at, interrupted = 0.0, False
    while running := [one for one in processes if one.poll() is None]:
        try:
            time.sleep(_LOOK)
            if any(one.returncode for one in processes):
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > _PATIENCE:
                    for one in running:
                        one.kill()
        except KeyboardInterrupt:
            interrupted = True
            for one in running:  # rank 0 saves its work and stops the others
                one.send_signal(signal.SIGINT)
    reader.join()
    text, banner, _ = b"".join(printed).decode("utf-8", "replace").partition(_BANNER)
    sys.stdout.write(text)
    codes = [one.returncode for one in processes if one.returncode]
    if codes and interrupted:
        return _INTERRUPTED
    if banner or processes[0].returncode < 0 or LOST in codes:
        raise LostWorkerError
    return abs(codes[0]) if codes else 0


class LostWorkerError(QdqError):
    """A process of a training is gone; seen by the others."""

    def __init__(self) -> None:
        todo = "the same command with --resume continues from the last checkpoint"
        super().__init__("training", "a worker has ended, or the connection to it is lost", todo)
