# SPDX-License-Identifier: Apache-2.0
"""Folds BatchNormalization into the weights before it, where that is exact up to one rounding. Edits weights.

Enters the main graph only: bodies of control flow stay as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor, count_uses, release, write_constant
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import is_training
from qdqtool.graph.view import GraphView, Node, Use, attribute
from qdqtool.match.plan import Refusal

Array = npt.NDArray[np.float64]

_FOLDS = frozenset({"Conv", "ConvTranspose", "Gemm"})
_RULE = "fold-bn"


@dataclass(frozen=True)
class _Fold:
    """A BatchNormalization, the operator before it, and what that operator computes with afterwards."""

    norm: Node
    operator: Node
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]


def fold_batch_norms(model: Model) -> list[str]:
    """Fold every BatchNormalization of a main graph that can be folded, and edit the graph; what they made.

    With s = scale / sqrt(var + epsilon): W' = s W along the output channels, b' = s (b - mean) + bias, computed in
    float64 and rounded to float32 once. The operator then makes the tensor that the BatchNormalization made, so no
    tensor that is left changes its name; the one between them is gone. A weight or bias that others read is copied.
    """
    folded: list[str] = []
    while folds := [fold for node in model.view.nodes if isinstance(fold := _considered(model.view, node), _Fold)]:
        view = model.view
        editor = Editor(view)
        uses = count_uses(view)
        for fold in folds:
            _carry_out(editor, fold, uses)
        editor.drop_value_info(fold.norm.inputs[0] for fold in folds)
        folded += [fold.norm.outputs[0] for fold in folds]
        editor.commit()
    return folded


def unfolded_batch_norms(view: GraphView) -> list[Refusal]:
    """The BatchNormalization nodes of a graph that cannot be folded, each with its reason; nothing is edited."""
    found = ((node, _considered(view, node)) for node in view.nodes if node.op == "BatchNormalization")
    return [Refusal(node.key, _RULE, reason) for node, reason in found if isinstance(reason, str)]


def folding_factors(view: GraphView, norm: Node) -> tuple[Array, Array] | None:
    """What a BatchNormalization multiplies by and adds, float64 [channels], where only it reads the operator before it.

    None where it does not normalize by constants, or where the tensor between the two is seen by others.
    """
    operator = view.producers.get(norm.inputs[0]) if norm.op == "BatchNormalization" else None
    if operator is None or operator.op not in _FOLDS or _seen_by_others(view, norm, operator):
        return None
    factors = _factors(view, norm)
    return None if isinstance(factors, str) else factors


def epsilon_of(norm: Node) -> np.float64:
    """What a BatchNormalization adds to its variances."""
    epsilon = attribute(norm, "epsilon", 1e-5)
    return np.float64(epsilon if isinstance(epsilon, float) else 1e-5)


def factor_of(norm: Node, scale: npt.NDArray[np.generic], variance: npt.NDArray[np.generic]) -> Array:
    """What a BatchNormalization multiplies by: scale / sqrt(variance + epsilon), float64 [channels]."""
    return np.asarray(scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon_of(norm)))


def _considered(view: GraphView, norm: Node) -> _Fold | str | None:
    """What folding a node would write, or why it stays; None where it is no BatchNormalization."""
    if norm.op != "BatchNormalization":
        return None
    operator = view.producers.get(norm.inputs[0])
    if operator is None or operator.op not in _FOLDS:
        return "no Conv, ConvTranspose or Gemm makes its input"
    reason = _seen_by_others(view, norm, operator)
    if reason:
        return reason
    factors = _factors(view, norm)
    if isinstance(factors, str):
        return factors
    return _folded(view, norm, operator, *factors)


def _seen_by_others(view: GraphView, norm: Node, operator: Node) -> str:
    """Why the tensor between the two cannot go, "" where it can."""
    between = operator.outputs[0]
    if view.is_output(between):
        return f"{between} is an output of the graph"
    if between in view.captured or len(view.consumers(between)) != 1:
        return f"{between} is read by others, too"
    if between in view.pairs:
        return f"{between} is quantized"
    if is_training(norm):
        return "it is in training mode"
    return ""


def _factors(view: GraphView, norm: Node) -> tuple[Array, Array] | str:
    """What the normalization multiplies by and then adds, per channel, float64; or why it cannot be determined."""
    values: list[Array] = []
    for name in norm.inputs[1:5]:
        value = view.array(name) if view.is_constant(name) and view.root(name) not in view.pairs else None
        if value is None or value.dtype != np.float32 or value.ndim != 1:
            return f"{name} is not a float32 constant of one axis"
        values.append(value.astype(np.float64))
    scale, bias, mean, var = values
    if len({value.size for value in values}) != 1 or not np.all(var + epsilon_of(norm) > 0):
        return "its statistics are not variances"
    factor = factor_of(norm, scale, var)
    return factor, bias - mean * factor


def _folded(view: GraphView, norm: Node, operator: Node, factor: Array, shift: Array) -> _Fold | str:
    weight = _weight(view, operator.inputs[1])
    if weight is None:
        return f"the weight {operator.inputs[1]} is not a float32 constant"
    shape = _per_output(operator, weight.shape, factor.size)
    if shape is None:
        return f"the weight {operator.inputs[1]} has another number of output channels"
    bias = _bias(view, operator, factor.size)
    if bias is None:
        return f"the bias {operator.inputs[2]} is not a float32 constant per channel"
    beta = attribute(operator, "beta", 1.0) if operator.op == "Gemm" else 1.0
    beta = np.float64(beta if isinstance(beta, float) else 1.0)
    if beta == 0:
        return "the operator multiplies its bias by 0"
    with np.errstate(over="ignore", invalid="ignore"):
        wide = _scaled(operator, weight, factor, shape).astype(np.float32)
        moved = ((bias * beta * factor + shift) / beta).astype(np.float32)
    if not (np.isfinite(wide).all() and np.isfinite(moved).all()):
        return "the folded weight exceeds the range of float32"
    return _Fold(norm, operator, wide, moved)


def _weight(view: GraphView, name: str) -> npt.NDArray[np.generic] | None:
    if not view.is_constant(name) or view.root(name) in view.pairs:
        return None
    value = view.array(name)
    return value if value is not None and value.dtype == np.float32 else None


def _bias(view: GraphView, operator: Node, channels: int) -> Array | None:
    """The bias as one value per channel, zeros where there is none; None where it is something else."""
    if len(operator.inputs) < 3 or not operator.inputs[2]:
        return np.zeros(channels)
    value = _weight(view, operator.inputs[2])
    if value is None or value.size not in (1, channels) or (value.ndim and value.shape[-1] != value.size):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (channels,))


def _per_output(operator: Node, shape: tuple[int, ...], channels: int) -> tuple[int, ...] | None:
    """The shape in which one factor per output channel multiplies a weight; None where the numbers differ.

    For ConvTranspose [inputs, outputs / groups, ...] it is that of the weight seen as [groups, inputs / groups, ...].
    """
    groups = attribute(operator, "group", 1)
    groups = groups if isinstance(groups, int) and operator.op == "ConvTranspose" and groups > 0 else 1
    if operator.op == "Conv":
        return (channels,) + (1,) * (len(shape) - 1) if len(shape) > 2 and shape[0] == channels else None
    if operator.op == "Gemm":
        turned = bool(attribute(operator, "transB", 0))
        fits = len(shape) == 2 and shape[0 if turned else 1] == channels
        return ((channels, 1) if turned else (1, channels)) if fits else None
    if len(shape) < 3 or shape[0] % groups or shape[1] * groups != channels:
        return None
    return (groups, 1, shape[1]) + (1,) * (len(shape) - 2)


def _scaled(operator: Node, weight: npt.NDArray[np.generic], factor: Array, shape: tuple[int, ...]) -> Array:
    wide = weight.astype(np.float64)
    if operator.op == "ConvTranspose":
        by_group = wide.reshape(shape[0], -1, *wide.shape[1:])
        return np.asarray((by_group * factor.reshape(shape)).reshape(wide.shape))
    return np.asarray(wide * factor.reshape(shape))


def _carry_out(editor: Editor, fold: _Fold, uses: Counter[str]) -> None:
    weight = fold.operator.inputs[1]
    for index, value in ((1, fold.weight), (2, fold.bias)):
        old = fold.operator.inputs[index] if index < len(fold.operator.inputs) else ""
        name = f"{old}_folded" if old else f"{weight}_bias"
        write_constant(editor, uses, [Use(fold.operator, index)], value, name)
    editor.remove_node(fold.norm)
    for name in fold.norm.inputs[1:5]:
        release(editor, uses, name)
    editor.rename_output(fold.operator, 0, fold.norm.outputs[0])
