# SPDX-License-Identifier: Apache-2.0
"""Mean IoU of class maps, picture by picture. Where labels lie is in labels_maps.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdqtool.data.geometry import Geometry
from qdqtool.data.model_inputs import Array
from qdqtool.data.resample import interpolated
from qdqtool.errors import QdqError
from qdqtool.evaluation.classification import COMPARE
from qdqtool.evaluation.decode.head import are_probabilities
from qdqtool.evaluation.labels_classes import Int64
from qdqtool.evaluation.metrics import Float64, MeasuredModel

_BLOCK = 8 << 20  # values that are interpolated at a time


@dataclass(frozen=True)
class MapReader:
    """How an output is read as the class of every pixel.

    Attributes:
        name: of the output.
        axis: of the classes, 1 or 3; None of an output that holds class numbers.
        classes: how many it tells apart; 0 where it holds numbers.
        threshold: of an output of one channel, above which a pixel is of class 1.
    """

    name: str
    axis: int | None
    classes: int
    threshold: float = 0.0

    def __call__(self, outputs: Mapping[str, Array], row: int, geometry: Geometry) -> Int64:
        """The class map of one sample in the pixels of its picture; -1 where the network does not see it.

        Scores are interpolated linearly between pixel centers before the best class is taken; of equal scores the lower
        number wins. Class numbers are those of the nearest place.
        """
        values = outputs[self.name][row]
        if self.axis == 3:
            values = np.moveaxis(values, -1, 0)
        values = values.reshape(-1, *values.shape[-2:])
        (down, seen_down), (across, seen_across) = (
            _places(getattr(geometry, side), geometry.scale[k], geometry.offset[k], geometry.input_size[k], count)
            for side, k, count in (("height", 1, values.shape[1]), ("width", 0, values.shape[2]))
        )
        if self.axis is None:
            rows, columns = (np.rint(places).astype(np.intp) for places in (down, across))
            found: Int64 = values[0][rows][:, columns].astype(np.int64)
        else:
            step = max(1, _BLOCK // (len(values) * len(across)))
            scores = values.astype(np.float32, copy=False)
            blocks = (down[start : start + step] for start in range(0, len(down), step))
            found = np.concatenate(
                [self._best(interpolated(interpolated(scores, 1, one), 2, across)) for one in blocks]
            )
        found[~(seen_down[:, None] & seen_across)] = -1
        return found

    def _best(self, scores: Array) -> Int64:
        best: Int64 = scores[0] > self.threshold if len(scores) == 1 else scores.argmax(0)
        return best.astype(np.int64)


def _places(count: int, scale: float, offset: float, side: int, cells: int) -> tuple[Float64, Array]:
    """Where the pixels of a picture's side lie among an output's cells, and whether the input holds them."""
    places = (np.arange(count) + 0.5) * scale + offset
    seen = (places >= 0) & (places < side)
    return np.clip(places * (cells / side) - 0.5, 0, cells - 1), seen


def map_reader(name: str, outputs: Mapping[str, Array]) -> MapReader:
    """What reads the only output that has a value, or one for each class, for every place.

    Args:
        name: what messages call the model.
        outputs: of one run of the reference.

    Raises:
        QdqError: no such output, or several.
    """
    maps = {one: values for one, values in outputs.items() if values.ndim == 4 and values.dtype.kind in "fiu"}
    maps |= {one: values for one, values in outputs.items() if values.ndim == 3 and values.dtype.kind in "iu"}
    if len(maps) != 1:
        shapes = ", ".join(f"{one} {list(values.shape)}" for one, values in outputs.items())
        reason = f"has {len(maps)} outputs of class maps ({shapes})"
        raise QdqError(name, reason, f"leave the one of [samples, classes, height, width] in the model; {COMPARE}")
    output, values = next(iter(maps.items()))
    if values.dtype.kind != "f":
        return MapReader(output, None, 0)
    axis = 3 if values.shape[3] < min(values.shape[1:3]) and values.shape[1] > 1 else 1
    channels = values.shape[axis]
    return MapReader(output, axis, max(channels, 2), 0.5 if channels == 1 and are_probabilities(values) else 0.0)


def class_counts(where: object, truth: Int64, found: Int64, classes: int) -> Int64:
    """Of one picture the pixels of each class that are right, found and true, int64[3, classes or more].

    Raises:
        QdqError: the two have different sizes, or a label is none of the classes.
    """
    if truth.shape != found.shape:
        reason = (
            f"is a class map of {truth.shape[1]}x{truth.shape[0]}, its picture has {found.shape[1]}x{found.shape[0]}"
        )
        raise QdqError(where, reason, "check that these are the labels of --data")
    counts = (truth >= 0) & (found >= 0)
    truth, found = truth[counts], found[counts]
    if classes and truth.max(initial=0) >= classes:
        reason = f"holds class {truth.max()}, the model tells {classes} apart"
        raise QdqError(where, reason, "are these labels of this model? --label-offset shifts class numbers")
    most = max(classes, int(max(truth.max(initial=0), found.max(initial=0))) + 1)
    return np.stack([np.bincount(one, minlength=most) for one in (truth[truth == found], found, truth)])


def mean_iou(found: Sequence[Int64]) -> MeasuredModel:
    """IoU of every class that the labels show, over the pixels of all pictures, and their mean.

    A class that the labels do not show has no figure; where it is found, the true class lacks the pixels.
    """
    most = max(one.shape[1] for one in found)
    counts = np.stack([np.pad(one, ((0, 0), (0, most - one.shape[1]))) for one in found])
    shown = np.nonzero(counts[:, 2].sum(0))[0]
    hits, either = counts[:, 0, shown].astype(np.float64), (counts[:, 1] + counts[:, 2] - counts[:, 0])[:, shown]

    def resampled(weights: Int64) -> Float64:
        true = weights @ counts[:, 2, shown]
        with np.errstate(invalid="ignore"):
            each = np.where(true > 0, (weights @ hits) / (weights @ either), np.nan)
            mean = np.nansum(each, 1) / np.maximum((true > 0).sum(1), 1)
        return np.concatenate([mean[:, None], each], 1)[:, None]

    whole = resampled(np.ones((1, len(found)), np.int64))[0]
    images_of = (counts[:, 2, shown] > 0).sum(0)
    facts = {"pixels": int(counts[:, 2].sum())}
    return MeasuredModel(
        ("miou",), whole, tuple(shown.tolist()), len(found), resampled, facts, tuple(images_of.tolist())
    )
