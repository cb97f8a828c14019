# SPDX-License-Identifier: Apache-2.0
"""Arrays in files that are mapped: weights for several sessions, values that wait. Not what they are read for.

onnxruntime copies arrays that it is lent. Weights in a file it maps; what of them a session lays out anew is all that
the session holds. Pages of a file are memory that the system takes back where it is short.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Smaller arrays stay in memory: each stands on pages of its own in the file.
_LEAST_BYTES = 32 << 10
_ROOT = "/"  # the folder that places are told from, since a session takes one folder


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
    """A temporary file that arrays are written to; it goes with the last of them."""

    def __init__(self) -> None:
        self._file: Any = None  # a named temporary file, once there is something in it

    def add(self, array: Array) -> Array:
        """An array as this file holds it; the array itself where it is small, in a file already, or none can be had."""
        if array.nbytes < _LEAST_BYTES or not array.dtype.isnative or place_of(array) is not None or os.name != "posix":
            return array
        try:
            return self._written(np.ascontiguousarray(array))
        except OSError:  # no room; memory will do
            return array

    def _written(self, array: Array) -> Array:
        file = self._file = self._file or tempfile.NamedTemporaryFile(  # noqa: SIM115 - it lives as long as its arrays
            prefix="qdqtool-", suffix=".arrays"
        )
        offset = -(-file.seek(0, os.SEEK_END) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        file.seek(offset)
        file.write(array.data)
        file.flush()
        pages = mmap.mmap(file.fileno(), array.nbytes, access=mmap.ACCESS_READ, offset=offset)
        mapped = np.frombuffer(pages, array.dtype).reshape(array.shape).view(_MappedArray)
        mapped.place, mapped.file = FilePlace(Path(file.name), offset), self
        return mapped


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
