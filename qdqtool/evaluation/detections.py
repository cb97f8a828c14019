# SPDX-License-Identifier: Apache-2.0
"""What a detector found in one image, and how that image was laid into the network's input. Nothing is decoded here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.data.geometry import Geometry
from qdqtool.display import Cells, Displayed, short_table

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

# Said of a model behind its name: on images of its task, a wrong preprocessing or decoder is the likeliest reason.
FINDS_NOTHING = "finds nothing in any image: check that --preprocess and --decoder are those of the model"


@dataclass(frozen=True, repr=False)
class Detections(Displayed):
    """The boxes of one image, after non-maximum suppression, highest score first.

    Attributes:
        boxes: float32[n, 4], x1, y1, x2, y2 in pixels of the original image.
        scores: float32[n], 0 to 1.
        labels: int64[n], class numbers from 0.
    """

    boxes: Float32
    scores: Float32
    labels: Int64

    def __len__(self) -> int:
        return len(self.scores)

    def headline(self) -> str:
        """How many boxes there are, of how many classes, and the best score."""
        if not len(self):
            return "0 boxes"
        boxes = f"{len(self)} box{'' if len(self) == 1 else 'es'}"
        return f"{boxes}, labels {sorted(set(self.labels.tolist()))}, best score {float(self.scores[0]):.3f}"

    def summary(self) -> list[str]:
        """The first boxes, a row each."""
        return short_table(self.rows())

    def rows(self) -> Cells:
        """One row for each box: label, score, corners in pixels."""
        boxes = zip(self.labels.tolist(), self.scores.tolist(), self.boxes.tolist(), strict=True)
        rows = [(str(label), f"{score:.3f}", *(f"{edge:.1f}" for edge in box)) for label, score, box in boxes]
        return [("label", "score", "x1", "y1", "x2", "y2"), *rows]


class Decoder(Protocol):
    """Turns a detector's outputs into boxes."""

    @property
    def description(self) -> str:
        """What decodes, one line."""
        ...

    def __call__(self, outputs: Mapping[str, Array], geometries: Sequence[Geometry]) -> list[Detections]:
        """Decode one batch."""
        ...
