# SPDX-License-Identifier: Apache-2.0
"""What a model wants to be fed, and whether a batch is that: names, shapes, dtypes, values. Not where it is from.

`Input.made_up` gives the values of an input where there are no data.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError

Array = npt.NDArray[Any]
Item = dict[str, Array]  # what a source gives at a time: an array for each input
_MOST_MADE_UP = 1 << 27  # values: a gigabyte while they are drawn, a volume of 512 a side


@dataclass(frozen=True)
class Input:
    """One graph input that must be fed.

    Attributes:
        name: its name.
        shape: its dimensions, None or a name where free; None as a whole where the model does not say.
        dtype: what the model takes.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: np.dtype[Any]

    @property
    def first(self) -> int | None:
        """The size of the first axis where the model fixes it."""
        size = self.shape[0] if self.shape else None
        return size if isinstance(size, int) else None

    @property
    def batched(self) -> bool:
        """Whether any number of samples can lie along the first axis."""
        return self.shape is None or (bool(self.shape) and self.first is None)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape can be fed."""
        if self.shape is None:
            return True
        if len(shape) != len(self.shape):
            return False
        return all(got == want for got, want in zip(shape, self.shape, strict=True) if isinstance(want, int))

    def format_shape(self) -> str:
        """The shape as a message shows it."""
        return "any shape" if self.shape is None else f"[{', '.join('?' if d is None else str(d) for d in self.shape)}]"

    def made_up(self, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        """Values to run the model on where there are no data: floats from a normal distribution, integers 0 and 1.

        Raises:
            QdqError: the input takes strings or another type without such values, or too many of them.
        """
        if self.dtype.kind not in "fiub" and self.dtype.name != "bfloat16":
            raise QdqError(self.name, f"is an input of {self.dtype}, for which no values can be generated", "give data")
        if math.prod(shape) > _MOST_MADE_UP:
            reason = f"is an input of {'x'.join(map(str, shape))} values, too many to generate"
            raise QdqError(self.name, reason, "give data, or smaller shapes")
        drawn = random.integers(0, 2, shape) if self.dtype.kind in "iub" else random.standard_normal(shape)
        return np.asarray(drawn).astype(self.dtype)


def inputs_of(graph: onnx.GraphProto) -> tuple[Input, ...]:
    """The inputs that a run must feed: graph inputs that are not initializers with a default, in graph order.

    Raises:
        QdqError: an input is not a tensor (a sequence, a map) or has no type.
    """
    given = {tensor.name for tensor in graph.initializer} | {tensor.values.name for tensor in graph.sparse_initializer}
    return tuple(_input(value) for value in graph.input if value.name not in given)


def _input(value: onnx.ValueInfoProto) -> Input:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.elem_type:
        raise QdqError(value.name, "is an input that is not a tensor, or has no type", "data cannot be passed to it")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    shape = tuple(_dimension(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
    return Input(value.name, shape, dtype)


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value > 0 else None  # -1 and 0 are how some exporters write "free"
    return dim.dim_param or None


def check_names(where: object, given: Iterable[str], inputs: Iterable[Input]) -> None:
    """Refuse data that lacks an input or has a name that is none.

    Raises:
        QdqError: names what is missing or unknown, and the nearest name there is.
    """
    names, have = [one.name for one in inputs], list(given)
    for name in have:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            guess = f", did you mean {near[0]}" if near else ""
            raise QdqError(where, f"{name!r} is not an input of the model{guess}", f"the inputs are {', '.join(names)}")
    for name in names:
        if name not in have:
            raise QdqError(where, f"holds nothing for the input {name!r}", f"the inputs are {', '.join(names)}")


def checked(where: object, batch: Mapping[str, Array], inputs: Iterable[Input]) -> dict[str, Array]:
    """The batch as the model takes it: all inputs, right shapes, cast only where no value is lost.

    Raises:
        QdqError: a name, rank, shape or dtype is not the input's, or a value is NaN or Inf.
    """
    inputs = tuple(inputs)
    check_names(where, batch, inputs)
    return {one.name: _one(where, batch[one.name], one) for one in inputs}


def check_shape(where: object, shape: tuple[int, ...], one: Input) -> None:
    """Refuse an array of a shape that the input does not take."""
    if one.fits(shape):
        return
    hint = "give arrays of that shape"
    if one.shape and len(shape) == len(one.shape) - 1:
        hint = "the batch axis is missing: array[np.newaxis]"
    raise QdqError(where, f"input {one.name!r} takes {one.format_shape()}, the data has {list(shape)}", hint)


def check_dtype(where: object, dtype: np.dtype[Any], one: Input) -> None:
    """Refuse a dtype of another kind: integers for floats (not normalized yet), floats for integers."""
    if dtype == one.dtype or (dtype.kind == one.dtype.kind == "f") or (dtype.kind in "iu" and one.dtype.kind in "iu"):
        return
    hint = f"save it as {one.dtype}"
    if one.dtype.kind == "f" and dtype.kind in "iu":
        hint = f"preprocess it as the model expects (scale, mean, std) and save it as {one.dtype}"
    raise QdqError(where, f"input {one.name!r} takes {one.dtype}, the data is {dtype}", hint)


def _one(where: object, array: Array, one: Input) -> Array:
    check_shape(where, array.shape, one)
    check_dtype(where, array.dtype, one)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "Inf"
        raise QdqError(where, f"input {one.name!r} holds {what}", "leave such samples out")
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array.astype(one.dtype, copy=False)).reshape(array.shape)  # 0-d stays 0-d
    lossless = np.isfinite(cast).all() if cast.dtype.kind == "f" else np.array_equal(cast, array)
    if array.dtype != one.dtype and not lossless:
        raise QdqError(
            where, f"input {one.name!r} takes {one.dtype}, the data has values beyond it", f"save it as {one.dtype}"
        )
    return cast
