# SPDX-License-Identifier: Apache-2.0
"""COCO's labels with each field of another JSON type: one message that names the place, or the values."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.labels_coco import CocoBox, read_coco
from qdqtool.limited_reading import FileKind

KIND = FileKind("COCO's labels", 1 << 20, "give another file")
WHOLE: dict[str, Any] = {
    "images": [{"id": 7, "file_name": "train/a.jpg"}, {"id": 3, "file_name": "b.png"}],
    "categories": [{"id": 30, "name": "person"}, {"id": 4, "name": "car"}],
    "annotations": [{"image_id": 7, "category_id": 4, "bbox": [10, 20, 20.5, 40], "iscrowd": 1}],
}
ODD = [None, True, "", "text", [], [1], {}, {"a": 1}, 0, -1, 2**63, 10**400, 1e39, float("nan"), float("inf")]
FIELDS = [
    (),
    ("images",),
    ("images", 0),
    ("images", 0, "id"),
    ("images", 0, "file_name"),
    ("categories",),
    ("categories", 1),
    ("categories", 1, "id"),
    ("categories", 1, "name"),
    ("annotations",),
    ("annotations", 0),
    ("annotations", 0, "image_id"),
    ("annotations", 0, "category_id"),
    ("annotations", 0, "iscrowd"),
    ("annotations", 0, "bbox"),
    ("annotations", 0, "bbox", 2),
]


def written(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def with_value(field: tuple[Any, ...], value: Any) -> Any:
    """The whole document with one field set."""
    root: dict[str, Any] = {"": copy.deepcopy(WHOLE)}
    holder, *path = root, "", *field
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return root[""]


def test_what_a_whole_file_holds(tmp_path: Path) -> None:
    read = read_coco(written(tmp_path / "l.json", WHOLE), KIND)
    assert read.images == {"a.jpg": 7, "b.png": 3}
    assert list(read.categories.items()) == [(4, "car"), (30, "person")]
    assert read.boxes == [CocoBox(7, 4, (10.0, 20.0, 20.5, 40.0), True)]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: ".".join(map(str, field)) or "root")
def test_any_field_of_any_type_is_read_or_refused_by_its_name(tmp_path: Path, field: tuple[Any, ...]) -> None:
    refused = 0
    for value in ODD:
        path = written(tmp_path / "l.json", with_value(field, value))
        try:
            read_coco(path, KIND)
        except QdqError as error:
            refused += 1
            message = str(error)
            assert "is not COCO's labels (" in message and len(message) < 400
            assert not field or str(field[0]) in message or field == ("categories", 1, "id")
    assert refused >= 5


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        (("images", 0, "id"), {}, "images[0].id is {}, not an id"),
        (("images", 0, "file_name"), 3, "images[0].file_name is 3, not text"),
        (("categories", 1, "id"), "4", "numbers and text, which have no order"),
        (("annotations",), {"a": 1}, "annotations is {'a': 1}, not a list"),
        (("annotations", 0, "category_id"), 5, "annotations[0] has the category 5, which is none of the categories"),
        (("annotations", 0, "bbox"), [1, 2, 3], "annotations[0].bbox is [1, 2, 3], not 4 finite numbers"),
        (("annotations", 0, "bbox", 2), 10**400, "annotations[0].bbox is [10, 20, 1000000"),
        (("annotations", 0, "bbox"), [1] * 9, "annotations[0].bbox is a list of 9, not 4"),
        (("annotations", 0, "bbox"), [1e308, 0, 1e308, 0], "beyond float64"),
        (("annotations", 0, "iscrowd"), 2, "annotations[0].iscrowd is 2, not 0 or 1"),
        (("annotations", 0, "image_id"), [7], "annotations[0].image_id is [7], not an id"),
    ],
)
def test_the_field_is_named(tmp_path: Path, field: tuple[Any, ...], value: Any, part: str) -> None:
    with pytest.raises(QdqError) as caught:
        read_coco(written(tmp_path / "l.json", with_value(field, value)), KIND)
    assert part in str(caught.value)


@pytest.mark.parametrize("lacking", [("images",), ("categories",), ("annotations",)])
def test_a_list_that_lacks_is_named(tmp_path: Path, lacking: tuple[str]) -> None:
    document = {key: value for key, value in WHOLE.items() if key not in lacking}
    with pytest.raises(QdqError, match=f"{lacking[0]} is missing"):
        read_coco(written(tmp_path / "l.json", document), KIND)


@pytest.mark.parametrize("key", ["a", "", 1.0, -5])
def test_ids_may_be_text_and_any_number(tmp_path: Path, key: Any) -> None:
    document = with_value(("images", 0, "id"), key)
    document["annotations"][0]["image_id"] = key
    assert read_coco(written(tmp_path / "l.json", document), KIND).boxes[0].image == key
