# SPDX-License-Identifier: Apache-2.0
"""Arrays in files that are mapped: weights for several sessions, values that wait. Not what they are read for.

onnxruntime copies arrays that it is lent. Weights in a file it maps; what of them a session lays out anew is all that
the session holds. Pages of a file are memory that the system takes back where it is short.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Smaller arrays stay in memory: each stands on pages of its own in the file.
_LEAST_BYTES = 32 << 10
_ALIGNMENT = 64  # of arrays under one mapping
_ROOT = "/"  # the folder that places are relative to, since a session takes one folder


@dataclass(frozen=True)
class FilePlace:
    """Where a file holds an array: contiguous, in the order of C, little-endian."""

    path: Path
    offset: int

    @property
    def location(self) -> str:
        """The path as a session takes it, with `FOLDER_ENTRY`."""
        return str(self.path).removeprefix(_ROOT)


# The entry of a session's settings, and its value, with which a location is the path without its first slash.
FOLDER_ENTRY = ("session.model_external_initializers_file_folder_path", _ROOT)
_FIRST_VERSION = (1, 21)  # of onnxruntime that knows the entry


class _MappedArray(np.ndarray[Any, Any]):
    """An array that a `ArrayFile` holds. What is made of it has no place."""

    place: FilePlace | None = None
    file: ArrayFile | None = None  # exists as long as the array does


class ArrayFile:
    """A temporary file that arrays are written to; it goes with the last of them, or with the process."""

    def __init__(self) -> None:
        self._path: Path | None = None  # once there is something in it
        self._number, self._end = -1, 0  # its descriptor, its bytes

    def add(self, array: Array) -> Array:
        """An array as this file holds it; the array itself where it is small, in a file already, or none can be had."""
        return self.add_all([array])[0]

    def add_all(self, arrays: Sequence[Array]) -> list[Array]:
        """Several arrays, each as `add` gives it, under one mapping, which exists as long as any of them does."""
        moved = [np.ascontiguousarray(array) for array in arrays if _moves(array)]
        try:
            held = iter(self._written(moved) if moved else ())
        except OSError:  # no room; memory will do
            return list(arrays)
        return [next(held) if _moves(array) else array for array in arrays]

    def _written(self, arrays: Sequence[Array]) -> list[Array]:
        path = self._path or self._open()
        start = self._end = _aligned(self._end, mmap.ALLOCATIONGRANULARITY)
        offsets = []
        for array in arrays:
            offsets.append(_aligned(self._end, _ALIGNMENT) - start)
            self._write(array.reshape(-1).view(np.uint8).data, start + offsets[-1])
        pages = mmap.mmap(self._number, self._end - start, access=mmap.ACCESS_READ, offset=start)
        made: list[Array] = []
        for array, offset in zip(arrays, offsets, strict=True):
            mapped = np.frombuffer(pages, array.dtype, array.size, offset).reshape(array.shape).view(_MappedArray)
            mapped.place, mapped.file = FilePlace(path, start + offset), self
            made.append(mapped)
        return made

    def _write(self, left: memoryview, at: int) -> None:
        self._end = at
        while left:  # the system writes two gigabytes at a time
            many = os.pwrite(self._number, left, self._end)
            self._end, left = self._end + many, left[many:]

    def _open(self) -> Path:
        self._number, name = tempfile.mkstemp(prefix="qdqtool-", suffix=".arrays")
        weakref.finalize(self, _remove, self._number, name)
        self._path = Path(name)
        return self._path


def _moves(array: Array) -> bool:
    """Whether an array is worth a place in a file, and can have one."""
    return array.nbytes >= _LEAST_BYTES and array.dtype.isnative and place_of(array) is None and os.name == "posix"


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _remove(number: int, name: str) -> None:
    os.close(number)
    with contextlib.suppress(OSError):
        Path(name).unlink()


def drop_pages(array: Array) -> None:
    """Forget the pages of a mapped array, which are read again where somebody looks; nothing for one in memory."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def place_of(array: Array) -> FilePlace | None:
    """Where a file holds a whole array; None for arrays in memory, and for parts of mapped ones."""
    if isinstance(array, _MappedArray):
        return array.place
    if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.filename and array.dtype.isnative:
        return FilePlace(Path(array.filename).absolute(), array.offset)
    return None


def maps_files(runtime: Any) -> bool:
    """Whether sessions of an onnxruntime take weights by their place in any file."""
    numbers = str(runtime.__version__).split(".")[:2]
    known = tuple(int(one) for one in numbers if one.isdecimal())
    return os.name == "posix" and known >= _FIRST_VERSION
