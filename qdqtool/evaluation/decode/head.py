# SPDX-License-Identifier: Apache-2.0
"""What a decoder sees of a model and what it hands on: outputs, a recognized head, boxes. No family is known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.geometry import Geometry
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import Selection
from qdqtool.evaluation.detections import Array, Detections, Float32
from qdqtool.evaluation.nms import Float64, select
from qdqtool.graph.output_rows import OutputRows

Size = tuple[int, int]
Candidates = tuple[Float64, Float32]  # corners (B, N, 4) in pixels of the input, scores (B, N, C)


@dataclass(frozen=True)
class HeadSettings:
    """What a family cannot know from the outputs; each has a default.

    Attributes:
        anchors: YOLOv5's anchors in pixels, width then height, from the finest map to the coarsest; three a map.
        classes: the number of classes, where shapes leave it open.
        decoded: whether the graph itself makes boxes of what its head says; None asks the values.
    """

    anchors: tuple[float, ...] = ()
    classes: int | None = None
    decoded: bool | None = None


@dataclass(frozen=True)
class HeadOutputs:
    """A detector's outputs as a family looks at them.

    Attributes:
        shapes: name -> shape, in graph order.
        arrays: name -> values of one batch; empty where only shapes are known.
        size: (width, height) of the input.
        settings: what the user said.
        rows: what the rows of outputs are, see `output_rows`; empty where no graph is known.
    """

    shapes: Mapping[str, tuple[int, ...]]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    size: Size = (0, 0)
    settings: HeadSettings = field(default_factory=HeadSettings)
    rows: Mapping[str, OutputRows] = field(default_factory=dict)

    def of_rank(self, rank: int) -> dict[str, tuple[int, ...]]:
        """The outputs with so many dimensions."""
        return {name: shape for name, shape in self.shapes.items() if len(shape) == rank}

    def has_aspect_ratio(self, columns: int, rows: int) -> bool:
        """Whether a map of so many columns and rows has the aspect ratio of the input."""
        return self.size[0] * rows == self.size[1] * columns

    def are_probabilities(self, names: Iterable[str]) -> bool:
        """Whether values of all these outputs are known, and are what a Sigmoid gives; without values False."""
        return all(name in self.arrays and are_probabilities(self.arrays[name]) for name in names)


@dataclass(frozen=True, eq=False)
class HeadLayout:
    """Where a head holds what a loss on boxes reads, as its family orders it.

    Attributes:
        outputs: their names.
        decoded: whether the graph makes boxes of what its head says.
        probabilities: whether the scores went through a Sigmoid or Softmax.
        levels: of maps, the names for each stride.
        strides: of decoded rows.
        priors: center and sides as fractions of the input; None where there are none, or they are not known.
        least_iou: from which on a prior answers for a box.
        pixels: whether decoded boxes are pixels of the input, not fractions.
    """

    outputs: tuple[str, ...]
    decoded: bool = False
    probabilities: bool = True
    levels: tuple[tuple[str, ...], ...] = ()
    strides: tuple[int, ...] = ()
    priors: Float64 | None = None
    least_iou: float = 0.5
    pixels: bool = False


@dataclass(frozen=True)
class RecognizedHead:
    """A recognized head.

    Attributes:
        description: what was recognized, one phrase.
        iou: the threshold of overlap that the family's own code uses.
        candidates: outputs by name and (width, height) of the input -> all boxes with all scores, nothing dropped.
        classes: how many classes it tells apart; None where only the boxes tell.
        layout: for a loss on boxes; None where the family has none.
    """

    description: str
    iou: float
    candidates: Callable[[Mapping[str, Array], Size], Candidates]
    classes: int | None = None
    layout: HeadLayout | None = None


@dataclass(frozen=True)
class HeadDecoder:
    """A head with what is kept of its boxes: outputs to detections.

    Attributes:
        family: its name in `--decoder`.
        head: what was recognized.
        selection: thresholds and numbers.
    """

    family: str
    head: RecognizedHead
    selection: Selection

    @property
    def description(self) -> str:
        """What was recognized and what will be kept, one line."""
        iou = self.head.iou if self.selection.iou is None else self.selection.iou
        return f"{self.family}: {self.head.description}; score above {self.selection.score:g}, NMS at IoU {iou:g}"

    def __call__(self, outputs: Mapping[str, Array], geometries: Sequence[Geometry]) -> list[Detections]:
        """Decode one batch."""
        if not geometries:
            return []
        with np.errstate(all="ignore"):  # boxes without end have no score or no place in the image
            return self._decoded(outputs, geometries)

    def _decoded(self, outputs: Mapping[str, Array], geometries: Sequence[Geometry]) -> list[Detections]:
        try:
            boxes, scores = self.head.candidates(outputs, geometries[0].input_size)
        except KeyError as error:
            name = error.args[0]
            raise QdqError(self.family, f"the outputs lack {name!r}, which its decoder reads") from None
        if len(boxes) != len(geometries):
            raise QdqError(self.family, f"the outputs hold {len(boxes)} samples, there are {len(geometries)} images")
        return [
            in_image(*select(box, score, self.selection, self.head.iou), geometry)
            for box, score, geometry in zip(boxes, scores, geometries, strict=True)
        ]


def in_image(boxes: Float64, scores: Float32, labels: npt.NDArray[np.int64], geometry: Geometry) -> Detections:
    """Boxes of the input to boxes of the image, cut off at its borders."""
    original = (boxes - np.array(geometry.offset * 2)) / np.array(geometry.scale * 2)
    edges = np.array((geometry.width, geometry.height) * 2, np.float64)
    return Detections(np.clip(original, 0, edges).astype(np.float32), scores.astype(np.float32), labels)


def corners(centers: npt.NDArray[Any], sides: npt.NDArray[Any]) -> Float64:
    """Boxes by their corners from centers (..., 2) and widths and heights (..., 2)."""
    half = np.asarray(sides, np.float64) / 2
    return np.concatenate((centers - half, centers + half), -1)


def sigmoid(values: npt.NDArray[Any]) -> Float32:
    """1 / (1 + exp(-x)) without overflow."""
    half = np.float32(0.5)
    shares: Float32 = (np.tanh(np.asarray(values, np.float32) * half) + np.float32(1)) * half
    return shares


def softmax(values: npt.NDArray[Any]) -> Float32:
    """Along the last axis."""
    with np.errstate(invalid="ignore"):  # logits without end have no shares
        powers = np.exp(values - values.max(-1, keepdims=True))
    shares: Float32 = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    return shares


def expected(values: npt.NDArray[Any], bins: int) -> Float32:
    """The mean of each distribution over 0..bins-1 (Li et al. 2020): (..., 4 * bins) logits to (..., 4)."""
    shares = softmax(values.reshape(*values.shape[:-1], 4, bins))
    means: Float32 = np.matmul(shares, np.arange(bins, dtype=np.float32), dtype=np.float32)
    return means


def joined(levels: Iterable[Candidates]) -> Candidates:
    """The boxes and scores of several maps, behind one another."""
    boxes, scores = zip(*levels, strict=True)
    return np.concatenate(boxes, 1), np.concatenate(scores, 1)


def are_shares(values: npt.NDArray[Any]) -> bool:
    """Whether rows are what a Softmax gives; a tenth is left for what INT8 does to it."""
    with np.errstate(invalid="ignore"):  # Inf less Inf
        close = (np.abs(values.sum(-1, dtype=np.float64) - 1) < 0.1) & (values > -0.05).all(-1)
    return bool(close.mean() > 0.99)


def are_probabilities(values: npt.NDArray[Any]) -> bool:
    """Whether values are what a Sigmoid gives: logits of a detector are far below 0 nearly everywhere."""
    return bool(values.min(initial=0) >= -0.01 and values.max(initial=0) <= 1.01)


def counted(classes: int) -> str:
    """`1 class`, `2 classes`."""
    return f"{classes} class{'' if classes == 1 else 'es'}"


def one_column_each(scores: Array, labels: Array) -> Float32:
    """One column a class: (B, N) scores and class numbers to (B, N, C); rows that fill up fall to class 0."""
    numbers = np.maximum(labels, 0).astype(np.int64)
    table = np.arange(numbers.max(initial=0) + 1)
    return np.where(numbers[..., None] == table, scores[..., None], 0).astype(np.float32)
