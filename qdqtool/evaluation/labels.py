# SPDX-License-Identifier: Apache-2.0
"""What labels say, whatever their form: boxes, classes or class maps. The forms are in labels_*.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qdqtool.data.arrays import open_npz
from qdqtool.errors import QdqError
from qdqtool.evaluation.class_names import Names
from qdqtool.evaluation.labels_boxes import BoxLabels, open_box_labels
from qdqtool.evaluation.labels_classes import (
    FILENAME,
    ClassLabels,
    are_rows_of_files,
    from_file_names,
    from_folders,
    read_class_labels,
)
from qdqtool.evaluation.labels_maps import MapLabels, are_maps, open_map_labels
from qdqtool.evaluation.samples import LabeledSamples

_GIVE = (
    "--labels takes COCO's .json, folders of VOC's .xml, YOLO's or KITTI's .txt or class maps in .png, a .csv, a .npz, "
    "or the word filename"
)


def are_boxes(labels: str | Path) -> bool:
    """Whether labels are of boxes, by their outside: a .json, a folder, a .npz with boxes."""
    path = Path(labels)
    if path.is_dir():
        return not are_maps(path)
    if path.suffix.lower() == ".npz" and path.is_file():
        return "boxes" in open_npz(path, 1 << 30)
    return path.suffix.lower() == ".json"


def name_their_samples(labels: str | Path) -> bool:
    """Whether labels say which image each is of, so that those of other samples are noticed; else only the order does.

    Raises:
        QdqError: a list that cannot be read.
    """
    path = Path(labels)
    if path.suffix.lower() in (".npz", ".npy"):
        return False
    return are_maps(labels) or are_boxes(labels) or not path.is_file() or are_rows_of_files(path)


def box_labels(labels: str | Path | None, samples: LabeledSamples, names: Names | None) -> BoxLabels:
    """The boxes of the samples.

    Raises:
        QdqError: no labels, or not of boxes; see `open_box_labels`.
    """
    if labels is None:
        raise QdqError("--labels", "is needed for average precision", _GIVE)
    if samples.whole is not None:
        every, places = open_box_labels(Path(labels), samples.whole.images, names), samples.positions
        return replace(every, rows=lambda index: every.rows(places[index]))
    return open_box_labels(Path(labels), samples.images, names)


def map_labels(labels: str | Path | None, samples: LabeledSamples, names: Names | None) -> MapLabels:
    """The class maps of the samples.

    Raises:
        QdqError: no labels, or not of class maps; see `open_map_labels`.
    """
    if labels is None:
        raise QdqError("--labels", "is needed for mean IoU", "give a folder of .png, or a .npz with masks")
    shown = names.shown if names else ()
    if samples.whole is None:
        return open_map_labels(Path(labels), samples.images, shown)
    every, places = open_map_labels(Path(labels), samples.whole.images, shown), samples.positions
    return replace(every, read=lambda index: every.read(places[index]))


def class_labels(labels: str | Path | None, samples: LabeledSamples, names: Names | None) -> ClassLabels:
    """The right classes of the samples: what is said, else what the data itself tells.

    Raises:
        QdqError: nothing tells them; see `read_class_labels`.
    """
    if samples.whole is not None:
        every = class_labels(labels, samples.whole, names)
        return replace(every, numbers=every.numbers[list(samples.positions)])
    if labels is not None and not (str(labels) == FILENAME and not Path(labels).exists()):
        return read_class_labels(Path(labels), samples.images, samples.count, names)
    if labels is not None:
        if samples.images is None:
            raise QdqError("--labels", "filename is for image files, and the data has none", _GIVE)
        return from_file_names(samples.images, names)
    if samples.images is not None and samples.in_folders:
        return from_folders(samples.images, names)
    if samples.classes is not None:
        return ClassLabels("arrays", samples.classes, names.shown if names else ())
    raise QdqError(str(samples.where), "does not have the classes of its samples", _GIVE)


def are_classes(samples: LabeledSamples) -> bool:
    """Whether the data itself tells the right classes."""
    return samples.in_folders or samples.classes is not None
