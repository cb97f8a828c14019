# SPDX-License-Identifier: Apache-2.0
"""The right classes of samples: from folders, file names, lists and arrays, and which of them is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.class_names import names_of
from qdqtool.evaluation.labels import are_boxes, are_classes, box_labels, class_labels
from qdqtool.evaluation.labels_classes import from_file_names, from_folders, read_class_labels
from qdqtool.evaluation.samples import LabeledSamples

IMAGES = [Path("d/a.jpg"), Path("d/b.jpg"), Path("d/c.jpg")]
CAT_DOG = names_of(["cat", "dog"])


def samples(images: list[Path] | None = None, **changes: Any) -> LabeledSamples:
    return LabeledSamples("d", lambda: iter(()), None if images is None else tuple(images), **changes)


def text(folder: Path, lines: str, name: str = "l.csv") -> Path:
    (folder / name).write_text(lines, encoding="utf-8")
    return folder / name


def test_folders_are_numbered_by_name() -> None:
    found = from_folders([Path("d/cat/1.jpg"), Path("d/ant/2.jpg"), Path("d/cat/3.jpg")], None)
    assert (found.numbers.tolist(), found.shown) == ([1, 0, 1], ("ant", "cat"))


def test_folders_that_are_numbers_keep_them() -> None:
    assert from_folders([Path("d/10/1.jpg"), Path("d/9/2.jpg")], None).numbers.tolist() == [10, 9]


def test_names_number_the_folders() -> None:
    assert from_folders([Path("d/dog/1.jpg"), Path("d/Cat/2.jpg")], CAT_DOG).numbers.tolist() == [1, 0]
    with pytest.raises(QdqError, match=r"'bird', .* 2 names"):
        from_folders([Path("d/bird/1.jpg")], CAT_DOG)
    with pytest.raises(QdqError, match="not samples"):
        from_folders([Path("d/bird/1.jpg")], names_of(["cat", "none=bird"]))


def test_file_names_begin_with_the_class() -> None:
    found = from_file_names([Path("0012_n01532829.jpg"), Path("7-x.png")], None)
    assert found.numbers.tolist() == [12, 7]
    for name in ("n01_2.jpg", "000000000139.jpg"):
        with pytest.raises(QdqError, match=rf"{name}: .*a class number"):
            from_file_names([Path(name)], None)
    with pytest.raises(QdqError, match="class 12, there are 2 names"):
        from_file_names([Path("0012_n01532829.jpg")], CAT_DOG)


@pytest.mark.parametrize(
    "lines",
    [
        "a.jpg,1\nb.jpg,0\nc.jpg,1\n",
        "x,y\nc.jpg,1\nb.jpg,0\na.jpg,1",
        "d/a.jpg 1\nother/b.jpg 0\nc.jpg 1",
        "a.jpg\t1\nb.jpg\t0\nc.jpg\t1\nmore.jpg\t9",
    ],
)
def test_lists_of_files(tmp_path: Path, lines: str) -> None:
    assert read_class_labels(text(tmp_path, lines), IMAGES, 3, None).numbers.tolist() == [1, 0, 1]


def test_lists_of_names(tmp_path: Path) -> None:
    path = text(tmp_path, "a.jpg;dog\nb.jpg;cat\nc.jpg;1")
    assert read_class_labels(path, IMAGES, 3, CAT_DOG).numbers.tolist() == [1, 0, 1]
    with pytest.raises(QdqError, match=r"'dog', .*--names"):
        read_class_labels(path, IMAGES, 3, None)


def test_files_of_one_name_are_told_apart_by_their_folder(tmp_path: Path) -> None:
    path = text(tmp_path, "p/a.jpg,1\nq/a.jpg,2")
    assert read_class_labels(path, [Path("d/q/a.jpg"), Path("d/p/a.jpg")], 2, None).numbers.tolist() == [2, 1]


def test_one_class_per_line_goes_by_the_order(tmp_path: Path) -> None:
    path = text(tmp_path, "4\n5\n6\n7\n")
    assert read_class_labels(path, IMAGES, 3, None).numbers.tolist() == [4, 5, 6]
    assert read_class_labels(path, None, None, None).numbers.tolist() == [4, 5, 6, 7]
    with pytest.raises(QdqError, match=r"4 classes, .* 5 samples"):
        read_class_labels(path, None, 5, None)


def test_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 2)), y=np.array([[2], [0], [1]], np.uint8))
    np.save(tmp_path / "y.npy", np.array([2, 0, 1]))
    for name in ("d.npz", "y.npy"):
        assert read_class_labels(tmp_path / name, None, 3, None).numbers.tolist() == [2, 0, 1]
    np.save(tmp_path / "y.npy", np.array([0.5]))
    with pytest.raises(QdqError, match="not one integer"):
        read_class_labels(tmp_path / "y.npy", None, 1, None)
    np.savez(tmp_path / "d.npz", x=np.zeros(3))
    with pytest.raises(QdqError, match="no array y of classes, only x"):
        read_class_labels(tmp_path / "d.npz", None, 3, None)


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ("a.jpg,1\nb.jpg,0\n", "no class for c.jpg"),
        ("", "is empty"),
        ("a.jpg,1,2\n", "not rows of file and class"),
        ("a.jpg,1\nb.jpg", "not rows of file and class"),
        ("a.jpg,7\nb.jpg,0\nc.jpg,0", "class 7, there are 2 names"),
        ("1\n0\n5\n", "class 5, there are 2 names"),
    ],
)
def test_lists_that_cannot_be(tmp_path: Path, lines: str, part: str) -> None:
    with pytest.raises(QdqError, match=part):
        read_class_labels(text(tmp_path, lines), IMAGES, 3, CAT_DOG)


def test_which_source_is_taken(tmp_path: Path) -> None:
    path = text(tmp_path, "1\n1\n1\n")
    held = samples(None, classes=np.array([0, 0, 0]), count=3)
    folders = samples([Path("d/x/1.jpg"), Path("d/y/2.jpg")], in_folders=True, count=2)
    assert class_labels(path, held, None).form == "list"
    assert class_labels(None, held, None).form == "arrays"
    assert class_labels(None, folders, None).form == "folders"
    assert class_labels("filename", samples([Path("3_a.jpg")]), None).numbers.tolist() == [3]
    assert are_classes(held) and are_classes(folders) and not are_classes(samples(IMAGES))
    with pytest.raises(QdqError, match="have the classes"):
        class_labels(None, samples(IMAGES), None)
    with pytest.raises(QdqError, match="data has none"):
        class_labels("filename", held, None)


def test_boxes_are_told_from_classes_by_their_outside(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", boxes=np.zeros((0, 4)))
    np.savez(tmp_path / "c.npz", y=np.zeros(3))
    assert [are_boxes(tmp_path / name) for name in ("b.npz", "c.npz", "l.json", "l.csv", "")] == [
        True,
        False,
        True,
        False,
        True,
    ]
    with pytest.raises(QdqError, match="average precision"):
        box_labels(None, samples(IMAGES), None)


def test_a_folder_and_an_absent_file_are_no_list(tmp_path: Path) -> None:
    for path, part in ((tmp_path, "is a folder"), (tmp_path / "no.csv", "does not exist")):
        with pytest.raises(QdqError, match=part):
            read_class_labels(path, IMAGES, 3, None)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (f"1\n{'9' * 25}\n", "which is not a class number"),
        (f"1\n{'9' * 5000}\n", "which is not a class number"),
        ('""', "has a row without a class"),
        (f'1\n"{"a" * 200_000}"\n', "is not a list of classes"),
    ],
)
def test_lists_of_another_hand_are_named(tmp_path: Path, lines: str, reason: str) -> None:
    with pytest.raises(QdqError, match=reason):
        read_class_labels(text(tmp_path, lines), None, 2, None)


def test_names_of_files_and_folders_that_no_class_number_can_be() -> None:
    with pytest.raises(QdqError, match=r"9{30}.*not a class number"):
        from_file_names([Path(f"d/{'9' * 30}_a.jpg")], None)
    with pytest.raises(QdqError, match=r"9{30}.*not a class number"):
        from_folders([Path(f"d/{'9' * 30}/a.jpg"), Path("d/1/a.jpg")], None)
