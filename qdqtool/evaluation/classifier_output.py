# SPDX-License-Identifier: Apache-2.0
"""What a classifier says of each sample: its best classes and their probabilities. Right or wrong is not asked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qdqtool.evaluation.decode.head import are_shares, softmax
from qdqtool.evaluation.detections import Array, Float32, Int64

TOP = 5


@dataclass(frozen=True)
class Ranked:
    """The best classes of one sample, the best first."""

    labels: Int64
    probabilities: Float32


@dataclass(frozen=True)
class Classifier:
    """A model with one output of scores.

    Attributes:
        name: of the output.
        classes: how many it tells apart.
        shares: whether its scores are probabilities already; else a Softmax is put behind.
    """

    name: str
    classes: int
    shares: bool

    @property
    def description(self) -> str:
        """What was recognized, one line."""
        how = "probabilities" if self.shares else "logits, shown after a Softmax"
        return f"classifier: {self.name}, {self.classes} classes, {how}"

    def __call__(self, outputs: Mapping[str, Array]) -> list[Ranked]:
        """The five best classes of each sample; of equal scores the lower number stands first."""
        scores = outputs[self.name].reshape(len(outputs[self.name]), -1).astype(np.float32)
        shares = scores if self.shares else softmax(scores)
        best = np.argsort(-shares, axis=1, kind="stable")[:, :TOP]
        return [Ranked(row.astype(np.int64), share[row]) for row, share in zip(best, shares, strict=True)]


def classifier_of(outputs: Mapping[str, Array]) -> Classifier | None:
    """The classifier whose outputs these are: one of (batch, classes), axes of one behind; None for anything else.

    Neither is it an output without rows, such as the boxes that a model's own suppression left of an empty picture.
    """
    if len(outputs) != 1:
        return None
    name, scores = next(iter(outputs.items()))
    counts = [count for count in scores.shape[1:] if count != 1]
    if len(counts) != 1 or scores.ndim not in (2, 4) or scores.dtype.kind not in "fiu" or not scores.size:
        return None
    return Classifier(name, counts[0], are_shares(scores.reshape(len(scores), -1).astype(np.float32)))
