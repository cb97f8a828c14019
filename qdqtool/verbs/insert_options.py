# SPDX-License-Identifier: Apache-2.0
"""Options of `insert`. `-h` reads these declarations: no onnx here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from qdqtool.data.options import DataOptions
from qdqtool.errors import QdqError
from qdqtool.match.options import PlanOptions, keep_float
from qdqtool.observers.options import CalibrationOptions
from qdqtool.options import ADVANCED, TextOption, option
from qdqtool.precision.options import Rest


def _range(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        limits = float(low), float(high)
    except ValueError:
        limits = (0.0, 0.0)
    if not colon or not -3e38 < limits[0] < limits[1] < 3e38:
        raise QdqError(f"--input-range {text}", "is not two numbers, the smaller first", "write it like 0:1")
    return limits


@dataclass(frozen=True)
class InsertOptions:
    """How Q/DQ are inserted; what an option's help says in full is not repeated here.

    Attributes:
        plan: target, version, heads, rules.
        calibration: method and provider, or a method's name, where data is given. Without a method: `auto`; `mse` for
            weights that `condition` edited (`default_method`).
        data_options: how data is read.
        fold_constants: their nodes are gone: `peel` gives the model back as it was with its source alone.
        input_range: smallest and largest value of the network's input.
        keep_float: how many operators accuracy may keep in float, or "auto": few, where the loss is concentrated. None
            is "auto" where pairs are placed in a plain model for the GPU by data, else 0; also 0 where `condition`
            has corrected biases already, which would be off in float. Operators by name: `plan.keep_float`.
        max_output_loss: goes with no `keep_float` of its own. The model is written where the loss is missed, too: see
            `InsertResult.misses`.
        condition: "auto", or steps as `condition` takes them; "" for not at all.
        whole_table: whether every float tensor is calibrated, for the table in the metadata; False does the points
            alone, in about half the time, and `peel --target dla` then wants data.
        advise: whether a note says what conditioning is predicted to win, where it is much; takes a look at the data.
        rest: None is "fp16" from TensorRT 11 on, with data or scales, else "fp32" (`precision/rest.py`). Operators
            whose values FP16 does not hold stay FP32.
        opset_lowered_later: the model's opset is lowered before TensorRT reads it: no warning that it is too high.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    calibration: TextOption[CalibrationOptions] = TextOption(CalibrationOptions, CalibrationOptions)
    data_options: DataOptions | None = None
    fold_bn: bool = field(
        default=False,
        metadata=option(
            "--fold-bn", "first fold BatchNormalization into the weights, where that is exact", group=ADVANCED
        ),
    )
    fold_constants: bool = field(
        default=False,
        metadata=option("--fold-constants", "first store what operators compute from constants alone", group=ADVANCED),
    )
    requantize: bool = field(default=False, metadata=option("--requantize", "remove the Q/DQ of the model first"))
    input_range: tuple[float, float] | None = field(
        default=None,
        metadata=option(
            "--input-range",
            "range of the network's input, to estimate scales without data",
            metavar="LO:HI",
            convert=_range,
            group=ADVANCED,
        ),
    )
    keep_float: int | Literal["auto"] | None = field(
        default=None,
        metadata=option(
            "--keep-float",
            "operators that stay in float: names separated by commas; or how many may stay in float for accuracy: a "
            "number, or auto: a few, where the loss is concentrated (default auto with --data for the GPU, else 0)",
            metavar="N",
            read=keep_float,
        ),
    )
    max_output_loss: float | None = field(
        default=None,
        metadata=option(
            "--max-output-loss",
            "keep the cheapest operators in float that reduce the loss at the outputs (0 to 1) to L; exit 1 if that is"
            " not reached",
            metavar="L",
            read=float,
        ),
    )
    condition: str = field(
        default="",
        metadata=option(
            "--condition",
            "edit weights first: auto, or some of relu6,equalize,smooth,shift,clip,correct; see condition -h",
            metavar="STEPS",
        ),
    )
    advise: bool = False
    whole_table: bool = field(
        default=True,
        metadata=option(
            "--points-only",
            "calibrate only tensors that get Q/DQ: faster, but peel --target dla then needs --data",
            group=ADVANCED,
        ),
    )
    allow_empty: bool = field(
        default=False,
        metadata=option(
            "--allow-empty",
            "if nothing can be quantized, write the model without Q/DQ instead of stopping",
            group=ADVANCED,
        ),
    )
    build: bool = field(
        default=False,
        metadata=option(
            "--build",
            "with --target rtx: build engines of the float, FP16 and INT8 file on this CPU, and say what INT8 costs",
        ),
    )
    rest: Rest | None = field(
        default=None,
        metadata=option(
            "--rest",
            "float type of operators that are not INT8, written as Casts (default: fp16 from --trt-version 11 on, "
            "with data or scales; else fp32)",
            choices=get_args(Rest),
        ),
    )
    dq_only: bool = field(
        default=False,
        metadata=option(
            "--dq-only",
            "store quantized weights as INT8, with only a DequantizeLinear after them",
            group=ADVANCED,
        ),
    )
    opset_lowered_later: bool = field(
        default=False,
        metadata=option("--opset-lowered-later", None),  # given by `run`
    )
