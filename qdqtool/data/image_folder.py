# SPDX-License-Identifier: Apache-2.0
"""Images for a model's only input: which files they are, how they are read, in which type they are fed.

The one place that lists such a folder, for calibration, evaluation and Dask alike. images.py reads one file.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.images import SUFFIXES, ImageReader, fit_reader
from qdqtool.data.model_inputs import Input
from qdqtool.data.preprocess import Preprocess, parse_preprocess
from qdqtool.display import counted, named
from qdqtool.errors import QdqError

GIVE_PREPROCESS = "give --preprocess, such as yolov8 or scale=1/255"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ImageFiles:
    """The images that a text for `--data` names.

    Attributes:
        files: in order: by folder, then by name.
        folders: the folders that they lie in, where these are below the one that was named; empty for images that were
            named themselves.
    """

    files: tuple[Path, ...]
    folders: tuple[Path, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence where the images are of several folders."""
        if not self.folders:
            return ()
        return (f"{len(self.files)} images of {counted(len(self.folders), 'folder')} in it: {_names(self.folders)}",)


def find_images(text: str | os.PathLike[str]) -> ImageFiles | None:
    """The images that are named: one file, a folder, a folder of folders, or a pattern such as ``day/*.jpg``.

    A folder's own images go before those of folders in it.

    Raises:
        OSError: a folder that cannot be listed.
    """
    path = Path(text)
    if path.is_dir():
        return _of_folder(path)
    if path.is_file():
        return ImageFiles((path,)) if path.suffix.lower() in SUFFIXES else None
    if any(sign in str(path) for sign in "*?["):
        matched = (Path(one) for one in glob.glob(str(path), recursive=True))  # noqa: PTH207 - of any root
        files = sorted(one for one in matched if one.is_file() and one.suffix.lower() in SUFFIXES)
        return ImageFiles(tuple(files)) if files else None
    return None


def images_in(folder: Path) -> list[Path]:
    """The images of a folder by name; not those of folders in it."""
    return _files(folder, SUFFIXES)


def _of_folder(path: Path) -> ImageFiles | None:
    own = images_in(path)
    if own:
        return ImageFiles(tuple(own))
    if documents_in(path):
        return None
    below = sorted(one for one in path.rglob("*") if one.is_dir())
    found = {one: images_in(one) for one in below}
    files = tuple(file for one in below for file in found[one])
    return ImageFiles(files, tuple(one for one in below if found[one])) if files else None


def _names(folders: Sequence[Path]) -> str:
    return named([folder.name for folder in folders])


def documents_in(folder: Path) -> list[Path]:
    """The .json files of a folder by name."""
    return _files(folder, (".json",))


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file() and file.suffix.lower() in suffixes)


def image_input(path: Path, inputs: Sequence[Input]) -> Input:
    """The input that images are for.

    Raises:
        QdqError: the model has several, or none of a known number of axes.
    """
    if len(inputs) != 1 or inputs[0].shape is None:
        raise QdqError(path, f"holds images, the model has {len(inputs)} inputs", "give the data as .npz or .py")
    return inputs[0]


def image_reader(path: Path | str, one: Input, preprocess: str | Preprocess | None) -> ImageReader:
    """What reads images for an input.

    Raises:
        QdqError: no preprocessing is given, or it does not fit the input.
    """
    if preprocess is None:
        reason = "holds images, and the model does not say how to preprocess them"
        raise QdqError(path, reason, GIVE_PREPROCESS)
    spec = parse_preprocess(preprocess) if isinstance(preprocess, str) else preprocess
    return fit_reader(spec, one.name, one.shape or ())


def as_fed(where: object, values: npt.NDArray[np.float32], one: Input) -> Array:
    """Preprocessed images in the input's type: a model of quantized input takes integers.

    Raises:
        QdqError: they do not come out exactly in that type.
    """
    with np.errstate(invalid="ignore"):
        cast: Array = values.astype(one.dtype, copy=False)
    if one.dtype.kind != "f" and not np.array_equal(cast, values):
        reason = f"preprocessed, does not stay in {one.dtype}, which {one.name!r} takes"
        pixels = "scale=1,mean=128" if one.dtype.kind == "i" and one.dtype.itemsize == 1 else "scale=1"
        raise QdqError(where, reason, f"--preprocess {pixels} makes {one.dtype} of the pixels")
    return cast
