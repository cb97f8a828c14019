# SPDX-License-Identifier: Apache-2.0
"""Boxes from COCO, VOC, YOLO, KITTI and arrays: the same scene in each form, and what each refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.class_names import names_of
from qdqtool.evaluation.ground_truth import ANY_CLASS
from qdqtool.evaluation.labels_boxes import open_box_labels

IMAGES = [Path("d/a.jpg"), Path("d/b.png")]
NAMES = names_of(["car", "person"])


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def voc_object(name: str = "car", box: tuple[Any, ...] = (10, 20, 30, 60), more: str = "") -> str:
    corners = "".join(f"<{key}>{v}</{key}>" for key, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return f"<object><name>{name}</name>{more}<bndbox>{corners}</bndbox></object>"


def voc(folder: Path, first: str = voc_object(), second: str = "") -> Path:
    texts = {"a.xml": first, "b.xml": second}
    return write(folder, {name: f"<annotation>{text}</annotation>" for name, text in texts.items()})


def kitti(kind: str, box: str = "10 20 30 60", rest: str = "0 0 0 0 0 0 0") -> str:
    return f"{kind} 0.0 0 0.0 {box} {rest}\n"


def coco(path: Path, **changes: Any) -> Path:
    document: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "train/a.jpg"}, {"id": 3, "file_name": "b.png"}],
        "categories": [{"id": 30, "name": "person"}, {"id": 4, "name": "car"}],
        "annotations": [{"image_id": 7, "category_id": 4, "bbox": [10, 20, 20, 40], "iscrowd": 0}],
    }
    path.write_text(json.dumps({**document, **changes}), encoding="utf-8")
    return path


def boxes(folder: Path, **changes: Any) -> Path:
    arrays = {"boxes": np.array([[10.0, 20, 30, 60]]), "labels": np.array([0]), "image": np.array([0])}
    np.savez(folder / "b.npz", **{key: value for key, value in {**arrays, **changes}.items() if value is not None})
    return folder / "b.npz"


def scene(form: str, folder: Path) -> Path:
    """One car, 20 wide and 40 high, in the first of two images of 100 x 200."""
    forms = {
        "coco": lambda: coco(folder / "l.json"),
        "voc": lambda: voc(folder / "v"),
        "yolo": lambda: write(folder / "y", {"a.txt": "0 0.2 0.2 0.2 0.2\n", "b.txt": ""}),
        "kitti": lambda: write(folder / "k", {"a.txt": kitti("Car"), "b.txt": ""}),
        "arrays": lambda: boxes(folder),
    }
    return forms[form]()


@pytest.mark.parametrize("form", ["coco", "voc", "yolo", "kitti", "arrays"])
@pytest.mark.parametrize("names", [None, NAMES])
def test_the_same_scene_in_every_form(form: str, names: Any, tmp_path: Path) -> None:
    labels = open_box_labels(scene(form, tmp_path), IMAGES, names)
    first, second = labels.truth(0, 100, 200), labels.truth(1, 100, 200)
    assert labels.form == form
    np.testing.assert_allclose(first.boxes, [[10, 20, 30, 60]])
    assert (first.labels.tolist(), first.counted.tolist()) == ([0], [True])
    assert len(second) == 0
    if names is not None:
        assert labels.shown == ("car", "person")


def test_coco_numbers_its_categories_in_the_order_of_their_ids(tmp_path: Path) -> None:
    path = coco(tmp_path / "l.json", categories=[{"id": 30, "name": "ant"}, {"id": 4, "name": "car"}])
    labels = open_box_labels(path, IMAGES, None)
    assert labels.shown == ("car", "ant")
    assert labels.truth(0, 1, 1).labels.tolist() == [0]
    assert open_box_labels(path, IMAGES, names_of(["ant", "car"])).truth(0, 1, 1).labels.tolist() == [1]


def test_coco_crowds_are_crowds(tmp_path: Path) -> None:
    one = {"image_id": 7, "category_id": 4, "bbox": [0, 0, 5, 5], "iscrowd": 1}
    truth = open_box_labels(coco(tmp_path / "l.json", annotations=[one]), IMAGES, None).truth(0, 9, 9)
    assert (truth.crowd.tolist(), truth.difficult.tolist(), truth.counted.tolist()) == ([True], [False], [False])


def test_voc_difficult_objects_are_difficult(tmp_path: Path) -> None:
    texts = [voc_object(more=f"<difficult>{flag}</difficult>") for flag in ("1", "0", "Unspecified")]
    truth = open_box_labels(voc(tmp_path / "v", "".join(texts)), IMAGES, None).truth(0, 9, 9)
    assert truth.difficult.tolist() == [True, False, False]
    assert not truth.crowd.any()


def test_kitti_dont_care_is_a_region_of_any_class(tmp_path: Path) -> None:
    folder = write(tmp_path / "k", {"a.txt": kitti("Car") + kitti("DontCare", "0 0 9 9"), "b.txt": ""})
    truth = open_box_labels(folder, IMAGES, None).truth(0, 9, 9)
    assert truth.labels.tolist() == [0, ANY_CLASS]
    assert truth.crowd.tolist() == [False, True]


def test_words_left_out_are_left_out(tmp_path: Path) -> None:
    folder = voc(tmp_path / "v", voc_object("car") + voc_object("dog"))
    truth = open_box_labels(folder, IMAGES, names_of(["car", "none=dog"])).truth(0, 9, 9)
    assert truth.labels.tolist() == [0]


def test_yolo_needs_no_file_for_an_image_without_objects(tmp_path: Path) -> None:
    labels = open_box_labels(write(tmp_path / "y", {"a.txt": "3 .5 .5 .5 .5"}), IMAGES, None)
    assert labels.truth(0, 100, 200).boxes.tolist() == [[25, 50, 75, 150]]
    assert len(labels.truth(1, 100, 200)) == 0


def test_the_bundled_scenes_are_read(models: Path) -> None:
    labels = open_box_labels(models / "digits_test.npz", None, None)
    with np.load(models / "digits_test.npz") as file:
        mine = file["scene"] == 3
        np.testing.assert_allclose(labels.truth(3, 96, 96).boxes, file["boxes"][mine])
        assert labels.truth(3, 96, 96).labels.tolist() == file["labels"][mine].tolist()


def refuse(path: Path, part: str, names: Any = None, images: Any = IMAGES) -> None:
    with pytest.raises(QdqError, match=part):
        labels = open_box_labels(path, images, names)
        for index in range(2):
            labels.truth(index, 100, 200)


def test_an_image_without_labels_is_named(tmp_path: Path) -> None:
    images = [*IMAGES, Path("d/c.jpg")]
    for form, part in (("coco", "no entry"), ("voc", "no .xml"), ("kitti", "no .txt")):
        refuse(scene(form, tmp_path), f"has {part} for 1 of 3 images, such as c.jpg", None, images)
    refuse(
        scene("yolo", tmp_path), r"has no .txt for 2 of 2 images, such as x.jpg", None, [Path("x.jpg"), Path("z.jpg")]
    )


def test_a_class_outside_the_names_is_refused(tmp_path: Path) -> None:
    few = names_of(["person"])
    refuse(scene("kitti", tmp_path), r"(?i)--names 'person=.*car.*'", few)
    for form in ("coco", "voc", "kitti"):
        refuse(scene(form, tmp_path), "(?i)class 'car', which is none of the 1 names", few)
    refuse(write(tmp_path / "y", {"a.txt": "1 .5 .5 .5 .5"}), "class 1, there are 1 names", few)
    refuse(boxes(tmp_path, labels=np.array([1])), "class 1, there are 1 names", few)


def test_words_without_numbers_want_names(tmp_path: Path) -> None:
    refuse(voc(tmp_path / "v", voc_object("car"), voc_object("person")), r"2 classes \(car, person\).*--names")
    refuse(write(tmp_path / "k", {"a.txt": kitti("Car") + kitti("Van"), "b.txt": ""}), r"2 classes \(Car, Van\)")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0 .5 .5 .5 .5 .9", "columns"),
        ("0.5 .5 .5 .5 .5", "not a class number"),
        ("-1 .5 .5 .5 .5", "not a class number"),
        ("0 50 50 20 20", "beyond the image"),
        ("0 .5 .5 .5 x", "not a number"),
        ("0 .5 .5 .5 nan", "not finite"),
    ],
)
def test_yolo_rows_that_cannot_be(tmp_path: Path, text: str, part: str) -> None:
    refuse(write(tmp_path / "y", {"a.txt": "0 .5 .5 .2 .2\n" + text}), part)


def test_broken_files_are_named(tmp_path: Path) -> None:
    refuse(write(tmp_path / "v", {"a.xml": "<annotation>", "b.xml": ""}), "a.xml: cannot be read as XML", NAMES)
    refuse(voc(tmp_path / "w", "<object><name>car</name></object>"), "without a bndbox", NAMES)
    refuse(voc(tmp_path / "n", voc_object(box=(1, 2, "x", 4))), "not a number", NAMES)
    refuse(voc(tmp_path / "i", voc_object(box=(1, 2, "inf", 4))), "not finite", NAMES)
    refuse(voc(tmp_path / "m", "<object></object>"), "without", NAMES)
    refuse(write(tmp_path / "k", {"a.txt": kitti("Car", rest="0"), "b.txt": ""}), "columns in a row, KITTI", NAMES)
    (tmp_path / "l.json").write_text("{")
    refuse(tmp_path / "l.json", "not JSON")
    refuse(coco(tmp_path / "l.json", annotations=[{"image_id": 7}]), "is not COCO's labels")
    (tmp_path / "l.json").write_text("[]")
    refuse(tmp_path / "l.json", "is not COCO's labels")


def test_what_is_no_form_of_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", "holds neither .xml nor .txt")
    refuse(tmp_path / "absent", "does not exist")
    refuse(write(tmp_path / "t", {"x.md": ""}) / "x.md", "is not a form of boxes")
    refuse(scene("voc", tmp_path), "the data has no image files", None, None)
    refuse(boxes(tmp_path, labels=None), "has no array labels")
    refuse(boxes(tmp_path, labels=np.array([0, 1])), "has boxes")
    refuse(boxes(tmp_path, labels=np.array([0.5])), "has boxes")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"labels": np.array(0)}, "has boxes"),
        ({"labels": np.array([-1])}, "has the class -1, which is not a class number"),
        ({"labels": np.array([2**40])}, "not a class number"),
        ({"labels": np.array([2])}, "there are 2 names"),
        ({"boxes": np.array([["a", "b", "c", "d"]])}, "not numbers"),
        ({"boxes": np.array([[np.nan, 1, 2, 3]])}, "not finite"),
        ({"image": np.array([0.0])}, "not numbers"),
    ],
)
def test_arrays_that_are_no_boxes_are_refused(tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    refuse(boxes(tmp_path, **changes), part, NAMES)


def test_files_of_another_hand_are_named(tmp_path: Path) -> None:
    """Numbers beyond what an array holds, an encoding that nobody knows, nesting without end."""
    huge = coco(tmp_path / "huge.json")
    huge.write_text(huge.read_text().replace('"bbox": [', f'"bbox": [{"9" * 400}, ', 1))
    refuse(huge, "is not COCO's labels", NAMES)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    refuse(tmp_path / "deep.json", "nested too deeply", NAMES)
    for number, head in enumerate(("utf-7777", "utf-16", "cp037")):
        text = f'<?xml version="1.0" encoding="{head}"?><annotation/>'
        refuse(write(tmp_path / f"x{number}", {"a.xml": text, "b.xml": text}), "cannot be read as XML", NAMES)
    refuse(write(tmp_path / "y", {"a.txt": f"{'9' * 25} .5 .5 .5 .5"}), "not a class number")


def test_a_large_file_of_one_image_is_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "k", {"a.txt": "0 .5 .5 .5 .5"})
    os.truncate(folder / "a.txt", (16 << 20) + 1)
    refuse(folder, "is larger than 16 MiB, which the labels of one image is not")
