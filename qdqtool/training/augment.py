# SPDX-License-Identifier: Apache-2.0
"""Flips, crops and colour changes of images that carry no labels. Drawn per sample; not for data with labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.calibration.feed import Batch, Feed
from qdqtool.calibration.preprocess import Preprocess, parse_preprocess
from qdqtool.errors import QdqError

Float32 = npt.NDArray[np.float32]
Draw = np.random.Generator

_LEAST_SIDE = 0.7  # of a crop, as part of the image's
_GAIN, _SHIFT = 0.2, 25.0  # colours: factor within 1 +- this, then grey levels within +- this


@dataclass(frozen=True)
class ImageAugment:
    """What is done to the images of one input.

    Attributes:
        name: the input.
        steps: some of flip, crop, colour, in this order.
        spec: how the images were preprocessed, its layout decided.
    """

    name: str
    steps: tuple[str, ...]
    spec: Preprocess

    def __call__(self, sample: Batch, draw: Draw) -> Batch:
        """The changed sample; every image of it is drawn for by itself."""
        images = sample[self.name]
        channels_last = self.spec.layout == "nhwc"
        planes = images.transpose(0, 3, 1, 2) if channels_last else images
        changed = np.stack([self._image(image, draw) for image in planes])
        return {**sample, self.name: np.ascontiguousarray(changed.transpose(0, 2, 3, 1) if channels_last else changed)}

    def _image(self, image: Float32, draw: Draw) -> Float32:
        for step in self.steps:
            image = _STEPS[step](image, draw, self.spec)
        return image


def open_augment(steps: Sequence[str], feed: Feed) -> ImageAugment | None:
    """The changes that `--augment` asks for, fitted to a folder of images; None for none.

    Raises:
        QdqError: a step that is none, or data that are no folder of images of a float32 input.
    """
    if not steps:
        return None
    for step in steps:
        if step not in _STEPS:
            raise QdqError("--augment", f"{step!r} is not one", f"choose some of {','.join(_STEPS)}")
    if feed.description["kind"] != "images" or len(feed.inputs) != 1 or feed.inputs[0].dtype != np.float32:
        raise QdqError("--augment", "changes images of a folder, and the data is none", "leave it out")
    spec = parse_preprocess(str(feed.description["preprocess"]))
    return ImageAugment(feed.inputs[0].name, tuple(step for step in _STEPS if step in steps), spec)


def _flip(image: Float32, draw: Draw, spec: Preprocess) -> Float32:
    """Left and right exchanged, every other time; float32[channels, height, width]."""
    return image[..., ::-1] if draw.random() < 0.5 else image


def _crop(image: Float32, draw: Draw, spec: Preprocess) -> Float32:
    """A part of the image, its sides 0.7 to 1 of the whole's, at the whole's size."""
    height, width = image.shape[1:]
    side = draw.uniform(_LEAST_SIDE, 1.0)
    top, left = draw.uniform(0, 1 - side) * height, draw.uniform(0, 1 - side) * width
    rows = _between(image, 1, top + (np.arange(height) + 0.5) * side - 0.5)
    return _between(rows, 2, left + (np.arange(width) + 0.5) * side - 0.5)


def _between(image: Float32, axis: int, places: npt.NDArray[np.float64]) -> Float32:
    """Linear interpolation along one axis."""
    last = image.shape[axis] - 1
    places = np.clip(places, 0, last)
    low = np.minimum(places.astype(np.intp), max(last - 1, 0))
    shape = [1, 1, 1]
    shape[axis] = places.size
    part = (places - low).astype(np.float32).reshape(shape)
    first, second = np.take(image, low, axis), np.take(image, np.minimum(low + 1, last), axis)
    mixed: Float32 = first + part * (second - first)
    return mixed


def _colour(image: Float32, draw: Draw, spec: Preprocess) -> Float32:
    """Each channel's gain and level, within what pixels can be."""
    mean, std = (_per_channel(values, len(image)) for values in (spec.mean, spec.std))
    scale = np.float32(spec.scale)
    pixels = (image * std + mean) / scale
    gain = draw.uniform(1 - _GAIN, 1 + _GAIN, (len(image), 1, 1)).astype(np.float32)
    shift = np.float32(draw.uniform(-_SHIFT, _SHIFT))
    changed: Float32 = (np.clip(pixels * gain + shift, 0, 255) * scale - mean) / std
    return changed


def _per_channel(values: Sequence[float], channels: int) -> Float32:
    return np.broadcast_to(np.array(values, np.float32).reshape(-1, 1, 1), (channels, 1, 1))


_STEPS: dict[str, Callable[[Float32, Draw, Preprocess], Float32]] = {"flip": _flip, "crop": _crop, "colour": _colour}
