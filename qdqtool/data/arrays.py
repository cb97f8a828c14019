# SPDX-License-Identifier: Apache-2.0
"""Arrays in .npz and .npy files, read front to back a few rows at a time: compressed or not, never whole, no pickle."""

from __future__ import annotations

import io
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError

# What numpy and zipfile raise over damaged files. A header is a Python literal, which numpy takes apart itself.
FAULTS = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    MemoryError,
    RuntimeError,  # NotImplementedError and RecursionError among them
    SyntaxError,
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


_KINDS = "biufcVSU"  # numpy's letters; void is what it makes of bfloat16


class SampleArray(Protocol):
    """An array whose first axis is walked: in a file (`StoredArray`) or in memory (`HeldArray`)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """All its dimensions."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Successive groups of `rows` entries along the first axis."""

    def whole(self) -> npt.NDArray[Any]:
        """All of it."""


@dataclass(frozen=True)
class HeldArray:
    """One array in memory."""

    array: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """All its dimensions; the first is what `blocks` walks along."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""
        return self.array.dtype

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Successive groups of `rows` entries along the first axis, the last one smaller where it does not divide."""
        return (self.array[start : start + rows] for start in range(0, self.array.shape[0], rows))

    def whole(self) -> npt.NDArray[Any]:
        """The array itself."""
        return self.array


@dataclass(frozen=True)
class StoredArray:
    """One array of a file, not read yet.

    Attributes:
        where: the file, for messages.
        name: its name in the file, "" in a .npy.
        shape: all its dimensions; the first is what `blocks` walks along.
        dtype: what the file holds.
        fortran: stored column by column, so that rows can only be had from the whole.
        open: opens the bytes of the .npy anew.
    """

    where: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    open: Callable[[], IO[bytes]]

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Successive groups of `rows` entries along the first axis, the last one smaller where it does not divide.

        Raises:
            QdqError: the file ends early or is damaged.
        """
        if self.fortran:
            array = self.whole()
            yield from (array[start : start + rows] for start in range(0, self.shape[0], rows))
            return
        with _readable(self.where), self.open() as file:
            _header(file)
            for start in range(0, self.shape[0], rows):
                yield self._take(file, (min(rows, self.shape[0] - start), *self.shape[1:]))

    def whole(self) -> npt.NDArray[Any]:
        """The array at once, for what has no samples to walk along."""
        with _readable(self.where), self.open() as file:
            _header(file)
            return self._take(file, self.shape[::-1]).T if self.fortran else self._take(file, self.shape)

    def _take(self, file: IO[bytes], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        count = math.prod(shape) * self.dtype.itemsize
        data = file.read(count)
        if len(data) != count:
            raise EOFError(f"array {self.name!r} ends early")
        return np.frombuffer(data, self.dtype).reshape(shape)


def open_npz(path: Path, max_bytes: int) -> dict[str, StoredArray]:
    """The arrays of a .npz by name.

    Raises:
        QdqError: not an archive of arrays, object arrays, more than `max_bytes`.
    """
    with _readable(path), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > max_bytes:
            raise QdqError(path, f"unpacks to {total} bytes, more than the {max_bytes} allowed", "raise --max-data")
        for member in members:
            if not member.filename.endswith(".npy"):
                raise QdqError(path, f"member {member.filename!r} is not an array", "write it with np.savez")
        named = {member.filename.removesuffix(".npy"): member for member in members}
        return {
            name: _stored(path, name, _member(path, member.filename), member.file_size)
            for name, member in named.items()
        }


def open_npy(path: Path) -> StoredArray:
    """The array of a .npy.

    Raises:
        QdqError: not such a file, an object array.
    """
    with _readable(path):
        return _stored(path, "", lambda: path.open("rb"), path.stat().st_size)


def array_of_bytes(path: Path, data: bytes) -> npt.NDArray[Any]:
    """The array whose .npy file these bytes are, found inside the file `path`.

    Raises:
        QdqError: not such bytes, an object array.
    """
    with _readable(path):
        return _stored(path, "", lambda: io.BytesIO(data), len(data)).whole()


def _member(path: Path, filename: str) -> Callable[[], IO[bytes]]:
    def start() -> IO[bytes]:
        with zipfile.ZipFile(path) as archive:  # an open member keeps the file open by itself
            return archive.open(filename)

    return start


def _stored(path: Path, name: str, start: Callable[[], IO[bytes]], size: int) -> StoredArray:
    label = f"array {name!r}" if name else "the array"
    with start() as file:
        shape, fortran, dtype = _header(file)
        header = file.tell()
    if dtype.hasobject or dtype.fields:
        raise QdqError(
            path, f"{label} holds {'objects' if dtype.hasobject else 'records'}, not numbers", "save plain arrays"
        )
    if dtype.kind not in _KINDS or not dtype.itemsize:
        raise QdqError(path, f"{label} holds {dtype}, not numbers", "save plain arrays")
    if header + math.prod(shape) * dtype.itemsize != size or max(shape, default=0) > size:
        raise QdqError(
            path, f"{label} claims shape {list(shape)}, which its {size} bytes do not hold", "write it again"
        )
    return StoredArray(path, name, shape, dtype, fortran and len(shape) > 1, start)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape}")
    return shape, fortran, dtype


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except QdqError:
        raise
    except FAULTS as error:
        text = str(error).splitlines() or [type(error).__name__]
        raise QdqError(
            path, f"cannot be read as arrays ({text[0]})", "write it again with np.savez or np.save"
        ) from error
