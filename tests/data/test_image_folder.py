# SPDX-License-Identifier: Apache-2.0
"""Which files of a folder are images, in which order; which input takes them, in which type."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.image_folder import as_fed, documents_in, find_images, image_input, image_reader, images_in
from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError

F = np.dtype(np.float32)
X = Input("x", (1, 3, 8, 8), F)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.png", "a.JPG", "c.txt", "d.json", "e.JSON", "z/2.webp", "z/1.bmp", "k/9.jpeg", "k/x.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "f.png").mkdir()  # a folder is no image, whatever it is called
    return tmp_path


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        (images_in, ["a.JPG", "b.png"]),
        (documents_in, ["d.json", "e.JSON"]),
    ],
)
def test_what_a_folder_holds(folder: Path, listed: object, names: list[str]) -> None:
    assert [file.relative_to(folder).as_posix() for file in listed(folder)] == names  # type: ignore[operator]


def found(folder: Path, text: Path) -> list[str]:
    images = find_images(text)
    return [] if images is None else [file.relative_to(folder).as_posix() for file in images.files]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (".", ["a.JPG", "b.png"]),
        ("b.png", ["b.png"]),
        ("z", ["z/1.bmp", "z/2.webp"]),
        ("*.png", ["b.png"]),
        ("?/*", ["k/9.jpeg", "z/1.bmp", "z/2.webp"]),
        ("**/*.webp", ["z/2.webp"]),
        ("c.txt", []),
        ("*.txt", []),
        ("nowhere", []),
    ],
)
def test_one_image_a_folder_or_a_pattern(folder: Path, text: str, names: list[str]) -> None:
    assert found(folder, folder / text) == names


def test_a_folder_of_folders_says_which(tmp_path: Path) -> None:
    for name in ("day/rain/1.png", "day/0.png", "night/2.png", "none/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    images = find_images(tmp_path)
    assert images is not None and found(tmp_path, tmp_path) == ["day/0.png", "day/rain/1.png", "night/2.png"]
    assert re.match("3 images .*: day, rain, night$", "".join(images.notes))
    assert find_images(tmp_path / "none") is None


@pytest.mark.parametrize("inputs", [[X, X], [], [Input("x", None, F)]])
def test_images_are_for_one_input_of_known_axes(inputs: list[Input]) -> None:
    with pytest.raises(QdqError, match=rf"^p: holds images, .* {len(inputs)} inputs"):
        image_input(Path("p"), inputs)


def test_images_want_a_preprocessing() -> None:
    assert image_input(Path("p"), [X]) is X
    assert image_reader(Path("p"), X, "scale=1/255").spec.size == (8, 8)
    with pytest.raises(QdqError, match=r"^p: holds images, .*--preprocess"):
        image_reader(Path("p"), X, None)


@pytest.mark.parametrize(
    ("kind", "values", "stays"),
    [
        ("float32", [0.5, np.nan], True),
        ("float16", [0.5, 3.0], True),
        ("uint8", [0.0, 255.0], True),
        ("uint8", [0.5, 2.0], False),
        ("uint8", [256.0], False),
        ("uint8", [-1.0], False),
        ("int8", [-128.0, 127.0], True),
        ("int8", [np.nan], False),
    ],
)
def test_integers_come_out_exactly_or_are_refused(kind: str, values: list[float], stays: bool) -> None:
    one = Input("x", (len(values),), np.dtype(kind))
    if stays:
        assert as_fed("p", np.array(values, np.float32), one).dtype == kind
        return
    with pytest.raises(QdqError, match=rf"^p: preprocessed, .* {kind}, .*'x'"):
        as_fed("p", np.array(values, np.float32), one)
