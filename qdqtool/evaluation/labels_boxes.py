# SPDX-License-Identifier: Apache-2.0
"""Boxes from labels in the form of COCO, VOC, YOLO or KITTI, or in arrays. What is done with them is not asked here."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qdqtool.data.arrays import open_npz
from qdqtool.errors import QdqError
from qdqtool.evaluation.class_names import LEFT_OUT, Names
from qdqtool.evaluation.ground_truth import ANY_CLASS, Truth, truth_of
from qdqtool.evaluation.labels_coco import Key, read_coco
from qdqtool.limited_reading import FileKind, read_bytes, read_text

Box = tuple[float, float, float, float]
_FORMS = "COCO's .json, a folder of VOC's .xml, of YOLO's or KITTI's .txt, or a .npz with boxes, labels and image"
_COCO = FileKind("COCO's labels", 1 << 30, _FORMS)  # those of the 118,000 training images of 2017 have 0.45 GB
_IMAGE = FileKind("the labels of one image", 16 << 20, _FORMS)
_YOLO_COLUMNS, _KITTI_COLUMNS = 5, 15
_MOST_CLASSES = 1 << 31
_MERGED = 6  # classes that a message lists as one
_DONT_CARE = "dontcare"
_SLACK = 0.01  # how far beyond the image's border a fraction may lie: tools round


@dataclass(frozen=True)
class LabeledBox:
    """One labeled object: corners in pixels, or fractions of the image where the form says so; its class."""

    box: Box
    label: int
    crowd: bool = False
    difficult: bool = False


@dataclass(frozen=True)
class BoxLabels:
    """The boxes of every image of a data set.

    Attributes:
        where: the file or folder.
        form: coco, voc, yolo, kitti or arrays.
        shown: what the classes are called, in the model's order; empty where nobody says.
        rows: the objects of the image of that number.
        fractions: whether the corners are fractions of the image.
    """

    where: Path
    form: str
    shown: tuple[str, ...]
    rows: Callable[[int], Sequence[LabeledBox]]
    fractions: bool = False

    def truth(self, index: int, width: int, height: int) -> Truth:
        """The boxes of one image.

        Raises:
            QdqError: a label that cannot be.
        """
        rows = [row for row in self.rows(index) if row.label != LEFT_OUT]
        boxes = np.array([row.box for row in rows], np.float64).reshape(-1, 4)
        if self.fractions:
            boxes *= np.array([width, height, width, height], np.float64)
        return truth_of(
            boxes, [row.label for row in rows], [row.crowd for row in rows], [row.difficult for row in rows]
        )


def open_box_labels(path: Path, images: Sequence[Path] | None, names: Names | None) -> BoxLabels:
    """Find out which form labels have, and that they know the images.

    Raises:
        QdqError: no form that is read, nothing for an image (named), a class outside the names.
    """
    if path.suffix.lower() == ".npz" and path.is_file():
        return _arrays(path, names)
    if images is None:
        raise QdqError(path, "lists boxes by image file, and the data has no image files", "give --labels as .npz")
    if path.suffix.lower() == ".json" and path.is_file():
        return _coco(path, images, names)
    if path.is_dir():
        if any(path.glob("*.xml")):
            return _voc(path, images, names)
        if any(path.glob("*.txt")):
            return _text(path, images, names)
        raise QdqError(path, "holds neither .xml nor .txt", _FORMS)
    raise QdqError(path, "does not exist" if not path.exists() else "is not a form of boxes that is read", _FORMS)


def _refuse_missing(path: Path, images: Sequence[Path], missing: Sequence[Path], what: str) -> None:
    if missing:
        reason = f"has {what} for {len(missing)} of {len(images)} images, such as {missing[0].name}"
        raise QdqError(path, reason, "check that these are the labels of --data")


def _named(where: Path, names: Names | None, seen: Sequence[str]) -> Names:
    """The names given, which have all words, or the only one there is."""
    if names is not None:
        names.require(where, seen)
        return names
    if len(seen) > 1:
        shown = ", ".join(seen[:6]) + (", ..." if len(seen) > 6 else "")
        todo = f"give them in the model's order: --names {','.join(seen)}"
        if len(seen) <= _MERGED:
            todo += f"; a model with one class for them all takes --names 'object={'|'.join(seen)}'"
        raise QdqError(where, f"names {len(seen)} classes ({shown}), not their numbers", todo)
    return Names(tuple(seen), {seen[0].casefold(): 0} if seen else {})


# ------------------------------------------------------------------------------------------------------------- COCO


def _coco(path: Path, images: Sequence[Path], names: Names | None) -> BoxLabels:
    read = read_coco(path, _COCO)
    files, called = read.images, read.categories
    if names:
        names.require(path, list(called.values()))
    number = {key: names.number(path, name) if names else index for index, (key, name) in enumerate(called.items())}
    by_image: dict[Key, list[LabeledBox]] = {}
    for one in read.boxes:
        x, y, width, height = one.bbox
        row = LabeledBox((x, y, x + width, y + height), number[one.category], one.crowd)
        by_image.setdefault(one.image, []).append(row)
    _refuse_missing(path, images, [one for one in images if one.name not in files], "no entry")
    shown = names.shown if names else tuple(called.values())
    return BoxLabels(path, "coco", shown, lambda index: by_image.get(files[images[index].name], []))


# -------------------------------------------------------------------------------------------------------------- VOC


def _voc(folder: Path, images: Sequence[Path], names: Names | None) -> BoxLabels:
    files = [folder / f"{image.stem}.xml" for image in images]
    missing = [image for image, file in zip(images, files, strict=True) if not file.is_file()]
    _refuse_missing(folder, images, missing, "no .xml")
    words = {_child(file, one, "name") for file in files for one in _voc_objects(file)}
    known = _named(folder, names, sorted(words))
    return BoxLabels(folder, "voc", known.shown, lambda index: _voc_rows(files[index], known))


def _voc_objects(file: Path) -> list[ET.Element]:
    try:
        return list(ET.fromstring(read_bytes(file, _IMAGE)).iter("object"))
    except (ET.ParseError, LookupError, ValueError) as error:  # of the encoding that it says it has
        raise QdqError(file, f"cannot be read as XML ({error})", _FORMS) from error


def _voc_rows(file: Path, names: Names) -> list[LabeledBox]:
    rows = []
    for one in _voc_objects(file):
        frame = one.find("bndbox")
        if frame is None:
            raise QdqError(file, "has an object without a bndbox", _FORMS)
        try:
            x1, y1, x2, y2 = (float(_child(file, frame, key)) for key in ("xmin", "ymin", "xmax", "ymax"))
        except ValueError as error:
            raise QdqError(file, f"has a corner that is not a number ({error})", _FORMS) from None
        if not all(map(math.isfinite, (x1, y1, x2, y2))):
            raise QdqError(file, f"has a corner that is not finite ({x1:g}, {y1:g}, {x2:g}, {y2:g})", _FORMS)
        difficult = (one.findtext("difficult") or "").strip() == "1"
        rows.append(LabeledBox((x1, y1, x2, y2), names.number(file, _child(file, one, "name")), difficult=difficult))
    return rows


def _child(file: Path, element: ET.Element, key: str) -> str:
    text = element.findtext(key)
    if not text:
        raise QdqError(file, f"has a {element.tag} without {key}", "is it VOC's form?")
    return text.strip()


# ---------------------------------------------------------------------------------------------------- YOLO and KITTI


def _text(folder: Path, images: Sequence[Path], names: Names | None) -> BoxLabels:
    """One file per image: five columns are YOLO's, fifteen KITTI's. YOLO has no file for an image without objects."""
    files = [folder / f"{image.stem}.txt" for image in images]
    there = [file for file in files if file.is_file()]
    if not there:
        _refuse_missing(folder, images, images, "no .txt")
    columns = next((len(words[0]) for file in there if (words := _words(file))), _YOLO_COLUMNS)
    if columns == _YOLO_COLUMNS:
        shown = names.shown if names else ()
        return BoxLabels(folder, "yolo", shown, lambda index: _yolo_rows(files[index], names), fractions=True)
    missing = [image for image, file in zip(images, files, strict=True) if not file.is_file()]
    _refuse_missing(folder, images, missing, "no .txt")
    found = {words[0] for file in there for words in _words(file) if words[0].casefold() != _DONT_CARE}
    known = _named(folder, names, sorted(found))
    return BoxLabels(folder, "kitti", known.shown, lambda index: _kitti_rows(files[index], known))


def _words(file: Path) -> list[list[str]]:
    text = read_text(file, _IMAGE) if file.is_file() else ""
    return [line.split() for line in text.splitlines() if line.strip()]


def _yolo_rows(file: Path, names: Names | None) -> list[LabeledBox]:
    rows = []
    for words in _words(file):
        if len(words) != _YOLO_COLUMNS:
            raise QdqError(file, f"has {len(words)} columns in a row, not class, x, y, width, height", _FORMS)
        number, x, y, width, height = _numbers(file, words)
        if number != int(number) or not 0 <= number <= _MOST_CLASSES:
            raise QdqError(file, f"has the class {words[0][:40]}, which is not a class number", _FORMS)
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        if min(corners) < -_SLACK or max(corners) > 1 + _SLACK:
            raise QdqError(file, f"has a box beyond the image ({' '.join(words[1:])})", "YOLO's are fractions of it")
        rows.append(LabeledBox(corners, names.checked(file, int(number)) if names else int(number)))
    return rows


def _kitti_rows(file: Path, names: Names) -> list[LabeledBox]:
    rows = []
    for words in _words(file):
        if len(words) != _KITTI_COLUMNS:
            raise QdqError(file, f"has {len(words)} columns in a row, KITTI's labels have {_KITTI_COLUMNS}", _FORMS)
        x1, y1, x2, y2 = _numbers(file, words[4:8])
        if words[0].casefold() == _DONT_CARE:
            rows.append(LabeledBox((x1, y1, x2, y2), ANY_CLASS, crowd=True))
        else:
            rows.append(LabeledBox((x1, y1, x2, y2), names.number(file, words[0])))
    return rows


def _numbers(file: Path, words: Sequence[str]) -> list[float]:
    try:
        values = [float(word) for word in words]
    except ValueError as error:
        raise QdqError(file, f"has a column that is not a number ({error})", _FORMS) from None
    if not all(map(math.isfinite, values)):
        raise QdqError(file, f"has a column that is not finite ({' '.join(words)})", _FORMS)
    return values


# ------------------------------------------------------------------------------------------------------------ arrays


def _arrays(path: Path, names: Names | None) -> BoxLabels:
    stored = open_npz(path, 1 << 30)
    image = "image" if "image" in stored else "scene"
    lacking = [key for key in ("boxes", "labels", image) if key not in stored]
    if lacking:
        raise QdqError(path, f"has no array {' and '.join(lacking)}", "boxes [m, 4], labels [m], image [m] (numbers)")
    boxes, labels, owner = (stored[key].whole() for key in ("boxes", "labels", image))
    if (
        labels.ndim != 1
        or boxes.shape != (len(labels), 4)
        or labels.shape != owner.shape
        or labels.dtype.kind not in "iu"
    ):
        raise QdqError(path, f"has boxes {boxes.shape}, labels {labels.shape} and {image} {owner.shape}", _FORMS)
    if boxes.dtype.kind not in "fiu" or owner.dtype.kind not in "iu":
        raise QdqError(path, f"has boxes of {boxes.dtype} and {image} of {owner.dtype}, not numbers", _FORMS)
    if not np.isfinite(boxes).all():
        raise QdqError(path, "has boxes that are not finite", _FORMS)
    least, most = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if least < 0 or most > _MOST_CLASSES:
        raise QdqError(path, f"has the class {least if least < 0 else most}, which is not a class number", _FORMS)
    if names is not None and len(labels):
        names.checked(path, most)
    by_image: dict[int, list[LabeledBox]] = {}
    for box, label, number in zip(boxes.tolist(), labels.tolist(), owner.tolist(), strict=True):
        by_image.setdefault(number, []).append(LabeledBox(tuple(box), label))
    return BoxLabels(path, "arrays", names.shown if names else (), lambda index: by_image.get(index, []))
