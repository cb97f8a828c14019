# SPDX-License-Identifier: Apache-2.0
"""What is drawn on: the image file upright and whole, or an input shown as an image of the size its boxes count in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
from qdqtool.data.geometry import Geometry
from qdqtool.data.loader import DataOptions, Input
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.errors import QdqError
from qdqtool.evaluation.pictures import blue_first, file_of, picture_of, pictures_of
from qdqtool.evaluation.samples import Chunk, LabeledSamples, open_samples
from tests.detector_model import write_images

NCHW = Input("x", (None, 3, 20, 40), np.dtype(np.float32))


def sample(values: np.ndarray, geometry: Geometry) -> tuple[LabeledSamples, Chunk]:
    chunk = Chunk({"x": values[None]}, (geometry,))
    return LabeledSamples("d.npz", lambda: iter([chunk])), chunk


def test_a_file_is_shown_as_it_is_not_as_it_is_fed(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 10, 200, 30, size=(50, 30))
    samples = open_samples(data, [NCHW], DataOptions(preprocess="yolox"))
    chunk = next(samples.chunks())
    image = picture_of(samples, 1, chunk, 0)
    assert image.size == (50, 30)
    assert image.getpixel((5, 5)) == (200, 200, 200)
    assert file_of(samples, 1).name == "b.png"
    assert [(index, one.getpixel((0, 0))[0]) for index, one in pictures_of(samples, {2, 0})] == [(0, 10), (2, 30)]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_part_of_an_input_that_the_image_fills_is_shown_at_its_size(layout: str) -> None:
    values = np.zeros((20, 40, 3), np.float32)
    values[5:15, :, 0] = 2.0  # the image: 10 rows of 40, letterboxed
    values[5:15, 20:, 2] = 1.0
    fed = values.transpose(2, 0, 1) if layout == "nchw" else values
    samples, chunk = sample(fed, Geometry(80, 20, (0.5, 0.5), (0.0, 5.0), (40, 20)))
    image = picture_of(samples, 0, chunk, 0)
    assert image.size == (80, 20)
    assert image.getpixel((2, 2)) == (255, 0, 0)
    assert image.getpixel((75, 10)) == (255, 0, 128)
    assert picture_of(samples, 0, chunk, 0, bgr=True).getpixel((75, 10)) == (128, 0, 255)
    assert file_of(samples, 7) == Path("sample_00007")


def test_one_channel_is_grey_and_one_value_is_black() -> None:
    samples, chunk = sample(np.full((1, 4, 6), 7.0, np.float32), Geometry(6, 4, (1, 1), (0, 0), (6, 4)))
    assert picture_of(samples, 0, chunk, 0).getcolors() == [(24, (0, 0, 0))]
    assert [index for index, _ in pictures_of(samples, {0})] == [0]
    assert list(pictures_of(samples, set())) == []


@pytest.mark.parametrize("shape", [(5, 4, 4), (7,)])
def test_what_is_no_image(shape: tuple[int, ...]) -> None:
    samples, chunk = sample(np.zeros(shape, np.float32), Geometry(4, 4, (1, 1), (0, 0), (4, 4)))
    with pytest.raises(QdqError, match=r"d\.npz: holds arrays .*drawn"):
        picture_of(samples, 0, chunk, 0)


def test_the_order_of_colors_is_the_preprocessings() -> None:
    assert blue_first("yolox")
    assert blue_first(parse_preprocess("color=bgr"))
    assert not blue_first("yolov5")
    assert not blue_first(None)
