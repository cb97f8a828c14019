# SPDX-License-Identifier: Apache-2.0
"""The classes of channels that are equalized together, and every INT8 read of each: what decides their factors.

A class is what must have one factor (`graph/channels/factors.py`): the channels of a residual stream across all its
Adds, pools and pads. Each tensor of a class has a scale and readers of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_histograms import ChannelSpectrum
from qdqtool.conditioning.channel_map import ChannelRange, Routes, find_routes
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.conditioning.equalization_sets import EqualizationSet, find_families
from qdqtool.conditioning.predict import Weight, relative_shares
from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.graph.channels.atoms import PINNED, ChannelAtoms
from qdqtool.graph.channels.factors import FactorClasses
from qdqtool.graph.shapes import shapes_of
from qdqtool.passes.condition.absorbers import factor_classes
from qdqtool.runtime.activations import OrtActivations

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassFamily:
    """Tensors that share one scale.

    Attributes:
        family: the tensors, what was counted of them, who reads them in INT8.
        classes: int64 [rows of its table], the class of each channel; PINNED and NONE keep the factor 1.
    """

    family: EqualizationSet
    classes: Int64

    @property
    def free(self) -> npt.NDArray[np.bool_]:
        """Which rows may be divided."""
        found: npt.NDArray[np.bool_] = self.classes > PINNED
        return found


@dataclass(frozen=True, eq=False)
class ChannelClasses:
    """What is known of a model's classes before data are counted.

    Attributes:
        factors: the classes, and who makes up for them.
        routes: every point whose channels are known, and the input channels of all that reads them.
        labels: point -> int64 [channels], the class of each.
    """

    factors: FactorClasses
    routes: Routes
    labels: Mapping[str, Int64]

    @property
    def free(self) -> bool:
        """Whether any point has a channel that may be divided."""
        return any((own > PINNED).any() for own in self.labels.values())

    def uncounted(self, tensors: Iterable[str]) -> frozenset[int]:
        """Classes that may be divided and that some of these tensors holds though its channels are not known."""
        atoms = self.factors.atoms
        counted = {name for name, own in self.labels.items() if (own > PINNED).any()}
        held = (atoms.find(atoms.of(name)).reshape(-1) for name in tensors if atoms.has(name) and name not in counted)
        return frozenset(one for classes in held for one in classes.tolist() if one > PINNED)


def find_classes(context: ConditionContext, first: Batch, fixed: frozenset[str] = frozenset()) -> ChannelClasses:
    """Find all classes of a model."""
    atoms = ChannelAtoms(context.view, shapes_of(context.view, {name: array.shape for name, array in first.items()}))
    # ConvTranspose has one scale for its whole weight: to divide what it makes would cost what it wins.
    coarse = frozenset(node.key for node in context.view.nodes if node.op == "ConvTranspose")
    factors = factor_classes(atoms, fixed, coarse)
    routes = find_routes(context.model, context.ways, first, alone=False)
    labels: dict[str, Int64] = {}
    for name, span in routes.spans.items():
        row = atoms.row(name, span.axis)
        known = row is not None and not row.mixed.size and row.atoms.size == span.channels
        labels[name] = row.atoms if row is not None and known else np.full(span.channels, PINNED)
    return ChannelClasses(factors, routes, labels)


@dataclass(frozen=True, eq=False)
class Counted:
    """What the data say of a model's channels.

    Attributes:
        families: one for each scale whose tensors are all known by channel.
        amax: the largest value of every point, also of those that are in no family.
        bounds: point -> the smallest and the largest value of each channel, float32 [channels] twice.
    """

    families: tuple[ClassFamily, ...]
    amax: Mapping[str, float]
    bounds: Mapping[str, tuple[Float32, Float32]]


def count_classes(
    context: ConditionContext,
    classes: ChannelClasses,
    samples: Iterable[Batch],
    clips: Mapping[str, float] | None = None,
) -> Counted:
    """Count the values of every channel of every point, in one walk.

    Raises:
        QdqError: NaN or Inf in a tensor (named); what `OrtActivations` refuses.
    """
    spans = dict(classes.routes.spans)
    others = [point.tensor for point in context.plan.activations if point.tensor not in spans]
    spectra = _count_channels(context, {**spans, **{name: ChannelRange(name, 0, 1, 0, 1) for name in others}}, samples)
    families = [
        ClassFamily(family, np.concatenate([classes.labels[span.tensor] for span in family.spans]))
        for family in find_families(context, classes.routes, spectra, clips)
    ]
    amax = {name: float(spectrum.amax.max(initial=0)) for name, spectrum in spectra.items()}
    bounds = {name: (spectrum.low, spectrum.high) for name, spectrum in spectra.items()}
    return Counted(tuple(_with_joins(context, families)), amax, bounds)


def _count_channels(
    context: ConditionContext, spans: Mapping[str, ChannelRange], samples: Iterable[Batch]
) -> dict[str, ChannelSpectrum]:
    """Run data through a model and count the values of every channel."""
    found = {name: ChannelSpectrum(span.channels, span.axis) for name, span in spans.items()}
    if not found:
        return found
    activations = OrtActivations(context.model, list(found))
    for sample in samples:
        for name, value in activations.run(sample):
            if not np.isfinite(value).all():
                raise QdqError(name, "holds NaN or Inf", "repair the model or leave the sample out")
            found[name].add(value)
    return found


def _with_joins(context: ConditionContext, families: Sequence[ClassFamily]) -> list[ClassFamily]:
    """An Add that reads a tensor in INT8 has no weights: its channels count as those after it weigh their class."""
    size = 1 + max((int(one.classes.max(initial=0)) for one in families), default=0)
    weight = np.zeros(size)
    for one in families:
        for share in relative_shares(one.family.table, one.family.consumers):
            np.add.at(weight, one.classes, share)
    made = []
    for one in families:
        joins = sorted({use.node.key for span in one.family.spans for use in context.ways[span.tensor].others})
        own = weight[one.classes] if (weight[one.classes] > 0).any() else np.ones(one.classes.size)
        cube = np.sqrt(own)[None, None, :, None]
        more = tuple(Weight(key, cube, np.arange(own.size), "no") for key in joins)
        made.append(replace(one, family=replace(one.family, consumers=(*one.family.consumers, *more))))
    return made
