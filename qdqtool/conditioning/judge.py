# SPDX-License-Identifier: Apache-2.0
"""Whether a model with factors for its classes loses less in INT8, on samples of which nothing was counted.

The scales are those at which the counted values lose least, so that neither form is calibrated for this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_classes import ClassFamily
from qdqtool.conditioning.condition_context import ConditionContext, place_pairs
from qdqtool.conditioning.equalization_sets import EqualizationSet
from qdqtool.conditioning.predict import best_clip
from qdqtool.data.loader import Batch
from qdqtool.data.single_samples import SingleSamples
from qdqtool.formats import INT8
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring.output_loss import OutputReference, comparable_outputs
from qdqtool.progress import steps
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.memory import release_freed_memory
from qdqtool.scales import Scale

Float64 = npt.NDArray[np.float64]

# Makes a form of a model, with other weights, which may be edited, and the scales of its points. Its large weights lie
# in a store of its own (`Model.copy`), and go with it.
Variant = Callable[[], tuple[Model, Mapping[str, Scale]]]

HELD_OUT = 8  # samples at most
_SHARE = 4  # one sample in so many, by its bytes


class HeldOut:
    """Walks samples but for some, identified by their bytes, so that their order does not matter; those are kept.

    Attributes:
        samples: what was held out by the last walk, at most `HELD_OUT`, in the order of their digests. Where all
            samples are walked, the first ones by that order, which then are no strangers.
    """

    def __init__(self, samples: SingleSamples) -> None:
        self._samples = samples
        self.samples: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        """Walk the others."""
        held: dict[bytes, Batch] = {}
        seen: dict[bytes, Batch] = {}
        for sample in self._samples:
            found = hashlib.sha256()
            for name in sorted(sample):
                found.update(np.ascontiguousarray(sample[name]).tobytes())
            digest = found.digest()
            away = digest[0] % _SHARE == 0
            kept = held if away else seen
            kept[digest] = sample
            if len(kept) > HELD_OUT:
                del kept[max(kept)]
            if not away:
                yield sample
        if not seen:
            yield from (held[digest] for digest in sorted(held))
        chosen = held or seen
        self.samples = [chosen[digest] for digest in sorted(chosen)]


def output_losses(
    context: ConditionContext, variants: Sequence[Variant], samples: Sequence[Batch]
) -> list[float] | None:
    """What forms of one model lose at its outputs in INT8, from 0 to 1; None where there is nothing to compare by.

    One of them is in memory at a time.
    """
    if not samples or not context.plan.weights:
        return None
    runnable = ObservableModel(context.model, "cpu", "the model")
    if not comparable_outputs(runnable):
        return None
    reference = OutputReference.of(runnable, samples)
    del runnable
    losses = []
    for variant in steps(variants, "variant"):
        losses.append(_loss(reference, variant, context.options))
        release_freed_memory(cycles=True)
    return losses


def _loss(reference: OutputReference, variant: Variant, options: PlanOptions) -> float:
    model, scales = variant()
    place_pairs(model, options, scales)
    return reference.loss(model)


def counted_scales(families: Sequence[ClassFamily], factors: Float64, amax: Mapping[str, float]) -> dict[str, Scale]:
    """The scale of each tensor at which those that read it lose least once its classes are divided."""
    found = {name: _scale(value) for name, value in amax.items()}
    for one in families:
        scale = scale_of(one.family, factors[one.classes])
        found.update({span.tensor: scale for span in one.family.spans})
    return found


def scale_of(family: EqualizationSet, factors: Float64) -> Scale:
    """The scale of a family whose rows are divided by factors."""
    top = float((family.table.amax / factors).max(initial=0.0))
    return _scale(best_clip(family.table, family.consumers, factors) if family.consumers and top > 0 else top)


def _scale(clip: float) -> Scale:
    return Scale.of(INT8.scale_of(max(clip, 1e-12)))
