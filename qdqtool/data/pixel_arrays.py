# SPDX-License-Identifier: Apache-2.0
"""Arrays by name, in a file or in memory: which feeds a model's only input, and 8-bit images among them. No labels."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.data.arrays import HeldArray, SampleArray, StoredArray, open_npy, open_npz
from qdqtool.data.geometry import Geometry, geometry_of
from qdqtool.data.image_folder import GIVE_PREPROCESS, as_fed, find_images, image_reader
from qdqtool.data.images import ImageReader, load_pillow
from qdqtool.data.model_inputs import Array, Input, check_names
from qdqtool.data.preprocess import Preprocess
from qdqtool.errors import QdqError

_SUFFIXES = (".npz", ".npy")
_SAMPLES = ("x", "images", "image", "data")  # what archives of images call them
_LABELS = frozenset({"y", "labels", "label", "boxes", "image", "scene"})  # of labels, which other readers take
_CHANNELS = (1, 3, 4)
_UNLIMITED = 1 << 62  # where only headers are read


@dataclass(frozen=True)
class PixelArray:
    """Images of eight bits, (n, rows, columns[, channels]) or (n, channels, rows, columns), as the array that is fed.

    Attributes:
        where: the file, or "data" for arrays in memory, for messages.
        stored: the images, not read yet.
        one: the input that they are for.
        reader: what is done to each.
    """

    where: Path | str
    stored: SampleArray
    one: Input
    reader: ImageReader

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the preprocessed array; the first axis counts images."""
        columns, rows = self.reader.spec.size or (0, 0)
        channels = self.reader.channels
        last = self.reader.spec.layout == "nhwc"
        return (self.stored.shape[0], *((rows, columns, channels) if last else (channels, rows, columns)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The input's."""
        return self.one.dtype

    @property
    def geometry(self) -> Geometry:
        """How each image is laid into the input: all are of one size."""
        rows, columns = self.stored.shape[2:] if _channels_first(self.stored.shape[1:]) else self.stored.shape[1:3]
        return geometry_of(self.reader.spec, (columns, rows))

    def blocks(self, rows: int) -> Iterator[Array]:
        """Successive groups of `rows` preprocessed images, the last one smaller where it does not divide.

        Raises:
            QdqError: the file is damaged, or a preprocessed image does not stay in the input's type.
        """
        return (self._fed(block) for block in self.stored.blocks(rows))

    def whole(self) -> Array:
        """All images, preprocessed."""
        return self._fed(self.stored.whole())

    def _fed(self, block: Array) -> Array:
        values = [self.reader.array(self._image(row), self.where) for row in block]
        return as_fed(self.where, np.concatenate(values), self.one)

    def _image(self, row: Array) -> Any:
        """One image as Pillow has it, in the channels of the input."""
        if _channels_first(row.shape):
            row = row.transpose(1, 2, 0)
        pixels = np.ascontiguousarray(row[..., 0] if row.ndim == 3 and row.shape[2] == 1 else row)
        return load_pillow().fromarray(pixels).convert("RGB" if self.reader.channels == 3 else "L")


def is_archive(path: Path) -> bool:
    """Whether a path names arrays by its ending."""
    return path.suffix.lower() in _SUFFIXES


def open_archive(path: Path, max_bytes: int) -> dict[str, StoredArray]:
    """The arrays of a .npz by name, or that of a .npy as "".

    Raises:
        QdqError: see `open_npz` and `open_npy`.
    """
    return {"": open_npy(path)} if path.suffix.lower() == ".npy" else open_npz(path, max_bytes)


def open_arrays(data: object, max_bytes: int) -> Mapping[str, SampleArray] | None:
    """The arrays by name of a file that `open_archive` reads, or in memory: one array as "". None for other data.

    Raises:
        QdqError: see `open_archive`; a mapping of what is no numpy array.
    """
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        return open_archive(path, max_bytes) if is_archive(path) and path.is_file() else None
    if isinstance(data, np.ndarray):
        return {"": HeldArray(data)}
    if not isinstance(data, Mapping):
        return None
    for name, array in data.items():
        if not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise QdqError("data", f"{name!r} is a {kind}, not a numpy array", "give {input name: array}")
    return {str(name): HeldArray(array) for name, array in data.items()}


def sample_array(
    path: Path | str, stored: Mapping[str, SampleArray], inputs: Sequence[Input]
) -> tuple[Input, str] | None:
    """The input that no array is named as, or the only one, and its array: called x, images, image or data.

    Where none has such a name it is the only array, or else the only one that holds images of eight bits.

    Raises:
        QdqError: several arrays, and none of them is that.
    """
    fed = [one for one in inputs if one.name not in stored] if len(inputs) > 1 else list(inputs)
    if len(fed) != 1:
        return None
    one = fed[0]
    taken = {other.name for other in inputs if other is not one}
    free = {name: array for name, array in stored.items() if name not in taken}
    named = next((key for key in (one.name, *_SAMPLES) if key in free), None)
    if named is not None or len(free) == 1:
        return one, named if named is not None else next(iter(free))
    pixels = [name for name, array in free.items() if _are_pixels(array)]
    if len(pixels) == 1:
        return one, pixels[0]
    if not pixels and not any(name in _LABELS - {"y"} for name in stored):
        check_names(path, stored, inputs)
    listed = ", ".join(f"{name} ({format_array(array)})" for name, array in stored.items())
    reason = f"does not show which of its arrays the input {one.name!r} takes: {listed}"
    raise QdqError(path, reason, "call it " + " or ".join(dict.fromkeys((one.name, "x", "images"))))


def pixel_array(
    path: Path | str, name: str, array: SampleArray, one: Input, preprocess: str | Preprocess | None
) -> PixelArray | None:
    """The array as images of eight bits; None where it is the model's input as it is.

    Raises:
        QdqError: images of eight bits for an input of floats without a preprocessing; a preprocessing for what is not
            such images, or that does not fit the input.
    """
    called = f"array {name!r}" if name else "the array"
    if preprocess is not None:
        if not _are_pixels(array):
            reason = f"{called} is {format_array(array)}, not images of eight bits, and --preprocess is for images only"
            raise QdqError(path, reason, "leave --preprocess out")
        return PixelArray(path, array, one, image_reader(path, one, preprocess))
    if _are_pixels(array) and one.dtype.kind == "f" and one.shape is not None and len(one.shape) == 4:
        reason = f"holds images as uint8 ({called}), and the model does not say how to preprocess them"
        raise QdqError(path, reason, GIVE_PREPROCESS)
    return None


def unused_note(stored: Mapping[str, object], used: Iterable[str]) -> tuple[str, ...]:
    """A sentence on the arrays that are neither samples nor labels."""
    read = set(used)
    others = [repr(name) for name in stored if name not in read and name not in _LABELS]
    if not others:
        return ()
    them, those = ("them", "are") if others[1:] else ("it", "is")
    names = ", ".join(repr(name) for name in stored if name in read)
    return (
        f"of its arrays {names} is read, {', '.join(others)} {those} not: save {them} in another .npz to use {them}",
    )


def holds_images(data: object) -> bool:
    """Whether data are images: files (see `find_images`), or arrays with images of eight bits as samples."""
    try:
        if isinstance(data, str | os.PathLike) and find_images(data) is not None:
            return True
        stored = open_arrays(data, _UNLIMITED)
        if stored is None:
            return False
    except (OSError, ValueError, QdqError):
        return False  # its reader says what is wrong
    named = next((stored[key] for key in _SAMPLES if key in stored), None)
    return _are_pixels(named) if named is not None else any(map(_are_pixels, stored.values()))


def are_other_images(array: SampleArray, samples: SampleArray) -> bool:
    """Whether an array holds images of eight bits, and not one for each sample."""
    return _are_pixels(array) and array.shape[:1] != samples.shape[:1]


def format_array(array: SampleArray) -> str:
    """Type and shape, for messages."""
    return f"{array.dtype} {list(array.shape)}"


def _are_pixels(array: SampleArray) -> bool:
    shape = array.shape
    if array.dtype != np.uint8 or not math.prod(shape[1:]):
        return False
    return len(shape) == 3 or (len(shape) == 4 and (_channels_first(shape[1:]) or shape[3] in _CHANNELS))


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image is (channels, rows, columns)."""
    return len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)
