# SPDX-License-Identifier: Apache-2.0
"""Folders of images for a model's only input: which files they are, how they are read, in which type they are fed.

The one place that lists such a folder, for calibration, evaluation and Dask alike. images.py reads one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.images import SUFFIXES, ImageReader, fit_reader
from qdqtool.data.model_inputs import Input
from qdqtool.data.preprocess import Preprocess, parse_preprocess
from qdqtool.errors import QdqError

GIVE_PREPROCESS = "say --preprocess, such as yolov8 or scale=1/255"
Array = npt.NDArray[Any]


def images_in(folder: Path) -> list[Path]:
    """The images of a folder by name; not those of folders in it."""
    return _files(folder, SUFFIXES)


def documents_in(folder: Path) -> list[Path]:
    """The .json files of a folder by name."""
    return _files(folder, (".json",))


def images_below(folder: Path) -> list[Path]:
    """The images of the folders in a folder, such as one for each class: by folder, then by name."""
    return [image for below in sorted(folder.iterdir()) if below.is_dir() for image in images_in(below)]


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


def image_reader(path: Path, one: Input, preprocess: str | Preprocess | None) -> ImageReader:
    """What reads images for an input.

    Raises:
        QdqError: no preprocessing is given, or it does not fit the input.
    """
    if preprocess is None:
        reason = "holds images, and what the model wants done to them is not known"
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
        raise QdqError(where, reason, "leave scale, mean and std out, or give what the model expects")
    return cast
