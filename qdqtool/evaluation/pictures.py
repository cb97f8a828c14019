# SPDX-License-Identifier: Apache-2.0
"""The picture of each sample to draw on: the image file itself, or the input as an image. Nothing is drawn here."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qdqtool.data.geometry import Geometry
from qdqtool.data.images import decode_image, load_pillow
from qdqtool.data.preprocess import Preprocess, parse_preprocess
from qdqtool.errors import QdqError
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.samples import Chunk, LabeledSamples

if TYPE_CHECKING:
    from PIL.Image import Image


def file_of(samples: LabeledSamples, index: int) -> Path:
    """The image file of a sample, or a name made of its number."""
    return samples.images[index] if samples.images is not None else Path(f"sample_{index:05}")


def blue_first(preprocess: str | Preprocess | None) -> bool:
    """Whether arrays that a preprocessing made have blue first."""
    spec = parse_preprocess(preprocess) if isinstance(preprocess, str) else preprocess
    return spec is not None and spec.color == "bgr"


def pictures_of(samples: LabeledSamples, wanted: Collection[int], *, bgr: bool = False) -> Iterator[tuple[int, Image]]:
    """The pictures of some samples, in order, without reading more files than that."""
    if samples.images is not None:
        yield from ((index, decode_image(samples.images[index], 3)) for index in sorted(wanted))
        return
    index = 0
    for chunk in samples.chunks():
        for row in range(len(chunk.geometries)):
            if index in wanted:
                yield index, picture_of(samples, index, chunk, row, bgr=bgr)
            index += 1


def picture_of(samples: LabeledSamples, index: int, chunk: Chunk, row: int, *, bgr: bool = False) -> Image:
    """A sample as an RGB image of the size that its boxes count in.

    Raises:
        QdqError: the data is no images.
    """
    if samples.images is not None:
        return decode_image(samples.images[index], 3)
    array = next(iter(chunk.batch.values()))
    if array.ndim != 4:
        raise QdqError(samples.where, f"holds arrays of {array.ndim} dimensions, no images", "nothing can be drawn")
    return _of_array(samples.where, array[row], chunk.geometries[row], bgr=bgr)


def _of_array(where: object, values: Array, geometry: Geometry, *, bgr: bool) -> Image:
    """The part of an input that the image fills, its values stretched to 0..255, as large as the original."""
    if values.shape[0] in (1, 3):
        values = values.transpose(1, 2, 0)
    if values.shape[2] not in (1, 3):
        raise QdqError(where, f"holds arrays of shape {list(values.shape)}, no images", "nothing can be drawn")
    low, high = float(values.min()), float(values.max())
    grey = (values.astype(np.float32) - low) * np.float32(255 / (high - low) if high > low else 0)
    pixels = np.ascontiguousarray(np.rint(np.repeat(grey, 3 // grey.shape[2], 2)).astype(np.uint8))
    image: Image = load_pillow().fromarray(pixels[..., ::-1].copy() if bgr else pixels)
    left, top = geometry.offset
    right, bottom = left + geometry.width * geometry.scale[0], top + geometry.height * geometry.scale[1]
    shown = image.crop((round(left), round(top), round(right), round(bottom)))
    wanted = (geometry.width, geometry.height)
    return shown if shown.size == wanted else shown.resize(wanted)
