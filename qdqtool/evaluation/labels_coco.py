# SPDX-License-Identifier: Apache-2.0
"""COCO's labels as checked values: each field is what COCO says, or is named. Not which class a name is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.limited_reading import FileKind, read_json

Key = int | float | str  # an id: COCO's are integers, tools write text too
_SHOWN, _ENTRIES = 60, 8  # characters, and entries of a list or object, that a message shows


@dataclass(frozen=True)
class CocoBox:
    """One annotation: corner, width and height in pixels, finite; the ids of its image and category."""

    image: Key
    category: Key
    bbox: tuple[float, float, float, float]
    crowd: bool


@dataclass(frozen=True)
class CocoLabels:
    """What the file holds.

    Attributes:
        images: file name without its folder -> id.
        categories: id -> name, in the order of the ids.
        boxes: the annotations in their order; each has a category that is there.
    """

    images: Mapping[str, Key]
    categories: Mapping[Key, str]
    boxes: Sequence[CocoBox]


def read_coco(path: Path, kind: FileKind) -> CocoLabels:
    """Read a file of COCO's labels.

    Raises:
        QdqError: unreadable, or an entry is not what COCO says: its place and field are named.
    """
    return _Reader(path, kind).read(read_json(path, kind))


class _Reader:
    """Takes a document apart, and knows where it is for the message."""

    def __init__(self, path: Path, kind: FileKind) -> None:
        self._path, self._kind = path, kind

    def read(self, document: Any) -> CocoLabels:
        if not isinstance(document, dict):
            raise self._fault(f"it is {_shown(document)}, not an object")
        images = {
            Path(self._text(one, "file_name", at)).name: self._key(one, "id", at)
            for one, at in self._entries(document, "images")
        }
        named = {
            self._key(one, "id", at): self._text(one, "name", at) for one, at in self._entries(document, "categories")
        }
        if len({isinstance(key, str) for key in named}) > 1:
            raise self._fault("the ids of categories are numbers and text, which have no order")
        categories = {key: named[key] for key in sorted(named)}
        boxes = [self._box(one, at, categories) for one, at in self._entries(document, "annotations")]
        return CocoLabels(images, categories, boxes)

    def _entries(self, document: Mapping[str, Any], field: str) -> Iterator[tuple[Mapping[str, Any], str]]:
        """Each object of a list, and what messages call it."""
        entries = document.get(field)
        if not isinstance(entries, list):
            raise self._fault(
                f"{field} is {_shown(entries)}, not a list" if field in document else f"{field} is missing"
            )
        for index, one in enumerate(entries):
            if not isinstance(one, dict):
                raise self._fault(f"{field}[{index}] is {_shown(one)}, not an object")
            yield one, f"{field}[{index}]"

    def _box(self, one: Mapping[str, Any], at: str, categories: Mapping[Key, str]) -> CocoBox:
        image, category = self._key(one, "image_id", at), self._key(one, "category_id", at)
        if category not in categories:
            raise self._fault(f"{at} has the category {_shown(category)}, which is none of the categories")
        crowd = one.get("iscrowd", 0)
        if not isinstance(crowd, int) or crowd not in (0, 1):
            raise self._fault(f"{at}.iscrowd is {_shown(crowd)}, not 0 or 1")
        bbox = one.get("bbox")
        if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_is_finite, bbox)):
            raise self._fault(f"{at}.bbox is {_shown(bbox)}, not 4 finite numbers")
        x, y, width, height = map(float, bbox)
        if not (math.isfinite(x + width) and math.isfinite(y + height)):
            raise self._fault(f"{at}.bbox is {_shown(bbox)}, whose far corner is beyond float64")
        return CocoBox(image, category, (x, y, width, height), bool(crowd))

    def _key(self, one: Mapping[str, Any], field: str, at: str) -> Key:
        value = one.get(field)
        if isinstance(value, str) or _is_finite(value):
            return value  # type: ignore[return-value]
        raise self._fault(f"{at}.{field} is {_shown(value)}, not an id")

    def _text(self, one: Mapping[str, Any], field: str, at: str) -> str:
        value = one.get(field)
        if isinstance(value, str) or (_is_finite(value) and field == "name"):  # tools write classes as numbers too
            return str(value)
        raise self._fault(f"{at}.{field} is {_shown(value)}, not text")

    def _fault(self, problem: str) -> QdqError:
        return QdqError(self._path, f"is not {self._kind.name} ({problem})", self._kind.todo)


def _is_finite(value: object) -> bool:
    """Whether it is a number that float64 holds; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: object) -> str:
    if isinstance(value, (list, dict)) and len(value) > _ENTRIES:
        return f"a {type(value).__name__} of {len(value)}"
    return "missing" if value is None else repr(value)[:_SHOWN]
