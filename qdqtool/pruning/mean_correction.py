# SPDX-License-Identifier: Apache-2.0
"""Biases that make up for the mean of the channels that go: what an operator summed up of them, put into its bias.

An operator reads sum over c of W[:, c] x[c]. Where channel c goes, W[:, c] E[x[c]] stays as a part of the bias, E taken
over data of the original. Edges of padded pictures are not told apart. The edit is one of the original, so that the
check compares the corrected models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.graph.edit import Editor, count_uses, write_constant
from qdqtool.graph.model import Model
from qdqtool.graph.view import Node, Use, attribute
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.pruning.channel_moments import channel_moments
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.probe import Feed, ProbeRun
from qdqtool.pruning.weight_axes import groups_of, is_contraction

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CorrectedModel:
    """The original with corrected biases, and the names of the operators that have one."""

    model: Model
    operators: tuple[str, ...]


def correct_means(cut: Cut, run: ProbeRun, batches: Iterable[Feed]) -> CorrectedModel:
    """Add the mean of what goes to the biases of Conv and Gemm; other operators are left as they are.

    Raises:
        QdqError: see `channel_moments`; a bias would be beyond the largest number of its type.
    """
    nodes = [node for node in cut.channels.view.nodes if is_corrected(cut, node)]
    copy = run.model.copy()
    if not nodes:
        return CorrectedModel(copy, ())
    read = {node.index: (cut.channels.view.root(node.inputs[0]), 1) for node in nodes}
    means = channel_moments(list(dict.fromkeys(read.values())), run, batches)
    view = copy.view
    editor, uses = Editor(view), count_uses(view)
    for node in nodes:
        twin = view.every[node.index]
        added = _lost_mean(cut, node, means[read[node.index]][0])
        held = node.inputs[2] if len(node.inputs) > 2 else ""
        before = view.array(held) if held else None
        write_bias(editor, uses, twin, added if before is None else before.astype(np.float64) + added)
    editor.commit()
    list_as_inputs(copy.proto)
    return CorrectedModel(copy, tuple(node.name for node in nodes))


def write_bias(editor: Editor, uses: Counter[str], node: Node, value: Float64) -> None:
    """Give a Conv or a Gemm a bias, see `write_constant`.

    It is stored in the type of the one before, else as float32.

    Raises:
        QdqError: it is beyond the largest number of its type.
    """
    held = node.inputs[2] if len(node.inputs) > 2 else ""
    before = editor.view.array(held) if held else None
    bias = _as_stored(node, value, np.dtype(np.float32) if before is None else before.dtype)
    write_constant(editor, uses, [Use(node, 2)], bias, f"{node.key}_bias")


def is_corrected(cut: Cut, node: Node) -> bool:
    """Whether a Conv or Gemm loses channels that it sums over, and has or can have a bias in float32."""
    view = cut.channels.view
    if node.op not in ("Conv", "Gemm") or not is_contraction(view, node) or 1 not in cut.kept(node.inputs[0]):
        return False
    if node.op == "Gemm" and (attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0):
        return False
    weight, held = view.array(node.inputs[1]), node.inputs[2] if len(node.inputs) > 2 else ""
    if weight is None or weight.dtype != np.float32 or (node.op == "Gemm" and attribute(node, "transA", 0)):
        return False
    made = cut.channels.atoms.shape(node.outputs[0]) or ()
    return not held or (held in view.initializers and view.shape(held) == made[1:2])


def _as_stored(node: Node, bias: Float64, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        stored = bias.astype(kind)
    if np.isinf(stored).any():
        raise QdqError(node.name, f"would have a bias beyond {kind}", "--no-correct leaves biases as they are")
    return stored


def _lost_mean(cut: Cut, node: Node, mean: Float64) -> Float64:
    """What an operator sums up of the means of the channels that go: one value for each channel that it makes."""
    gone = mean.copy()
    gone[cut.kept(node.inputs[0])[1]] = 0
    weight = np.asarray(cut.channels.view.array(node.inputs[1]), np.float64)
    if node.op == "Gemm":
        return np.asarray((weight if attribute(node, "transB", 0) else weight.T) @ gone)
    groups, each = groups_of(node), weight.reshape(len(weight), weight.shape[1], -1).sum(axis=2)
    parts = each.reshape(groups, -1, each.shape[1]), gone.reshape(groups, -1)
    return np.asarray(np.einsum("goi,gi->go", *parts)).reshape(-1)
