# SPDX-License-Identifier: Apache-2.0
"""The class of every pixel, from PNG files or arrays. What a model says is not asked here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qdqtool.data.arrays import open_npz
from qdqtool.data.images import class_map
from qdqtool.data.model_inputs import Array
from qdqtool.errors import QdqError
from qdqtool.evaluation.labels_classes import Int64

UNLABELED = 255  # in a file: pixels that do not count; -1 in what is read
MAPS = "masks"  # the array of class maps in a .npz
_FORMS = f"a folder of .png whose pixels are class numbers, or a .npz with {MAPS} [samples, height, width]"
_LIMIT = 4 << 30
_OTHER_LABELS = (".xml", ".txt", ".json", ".csv")


@dataclass(frozen=True)
class MapLabels:
    """The class maps of every sample of a data set.

    Attributes:
        where: the file or folder.
        form: png or arrays.
        shown: what the classes are called; empty where nobody says.
        read: the map of the sample of that number as it is stored, of integers [height, width].
        offset: added to class numbers.
    """

    where: Path
    form: str
    shown: tuple[str, ...]
    read: Callable[[int], Array]
    offset: int = 0

    def truth(self, index: int) -> Int64:
        """The map of one sample, int64[height, width]; -1 where a pixel does not count.

        Raises:
            QdqError: a file that holds no class numbers.
        """
        stored = self.read(index)
        numbers = stored.astype(np.int64) + self.offset
        numbers[(stored < 0) | (stored == UNLABELED) | (numbers < 0)] = -1
        return numbers


def are_maps(labels: str | Path) -> bool:
    """Whether labels are class maps, by their outside: a folder of .png without other labels, a .npz with `masks`."""
    path = Path(labels)
    if path.is_dir():
        suffixes = {file.suffix.lower() for file in path.iterdir()}
        return ".png" in suffixes and not suffixes.intersection(_OTHER_LABELS)
    return path.suffix.lower() == ".npz" and path.is_file() and MAPS in open_npz(path, _LIMIT)


def open_map_labels(path: Path, images: Sequence[Path] | None, shown: Sequence[str] = ()) -> MapLabels:
    """Class maps of samples; in a folder each has the name of its image.

    Raises:
        QdqError: no form that is read, no map for an image (named).
    """
    if path.suffix.lower() == ".npz" and path.is_file():
        stored = open_npz(path, _LIMIT).get(MAPS)
        if stored is None or len(stored.shape) != 3 or stored.dtype.kind not in "iub":
            raise QdqError(path, "holds no class maps", _FORMS)
        maps = stored.whole()

        def row(index: int) -> Array:
            if index >= len(maps):
                raise QdqError(
                    path, f"holds {len(maps)} class maps, the data has more samples", "are these its labels?"
                )
            found: Array = maps[index]
            return found

        return MapLabels(path, "arrays", tuple(shown), row)
    if images is None:
        raise QdqError(path, "has a class map for each image file, and the data has none", "give --labels as .npz")
    files = [path / f"{image.stem}.png" for image in images]
    missing = [image for image, file in zip(images, files, strict=True) if not file.is_file()]
    if missing:
        reason = f"has no .png for {len(missing)} of {len(images)} images, such as {missing[0].name}"
        raise QdqError(path, reason, "check that these are the labels of --data")
    return MapLabels(path, "png", tuple(shown), lambda index: class_map(files[index]))
