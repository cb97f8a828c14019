# SPDX-License-Identifier: Apache-2.0
"""How far the outputs of two float models lie apart, over data: proof that an edit kept the function, or its price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.measures import ChangeSums, OutputChange
from qdqtool.measuring.output_loss import comparable_outputs
from qdqtool.runtime.activations import ObservableModel, OrtActivations, nothing_to_observe

# What equalizing and smoothing may change: the root of the mean square of the difference over the range of the output,
# largest less smallest value. Not over the output's own root mean square, which is small where most values are near 0.
# The largest single difference is reported only: onnxruntime itself moves single values of an unedited network by
# more than 1e-5 from one optimization level to another.
TOLERANCE = 1e-5


class Outputs:
    """The float32 outputs of one model, ready to run: made before the model is edited, it stays what it was.

    After an operator that onnxruntime lacks nothing can be compared: then what that operator reads is an output here.
    """

    def __init__(self, model: Model) -> None:
        self._model = ObservableModel(model)  # its weights are in a file: no memory while nothing is compared
        self._names = comparable_outputs(self._model)
        if not self._names:
            raise nothing_to_observe(self._model.where)

    def open(self) -> OrtActivations:
        """The session that gives each float32 output for a sample."""
        return OrtActivations.of(self._model, self._names)


def compare(
    before: Outputs, after: Sequence[Outputs], samples: Iterable[Batch], reshaped: dict[str, str] | None = None
) -> list[dict[str, OutputChange]]:
    """Run models on the same samples; what each of `after` gives is compared with what `before` gives.

    Outputs of another shape go into `reshaped`, with the reason, and have no difference.

    Raises:
        QdqError: such an output, without `reshaped`: a selection (NMS, TopK) in the graph came out otherwise.
    """
    gaps: list[dict[str, ChangeSums]] = [{} for _ in after]
    odd: dict[str, str] = {} if reshaped is None else reshaped
    right, others = before.open(), [one.open() for one in after]
    for sample in samples:
        exact = dict(right.run(sample))
        for found, model in zip(gaps, others, strict=True):
            for name, made in model.run(sample):
                if made.shape != exact[name].shape:
                    odd[name] = f"has the shape {list(made.shape)} after the edits, {list(exact[name].shape)} before"
                elif name not in odd:
                    found.setdefault(name, ChangeSums()).add(exact[name], made)
        if odd and reshaped is None:
            name, reason = next(iter(odd.items()))
            raise QdqError(name, reason, "condition the model without the NMS at its end")
    return [{name: gap.change() for name, gap in found.items() if name not in odd} for found in gaps]


def moved_most(differences: dict[str, OutputChange]) -> str:
    """What to say of the output that edits moved most where they should have kept the function; "" where they did."""
    moved = {name: one.of_range for name, one in differences.items() if not one.of_range <= TOLERANCE}
    if not moved:
        return ""
    name = max(moved, key=lambda key: moved[key] if moved[key] == moved[key] else math.inf)
    return f"the output {name} changed by {moved[name]:.1e} of its range, more than {TOLERANCE:.0e}"
