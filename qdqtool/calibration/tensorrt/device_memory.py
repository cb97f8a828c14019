# SPDX-License-Identifier: Apache-2.0
"""Host arrays to where TensorRT reads them: by Polygraphy's CUDA runtime, or by pycuda. No batch is judged here."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.runtime.installed import one_line

CUDA = ("cudart", "pycuda")

Array = npt.NDArray[Any]


class DeviceMemory(Protocol):
    """Where the arrays of a batch go before TensorRT reads them."""

    def put(self, name: str, array: Array) -> Array | int:
        """The array itself where Polygraphy copies it, else the device pointer of a copy."""
        ...

    def __enter__(self) -> DeviceMemory: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the memory back."""
        ...


def open_place(cuda: str) -> DeviceMemory:
    """The way to the device that `--cuda` names; nothing is allocated yet.

    Raises:
        MissingPackageError: no CUDA runtime library, or no pycuda.
        QdqError: another word.
    """
    if cuda not in CUDA:
        raise QdqError(f"--cuda {cuda}", "is not a way to copy to the device", f"choose one of {', '.join(CUDA)}")
    return Cudart() if cuda == "cudart" else Pycuda()


class Cudart:
    """Polygraphy's calibrator copies arrays itself, with its ctypes wrapper of the CUDA runtime."""

    def __init__(self) -> None:
        from polygraphy import cuda

        try:
            cuda.wrapper()
        except Exception as error:  # OSError from ctypes, or Polygraphy's own
            todo = "install it (such as nvidia-cuda-runtime-cu12) or give --cuda pycuda"
            raise MissingPackageError("libcudart", f"does not load ({one_line(error)})", todo) from error

    def put(self, name: str, array: Array) -> Array:
        """The array as it is."""
        return array

    def __enter__(self) -> Cudart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Polygraphy's calibrator frees what it allocated."""


class Pycuda:
    """One buffer per input in the primary context of device 0, which is the one that TensorRT works in."""

    def __init__(self) -> None:
        try:
            import pycuda.driver as driver
        except ImportError as error:
            reason = (
                "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not load ({one_line(error)})"
            )
            todo = 'pip install "qdqtool[pycuda]" (it compiles against CUDA), or give --cuda cudart'
            raise MissingPackageError("pycuda", f"{reason}, and --cuda pycuda needs it", todo) from error
        self._driver = driver
        self._context: Any = None
        self._buffers: dict[str, tuple[Any, int]] = {}

    def put(self, name: str, array: Array) -> int:
        """Copy an array of any dtype to the input's buffer, which grows when it must."""
        size = max(array.nbytes, 1)
        buffer, room = self._buffers.get(name, (None, 0))
        if room < size:
            if buffer is not None:
                buffer.free()
            buffer, room = self._driver.mem_alloc(size), size
            self._buffers[name] = buffer, room
        if array.nbytes:
            self._driver.memcpy_htod(buffer, np.ascontiguousarray(array))
        return int(buffer)

    def __enter__(self) -> Pycuda:
        try:
            self._driver.init()
            self._context = self._driver.Device(0).retain_primary_context()
            self._context.push()
        except Exception as error:  # pycuda's errors share no base class but this
            reason = f"pycuda finds no device ({one_line(error)})"
            raise QdqError("--cuda pycuda", reason, "run where a GPU is, or leave --backend tensorrt out") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the buffers, leave the context to TensorRT."""
        for buffer, _ in self._buffers.values():
            buffer.free()
        self._buffers.clear()
        context, self._context = self._context, None
        context.pop()
        context.detach()  # pycuda's own clean-up would call cuCtxDetach, which is not for a primary context


def pointer_of(value: object) -> int | None:
    """The device pointer that an object stands for, None for a host array.

    Taken: an int; `__cuda_array_interface__` (cupy, numba, torch on the GPU); `.ptr` (Polygraphy's views, pycuda's
    arrays); `__int__` (pycuda's allocations, cuda-python's pointers).
    """
    if isinstance(value, (np.ndarray, np.generic, bool)):
        return None
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return int(interface["data"][0])
    found: Any = getattr(value, "ptr", value)
    return int(found) if hasattr(found, "__int__") else None
