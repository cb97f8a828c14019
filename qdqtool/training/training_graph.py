# SPDX-License-Identifier: Apache-2.0
"""The training form of a Q/DQ model: a flat forward graph, what of it is trained, and the way back into the file.

Not the loss, not the gradient, not the loop. The file's own nodes are never changed by it: `TrainingGraph.write` puts
numbers into the Q/DQ model that the form was made from, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import array_of
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.training.batchnorm import lower_batch_norms
from qdqtool.training.fold_batchnorm import fold_behind_pairs
from qdqtool.training.integer_weights import Code, decode_constants
from qdqtool.training.normalize import training_copy
from qdqtool.training.options import BatchNorms
from qdqtool.training.pair_nodes import TrainedPair, find_sites, pairs_to_functions
from qdqtool.training.shared_parameters import unshare
from qdqtool.training.trainable import find_roles, without_frozen
from qdqtool.training.trainable_scales import Moving, Ranges, shared_scales_of
from qdqtool.training.truncate_graph import Ends, cut_behind, reached
from qdqtool.training.write_back import Origin, write_values

__all__ = ["BatchNorms", "Ranges", "TrainingGraph", "WeightPair", "make_form"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WeightPair:
    """The Q/DQ pair that a trained weight is read through.

    Attributes:
        scale: name of its scale, an initializer of the form's proto, shape () or [channels].
        axis: of the weight that the scales run along, not negative; None for one scale.
        low, high: the smallest and largest integer it makes, zero point included.
        zero: its zero point, int64, shape () or [channels].
        also: scales of further pairs that the same weight is read through, rare.
    """

    scale: str
    axis: int | None
    low: int
    high: int
    zero: npt.NDArray[np.int64]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """A Q/DQ model as it is trained.

    Attributes:
        proto: the forward without a loss: opset 13 to 21, IR 10, flat, pairs as functions of PAIR_DOMAIN, the file's
            tensor names; its outputs are the file's, or the last tensors before what cannot be differentiated.
        weights: the float32 initializers of `proto` that are trained: weights and biases of weighted operators, weight
            and bias of BatchNormalization; in graph order.
        scales: the scales that are trained, too, in graph order; () unless ranges are learned. Those of activations
            have the shape (), those of weights () or [channels].
        weight_pairs: trained weight -> its pair.
        activations: scale of an activation -> the tensors that it quantizes: one, or several that share a scale, since
            the file has one initializer for them or they share it in a plan. For ranges "ema" only those that may move.
        quantized: the Q/DQ model as it will be written, external data not loaded.
        cut: tensors that the form gives out in place of outputs of the file -> what lies after each, in words.
        origins: weight, or scale that may move -> where it stands in the file.
        notes: what was done and what is not trained, a sentence each, for the user.
    """

    proto: onnx.ModelProto
    weights: tuple[str, ...]
    scales: tuple[str, ...]
    weight_pairs: Mapping[str, WeightPair]
    activations: Mapping[str, tuple[str, ...]]
    quantized: Model
    cut: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def in_float(self) -> bool:
        """Whether it has no pairs at all."""
        return not any(node.domain == PAIR_DOMAIN for node in self.proto.graph.node)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Everything that is trained: weights, then scales."""
        return (*self.weights, *self.scales)

    def initial(self) -> dict[str, Float32]:
        """The value that every weight, and every scale of a pair, has in the file; copies."""
        wanted = {*self.origins, *self.activations, *(pair.scale for pair in self.weight_pairs.values())}
        wanted.update(name for pair in self.weight_pairs.values() for name in pair.also)
        tensors = (tensor for tensor in self.proto.graph.initializer if tensor.name in wanted)
        return {tensor.name: array_of(tensor, None).astype(np.float32) for tensor in tensors}

    def write(self, values: Mapping[str, Float32]) -> Model:
        """The Q/DQ model with other weights and scales; what they leave alone keeps its bytes.

        A weight that an exporter wrote once for consumers without a tie (see `trainable.by_accident`) gets an
        initializer of its own as soon as it differs. Integer weights are coded anew with their scale.

        Args:
            values: name of a weight or a scale -> its value, of the shape that it has in `proto`. Names that are left
                out, and values that are what the file holds, change nothing.

        Raises:
            QdqError: a name that is no weight or scale of this form, another shape, NaN or infinity, a scale <= 0.
        """
        initial = self.initial()
        weights = set(self.weights)
        for name, value in values.items():
            if name not in initial:
                raise QdqError(name, "is nothing that this form trains", "give weights and scales of the form")
            if np.shape(value) != initial[name].shape:
                shape = f"{list(np.shape(value))} where the form has {list(initial[name].shape)}"
                raise QdqError(name, f"has the shape {shape}", "write the trained model")
            if name not in self.origins and np.asarray(value, np.float32).tobytes() != initial[name].tobytes():
                raise QdqError(name, "is a scale that must stay", "make the form with other ranges")
            if not np.isfinite(value).all():
                raise QdqError(name, "would hold NaN or infinity", "lower the learning rate")
            if name not in weights and not np.all(np.asarray(value) > 0):
                raise QdqError(name, "is a scale and would not be positive", "train its logarithm")
        return write_values(self.quantized, self.origins, initial, values)


def make_form(
    model: Model,
    ranges: Ranges = "fixed",
    bn: BatchNorms = "keep",
    freeze: Sequence[str] = (),
    plan: Plan | None = None,
    operators: Collection[str] | None = None,
) -> TrainingGraph:
    """Make the training form of a Q/DQ model. One without Q/DQ is trained in float.

    Raises:
        QdqError: nothing to train, a pattern that matches nothing, a pair that cannot be trained, an operator whose
            form training does not know.
    """
    quantized = model.copy()
    notes = fold_behind_pairs(quantized) if bn == "fold" else []
    file = quantized.view
    draft = GraphBuilder(training_copy(quantized))
    codes, left = decode_constants(draft)
    notes += [f"{name} is not trained: {why}" for name, why in left.items()]
    view = draft.view()
    roles = without_frozen(find_roles(view), freeze)
    weights, untrained = unshare(draft, view, file, roles, codes)
    view = draft.view()
    sites = find_sites(view)
    shared_scales = {}
    if ranges != "fixed":
        shared_scales = shared_scales_of(view, plan or make_plan(view, PlanOptions(float_heads="none")))
    scales = Moving(view, file, sites, weights, ranges, shared_scales)
    held = pairs_to_functions(draft, view, sites, scales.shared, scales.learned)
    lower_batch_norms(draft)
    ends = cut_behind(draft.proto, weights, operators)
    draft.proto.graph.ClearField("value_info")
    origins = _coded(weights, codes, sites, held, scales.moving) | scales.origins(held)
    notes += untrained + _format_notes(ends, weights, draft.proto)
    found = _Flattened(sites, held, scales, weights, ranges)
    return _assembled(draft.proto, origins, found, quantized, (ends.cut, notes))


def _coded(
    weights: Mapping[str, Origin],
    codes: Mapping[str, Code],
    sites: Sequence[TrainedPair],
    held: Mapping[str, str],
    moving: Collection[str],
) -> dict[str, Origin]:
    """Where each weight stands in the file, and how it is coded there."""
    scale_of = {site.source: site.scale for site in sites if site.scale in moving}
    found = dict(weights)
    for name, code in codes.items():
        if name in found:
            scale = held[scale_of[name]] if name in scale_of else ""
            found[name] = Origin(found[name].places, None, code, scale)
    return found


def _format_notes(ends: Ends, weights: Mapping[str, Origin], proto: onnx.ModelProto) -> list[str]:
    """What the form leaves out, a sentence each."""
    notes = [
        f"training ends at {tensor}, before {words}; the rest of the model is not trained"
        for tensor, words in ends.cut.items()
    ]
    notes += [f"the output {name} depends on no weight that is trained" for name in ends.lost]
    there = {tensor.name for tensor in proto.graph.initializer}
    gone = [name for name in weights if name not in there]
    if gone:
        notes.append(f"{len(gone)} weights come after the last trained tensor, such as {gone[0]}")
    return notes


@dataclass(frozen=True, eq=False)
class _Flattened:
    """What was found on the way to a form."""

    sites: Sequence[TrainedPair]
    held: Mapping[str, str]
    scales: Moving
    weights: Mapping[str, Origin]
    ranges: Ranges


def _assembled(
    proto: onnx.ModelProto,
    origins: Mapping[str, Origin],
    found: _Flattened,
    quantized: Model,
    cut_and_notes: tuple[Mapping[str, str], Sequence[str]],
) -> TrainingGraph:
    near = reached(proto, [value.name for value in proto.graph.output])
    weights = tuple(name for name in found.weights if name in near)
    pairs: dict[str, WeightPair] = {}
    activations: dict[str, dict[str, None]] = {}
    for site in found.sites:
        scale = found.held[site.scale]
        if scale not in near:
            continue
        if not site.constant and (found.ranges != "ema" or site.scale in found.scales.moving):
            activations.setdefault(scale, {})[site.tensor] = None
        if site.constant and site.source in weights:
            first = pairs.get(site.source)
            zero = site.zero.astype(np.int64)
            pairs[site.source] = (
                WeightPair(scale, site.axis, site.low, site.high, zero)
                if first is None
                else replace(first, also=tuple(dict.fromkeys((*first.also, *({scale} - {first.scale})))))
            )
    moving = {found.held[name] for name in found.scales.moving}
    learned = dict.fromkeys(found.held[name] for name in found.scales.moving if found.scales.learned)
    return TrainingGraph(
        proto,
        weights,
        tuple(name for name in learned if name in near),
        pairs,
        {name: tuple(tensors) for name, tensors in activations.items()},
        quantized,
        cut=cut_and_notes[0],
        origins={
            name: origin for name, origin in origins.items() if name in near and (name in weights or name in moving)
        },
        notes=tuple(cut_and_notes[1]),
    )
