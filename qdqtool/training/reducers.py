# SPDX-License-Identifier: Apache-2.0
"""How processes of one training exchange vectors: by MPI, or by torch.distributed. Not what they compute.

Rank 0 owns the training. It sends the weights, adds the gradients in the order of the micro-batches, and steps. So the
weights are the same on all ranks, whatever processors they have, and W workers give the bytes of one worker that
accumulates W micro-batches. By all-reduce the library chooses the order of the sum, and each rank steps.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.runtime.installed import load_onnxruntime, one_line
from qdqtool.training.launch import LOST, STARTED, LostWorkerError, chosen_reducer, launched, missing_reducer, take_gpu
from qdqtool.training.options import ReducerName

Array = npt.NDArray[Any]


class Reducer(Protocol):
    """The processes of one training, seen from one of them.

    Attributes:
        rank: number of this process; 0 owns the training.
        size: how many there are.
    """

    rank: int
    size: int

    def broadcast(self, array: Array) -> None:
        """Send the array of rank 0 to all others, which receive it in place.

        Raises:
            LostWorkerError: a worker is gone.
        """
        ...

    def gather(self, array: Array) -> Iterator[Array]:
        """On rank 0 the arrays of all ranks in order, each valid until the next; on the others nothing.

        Raises:
            LostWorkerError: a worker is gone.
        """
        ...

    def added(self, first: Any, gradient: Any) -> Any:
        """The sum, for `all_reduce`, of what it gave before (None at first) and the vector that an OrtValue holds."""
        ...

    def all_reduce(self, vector: Any) -> Array:
        """The sum of the vectors of all ranks, which is the same on all. The vector is the reducer's to change.

        Args:
            vector: an array, or what `added` gave.

        Raises:
            LostWorkerError: a worker is gone.
        """
        ...

    def close(self, *, failed: bool) -> None:
        """Leave the others; `failed` ends them, too."""
        ...


def _gathered(
    ranks: Reducer, array: Array, send: Callable[[Array, int], None], receive: Callable[[Array, int], None]
) -> Iterator[Array]:
    """What `Reducer.gather` gives, from messages between two ranks."""
    if ranks.rank:
        send(array, 0)
        return
    yield array
    received = np.empty_like(array)
    for rank in range(1, ranks.size):
        receive(received, rank)
        yield received


class MpiReducer:
    """MPI by mpi4py: under mpiexec, or srun with an MPI plugin."""

    def __init__(self) -> None:
        """Join the processes that the launcher started.

        Raises:
            MissingPackageError: mpi4py is not installed.
        """
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise missing_reducer("mpi") from error

        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self._code = 2  # of the process that ends all others

    def broadcast(self, array: Array) -> None:
        """See `Reducer`."""
        self._checked(self._world.Bcast, array)

    def gather(self, array: Array) -> Iterator[Array]:
        """See `Reducer`."""
        return _gathered(
            self, array, partial(self._checked, self._world.Send), partial(self._checked, self._world.Recv)
        )

    def added(self, first: Any, gradient: Any) -> Any:
        """See `Reducer`; MPI takes them through the host."""
        return np.array(gradient.numpy()) if first is None else first + gradient.numpy()

    def all_reduce(self, vector: Any) -> Array:
        """See `Reducer`."""
        self._checked(self._world.Allreduce, self._mpi.IN_PLACE, vector)
        return np.asarray(vector)

    def _checked(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except self._mpi.Exception as error:
            self._code = LOST if STARTED in os.environ and not self.rank else 2
            raise LostWorkerError from error

    def close(self, *, failed: bool) -> None:
        """See `Reducer`."""
        if failed:  # at the end of the process, when its message is written
            atexit.register(self._world.Abort, self._code)


class TorchReducer:
    """torch.distributed: under torchrun, or any launcher that sets its four variables.

    Arrays go by gloo. Vectors on GPUs are summed there by NCCL, without a copy on the host.
    """

    def __init__(self, *, on_gpus: bool = False) -> None:
        """Join the processes that the launcher started; `on_gpus` joins their GPUs, too.

        Raises:
            MissingPackageError: PyTorch is not installed, or onnxruntime is older than DLPack in it.
            QdqError: NCCL does not start.
        """
        try:
            import torch
            from torch import distributed
        except ImportError as error:
            raise missing_reducer("torch") from error

        self._torch, self._group = torch, distributed
        # A rank waits while rank 0 measures; one that ends closes its connections, which the others see at once.
        patience = timedelta(days=7)
        if on_gpus:
            runtime = load_onnxruntime()
            if not hasattr(runtime.OrtValue, "__dlpack__"):
                reason = f"onnxruntime {runtime.__version__} does not share a GPU's memory with PyTorch"
                raise MissingPackageError("--reducer", reason, 'pip install "onnxruntime-gpu>=1.26"')
            try:
                distributed.init_process_group("cpu:gloo,cuda:nccl", timeout=patience)
                distributed.all_reduce(torch.zeros(1, device="cuda"))
            except (AssertionError, RuntimeError, ValueError) as error:  # PyTorch without CUDA or NCCL; two on one GPU
                todo = "give each worker a GPU and PyTorch for CUDA, or leave =all-reduce out"
                raise QdqError("--reducer", f"NCCL does not start ({one_line(error)})", todo) from error
        else:
            distributed.init_process_group("gloo", timeout=patience)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def broadcast(self, array: Array) -> None:
        """See `Reducer`."""
        self._checked(self._group.broadcast, array, 0)

    def gather(self, array: Array) -> Iterator[Array]:
        """See `Reducer`."""
        return _gathered(
            self, array, partial(self._checked, self._group.send), partial(self._checked, self._group.recv)
        )

    def added(self, first: Any, gradient: Any) -> Any:
        """See `Reducer`; PyTorch sees the memory of the OrtValue."""
        vector = self._torch.from_dlpack(gradient)
        return vector.clone() if first is None else first.add_(vector)

    def all_reduce(self, vector: Any) -> Array:
        """See `Reducer`."""
        if isinstance(vector, np.ndarray):
            self._checked(self._group.all_reduce, vector)
            return vector
        self._checked(self._group.all_reduce, np.zeros(1))  # gloo sees a lost worker, for which NCCL would wait
        self._checked(self._group.all_reduce, vector)
        return np.asarray(vector.cpu())

    def _checked(self, call: Any, vector: Any, *rank: int) -> None:
        try:
            call(self._torch.from_numpy(vector) if isinstance(vector, np.ndarray) else vector, *rank)
        except RuntimeError as error:
            raise LostWorkerError from error

    def close(self, *, failed: bool) -> None:
        """See `Reducer`."""
        if not failed:
            self._group.destroy_process_group()


@contextmanager
def joined(name: ReducerName, workers: int, provider: str = "cpu") -> Iterator[Reducer | None]:
    """The other processes of this training, left at the end; None without a launcher and for one worker.

    Signals are for rank 0, which stops the others.
    """
    reducer = open_reducer(name, workers, provider)
    if reducer is None:
        yield None
        return
    if reducer.rank and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    try:
        yield reducer
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt) and (reducer.rank or error.args)  # all ranks know of it
        reducer.close(failed=not stopped)
        raise
    reducer.close(failed=False)


def open_reducer(name: ReducerName, workers: int, provider: str = "cpu") -> Reducer | None:
    """Join the other processes that a launcher started; None without one, and for one worker.

    With a provider of GPUs this process takes one of them, and all-reduce by PyTorch is NCCL's.

    Raises:
        QdqError: more workers than the launcher started, or no launcher; NCCL does not start.
        MissingPackageError: what the reducer needs is not installed.
    """
    _, size = launched()
    if workers not in (1, size):
        started = f"the launcher started {size}" if size > 1 else "no launcher started them"
        todo = "run the script by torchrun --nproc-per-node N or mpiexec -n N; qdqtool finetune does that itself"
        raise QdqError(f"--workers {workers}", started, todo)
    if size == 1:
        return None
    if provider != "cpu":
        take_gpu()
    if chosen_reducer(name) == "mpi":
        return MpiReducer()
    return TorchReducer(on_gpus=provider != "cpu" and name.endswith("=all-reduce"))
