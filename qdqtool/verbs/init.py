# SPDX-License-Identifier: Apache-2.0
"""`init`: what a model and a folder say of a project, as a file that the command line reads. It runs no model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qdqtool.data.image_folder import documents_in, find_images, images_in
from qdqtool.data.model_inputs import inputs_of
from qdqtool.data.preprocess import PRESETS
from qdqtool.display import Cells, Displayed
from qdqtool.errors import QdqError
from qdqtool.evaluation.class_names import parse_names
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.known_preprocess import known_preprocess
from qdqtool.evaluation.labels import are_boxes
from qdqtool.evaluation.labels_boxes import open_box_labels
from qdqtool.evaluation.labels_classes import FILENAME, from_file_names, read_class_labels
from qdqtool.files import replacing
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model

FILE = "qdqtool.toml"
_ARRAYS = (".npz", ".npy")
_NAME_FILES = ("*.names", "classes.txt", "names.txt")
# Key -> what stands in the file where nothing is known of it.
_EXAMPLES = {
    "preprocess": 'preprocess = "imagenet"  # as in training: a preset, or size=WxH,mean=...,std=...',
    "labels": 'labels = "labels.json"  # COCO, VOC, YOLO, KITTI, .csv; without them a model is compared with FP32',
    "names": 'names = "car,person"  # classes in the order of the model; face=masked|bare takes two label words as one',
    "boards": 'boards = ["orin-nx:jp6.1"]  # for deploy and forecast; list more for forecast',
}


@dataclass(frozen=True, repr=False)
class Project(Displayed):
    """A project file.

    Attributes:
        path: where it was written.
        values: key -> value.
        missing: keys that nothing was found for.
        notes: why labels were not taken, and how to name their classes.
    """

    path: Path
    values: dict[str, str]
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """The file and what it says."""
        return f"wrote {self.path}: {', '.join(f'{key} {value}' for key, value in self.values.items())}"

    def rows(self) -> Cells:
        """One row for each key that has a value."""
        return [("key", "value"), *self.values.items()]

    def summary(self) -> list[str]:
        """What `qdqtool init` prints."""
        lines = [self.headline()]
        if self.missing:
            lines.append(f"not found, to be filled in: {', '.join(self.missing)}")
        return [*lines, *self.notes]

    def to_json(self) -> dict[str, object]:
        """What `qdqtool init --json` prints."""
        return {
            "schema": 1,
            "file": str(self.path),
            **self.values,
            "missing": list(self.missing),
            "notes": list(self.notes),
        }


def init_project(model: str | Path, folder: str | Path, path: str | Path = FILE) -> Project:
    """Write the project file of a model and its data, with paths as they are given.

    Raises:
        QdqError: the file is there; no model; a folder without images or a `.npz`, or with several sets of them.
    """
    folder, path = Path(folder), Path(path)
    if path.exists():
        raise QdqError(path, "is there", "edit it, or remove it first")
    opened = open_model(Path(model))
    data = _data_of(folder)
    values, notes = {"model": str(model), "data": str(data)}, list[str]()
    if found := _preprocess_of(opened):
        values["preprocess"] = found
    images = find_images(data)
    if images is not None:
        files = sorted(
            file for place in (folder, Path(model).parent) for kind in _NAME_FILES for file in place.glob(kind)
        )
        names = str(files[0]) if len(set(files)) == 1 else None
        labels = _labels_of(folder, images.files, names, notes)
        boxes = len(opened.proto.graph.output) > 1 or "preprocess" in values
        if not labels and not notes and not boxes and _begin_with_numbers(images.files):
            labels = FILENAME
        values |= {"labels": labels} if labels else {}
        values |= {"names": names} if names else {}
    missing = tuple(key for key in _EXAMPLES if key not in values)
    lines = ["# Options of qdqtool's verbs in this folder. The command line wins."]
    lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    lines += [f"# {_EXAMPLES[key]}" for key in missing]
    with replacing(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return Project(path, values, missing, tuple(notes))


def _data_of(folder: Path) -> Path:
    """The images of a folder: its own, those of its only folder with images, of class folders; or its only .npz.

    A file of arrays is the data itself.
    """
    if folder.is_file() and folder.suffix in _ARRAYS:
        return folder
    if not folder.is_dir():
        raise QdqError(folder, "is neither a folder nor a .npz", "give the folder that holds images, or a .npz")
    if images_in(folder):
        return folder
    below = [one for one in sorted(folder.iterdir()) if one.is_dir() and find_images(one) is not None]
    if len(below) > 1 and (documents_in(folder) or not all(map(images_in, below))):  # no class folders
        listed = ", ".join(one.name for one in below)
        raise QdqError(folder, f"holds images in several folders: {listed}", "give one of them")
    arrays = sorted(folder.glob("*.npz"))
    if not below and len(arrays) != 1:
        todo = f"give one of {', '.join(one.name for one in arrays)}" if arrays else "give the folder of the data"
        raise QdqError(folder, f"holds no images and {len(arrays) or 'no'} .npz", todo)
    return (below[0] if len(below) == 1 else folder) if below else arrays[0]


def _preprocess_of(opened: Model) -> str:
    """The preprocessing that the file says, or that the decoder of its outputs has as a preset; "" for neither."""
    if known := known_preprocess(opened.proto):
        return str(known.spec)
    graph = opened.proto.graph
    shapes = {one.name: one.shape for one in inputs_of(graph)}
    shape = next(iter(shapes.values()), None)
    if len(shapes) != 1 or shape is None or len(shape) != 4:
        return ""
    height, width = shape[2:] if shape[1] == 3 else shape[1:3]
    if not isinstance(width, int) or not isinstance(height, int):
        return ""
    outputs = {
        value.name: tuple(one.dim_value or None for one in value.type.tensor_type.shape.dim) for value in graph.output
    }
    try:
        family = find_decoder("auto", outputs, (width, height)).family
    except QdqError:
        return ""
    return family if family in PRESETS else ""


def _labels_of(folder: Path, images: Sequence[Path], names: str | None, notes: list[str]) -> str:
    """The only labels in a folder that fit its images; "" for none or several. Others are noted with their reason."""
    known = parse_names(names) if names else None
    fitting = list[str]()
    for path in _candidates(folder, images):
        try:
            if are_boxes(path):
                open_box_labels(path, images, known)
            else:
                read_class_labels(path, images, len(images), known)
        except QdqError as error:
            notes.append(error.line())
            if "--names" in error.todo:  # the images have labels, the classes no numbers yet
                fitting.append(str(path))
        else:
            fitting.append(str(path))
    if len(fitting) > 1:
        notes.append(f"several labels fit: {', '.join(fitting)}")
        return ""
    return fitting[0] if fitting else ""


def _begin_with_numbers(images: Sequence[Path]) -> bool:
    try:
        from_file_names(images, None)
    except QdqError:
        return False
    return True


def _candidates(folder: Path, images: Sequence[Path]) -> Iterator[Path]:
    stems = [image.stem for image in images]
    for place in (folder, *sorted(one for one in folder.iterdir() if one.is_dir())):
        yield from documents_in(place)
        yield from sorted(place.glob("*.csv"))
        if any((place / f"{stem}{kind}").is_file() for kind in (".xml", ".txt") for stem in stems[:100]):
            yield place
