# SPDX-License-Identifier: Apache-2.0
"""Versions of TensorRT for RTX, which counts its own, and what is said of INT8 on it wherever it is offered."""

from __future__ import annotations

from typing import TypeAlias

from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion, in_range

RtxVersion: TypeAlias = tuple[int, int, int]

RTX_TARGET = "rtx"
RTX_NAME = "TensorRT for RTX"
NEWEST_RTX: RtxVersion = (1, 7, 1)  # the wheel that the rules were measured with

# One line wherever INT8 for RTX is offered: what is measured, and what is not.
RTX_HONESTY = (
    "NVIDIA's support matrix for TensorRT for RTX lists INT8 as weight-only; that INT8 activations build is measured,"
    " that they are faster than FP16 is not: measure both on your GPU"
)

NO_CACHES = "TensorRT for RTX reads no calibration cache, only Q/DQ models: use insert --target rtx"


def rtx_in_range(spec: str, version: RtxVersion = NEWEST_RTX) -> bool:
    """Whether a version of TensorRT for RTX satisfies every clause of a range such as `>=1.7`.

    Raises:
        QdqError: the range is malformed.
    """
    return in_range(version, spec)


def refuse_trt_version(version: TrtVersion | None) -> None:
    """Refuse a TensorRT version beside the target rtx.

    Raises:
        QdqError: there is one.
    """
    if version is not None:
        reason = f"TensorRT for RTX has versions of its own, and {version.text} is one of TensorRT"
        raise QdqError("--trt-version", reason, "leave it out with --target rtx")
