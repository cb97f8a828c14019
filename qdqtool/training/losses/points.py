# SPDX-License-Identifier: Apache-2.0
"""Where the student is held against its teacher without labels: outputs of fused groups, heads and graph outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.graph.heads import find_heads
from qdqtool.graph.view import GraphView
from qdqtool.match.groups import find_groups
from qdqtool.rulebook import load_rules

Float32 = npt.NDArray[np.float32]

_APART = 0.01  # of the power: less is what INT8 and corrected biases make
MOST = 48
"""How many points there are at most, heads and outputs beside them not counted; see docs/finetune.md for the cost."""


def choose_points(
    quantized: GraphView,
    form: onnx.ModelProto,
    known: Collection[str],
    most: int = MOST,
    without: Collection[str] = (),
) -> tuple[str, ...]:
    """The tensors whose error against the teacher is minimized, in the order of the graph.

    Heads and float outputs are among them, unless they are judged otherwise. Of the other groups, where there are more
    than `most`, some are taken at even distances along the graph, the last one always (NVIDIA's recipe takes all, or
    every n-th).
    """
    rules = load_rules("gpu")
    made = [name for node in form.graph.node for name in node.output if name]
    shared = (set(made) & set(known)) - set(without)
    groups = {group.output for group in find_groups(quantized, rules)} & shared
    always = [head.key for head in find_heads(quantized, rules.heads)] + [
        value.name for value in form.graph.output if value.type.tensor_type.elem_type in (0, onnx.TensorProto.FLOAT)
    ]
    chosen = {name for name in always if name in shared}
    chosen.update(_spread([name for name in made if name in groups and name not in chosen], most))
    return tuple(name for name in made if name in chosen)


def _spread(names: Sequence[str], most: int) -> list[str]:
    """At most so many of the names, evenly, the last one among them."""
    if len(names) <= most:
        return list(names)
    return [names[place * len(names) // most - 1] for place in range(1, most + 1)]


def rescaled(student: Float32, teacher: Float32) -> bool:
    """Whether one factor per channel (axis 1) explains most of what two tensors differ by: `condition` divided one."""
    if student.ndim < 2 or student.shape != teacher.shape:
        return False
    axes = (0, *range(2, student.ndim))
    s, t = student.astype(np.float64), teacher.astype(np.float64)
    factors = (s * t).sum(axis=axes, keepdims=True) / np.maximum((t * t).sum(axis=axes, keepdims=True), 1e-30)
    apart, left = float(np.square(s - t).sum()), float(np.square(s - factors * t).sum())
    return apart > _APART * float(np.square(t).sum()) and left < apart / 2
