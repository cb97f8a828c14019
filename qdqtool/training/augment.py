# SPDX-License-Identifier: Apache-2.0
"""Flips, crops and color changes of pictures, drawn per sample. Labeled boxes and class maps follow, others do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from qdqtool.data.loader import Batch, DataLoader
from qdqtool.data.model_inputs import Array
from qdqtool.data.preprocess import Preprocess, parse_preprocess
from qdqtool.data.resample import interpolated
from qdqtool.errors import QdqError
from qdqtool.training.losses.box_losses import LABELED_BOXES

Float32 = npt.NDArray[np.float32]
Draw = np.random.Generator
Moved = tuple[float, float, float, float]  # of a box's corners: factor and shift across, then down
Steps = Sequence[str] | None  # None: all of them where the data are pictures

_LEAST_SIDE = 0.7  # of a crop, as part of the image's
_GAIN, _SHIFT = 0.2, 25.0  # colors: factor within 1 +- this, then grey levels within +- this
_STAYS = (1.0, 0.0, 1.0, 0.0)
_PICTURE = 16  # shortest side of what passes for a picture


@dataclass(frozen=True)
class ImageAugment:
    """What is done to the images of one input.

    Attributes:
        name: the input.
        steps: some of flip, crop, color, in this order.
        channels_last: whether the input is NHWC.
        spec: how files became the input; None for arrays, whose darkest and lightest values stand for black and white.
        labels: the arrays beside it that follow: labeled boxes, see `box_losses`, or class maps, see `class_labels`.
    """

    name: str
    steps: tuple[str, ...]
    channels_last: bool = False
    spec: Preprocess | None = None
    labels: tuple[str, ...] = ()

    def __call__(self, sample: Batch, draw: Draw) -> Batch:
        """The changed sample; every image of it is drawn for by itself."""
        images = sample[self.name]
        planes = images.transpose(0, 3, 1, 2) if self.channels_last else images
        every = [self._image(image, draw) for image in planes]
        changed = np.stack([image for image, _ in every])
        given = changed.transpose(0, 2, 3, 1) if self.channels_last else changed
        found = {**sample, self.name: np.ascontiguousarray(given)}
        sides = planes.shape[3], planes.shape[2]
        for name in self.labels:
            follow = _boxes_follow if name == LABELED_BOXES else partial(_map_follows, last=self.channels_last)
            pairs = zip(sample[name], every, strict=True)
            found[name] = np.stack([follow(one, moves, sides) for one, (_, moves) in pairs])
        return found

    def _image(self, image: Float32, draw: Draw) -> tuple[Float32, list[Moved]]:
        moves = []
        for step in self.steps:
            image, moved = _STEPS[step](image, draw, self.spec)
            moves.append(moved)
        return image, moves


def _boxes_follow(rows: Float32, moves: Sequence[Moved], sides: tuple[int, int]) -> Float32:
    """Boxes where the picture went, cut at its border; one whose center left it becomes a row that fills up."""
    corners = rows[:, 1:].astype(np.float64)
    for across, right, down, below in moves:
        corners = corners * (across, down, across, down) + (right, below, right, below)
        corners = np.concatenate(
            (np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])), 1
        )
    middle = (corners[:, :2] + corners[:, 2:]) / 2
    inside = ((middle > 0) & (middle < sides)).all(1)
    followed = np.zeros_like(rows)
    followed[:, 0] = np.where(inside, rows[:, 0], -1)
    followed[:, 1:] = np.clip(corners, 0, sides * 2)
    return followed


def _map_follows(classes: Array, moves: Sequence[Moved], sides: tuple[int, int], *, last: bool) -> Array:
    """A class map [height, width], or with a channel axis, where the picture went; -1 where that left it."""
    axes = (0, 1) if classes.ndim == 2 or (last and classes.ndim == 3) else (1, 2)
    for axis, side, first in ((axes[0], sides[1], 2), (axes[1], sides[0], 0)):
        cells = classes.shape[axis]
        places = (np.arange(cells) + 0.5) * (side / cells)
        for move in reversed(moves):
            places = (places - move[first + 1]) / move[first]
        indices = np.floor(places * (cells / side)).astype(np.intp)
        classes = np.take(classes, np.clip(indices, 0, cells - 1), axis)
        outside = [slice(None)] * classes.ndim
        outside[axis] = (indices < 0) | (indices >= cells)
        classes[tuple(outside)] = -1
    return classes


def open_augment(steps: Steps, loader: DataLoader, labels: tuple[str, ...] = ()) -> ImageAugment | None:
    """The changes that `--augment` asks for, fitted to the data; None for none.

    Args:
        steps: see `ImageAugment`; None for all of them where the data are pictures.
        loader: the data.
        labels: the arrays beside the pictures that follow.

    Raises:
        QdqError: a step that is none, or steps for data that are no pictures.
    """
    for step in steps or ():
        if step not in _STEPS:
            raise QdqError("--augment", f"{step!r} is not one", f"choose some of {','.join(_STEPS)}")
    axis = _channel_axis(loader, labels)
    if steps and axis is None:
        raise QdqError("--augment", "changes images, and the data are not images", "leave it out")
    if axis is None or (steps is not None and not steps):
        return None
    text = loader.description.get("preprocess") if loader.description["kind"] == "images" else None
    spec = None if text is None else parse_preprocess(str(text))
    chosen = tuple(step for step in _STEPS if steps is None or step in steps)
    return ImageAugment(loader.inputs[0].name, chosen, axis == 3, spec, labels)


def _channel_axis(loader: DataLoader, labels: tuple[str, ...]) -> int | None:
    """Where a picture's channels lie in the only input, 1 or 3; None where the data are no pictures."""
    if len([one for one in loader.inputs if one.name not in labels]) != 1 or loader.inputs[0].dtype != np.float32:
        return None
    if loader.description["kind"] == "images":
        return 3 if parse_preprocess(str(loader.description["preprocess"])).layout == "nhwc" else 1
    shape = loader.inputs[0].shape or ()
    places = ((1, shape[2:]), (3, shape[1:3])) if len(shape) == 4 else ()
    large = (axis for axis, sides in places if shape[axis] == 3 and all(map(_is_large, sides)))
    return next(large, None)


def _is_large(side: int | str | None) -> bool:
    return not isinstance(side, int) or side >= _PICTURE


def _flip(image: Float32, draw: Draw, spec: Preprocess | None) -> tuple[Float32, Moved]:
    """Left and right exchanged, every other time; float32[channels, height, width]."""
    if draw.random() < 0.5:
        return image[..., ::-1], (-1.0, float(image.shape[2]), 1.0, 0.0)
    return image, _STAYS


def _crop(image: Float32, draw: Draw, spec: Preprocess | None) -> tuple[Float32, Moved]:
    """A part of the image, its sides 0.7 to 1 of the whole's, at the whole's size."""
    height, width = image.shape[1:]
    side = draw.uniform(_LEAST_SIDE, 1.0)
    top, left = draw.uniform(0, 1 - side) * height, draw.uniform(0, 1 - side) * width
    rows = interpolated(image, 1, top + (np.arange(height) + 0.5) * side - 0.5)
    part = interpolated(rows, 2, left + (np.arange(width) + 0.5) * side - 0.5)
    return part, (1 / side, -left / side, 1 / side, -top / side)


def _color(image: Float32, draw: Draw, spec: Preprocess | None) -> tuple[Float32, Moved]:
    """Each channel's gain and level, within what pixels can be."""
    if spec is None:
        mean, std = _per_channel([-float(image.min())], len(image)), _per_channel([1.0], len(image))
        scale = np.float32(max(float(np.ptp(image)), 1e-6) / 255)
    else:
        mean, std = (_per_channel(values, len(image)) for values in (spec.mean, spec.std))
        scale = np.float32(spec.scale)
    pixels = (image * std + mean) / scale
    gain = draw.uniform(1 - _GAIN, 1 + _GAIN, (len(image), 1, 1)).astype(np.float32)
    shift = np.float32(draw.uniform(-_SHIFT, _SHIFT))
    changed: Float32 = (np.clip(pixels * gain + shift, 0, 255) * scale - mean) / std
    return changed, _STAYS


def _per_channel(values: Sequence[float], channels: int) -> Float32:
    return np.broadcast_to(np.array(values, np.float32).reshape(-1, 1, 1), (channels, 1, 1))


_Change = Callable[[Float32, Draw, Preprocess | None], tuple[Float32, Moved]]
_STEPS: dict[str, _Change] = {
    "flip": _flip,
    "crop": _crop,
    "color": _color,
}
