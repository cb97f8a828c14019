# SPDX-License-Identifier: Apache-2.0
"""Host memory that passes for a device: Polygraphy's CUDA wrapper and pycuda's driver, as far as a calibrator needs."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any


class HostCuda:
    """Stands in for Polygraphy's `Cuda`.

    Attributes:
        alive: address -> memory that was not freed yet.
        room: bytes that can be allocated in all; None for any number.
    """

    def __init__(self, room: int | None = None) -> None:
        self.alive: dict[int, Any] = {}
        self.room = room

    def check(self, status: int) -> None:
        """Every call succeeds or raises by itself."""

    def create_stream(self) -> int:
        """A number for a stream; every copy here is done at once."""
        return 1

    def destroy_stream(self, ptr: int) -> None:
        """Nothing is kept for a stream."""

    def stream_synchronize(self, ptr: int) -> None:
        """Nothing is ever outstanding."""

    def malloc(self, nbytes: int) -> int:
        """The address of new memory.

        Raises:
            PolygraphyException: there is no room, said as Polygraphy says it.
        """
        if self.room is not None and nbytes > self.room:
            from polygraphy.logger import G_LOGGER

            G_LOGGER.critical("CUDA Error: 2. (out of memory)")
        block = ctypes.create_string_buffer(max(int(nbytes), 1))
        address = ctypes.addressof(block)
        self.alive[address] = block
        return address

    def free(self, ptr: int) -> None:
        """Give memory back; 0 is fine, as in CUDA."""
        if ptr:
            del self.alive[ptr]

    def memcpy(self, dst: int, src: int, nbytes: int, kind: object, stream_ptr: int | None = None) -> None:
        """Copy between addresses."""
        ctypes.memmove(dst, src, nbytes)


class _Allocation:
    """pycuda's DeviceAllocation."""

    def __init__(self, cuda: HostCuda, size: int) -> None:
        self._cuda, self._address = cuda, cuda.malloc(size)

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        self._cuda.free(self._address)


class _Context:
    """pycuda's Context; it counts how often it is current, and retained."""

    def __init__(self) -> None:
        self.depth = self.retained = 0

    def push(self) -> None:
        self.depth += 1

    def pop(self) -> None:
        self.depth -= 1

    def detach(self) -> None:
        self.retained -= 1


class _Device:
    def __init__(self, context: _Context) -> None:
        self._context = context

    def retain_primary_context(self) -> _Context:
        self._context.retained += 1
        return self._context


def pycuda_modules(cuda: HostCuda) -> dict[str, ModuleType]:
    """`pycuda` and `pycuda.driver` over the same host memory; `driver.context.depth` tells whether it is current."""
    driver: Any = ModuleType("pycuda.driver")
    driver.context = _Context()
    driver.init = lambda: None
    driver.Device = lambda number: _Device(driver.context)
    driver.mem_alloc = lambda size: _Allocation(cuda, size)
    driver.memcpy_htod = lambda target, array: ctypes.memmove(int(target), array.ctypes.data, array.nbytes)
    package: Any = ModuleType("pycuda")
    package.driver = driver
    return {"pycuda": package, "pycuda.driver": driver}
