# SPDX-License-Identifier: Apache-2.0
"""The loss graph: a forward graph, every term that was asked for after it, and their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from qdqtool.errors import QdqError
from qdqtool.training.losses.distill_targets import TargetKind, kind_term
from qdqtool.training.losses.labels import LabelInputs, LabelSpec, label_term
from qdqtool.training.losses.nodes import LossValue, Nodes
from qdqtool.training.losses.options import LossOptions
from qdqtool.training.losses.script import Weighted, script_terms
from qdqtool.training.losses.targets import Targets, bound_term, match_term
from qdqtool.training.losses.teacher import Teacher


@dataclass(frozen=True, eq=False)
class LossGraph:
    """A forward graph with a loss.

    Attributes:
        proto: the form's, then the loss; labels and the teacher's tensors are further inputs, the loss and its parts
            further outputs.
        loss: the scalar that is minimized.
        parts: name of each term -> its scalar, unweighted: `match:TENSOR`, `OUTPUT:KIND`, `STUDENT:TEACHER:KIND`, and
            what a script calls its own.
        weights: name of each term -> what it is multiplied by in the loss.
        targets: teacher's tensor -> graph input that takes it.
        label_specs: array that the data must hold -> what it must be.
        extra_parameters: initializers that are trained and not exported (projections).
        notes: what the user should know of the tensors that terms name, a sentence each.
    """

    proto: onnx.ModelProto
    loss: str
    parts: Mapping[str, str]
    weights: Mapping[str, float]
    targets: Mapping[str, str]
    label_specs: Mapping[str, LabelSpec]
    extra_parameters: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the arrays that the data must hold beside the model's inputs; graph inputs of the same names."""
        return tuple(self.label_specs)


def append_losses(
    form: onnx.ModelProto,
    points: Sequence[str] | Mapping[str, float],
    options: LossOptions,
    teacher: Teacher | None,
    shapes: Mapping[str, tuple[int, ...]],
    kinds: Sequence[TargetKind] = (),
    seed: int = 0,
) -> LossGraph:
    """Write every term that is asked for after a forward graph; afterwards the teacher gives what they want.

    Args:
        form: the forward graph, opset 13 to 21, flat; it is copied.
        points: tensors of the label-free term, see `choose_points`; a mapping says how much each of them and of the
            kinds, by its name, counts; else all count the same and 1 together.
        options: what is minimized.
        teacher: may be None where no term wants one.
        shapes: tensor of the form -> its shape at the batch size trained with, from a run.
        kinds: what the network ends in, see `find_kinds`; part of the label-free term.
        seed: of the projections' first values.

    Raises:
        QdqError: a tensor, shape, kind or script that does not do; nothing to minimize.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(form)
    nodes = Nodes(proto, shapes)
    targets, inputs = Targets(nodes, teacher), LabelInputs(nodes)
    weighted = _match_terms(nodes, targets, points, kinds, options.label_free_weight)
    weighted += [(f"{one.output}:{one.kind}", label_term(nodes, inputs, one), one.weight) for one in options.labels]
    if options.boxes is not None:
        weighted += options.boxes.terms(nodes, inputs)
        if teacher is not None:
            teacher.shapes(options.boxes.outputs)
    for index, one in enumerate(options.distill):
        random = np.random.default_rng([seed, index])
        weighted.append((f"{one.pair}:{one.kind}", bound_term(nodes, targets, one, random), one.weight))
    if options.script:
        weighted += script_terms(options.script, nodes, targets, inputs)
    _check_trained(weighted)
    names = _numbered([name for name, _, _ in weighted])
    loss = nodes.named(_total(nodes, weighted), "loss")
    parts = {name: nodes.named(value, f"loss/part/{name}") for name, (_, value, _) in zip(names, weighted, strict=True)}
    if teacher is not None:
        teacher.fetch((*targets.inputs, *(() if options.boxes is None else options.boxes.outputs)))
    weights = {name: weight for name, (_, _, weight) in zip(names, weighted, strict=True)}
    extra, notes = tuple(nodes.parameters), tuple(nodes.notes.values())
    return LossGraph(proto, loss, parts, weights, targets.inputs, inputs.specs, extra, notes)


def _match_terms(
    nodes: Nodes,
    targets: Targets,
    points: Sequence[str] | Mapping[str, float],
    kinds: Sequence[TargetKind],
    weight: float,
) -> list[Weighted]:
    """The label-free terms, which share one weight."""
    if not weight >= 0 or not np.isfinite(weight):
        raise QdqError(f"--distill-weight {weight:g}", "is not 0 or above", "give a weight, or leave it out")
    if not weight:
        return []
    if not points and not kinds:
        raise QdqError(
            "--distill-weight", "student and teacher share no tensor to match", "give labels, --distill or --loss"
        )
    ends = {kind.name: kind for kind in kinds}
    names = [name for name in points if name not in ends]
    if targets.teacher is not None:
        targets.teacher.shapes([*names, *(end.tensor for kind in kinds for end in kind.ends)])  # all in one run
    every = [*names, *ends]
    counts = points if isinstance(points, Mapping) else dict.fromkeys(every, 1 / len(every))
    found = [(name, match_term(nodes, targets, name)) for name in names]
    found += [(name, kind_term(nodes, targets, kind)) for name, kind in ends.items()]
    return [(f"match:{name}", value, weight * counts[name]) for name, value in found]


def _check_trained(weighted: Sequence[Weighted]) -> None:
    if not weighted:
        raise QdqError(
            "loss", "the loss has no terms", "leave out --distill-weight 0, or give --label, --distill or --loss"
        )
    for name, value, _ in weighted:
        if not value.trained:
            raise QdqError(
                name, "this term has no gradient with respect to the model", "name a tensor that depends on weights"
            )


def _total(nodes: Nodes, weighted: Sequence[Weighted]) -> LossValue:
    """The weighted sum of scalars, by few nodes whatever their number."""
    row = nodes.op("Concat", *(value.unsqueeze(0) for _, value, _ in weighted), axis=0)
    return (row * nodes.constant(np.array([weight for _, _, weight in weighted], np.float32))).sum()


def _numbered(names: Sequence[str]) -> list[str]:
    """The names, the second and later of one name with a number after it."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found
