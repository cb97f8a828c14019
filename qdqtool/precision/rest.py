# SPDX-License-Identifier: Apache-2.0
"""Which float type what is not INT8 gets in a Q/DQ model: what was asked for, or what the target's version takes.

Not which operators stay FP32 for the sake of their values (`choose.py`). `rest` is no field of `PlanOptions`, as no
plan depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.precision.assignment import REST_TYPES, rest_name
from qdqtool.precision.options import Rest
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.trtversion import FIRST_WITH_TYPED_DLA, TrtVersion

FLOAT, HALF = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)
_FIRST_TYPED = 10  # the first release whose builder and parser are known to take all types from the file
TYPED_NOTE = (
    "operators outside quantized layers are FP32 in the file; TensorRT 11 and later compute them so. For FP16, add"
    " --rest fp16"
)
NO_VALUES_NOTE = (
    "operators outside quantized layers stay FP32, as TensorRT will compute them: which of them can be FP16 depends on"
    " their values; give --data or --scales"
)
DLA_FP32_NOTE = "every operator is FP32 in the file, and this DLA runs FP16 and INT8 alone: leave --rest out"
RTX_NOTE = (
    "operators outside quantized layers are FP32 in the file, and TensorRT for RTX computes them so. For FP16, add"
    " --rest fp16"
)


@dataclass(frozen=True)
class RestType:
    """The float type of what is not INT8.

    Attributes:
        kind: FLOAT, FLOAT16 or BFLOAT16 of onnx.TensorProto.
        note: a sentence on what another choice would give; empty where there is nothing to say.
        for_dla: whether a DLA runs the model, which has no FP32.
    """

    kind: int = FLOAT
    note: str = ""
    for_dla: bool = False

    @property
    def is_half(self) -> bool:
        """Whether it has 16 bits."""
        return self.kind != FLOAT

    @property
    def name(self) -> str:
        """As users write it."""
        return rest_name(self.kind)


def rest_type(asked: Rest | None, target: str, version: TrtVersion | None, *, has_values: bool) -> RestType:
    """The float type for a target and version.

    Asked for, it is that. Else FP16 from TensorRT 11 on, where ranges of the values are known, and FP32 before: a Q/DQ
    model in FP32 can be turned back into the model and a cache without loss. For a DLA scales tell the ranges,
    estimated ones, too: it runs nothing of a file in FP32.

    Raises:
        QdqError: FP16 or BF16 for a version that takes no types from the file, or without known values; BF16 for a DLA.
    """
    for_dla = target == "dla" and version is not None and version.has_typed_dla
    has_values |= for_dla
    if asked is not None and asked not in REST_TYPES:
        raise QdqError(f"--rest {asked}", "is not a float type", f"choose {', '.join(REST_TYPES)}")
    if asked in ("fp16", "bf16"):
        _refuse_untyped(asked, target, version)
        if not has_values:
            reason = f"which operators can be {asked.upper()} depends on their values, which are not known"
            raise QdqError(f"--rest {asked}", reason, "give --data or --scales")
    if asked is not None:
        return RestType(REST_TYPES[asked], DLA_FP32_NOTE if for_dla and asked == "fp32" else "", for_dla)
    if target == RTX_TARGET:
        return RestType(note=RTX_NOTE)
    if version is None:
        return RestType(note=TYPED_NOTE if target == "gpu" else "")
    if version.has_caches or (target == "dla" and not version.has_typed_dla):
        return RestType()
    return RestType(REST_TYPES["fp16"], for_dla=for_dla) if has_values else RestType(note=NO_VALUES_NOTE)


def _refuse_untyped(asked: str, target: str, version: TrtVersion | None) -> None:
    if target == "dla" and (version is None or not version.has_typed_dla):
        first = ".".join(map(str, FIRST_WITH_TYPED_DLA))
        reason = f"a DLA takes types from the file from TensorRT {first} on, and INT8 from a cache before"
        raise QdqError(f"--rest {asked}", reason, f"leave it out, or give --trt-version {first}")
    if target == "dla" and asked == "bf16":
        raise QdqError("--rest bf16", "a DLA runs FP16 and INT8, no BF16", "leave it out")
    if version is not None and version.major < _FIRST_TYPED:
        reason = f"TensorRT {version.text} chooses the float types itself (--fp16) and takes a file in FP32"
        todo = f"leave it out, or give --trt-version {_FIRST_TYPED} or later"
        raise QdqError(f"--rest {asked}", reason, todo)
