# SPDX-License-Identifier: Apache-2.0
"""What is minimized: the loss graph of a training form, its teacher, and what the graph is fed of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.conditioning.edits import changing_steps
from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.passes.relu6 import STEP as RELU6
from qdqtool.pruning.kept_channels import kept_of
from qdqtool.runtime.executor import Executor
from qdqtool.training.batches import Batches
from qdqtool.training.losses.box_losses import LABELED_BOXES, BoxLoss
from qdqtool.training.losses.distill_targets import TargetKind, find_kinds
from qdqtool.training.losses.labels import label_feeds
from qdqtool.training.losses.loss_graph import LossGraph, append_losses
from qdqtool.training.losses.points import choose_points, rescaled
from qdqtool.training.losses.teacher import Teacher, float_twin
from qdqtool.training.options import TrainingOptions
from qdqtool.training.shapes import run_once
from qdqtool.training.student import Session, SessionOptions
from qdqtool.training.training_graph import TrainingGraph

Array = npt.NDArray[Any]

_BALANCED_ON = 8  # held-out batches that say how large each error is
_INNER = 0.5  # share of what lies inside: it keeps few samples from being learned by heart; 0.1 won .1 to .2 dB less
_LEAST_ERROR = 0.01  # of the median error: less is not worth more
_ROUNDING = 1e-11  # of the power: what float32 makes of the same values in another order; there is nothing to learn


@dataclass(frozen=True, eq=False)
class Objective:
    """What is minimized.

    Attributes:
        graph: the form with its loss.
        inputs: names of the model's inputs.
        teacher: None where no term wants one.
        where: the data, for messages.
        leading: terms that lead to the others, and are left out where the model is measured.
        boxes: what makes targets of labeled boxes, by the teacher's outputs.
    """

    graph: LossGraph
    inputs: tuple[str, ...]
    teacher: Teacher | None
    where: object
    leading: frozenset[str] = frozenset()
    boxes: BoxLoss | None = None

    @property
    def measured(self) -> dict[str, float]:
        """What a model is measured by on held-out samples: scalar tensors of the graph -> what each counts."""
        if not self.leading:
            return {self.graph.loss: 1.0}
        weights = self.graph.weights
        return {tensor: weights[name] for name, tensor in self.graph.parts.items() if name not in self.leading}

    def feed(self, batch: Batch) -> Mapping[str, Array]:
        """All that the loss graph is fed of a batch of the data, parameters left out."""
        inputs = {name: batch[name] for name in self.inputs}
        wanted = self.graph.targets
        found = self.teacher.run(inputs) if self.teacher is not None and (wanted or self.boxes) else {}
        targets = {taker: found[name] for name, taker in wanted.items()} if found else {}
        if self.boxes is not None:
            if LABELED_BOXES not in batch:
                raise QdqError(self.where, "has no labeled boxes", "give them as --eval-labels")
            batch = {**batch, **self.boxes.targets(batch[LABELED_BOXES], found)}
        return {**inputs, **targets, **label_feeds(self.graph.label_specs, batch, self.where)}


@dataclass(frozen=True)
class DistillPoints:
    """What the label-free term compares with the teacher.

    Attributes:
        points: tensors.
        kinds: what the network ends in.
        outputs: those names that are outputs of the form.
    """

    points: tuple[str, ...] = ()
    kinds: tuple[TargetKind, ...] = ()
    outputs: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the terms."""
        return (*self.points, *(kind.name for kind in self.kinds))


def make_objective(
    form: TrainingGraph, batches: Batches, options: TrainingOptions, other: Model | None, where: object
) -> Objective:
    """The loss that was asked for, each label-free term weighted by its error at the start.

    Raises:
        QdqError: what a term refuses; labels that do not fit; nothing to minimize.
    """
    given = {tensor.name for tensor in form.proto.graph.initializer}
    names = tuple(value.name for value in form.proto.graph.input if value.name not in given)
    inputs = {name: batches.held[0][name] for name in names}
    shapes = {name: one.shape for name, one in run_once(Model(form.proto), inputs).items()}
    teacher = _teacher(form, inputs, options, other)
    distilled = DistillPoints()
    if teacher is not None and options.loss.label_free_weight:
        distilled = _distill_points(form, teacher, shapes, inputs, own=other is None)

    def build(points: Sequence[str] | Mapping[str, float], leading: frozenset[str] = frozenset()) -> Objective:
        seed = options.run.seed
        graph = append_losses(form.proto, points, options.loss, teacher, shapes, distilled.kinds, seed)
        return Objective(graph, names, teacher, where, leading, options.loss.boxes)

    objective = build(distilled.points)
    if not distilled.names:
        return objective
    alike = not options.labeled and form.in_float
    counts = _balanced(objective, distilled, batches.held[:_BALANCED_ON], alike=alike)
    inside = frozenset(f"match:{name}" for name in distilled.points if name not in distilled.outputs)
    return build(counts, inside if alike and len(inside) < len(objective.graph.parts) else frozenset())


def changed_function(proto: onnx.ModelProto) -> list[str]:
    """The steps of `condition` that changed a model's float function, and `finetune`: it is not a teacher of its own.

    What was trained without Q/DQ is a float model like any other, and `float_twin` takes back the step relu6.
    """
    return [step for step in changing_steps(proto) if step != RELU6]


def _teacher(
    form: TrainingGraph, inputs: Mapping[str, Array], options: TrainingOptions, other: Model | None
) -> Teacher | None:
    """The teacher, where a term wants one; a script may."""
    if other is not None:
        return Teacher(other, inputs, other.name, kept_of(form.quantized.proto), options.provider)
    wanted = options.loss.needs_teacher or options.loss.script
    if options.loss.boxes is None and (changed_function(form.quantized.proto) or not wanted):
        return None  # which places answer for a box, any float function may say
    return Teacher(Model(float_twin(form.proto)), inputs, "the model in float", provider=options.provider)


def _distill_points(
    form: TrainingGraph,
    teacher: Teacher,
    shapes: Mapping[str, tuple[int, ...]],
    inputs: Mapping[str, Array],
    *,
    own: bool,
) -> DistillPoints:
    """What the network ends in, and points inside.

    Of another teacher, no tensor of another shape and none whose channels it has on other scales.
    """
    made = {name for node in form.proto.graph.node for name in node.output} & teacher.names & shapes.keys()
    made &= made if own else teacher.comparable({name: shapes[name] for name in sorted(made)})
    kinds, covered = find_kinds(form.quantized.view, made, shapes)
    ends = {end.tensor for kind in kinds for end in kind.ends}
    points = choose_points(form.quantized.view, form.proto, made, without=ends | covered)
    if points and not own:
        ours = Executor(Model(float_twin(form.proto)), points, "the model in float").run(inputs)
        teacher.shapes(points)
        teacher.fetch(points)
        theirs = teacher.run(inputs)
        points = tuple(name for name in points if not rescaled(ours[name], theirs[name]))
    return DistillPoints(points, kinds, frozenset(value.name for value in form.proto.graph.output))


def _balanced(
    objective: Objective, distilled: DistillPoints, batches: Sequence[Batch], *, alike: bool
) -> dict[str, float]:
    """How much each term counts: the inverse of its error at the start; the ends together as much as what lies inside.

    So the loss begins near 1 and tells what part of the error is left; what is no end is there to lead to them. Where
    it counts `alike`, in a pruned model that learns in float, it does so by the share of the teacher's power that is
    wrong: `prune` fits weights, and by the inverse of their errors its first layers would count a hundred times as
    much as the last ones. There it is no part of what is measured: it gets worse while the ends get better.
    """
    graph, names = objective.graph, distilled.names
    session = Session(Model(graph.proto), [graph.parts[f"match:{name}"] for name in names], SessionOptions())
    errors = np.mean([[float(one) for one in session.run(objective.feed(batch))] for batch in batches], axis=0)
    same = errors <= _ROUNDING  # the first layers of a pruned model are the teacher's
    errors[same] = 1.0
    ends = np.array([name in distilled.outputs for name in distilled.points] + [True] * len(distilled.kinds))
    for some in (ends, ~ends):  # sums and ratios do not compare
        if some.any():
            errors[some] = np.maximum(errors[some], max(_LEAST_ERROR * float(np.median(errors[some])), 1e-12))
    wrong = ~ends & ~same
    if alike and wrong.any():
        errors[~ends] = errors[wrong].mean()
    inner = int((~ends).sum())
    share = 1 - _INNER if inner and ends.any() else 1.0
    shares = np.where(ends, share / max(int(ends.sum()), 1), (1 - share if ends.any() else 1.0) / max(inner, 1))
    return {name: float(part / error) for name, part, error in zip(names, shares, errors, strict=True)}
