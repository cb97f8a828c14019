# SPDX-License-Identifier: Apache-2.0
"""How much of a tensor Clip(0, 6) cuts off on the data. What is made of that is not decided here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.passes.relu6 import SIX
from qdqtool.runtime.activations import OrtActivations


@dataclass(frozen=True)
class CutTensor:
    """The values of one tensor over all samples."""

    above: int = 0
    values: int = 0
    largest: float = 0.0

    def summary(self) -> str:
        """One sentence part."""
        if not self.values:
            return "its values were not seen"
        if not self.above:
            return f"none of its values lies above 6, the largest is {self.largest:.3g}"
        return f"{100 * self.above / self.values:.2g} % of its values lie above 6, the largest is {self.largest:.3g}"


def measure_cuts(model: Model, names: Sequence[str], samples: Iterable[Batch]) -> dict[str, CutTensor]:
    """Count what lies above 6, tensor by tensor; one walk through the samples.

    Raises:
        QdqError: NaN in a tensor (named); what `OrtActivations` refuses.
    """
    found = {name: CutTensor() for name in names}
    if not found:
        return found
    activations = OrtActivations(model, list(names))
    for sample in samples:
        for name, value in activations.run(sample):
            if np.isnan(value).any():
                raise QdqError(name, "holds NaN", "repair the model or leave the sample out")
            so_far, largest = found[name], float(value.max(initial=0.0))
            above = so_far.above + int((value > SIX).sum())
            found[name] = CutTensor(above, so_far.values + value.size, max(so_far.largest, largest))
    return found
