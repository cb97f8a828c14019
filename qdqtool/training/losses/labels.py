# SPDX-License-Identifier: Apache-2.0
"""Losses on labels: which array each one wants, its term in the graph, and whether a batch holds what it should."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from qdqtool.errors import QdqError
from qdqtool.training.losses import terms
from qdqtool.training.losses.nodes import LossValue, Nodes
from qdqtool.training.losses.options import Label, nearest

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LabelSpec:
    """One array that the data must hold beside the model's inputs.

    Attributes:
        name: in the data, and the graph input.
        shape: with the batch along the first axis.
        elem_type: INT64 for class numbers, else FLOAT.
        wanted_by: the loss, for messages.
        lowest, highest: smallest and largest value that make sense; None for any.
    """

    name: str
    shape: tuple[int, ...]
    elem_type: int
    wanted_by: str
    lowest: float | None = None
    highest: float | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """As the graph takes it."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.elem_type))

    @property
    def shape_and_type(self) -> str:
        """The shape and type as a message shows them."""
        return f"{self.dtype} {list(self.shape)}"


class LabelInputs:
    """The label inputs of a graph under construction; two losses may read one array.

    Attributes:
        specs: what was asked for, by name.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.specs: dict[str, LabelSpec] = {}
        self._nodes = nodes
        self._values: dict[str, LossValue] = {}

    def value(self, spec: LabelSpec) -> LossValue:
        """The graph input of an array.

        Raises:
            QdqError: the name is one of the model's own, or another loss wants the array otherwise.
        """
        before = self.specs.get(spec.name)
        if before is None:
            if spec.name in self._nodes.names:
                reason = f"the array {spec.name!r} has the name of a tensor of the model"
                raise QdqError(spec.wanted_by, reason, "give the labels another name in the data")
            self._values[spec.name] = self._nodes.input(spec.name, spec.shape, spec.elem_type)
        elif (before.shape, before.elem_type) != (spec.shape, spec.elem_type):
            reason = (
                f"needs the array {spec.name!r} as {spec.shape_and_type}, {before.wanted_by} as {before.shape_and_type}"
            )
            raise QdqError(spec.wanted_by, reason, "give them arrays of their own")
        self.specs[spec.name] = spec if before is None else _narrower(before, spec)
        return self._values[spec.name]


def _narrower(one: LabelSpec, other: LabelSpec) -> LabelSpec:
    """The limits that suit two losses on one array."""
    lows = [spec.lowest for spec in (one, other) if spec.lowest is not None]
    highs = [spec.highest for spec in (one, other) if spec.highest is not None]
    return replace(one, lowest=max(lows, default=None), highest=min(highs, default=None))


def label_term(nodes: Nodes, inputs: LabelInputs, label: Label) -> LossValue:
    """The term of one `--label`.

    Raises:
        QdqError: no such output, or one whose shape the kind does not go with.
    """
    where = f"--label {label.output}:{label.kind}"
    s = nodes.tensor(label.output, where)
    if s.elem_type != TensorProto.FLOAT:
        raise QdqError(where, "the output is not float32", "name the float tensor before it")
    return _TERMS[label.kind](s, inputs, label, where)


def label_feeds(specs: Mapping[str, LabelSpec], batch: Mapping[str, Array], where: object) -> dict[str, Array]:
    """The label arrays of one batch as the graph takes them.

    Raises:
        QdqError: an array is missing, has another shape or kind of type, holds NaN, or a class that the output lacks.
    """
    return {name: _fed(spec, batch, where) for name, spec in specs.items()}


def _fed(spec: LabelSpec, batch: Mapping[str, Array], where: object) -> Array:
    if spec.name not in batch:
        guess = nearest(spec.name, sorted(batch))
        reason = f"holds no array {spec.name!r}{guess}: {spec.wanted_by} needs {spec.shape_and_type}"
        raise QdqError(where, reason, f"add it to the data, or name another: {spec.wanted_by}:1:NAME")
    array = np.asarray(batch[spec.name])
    what = f"array {spec.name!r} of {spec.wanted_by}"
    if array.shape != spec.shape:
        raise QdqError(where, f"{what} takes {list(spec.shape)}, the data has {list(array.shape)}", _shape_hint(spec))
    if array.dtype.kind not in "biuf":
        raise QdqError(where, f"{what} takes {spec.dtype}, the data is {array.dtype}", "give an array of numbers")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = "NaN" if np.isnan(array).any() else "Inf"
        raise QdqError(where, f"{what} holds {bad}", "leave such samples out, or ignore places with -1 as the label")
    if spec.elem_type == TensorProto.INT64 and array.dtype.kind == "f" and not (array == np.floor(array)).all():
        raise QdqError(where, f"{what} takes class numbers, the data has fractions", "give whole numbers")
    if spec.highest is not None and array.size and array.max() > spec.highest:
        reason = f"{what} takes values up to {spec.highest:g}, the data has {array.max():g}"
        raise QdqError(
            where, reason, "is the number of the first class 0?" if spec.elem_type == TensorProto.INT64 else ""
        )
    if spec.lowest is not None and array.size and array.min() < spec.lowest:
        reason = f"{what} takes values from {spec.lowest:g}, the data has {array.min():g}"
        raise QdqError(where, reason, "give 0 where an anchor is ignored")
    return np.ascontiguousarray(array, spec.dtype).reshape(array.shape)


def _shape_hint(spec: LabelSpec) -> str:
    if spec.elem_type == TensorProto.INT64:
        return "class numbers have the output's shape without its class axis; another axis: KIND=..., see the docs"
    return "give arrays of that shape"


# ---------------------------------------------------------------------- kinds


def _plain(formula: Callable[[LossValue, LossValue], LossValue]) -> Callable[..., LossValue]:
    """A term whose targets have the output's shape."""

    def term(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
        return formula(s, inputs.value(LabelSpec(label.array, s.shape, TensorProto.FLOAT, where)))

    return term


def _classes(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> tuple[LossValue, int]:
    """The class numbers of an output, and its class axis."""
    axis = terms.axis_of(s, label.numbers, where)
    shape = s.shape[:axis] + s.shape[axis + 1 :]
    highest = float(s.shape[axis] - 1)
    return inputs.value(LabelSpec(label.array, shape, TensorProto.INT64, where, None, highest)), axis


def _cross_entropy(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
    numbers, axis = _classes(s, inputs, label, where)
    return terms.cross_entropy(s, numbers, axis, label.numbers.get("smoothing", 0.0))


def _binary_cross_entropy(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
    y = inputs.value(LabelSpec(label.array, s.shape, TensorProto.FLOAT, where, None, 1.0))
    return terms.binary_cross_entropy(s, y, label.numbers.get("smoothing", 0.0))


def _focal(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
    numbers, axis = _classes(s, inputs, label, where)
    options = {name: value for name, value in label.numbers.items() if name != "axis"}
    return terms.softmax_focal(s, numbers, axis, **options)


def _sigmoid_focal(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
    y = inputs.value(LabelSpec(label.array, s.shape, TensorProto.FLOAT, where, None, 1.0))
    return terms.sigmoid_focal(s, y, **label.numbers)


def _dice(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
    numbers, axis = _classes(s, inputs, label, where)
    return terms.dice(s, numbers, axis)


def _sigmoid_dice(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
    y = inputs.value(LabelSpec(label.array, s.shape, TensorProto.FLOAT, where, None, 1.0))
    return terms.sigmoid_dice(s, y, terms.axis_of(s, label.numbers, where))


def _smooth_l1(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
    t = inputs.value(LabelSpec(label.array, s.shape, TensorProto.FLOAT, where))
    return terms.smooth_l1(s, t, label.numbers.get("beta", 1.0))


def _smooth_l1_mask(s: LossValue, inputs: LabelInputs, label: Label, where: str) -> LossValue:
    if s.rank < 2:
        raise QdqError(where, f"{s.name} of shape {list(s.shape)} has no anchors to mask", "use smooth-l1")
    t = inputs.value(LabelSpec(label.array, s.shape, TensorProto.FLOAT, where))
    mask = inputs.value(LabelSpec(label.mask_array, s.shape[:-1], TensorProto.FLOAT, where, 0.0))
    return terms.smooth_l1(s, t, label.numbers.get("beta", 1.0), mask)


_TERMS: Mapping[str, Callable[..., LossValue]] = {
    "ce": _cross_entropy,
    "focal": _focal,
    "sigmoid-focal": _sigmoid_focal,
    "bce": _binary_cross_entropy,
    "dice": _dice,
    "sigmoid-dice": _sigmoid_dice,
    "smooth-l1": _smooth_l1,
    "smooth-l1-mask": _smooth_l1_mask,
    "mse": _plain(terms.mean_square),
    "l1": _plain(terms.mean_absolute),
}
