# SPDX-License-Identifier: Apache-2.0
"""How far the outputs of a model with Q/DQ are from those of the float model, as one number between 0 and 1.

A guide for choices on calibration images, not a figure of quality: that takes labels and held-out images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.runtime.activations import ObservableModel, OrtActivations

Float64 = npt.NDArray[np.float64]
# From here on a model loses much. Of 51 INT8 models (17 labeled networks by three methods, regression heads in float;
# tests/bench/README.md) none lies between 0.14 and 0.24. Below, the metric (mAP, AP50, top-1) lost 8 % of itself at
# most; above, 2 to 15 %, and from 0.6 on a fifth to all of it.
LARGE_LOSS = 0.2


@dataclass(frozen=True)
class OutputReference:
    """Samples, and what the float model gives for them.

    Attributes:
        samples: what is run.
        outputs: names of the tensors that are compared; see `comparable_outputs`.
        wanted: per sample, an array per output.
        provider: what onnxruntime runs on.
        where: what messages call the model.
    """

    samples: tuple[Batch, ...]
    outputs: tuple[str, ...]
    wanted: tuple[tuple[Float64, ...], ...]
    provider: str
    where: object

    @classmethod
    def of(
        cls, proto: onnx.ModelProto, folder: Path | None, samples: Sequence[Batch], provider: str, where: object
    ) -> OutputReference:
        """Run the float model.

        Raises:
            QdqError: nothing to compare by; what `OrtActivations` refuses.
        """
        outputs = comparable_outputs(proto, folder, provider, where)
        if not outputs:
            raise QdqError(where, "has no float32 output to compare", "leave --keep-float and sensitivity out")
        wanted = _outputs(proto, folder, samples, outputs, provider, where)
        return cls(tuple(samples), outputs, wanted, provider, where)

    def loss(self, proto: onnx.ModelProto, folder: Path | None) -> float:
        """Mean over outputs, and over the channels of each, of error^2 / variance, no channel counting more than 1.

        The channel axis of an output is its shortest one beside the first; with one axis longer than 1 it is all one.
        An output of another shape than the float model's is lost. The variance is that between samples at one place,
        so that a decode in the graph, which spreads the places of a channel over the image, changes nothing; of one
        sample, or of samples of several shapes, over all places. A channel that never varies is left out.

        A channel counts by its places where that is less: the mean of error^2 / variance at each of them, none counting
        more than 1. A few places with large values that hardly vary (what a network makes of the border that a
        letterbox adds) would else stand for all, and whatever is done elsewhere would show nowhere.
        """
        got = _outputs(proto, folder, self.samples, self.outputs, self.provider, self.where)
        losses = []
        for index in range(len(self.outputs)):
            mine, theirs = ([arrays[index] for arrays in all_of] for all_of in (self.wanted, got))
            if any(want.shape != have.shape for want, have in zip(mine, theirs, strict=True)):
                losses.append(1.0)  # as many rows as there are detections: other detections
                continue
            signal = _signal(mine)
            error = _squares(_channels(mine) - _channels(theirs))
            alive = signal > 0
            lost = np.where(np.isfinite(error[alive]), error[alive], np.inf) / signal[alive]
            lost = np.minimum(np.minimum(lost, 1.0), _lost_places(mine, theirs)[alive])
            losses.append(float(lost.mean()) if alive.any() else 0.0)
        return sum(losses) / len(losses)


def comparable_outputs(
    proto: onnx.ModelProto, folder: Path | None, provider: str = "cpu", where: object = "model"
) -> tuple[str, ...]:
    """The float32 tensors by which two forms of a model are compared: the last ones that onnxruntime can compute.

    Those are the outputs of the graph that nodes make, and what an operator that onnxruntime lacks reads, such as a
    detector's boxes and scores in front of an NMS plugin.

    Args:
        proto: the model, external data not loaded; it is not changed.
        folder: where its external data lie.
        provider: cpu, cuda or tensorrt.
        where: what messages call the model.

    Raises:
        QdqError: what `ObservableModel` refuses.
    """
    model = ObservableModel(proto, folder, provider, where)
    return model.floats(model.ends)


def _outputs(
    proto: onnx.ModelProto,
    folder: Path | None,
    samples: Sequence[Batch],
    names: tuple[str, ...],
    provider: str,
    where: object,
) -> tuple[tuple[Float64, ...], ...]:
    activations = OrtActivations(proto, folder, names, provider, where)
    taken = []
    for sample in samples:
        got = dict(activations.run(sample))
        taken.append(tuple(np.asarray(got[name], np.float64) for name in names))
    return tuple(taken)


def _signal(arrays: Sequence[Float64]) -> Float64:
    """Of each channel, its variance times the number of its values."""
    channels, count = _channels(arrays), len(arrays)
    if not channels.size:
        return np.zeros(len(channels))
    if len({array.shape for array in arrays}) > 1 or count == 1:
        return _squares(channels - channels.mean(axis=1, keepdims=True))
    places = channels.reshape(len(channels), count, -1)
    about = (places - places.mean(axis=1, keepdims=True)).reshape(len(places), -1)
    return _squares(about) * (count / (count - 1))


def _lost_places(wanted: Sequence[Float64], got: Sequence[Float64]) -> Float64:
    """Of each channel, the mean of error^2 / variance, at most 1, over the places that vary; 1 where none does."""
    channels, count = _channels(wanted), len(wanted)
    if count == 1 or not channels.size or len({array.shape for array in wanted}) > 1:
        return np.ones(len(channels))
    places = channels.reshape(len(channels), count, -1)
    error = ((channels - _channels(got)).reshape(places.shape) ** 2).sum(axis=1)
    signal = ((places - places.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) * (count / (count - 1))
    alive = signal > 0
    lost = np.minimum(np.where(np.isfinite(error), error, np.inf) / np.where(alive, signal, 1.0), 1.0)
    number = alive.sum(axis=1)
    mean: Float64 = np.where(number > 0, (lost * alive).sum(axis=1) / np.maximum(number, 1), 1.0)
    return mean


def _squares(channels: Float64) -> Float64:
    summed: Float64 = (channels**2).sum(axis=1)
    return summed


def _channels(arrays: Sequence[Float64]) -> Float64:
    """As [channels, samples and positions]; samples of several shapes are one channel."""
    if len({array.shape for array in arrays}) > 1:
        return np.concatenate([array.ravel() for array in arrays])[None]
    return np.concatenate([_by_channel(array) for array in arrays], axis=1)


def _by_channel(array: Float64) -> Float64:
    """As [channels, positions]; a first axis that is longer than a sample's 1 counts among the positions."""
    whole = np.atleast_1d(array)
    squeezed = whole.reshape(whole.shape[0], *[size for size in whole.shape[1:] if size != 1])
    if squeezed.ndim < 3 or not squeezed.size:
        return squeezed.reshape(1, -1)
    axis = 1 + int(np.argmin(squeezed.shape[1:]))
    return np.moveaxis(squeezed, axis, 0).reshape(squeezed.shape[axis], -1)
