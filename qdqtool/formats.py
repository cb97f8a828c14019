# SPDX-License-Identifier: Apache-2.0
"""Number formats, rows of rules/formats.toml: codes, element type, the scale of a clipping value. Not their places.

`PlanOptions.format` picks one: `prepare` lifts the model to its opset, rules of a target that are for it alone name it
(`formats = ["fp8"]`), `plan_pairs` gives it to the points, `place` stores weights as its codes. `Point.format` and
`Scale.format` carry it, `Scale.in_format` keeps the clipping value, `pair_format` (`passes/quant_params.py`) reads it
from a pair. `require_format` (`forecasting/boards.py`) refuses what a version or board does not have.
`Peeled.refuse_other_formats` keeps it out of caches, `points_everywhere` off a DLA. A pair that is more than a scale
and a zero point (codes cut off by a Clip, scales in blocks) is written by `_PairWriter` (`passes/insert.py`), rounded
by the search (`measuring/staged_model.py`) and carried into FP16 models by `passes/typed_pairs.py`.

INT8 alone so far: calibration methods (`amax/`), the shadow pass of `--method auto`, `conditioning/`, the first steps
of `training/`, caches, the simulation of a DLA.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError
from qdqtool.rule_files import format_rows

_LARGEST_BLOCK_SCALE = 448  # of E4M3
MIXED = "mixed"
"""The word of `--format` that leaves the format to each operator."""
_MIXED = ("int8", "fp8", "int4")  # of which it is one


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """The codes of quantized tensors: `x = scale * code`, symmetric around zero.

    Attributes:
        name: the row's name, such as "int8".
        title: as people write it, such as "INT8".
        element: name of the ONNX element type of codes and zero point.
        lowest, largest: the codes there are.
        bits: of a code.
        sm: the first compute capability whose Tensor Cores take it, such as 89; 0 for any.
        since: the first TensorRT that has it, major and minor.
        opset: the first ONNX opset that has its Q/DQ.
        per_channel: roles ("activation", "weight") of tensors that may have one scale per channel.
        cache: whether a calibration cache holds its scales.
        method: calibration method of activations, where none is asked for.
        stored: whether a weight stands in a file as "float", with both nodes of its pair, or as "codes".
        roles: of tensors that are quantized.
        operators: products whose weights are quantized; empty for all.
        blocks: lengths of the blocks of a weight that have one scale, the best first; empty where none has blocks.
        scale: name of the ONNX element type that scales of blocks are rounded to before there are codes; FP8 ones are
            multiples of a float32 scale of the tensor.
    """

    name: str
    title: str
    element: str
    lowest: int
    largest: int
    bits: int
    sm: int
    since: tuple[int, int]
    opset: int
    per_channel: tuple[str, ...]
    cache: bool
    method: str
    stored: Literal["float", "codes"]
    roles: tuple[str, ...] = ("activation", "weight")
    operators: tuple[str, ...] = ()
    blocks: tuple[int, ...] = ()
    scale: str = "FLOAT"

    @property
    def codes(self) -> tuple[int, int]:
        """The lowest and the largest code, to which an activation is clipped."""
        return self.lowest, self.largest

    @property
    def weight_codes(self) -> tuple[int, int]:
        """The codes that a weight has, whose scale is its largest magnitude by the largest code."""
        return -self.largest, self.largest

    @property
    def has_two_levels(self) -> bool:
        """Whether scales of blocks are codes themselves, multiples of one scale of the tensor."""
        return self.scale == "FLOAT8E4M3FN"

    @property
    def scale_dtype(self) -> np.dtype[np.generic]:
        """The NumPy type that scales of blocks are rounded to."""
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(int(onnx.TensorProto.DataType.Value(self.scale))))

    @property
    def span(self) -> int:
        """The largest value that a tensor has at the scale 1."""
        return self.largest * (_LARGEST_BLOCK_SCALE if self.has_two_levels else 1)

    @property
    def is_relative(self) -> bool:
        """Whether the codes are floats: every value loses about the same part of itself, whatever its scale is."""
        return "INT" not in self.element

    @property
    def smallest(self) -> float:
        """The smallest code above 0."""
        return float(ml_dtypes.finfo(self.dtype).smallest_subnormal) if self.is_relative else 1.0  # type: ignore[no-untyped-call]

    @property
    def element_type(self) -> int:
        """The element type of codes and zero points, a code of TensorProto."""
        return int(onnx.TensorProto.DataType.Value(self.element))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy type of codes and zero points."""
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(self.element_type))

    def nearest(self, steps: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The codes nearest to values in steps of a scale, ties to even; in float32, and in place for integers.

        Codes of floats are cut off at the lowest and the largest; integers are not.
        """
        if not self.is_relative:
            return np.rint(steps, out=steps)
        lowest, largest = map(np.float32, self.codes)
        cut = np.asarray(np.clip(steps, lowest, largest), np.float32)
        kind = ml_dtypes.finfo(self.dtype)  # type: ignore[no-untyped-call]
        power = (cut.view(np.int32) & np.int32(0x7F800000)).view(np.float32)  # 2 to the exponent of each value
        power = np.maximum(power, np.float32(2.0**kind.minexp))
        power *= np.float32(1.5 * 2 ** (23 - kind.nmant))  # beside it, float32 has the mantissa of the format
        made: npt.NDArray[np.float32] = (cut + power) - power
        return np.copysign(made, cut)  # several times as fast as two casts, to the same bits

    def scale_of(self, amax: npt.NDArray[np.float32] | np.float32 | float) -> npt.NDArray[np.float32]:
        """`float32(amax) / float32(span)`: the scale at which a clipping value has the largest code."""
        scale: npt.NDArray[np.float32] = np.asarray(amax, np.float32) / np.float32(self.span)
        return scale

    def amax_of(self, scale: npt.NDArray[np.float32] | np.float32 | float) -> float:
        """The clipping value of a scale, in float64, where it is exact."""
        return float(scale) * self.span

    def zero_point(self, *shape: int) -> npt.NDArray[np.generic]:
        """The zero point of one scale, or of a vector of them."""
        return np.zeros(shape, self.dtype)

    def has_zero_point(self, zero: npt.NDArray[np.generic] | None) -> bool:
        """Whether a zero point is there, of this element type, and 0."""
        return zero is not None and zero.dtype == self.dtype and not zero.any()


@cache
def number_formats() -> dict[str, NumberFormat]:
    """Name -> format, in the order of rules/formats.toml."""
    names = [one.name for one in fields(NumberFormat)]
    found = {}
    for row in format_rows():
        values = {name: row[name] for name in names if name in row}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        found[row["name"]] = NumberFormat(**{**values, **lists})
    return found


def number_format(name: str) -> NumberFormat:
    """The format of a name.

    Raises:
        QdqError: there is none.
    """
    formats = number_formats()
    if name not in formats:
        raise QdqError("--format", f"{name!r} is not a number format", f"choose {', '.join([*formats, MIXED])}")
    return formats[name]


def formats_of(name: str, release: tuple[int, int] | None = None) -> tuple[NumberFormat, ...]:
    """The formats that a word of `--format` stands for: one, or of `mixed` those that a release of TensorRT reads.

    Raises:
        QdqError: there is none of that name.
    """
    if name != MIXED:
        return (number_format(name),)
    rows = map(number_format, _MIXED)
    return tuple(row for row in rows if release is None or release >= row.since)


@cache
def format_of_element(element_type: int) -> NumberFormat | None:
    """The format whose codes have an element type, a code of TensorProto; None where no row has it.

    UINT8 is INT8: a zero point of 0 or 128 makes TensorRT read the same steps.
    """
    code = onnx.TensorProto.INT8 if element_type == onnx.TensorProto.UINT8 else element_type
    return next((row for row in number_formats().values() if row.element_type == code), None)


INT8, FP8, INT4, NVFP4 = map(number_format, ("int8", "fp8", "int4", "nvfp4"))
