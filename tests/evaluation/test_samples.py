# SPDX-License-Identifier: Apache-2.0
"""What a model is judged on: folders of images, class folders, arrays of pixels and of floats, with their geometry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.data.loader import DataOptions, Input
from qdqtool.errors import QdqError
from qdqtool.evaluation.samples import LabeledSamples, open_samples

FREE = Input("x", (None, 3, 8, 10), np.dtype(np.float32))
PAIRS = Input("x", (2, 3, 8, 10), np.dtype(np.float32))


def image(path: Path, level: int, size: tuple[int, int] = (20, 16)) -> None:
    pillow = pytest.importorskip("PIL.Image")
    path.parent.mkdir(exist_ok=True, parents=True)
    pillow.new("RGB", size, (level, 0, 0)).save(path)


def opened(data: Any, one: Input = FREE, **options: Any) -> LabeledSamples:
    return open_samples(data, [one], DataOptions(**options))


def reds(samples: LabeledSamples) -> list[float]:
    """The first value of each sample, in order."""
    return [float(row.reshape(-1)[0]) for chunk in samples.chunks() for row in chunk.batch["x"]]


def test_a_folder_of_images_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, level in (("b.png", 2), ("a.png", 1), ("c.png", 3)):
        image(tmp_path / name, level)
    (tmp_path / "notes.txt").write_text("")
    samples = opened(tmp_path, preprocess="scale=1")
    assert [path.name for path in samples.images or ()] == ["a.png", "b.png", "c.png"]
    assert (samples.count, samples.in_folders, reds(samples), reds(samples)) == (3, False, [1, 2, 3], [1, 2, 3])


def test_geometry_comes_with_the_image(tmp_path: Path) -> None:
    image(tmp_path / "a.png", 1, (40, 16))
    (chunk,) = opened(tmp_path, preprocess="resize=letterbox-topleft").chunks()
    (geometry,) = chunk.geometries
    assert (geometry.width, geometry.height, geometry.input_size) == (40, 16, (10, 8))
    assert geometry.scale == (0.25, 0.25)


def test_class_folders_are_walked_one_after_the_other(tmp_path: Path) -> None:
    for name, level in (("dog/a.png", 3), ("cat/z.png", 2), ("cat/b.png", 1)):
        image(tmp_path / name, level)
    samples = opened(tmp_path, preprocess="scale=1")
    assert samples.in_folders
    assert reds(samples) == [1, 2, 3]


def test_one_folder_of_images_beside_one_of_labels_is_no_class(tmp_path: Path) -> None:
    image(tmp_path / "images" / "a.png", 1)
    (tmp_path / "labels").mkdir()
    samples = opened(tmp_path, preprocess="scale=1")
    assert not samples.in_folders and reds(samples) == [1]


def test_batch_and_limit_hold_for_images(tmp_path: Path) -> None:
    for level in range(5):
        image(tmp_path / f"{level}.png", level)
    samples = opened(tmp_path, preprocess="scale=1", batch=2, limit=3)
    assert [len(chunk.geometries) for chunk in samples.chunks()] == [2, 1]
    assert (samples.count, reds(samples)) == (3, [0, 1, 2])
    fixed = opened(tmp_path, PAIRS, preprocess="scale=1")
    assert (fixed.count, reds(fixed)) == (4, [0, 1, 2, 3])
    assert re.match("the last 1 samples .* 2, .*x fixes", "".join(fixed.notes))
    assert opened(tmp_path, PAIRS, preprocess="scale=1", limit=4).notes == ()


def test_arrays_of_pixels_are_preprocessed_like_images(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    pixels = np.zeros((3, 8, 10, 3), np.uint8)
    pixels[:, :, :, 0] = np.array([10, 20, 30])[:, None, None]
    np.savez(tmp_path / "d.npz", x=pixels, y=np.array([4, 5, 6]), calib=pixels)
    np.savez(tmp_path / "t.npz", x=pixels.transpose(0, 3, 1, 2), y=np.array([4, 5, 6]))
    for name in ("d.npz", "t.npz"):
        samples = opened(tmp_path / name, preprocess="scale=0.5,color=bgr", limit=2)
        assert samples.classes is not None
        assert (samples.count, samples.classes.tolist()) == (2, [4, 5])
        assert [float(chunk.batch["x"][0, 2, 0, 0]) for chunk in samples.chunks()] == [5, 10]
    pairs = opened(tmp_path / "d.npz", preprocess="scale=1", limit=1, batch=2)
    assert [len(chunk.geometries) for chunk in pairs.chunks()] == [1]


def test_grey_pixels(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    grey = Input("x", (1, 1, 4, 4), np.dtype(np.float32))
    for shape in ((2, 4, 4), (2, 4, 4, 1), (2, 1, 4, 4)):
        np.savez(tmp_path / "g.npz", images=np.full(shape, 7, np.uint8), y=np.array([0, 1]))
        assert reds(opened(tmp_path / "g.npz", grey, preprocess="scale=1")) == [7, 7]


def test_float_arrays_with_their_classes(tmp_path: Path) -> None:
    values = np.arange(5, dtype=np.float32)[:, None, None, None] * np.ones((1, 3, 8, 10), np.float32)
    np.savez(tmp_path / "d.npz", x=values, y=np.arange(5))
    samples = opened(tmp_path / "d.npz", limit=4, batch=3)
    assert samples.classes is not None
    assert (samples.count, samples.classes.tolist(), reds(samples)) == (4, [0, 1, 2, 3], [0, 1, 2, 3])
    assert [len(chunk.geometries) for chunk in samples.chunks()] == [3, 1]
    assert opened(tmp_path / "d.npz", PAIRS).count == 4
    assert reds(opened(tmp_path / "d.npz", PAIRS)) == [0, 1, 2, 3]


@pytest.mark.parametrize("save", [np.save, lambda path, values: np.savez(path, anything=values)])
def test_one_array_goes_the_way_of_every_verb(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "d", np.zeros((3, 3, 8, 10), np.float32))
    samples = opened(next(tmp_path.iterdir()))
    assert (samples.count, samples.classes, samples.images) == (3, None, None)
    geometry = next(samples.chunks()).geometries[0]
    assert (geometry.width, geometry.height, geometry.scale) == (10, 8, (1, 1))


def test_what_a_script_or_python_gives_is_fed(tmp_path: Path) -> None:
    items = [{"x": np.zeros((2, 3, 8, 10), np.float32)}]
    samples = opened(lambda: items)
    assert [len(chunk.geometries) for chunk in samples.chunks()] == [2]
    assert samples.count is None


def test_channels_last_arrays_have_a_size_too() -> None:
    last = Input("x", (None, 8, 10, 3), np.dtype(np.float32))
    samples = opened([{"x": np.zeros((1, 8, 10, 3), np.float32)}], last)
    assert next(samples.chunks()).geometries[0].input_size == (10, 8)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "the model does not say how to preprocess them"),
        ({"preprocess": "scale=1", "limit": 0}, "leaves no samples"),
        ({"preprocess": "scale=1", "batch": 0}, "is not a number of samples"),
    ],
)
def test_images_that_cannot_be_read_so(tmp_path: Path, options: dict[str, Any], part: str) -> None:
    image(tmp_path / "a.png", 1)
    with pytest.raises(QdqError, match=part):
        opened(tmp_path, **options)


def test_a_fixed_batch_that_is_not_filled_or_not_wanted(tmp_path: Path) -> None:
    image(tmp_path / "a.png", 1)
    with pytest.raises(QdqError, match="gives 1 samples, not the 2"):
        opened(tmp_path, PAIRS, preprocess="scale=1")
    with pytest.raises(QdqError, match=r"3 cannot be, 'x' takes \[2, 3, 8, 10\]"):
        opened(tmp_path, PAIRS, preprocess="scale=1", batch=3)


def test_pixels_without_a_preprocessing_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 3, 8, 10), np.uint8), y=np.zeros(3, int))
    with pytest.raises(QdqError, match=r"holds images as uint8.*--preprocess"):
        opened(tmp_path / "d.npz")
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 3, 8, 10), np.float32), y=np.zeros(3, int))
    with pytest.raises(QdqError, match="eight bits"):
        opened(tmp_path / "d.npz", preprocess="scale=1")


def test_integers_must_come_out_exactly(tmp_path: Path) -> None:
    image(tmp_path / "a.png", 200)
    eight = Input("x", (None, 3, 8, 10), np.dtype(np.int8))
    assert reds(opened(tmp_path, eight, preprocess="mean=128")) == [72]
    with pytest.raises(QdqError, match="stay in int8"):
        list(opened(tmp_path, eight, preprocess="scale=1").chunks())
