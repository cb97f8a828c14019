# SPDX-License-Identifier: Apache-2.0
"""Terms that pull tensors towards a teacher's: normalized errors at points, and TAO's bindings with projections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.training.losses import terms
from qdqtool.training.losses.nodes import LossValue, Nodes
from qdqtool.training.losses.options import DistillPair
from qdqtool.training.losses.teacher import Teacher


class Targets:
    """The teacher's tensors as inputs of a graph under construction.

    Attributes:
        inputs: teacher's tensor -> graph input, in the order of asking.
        teacher: None where there is none.
    """

    def __init__(self, nodes: Nodes, teacher: Teacher | None) -> None:
        self.inputs: dict[str, str] = {}
        self.teacher = teacher
        self._nodes = nodes
        self._values: dict[str, LossValue] = {}

    def value(self, name: str, where: object) -> LossValue:
        """The graph input that takes a tensor of the teacher.

        Raises:
            QdqError: there is no teacher, or no such tensor in it.
        """
        if self.teacher is None:
            raise QdqError(where, f"needs the teacher's tensor {name}, and no teacher is given", "give --teacher")
        if name not in self._values:
            shape = self.teacher.shapes([name])[name]
            self.inputs[name] = self._nodes.names.unique(f"teacher/{name}")
            self._values[name] = self._nodes.input(self.inputs[name], shape)
        return self._values[name]

    def logits(self, name: str, where: str, axis: int) -> str:
        """The tensor before the Softmax that made one of the teacher's, noted; the tensor itself where none did."""
        before = None if self.teacher is None else self.teacher.before_softmax(name, axis)
        if before is None:
            return name
        said = f"the teacher's {name} is the output of a Softmax and {where} takes logits: {before} is used"
        self._nodes.notes.setdefault(f"teacher/{name}", said)
        return before


def match_term(nodes: Nodes, targets: Targets, tensor: str) -> LossValue:
    """The normalized error of a tensor against the teacher's of the same name.

    Raises:
        QdqError: it is missing on a side, or the shapes differ.
    """
    where = f"--distill-weight {tensor}"
    s, t = nodes.tensor(tensor, where), targets.value(tensor, where)
    if s.shape != t.shape:
        reason = f"the student's is {list(s.shape)}, the teacher's {list(t.shape)}"
        raise QdqError(where, reason, "give the float model that it was made from")
    return terms.normalized_error(s, t)


def bound_term(nodes: Nodes, targets: Targets, binding: DistillPair, random: np.random.Generator) -> LossValue:
    """The term of one `--distill`; where channels alone differ, a 1x1 projection that is trained brings them together.

    Raises:
        QdqError: a tensor is missing on its side (with the nearest name), or the shapes do not go together.
    """
    where = f"--distill {binding.pair}:{binding.kind}"
    student, wanted = split_pair(binding.pair, nodes, targets, where)
    s = nodes.tensor(student, where)
    if binding.kind == "KL":
        axis = terms.axis_of(s, binding.numbers, where)
        s, wanted = nodes.logits(s, "Softmax", where, axis), targets.logits(wanted, where, axis)
    t = targets.value(wanted, where)
    axis = terms.axis_of(s, binding.numbers, where) if s.rank > 1 or binding.kind in ("KL", "COS") else 0
    if s.shape != t.shape:
        _check_projectable(s, t, axis, binding, where)
        s = project(s, t.shape[axis], axis, random)
    if binding.kind == "KL":
        return terms.divergence(s, t, axis, binding.numbers.get("temperature", 1.0))
    if binding.kind == "COS":
        return terms.cosine(s, t, axis)
    return terms.mean_square(s, t) if binding.kind == "L2" else terms.mean_absolute(s, t)


def split_pair(pair: str, nodes: Nodes, targets: Targets, where: str) -> tuple[str, str]:
    """STUDENT and TEACHER of `STUDENT:TEACHER`, also where names hold colons.

    Raises:
        QdqError: the colons can be read in no way or in several.
    """
    words = pair.split(":")
    ways = [(":".join(words[:at]), ":".join(words[at:])) for at in range(1, len(words))]
    known = targets.teacher.names if targets.teacher else frozenset()
    fitting = [way for way in ways if nodes.has(way[0]) and way[1] in known]
    if len(fitting) == 1 or len(ways) == 1:
        return (fitting or ways)[0]
    if fitting:
        listed = " and ".join(f"{one} + {other}" for one, other in fitting)
        raise QdqError(where, f"can be read as {listed}", "rename a tensor in the teacher")
    half = [way for way in ways if nodes.has(way[0]) or way[1] in known]
    if half:
        return half[0]  # whose other side is then named with what is near
    raise QdqError(where, "neither side is a tensor of its model", "qdqtool report MODEL lists the names")


def _check_projectable(s: LossValue, t: LossValue, axis: int, binding: DistillPair, where: str) -> None:
    listed = f"the student's {list(s.shape)} and the teacher's {list(t.shape)}"
    if s.rank != t.rank or s.rank < 2:
        raise QdqError(where, f"{listed} have different ranks or no channels", "name tensors of the same layout")
    rest = [(one, other) for index, (one, other) in enumerate(zip(s.shape, t.shape, strict=True)) if index != axis]
    if any(one != other for one, other in rest):
        raise QdqError(where, f"{listed} differ beside their channels (axis {axis})", "name tensors of the same size")
    if binding.kind == "KL":
        raise QdqError(where, f"{listed} have different numbers of classes", "use L2 or COS, which project")


def project(s: LossValue, channels: int, axis: int, random: np.random.Generator) -> LossValue:
    """A linear map of the channels, the same at every position: weights N(0, 1 / channels of s), bias 0."""
    nodes, own = s.nodes, s.shape[axis]
    base = f"projection/{s.name}"
    bias = np.zeros(channels, np.float32)
    if axis == s.rank - 1:
        weight = nodes.parameter(_normal(random, (own, channels), own), f"{base}/weight")
        return nodes.op("MatMul", s, weight) + nodes.parameter(bias, f"{base}/bias")
    if axis != 1:
        reason = f"{s.name} of shape {list(s.shape)} has its channels on axis {axis}"
        raise QdqError(f"projection of {s.name}", reason, "a projection needs them on axis 1 or the last axis")
    weight = nodes.parameter(_normal(random, (channels, own, *[1] * (s.rank - 2)), own), f"{base}/weight")
    return nodes.op("Conv", s, weight, nodes.parameter(bias, f"{base}/bias"))


def _normal(random: np.random.Generator, shape: tuple[int, ...], inputs: int) -> npt.NDArray[Any]:
    return (random.standard_normal(shape) / math.sqrt(inputs)).astype(np.float32)
