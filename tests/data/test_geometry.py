# SPDX-License-Identifier: Apache-2.0
"""Where an image lies in the input: a marked point is found where the geometry says, for every kind of resizing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image

from qdqtool.data.geometry import geometry_of, read_image
from qdqtool.data.images import ImageFileReader, ImageReader, fit_reader
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.evaluation.decode.head import in_image

SIZE = (96, 64)


def reader(preprocess: str) -> ImageReader:
    return fit_reader(parse_preprocess(preprocess), "x", (1, 3, SIZE[1], SIZE[0]))


def marked(width: int, height: int, x: int, y: int, side: int) -> Image.Image:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[y : y + side, x : x + side] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize("preprocess", ["resize=stretch", "resize=crop", "resize=letterbox,pad=0", "yolox,pad=0"])
@pytest.mark.parametrize(("width", "height"), [(480, 320), (301, 457), (640, 200), (60, 40)])
def test_a_marked_square_lies_where_the_geometry_says(preprocess: str, width: int, height: int, tmp_path: Path) -> None:
    side = min(width, height) // 5
    x, y = width // 2 - side, height // 2 - side // 2
    marked(width, height, x, y, side).save(tmp_path / "a.png")
    array, geometry, image = read_image(reader(preprocess), tmp_path / "a.png")
    assert (geometry.width, geometry.height, image.size) == (width, height, (width, height))
    assert geometry.input_size == SIZE
    bright = array[0].mean(0)
    bright = bright / bright.max()
    center = [(bright.sum(axis) * (np.arange(bright.shape[1 - axis]) + 0.5)).sum() / bright.sum() for axis in (0, 1)]
    expected = [
        (at + side / 2) * scale + offset
        for at, scale, offset in zip((x, y), geometry.scale, geometry.offset, strict=True)
    ]
    np.testing.assert_allclose(center, expected, atol=1.0)  # half a pixel of rounding, half of resampling
    rows, columns = np.nonzero(bright > 0.5)
    found = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]], np.float64)
    back = in_image(found, np.ones(1, np.float32), np.zeros(1, np.int64), geometry)
    tolerance = 1.01 / min(geometry.scale)  # a pixel of the input
    np.testing.assert_allclose(back.boxes[0], [x, y, x + side, y + side], atol=tolerance)


def test_figures_of_each_kind() -> None:
    stretch = geometry_of(parse_preprocess("size=96x64"), (480, 128))
    assert (stretch.scale, stretch.offset) == ((0.2, 0.5), (0.0, 0.0))
    corner = geometry_of(parse_preprocess("yolox,size=96x64"), (100, 61))
    assert (corner.scale, corner.offset) == ((0.96, 0.96), (0.0, 0.0))
    middle = geometry_of(parse_preprocess("yolov5,size=96x64"), (100, 40))
    assert (middle.scale, middle.offset) == ((0.96, 0.96), (0.0, float((64 - round(40 * 0.96)) // 2)))
    crop = geometry_of(parse_preprocess("imagenet,size=224x224"), (512, 256))
    assert (crop.scale, crop.offset) == ((1.0, 1.0), (-144.0, -16.0))
    open_size = geometry_of(parse_preprocess("color=rgb"), (50, 40))
    assert (open_size.scale, open_size.input_size) == ((1.0, 1.0), (50, 40))


def test_the_orientation_of_a_photograph_counts(tmp_path: Path) -> None:
    image = marked(80, 40, 0, 0, 10)
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "turned.jpg", exif=exif)
    array, geometry, upright = read_image(reader("resize=letterbox,pad=0"), tmp_path / "turned.jpg")
    assert (geometry.width, geometry.height) == upright.size == (40, 80)
    np.testing.assert_array_equal(
        array, ImageFileReader(reader("resize=letterbox,pad=0")).read(tmp_path / "turned.jpg")
    )


def test_boxes_are_cut_off_at_the_borders_of_the_image() -> None:
    geometry = geometry_of(parse_preprocess("yolox,size=96x64"), (192, 100))
    found = in_image(np.array([[-5.0, -1.0, 500.0, 20.0]]), np.ones(1, np.float32), np.zeros(1, np.int64), geometry)
    np.testing.assert_allclose(found.boxes, [[0, 0, 192, 40]])
