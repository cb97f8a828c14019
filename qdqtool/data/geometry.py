# SPDX-License-Identifier: Apache-2.0
"""An image as a detector is fed it, and how it was laid into the input, so that boxes find their way back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.data.images import Float32, ImageReader, covering_size, decode_image, letterbox_size
from qdqtool.data.preprocess import Preprocess

if TYPE_CHECKING:
    from PIL.Image import Image
from dataclasses import dataclass


def read_image(reader: ImageReader, path: Path) -> tuple[Float32, Geometry, Image]:
    """One image file as calibration reads it, its geometry, and the picture itself to draw on.

    Returns:
        The array, float32 (1, C, H, W) or (1, H, W, C); how the image lies in it; the upright image.

    Raises:
        QdqError: the file is no image, is broken, or holds more than 8 bits a channel; see `ImageReader.array`.
    """
    image = decode_image(path, reader.channels)
    return reader.array(image, path), geometry_of(reader.spec, image.size), image


def geometry_of(spec: Preprocess, size: tuple[int, int]) -> Geometry:
    """How `ImageReader` lays an image into the input.

    A letterbox has one ratio, that of the side which fills the input, although the other side ends on a whole pixel:
    labels are scaled by that ratio in training, so it is what a detector's boxes mean.
    """
    wide, high = size
    width, height = spec.size or size
    if spec.resize == "stretch":
        return Geometry(wide, high, (width / wide, height / high), (0.0, 0.0), (width, height))
    if spec.resize == "crop":
        across, down = covering_size(size, (width, height))
        left, top = (across - width) // 2, (down - height) // 2
        return Geometry(wide, high, (across / wide, down / high), (float(-left), float(-top)), (width, height))
    ratio, across, down = letterbox_size(spec, size, (width, height))
    left, top = (0, 0) if spec.resize == "letterbox-topleft" else ((width - across) // 2, (height - down) // 2)
    return Geometry(wide, high, (ratio, ratio), (float(left), float(top)), (width, height))


@dataclass(frozen=True)
class Geometry:
    """How an image was laid into the input: ``input = original * scale + offset`` per axis, in pixels.

    Attributes:
        width: of the original image.
        height: of the original image.
        scale: (x, y).
        offset: (x, y), where the original's corner lies in the input.
        input_size: (width, height) of the network's input.
    """

    width: int
    height: int
    scale: tuple[float, float]
    offset: tuple[float, float]
    input_size: tuple[int, int]
