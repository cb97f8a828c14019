# SPDX-License-Identifier: Apache-2.0
"""The right class of each sample, from folders, file names, a list or arrays. What a model says is not asked here."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qdqtool.data.arrays import SampleArray, open_npy, open_npz
from qdqtool.errors import QdqError
from qdqtool.evaluation.class_names import LEFT_OUT, Names
from qdqtool.limited_reading import FileKind, read_text

Int64 = npt.NDArray[np.int64]

FILENAME = "filename"  # the word for --labels that reads the class from the beginning of each file's name
ARRAY_KEYS = ("y", "labels", "label")
_FORMS = f"class folders, a .csv of file and class, a .npz with y, a .npy, or the word {FILENAME}"
_HEADERS = frozenset({"y", "label", "labels", "class", "class_id", "category", "target", "id"})
_NUMBER = re.compile(r"-?\d+")
_LIMIT = 1 << 30
_DIGITS = 10  # of a class number
_LIST = FileKind("a list of classes", 256 << 20, _FORMS)


@dataclass(frozen=True)
class ClassLabels:
    """The right classes, one per sample in the order of the data.

    Attributes:
        form: folders, filename, list or arrays.
        numbers: int64[n].
        shown: what the classes are called; empty where nobody says.
    """

    form: str
    numbers: Int64
    shown: tuple[str, ...] = ()


def from_folders(images: Sequence[Path], names: Names | None) -> ClassLabels:
    """The folder that each image lies in is its class: by name, by number, or in the order of the folders' names.

    Raises:
        QdqError: a folder that is not a class, or only one folder.
    """
    folders = sorted({image.parent.name for image in images})
    where = images[0].parent.parent
    if names is not None:
        number = {folder: _named(where / folder, folder, names) for folder in folders}
        shown = names.shown
    elif all(folder.isdecimal() for folder in folders):
        number, shown = {folder: _class_number(where / folder, folder) for folder in folders}, ()
    else:
        number, shown = {folder: index for index, folder in enumerate(folders)}, tuple(folders)
    return ClassLabels("folders", np.array([number[image.parent.name] for image in images], np.int64), shown)


def from_file_names(images: Sequence[Path], names: Names | None) -> ClassLabels:
    """The number that each file's name begins with is its class: ``0012_n01532829.jpg``.

    Raises:
        QdqError: a name that does not begin with a number, or with one that has no name.
    """
    found = [re.match(r"(\d+)[_-]", image.name) for image in images]
    for image, match in zip(images, found, strict=True):
        if not match:
            raise QdqError(image, "does not begin with a class number and an underscore", _FORMS)
    numbers = [_class_number(match.string, match[1]) for match in found if match]
    return ClassLabels("filename", _checked(images[0].parent, numbers, names), names.shown if names else ())


def read_class_labels(
    path: Path, images: Sequence[Path] | None, samples: int | None, names: Names | None
) -> ClassLabels:
    """Classes from a file.

    Raises:
        QdqError: no such form, an image that the list lacks, fewer classes than samples, a class outside the names.
    """
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy"):
        numbers = _checked(
            path, array_classes(path, open_npz(path, _LIMIT) if suffix == ".npz" else open_npy(path)), names
        )
        return ClassLabels("arrays", _first(path, numbers, samples), names.shown if names else ())
    rows = _rows(path)
    shown = names.shown if names else ()
    if all(len(row) == 1 for row in rows):
        numbers = _checked(path, [_class(path, row[0], names) for row in rows], names)
        return ClassLabels("list", _first(path, numbers, samples), shown)
    if images is None:
        raise QdqError(path, "lists image files, and the data has none", "give one class per line, or a .npz with y")
    known = {Path(row[0]).as_posix(): _class(path, row[1], names) for row in rows}
    by_name = {Path(name).name: number for name, number in known.items()}
    return ClassLabels("list", np.array([_listed(path, image, known, by_name) for image in images], np.int64), shown)


def are_rows_of_files(path: Path) -> bool:
    """Whether a list of classes says which file each is of.

    Raises:
        QdqError: it is no such list.
    """
    return len(_rows(path)[0]) > 1


def array_classes(path: Path | str, stored: Mapping[str, SampleArray] | SampleArray) -> Int64:
    """The classes among arrays by name, or in one array.

    Raises:
        QdqError: no array of classes, or not one integer per sample.
    """
    if isinstance(stored, Mapping):
        key = next((key for key in ARRAY_KEYS if key in stored), None)
        if key is None:
            raise QdqError(path, f"has no array y of classes, only {', '.join(stored)}", _FORMS)
        stored = stored[key]
    values = stored.whole()
    if values.dtype.kind not in "iu" or values.size != len(values):
        raise QdqError(path, f"has classes of {values.dtype} {list(values.shape)}, not one integer a sample", _FORMS)
    return values.reshape(-1).astype(np.int64)


def _rows(path: Path) -> list[list[str]]:
    """The rows of a list, a heading left out; parted by comma, semicolon, tab or space, the first there is."""
    if not path.is_file():
        raise QdqError(path, "is a folder, not labels of classes" if path.is_dir() else "does not exist", _FORMS)
    lines = [line for line in read_text(path, _LIST).splitlines() if line.strip()]
    if not lines:
        raise QdqError(path, "is empty", _FORMS)
    mark = next((mark for mark in ",;\t" if mark in lines[0]), " ")
    try:
        rows = [[cell.strip() for cell in row if cell.strip()] for row in csv.reader(lines, delimiter=mark)]
    except csv.Error as error:
        raise QdqError(path, f"is not a list of classes ({error})", _FORMS) from None
    if not all(rows):
        raise QdqError(path, "has a row without a class", _FORMS)
    if rows[0][-1].casefold() in _HEADERS and len(rows) > 1:
        rows = rows[1:]
    if any(len(row) not in (1, 2) or len(row) != len(rows[0]) for row in rows):
        raise QdqError(path, "is not rows of file and class, nor one class per line", _FORMS)
    return rows


def _class(path: Path, word: str, names: Names | None) -> int:
    if _NUMBER.fullmatch(word):
        number = _class_number(path, word)
        return number if names is None else names.checked(path, number)
    if names is None:
        raise QdqError(path, f"has the class {word!r}, whose number is not known", "give the classes with --names")
    return _named(path, word, names)


def _class_number(where: object, word: str) -> int:
    if len(word) > _DIGITS:
        raise QdqError(where, f"has the class {word[:40]}, which is not a class number", _FORMS)
    return int(word)


def _named(where: Path, word: str, names: Names) -> int:
    number = names.number(where, word)
    if number == LEFT_OUT:
        raise QdqError(
            where, f"has the class {word!r}, and none= leaves boxes out, not samples", "take the samples out"
        )
    return number


def _listed(path: Path, image: Path, known: dict[str, int], by_name: dict[str, int]) -> int:
    for end in (f"{image.parent.name}/{image.name}", image.name):
        if end in known:
            return known[end]
    if image.name not in by_name:
        raise QdqError(path, f"has no class for {image.name}", "check that these are the labels of --data")
    return by_name[image.name]


def _checked(where: Path, numbers: Sequence[int] | Int64, names: Names | None) -> Int64:
    values = np.asarray(numbers, np.int64)
    if names is not None and len(values):
        for extreme in (int(values.min()), int(values.max())):
            names.checked(where, extreme)
    return values


def _first(path: Path, numbers: Int64, samples: int | None) -> Int64:
    if samples is not None and len(numbers) < samples:
        raise QdqError(path, f"has {len(numbers)} classes, the data has {samples} samples", "are these its labels?")
    return numbers if samples is None else numbers[:samples]
