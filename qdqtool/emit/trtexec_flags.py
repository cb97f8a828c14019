# SPDX-License-Identifier: Apache-2.0
"""Which trtexec knows which flag, as data: one row per flag, each with where it was read. Not which flags are chosen.

A row's versions are those whose released sources parse the flag; `deprecated` is the release that first says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion, in_range


@dataclass(frozen=True)
class Flag:
    """One flag of trtexec.

    Attributes:
        name: with its two dashes.
        trt: the versions that take it.
        deprecated: the versions that take it and say that it will go; empty for none.
        why: what it does here.
        see: where the versions were read.
        status: documented where sources or guides say it, guess where it is from memory.
    """

    name: str
    trt: str
    why: str
    deprecated: str = ""
    see: str = "NVIDIA/TensorRT samples/common/sampleOptions.cpp, branches release/6.0 to release/11.1"
    status: Literal["documented", "guess"] = "documented"


_WEAK_TYPING = (
    "NVIDIA/TensorRT sampleOptions.cpp, branches release/6.0 to release/11.1 (gone in 11.0); include/NvInfer.h v10.12: "
    "deprecated in TensorRT 10.12, superseded by strong typing"
)
_BY_LAYER = f"{_WEAK_TYPING}; not in branch release/8.2, in tag 8.4.1"

_FROM_MEMORY = "from memory: trtexec --help lists it beside --shapes"

FLAGS: tuple[Flag, ...] = (
    Flag("--onnx", ">=6.0", "the model"),
    Flag("--saveEngine", ">=6.0", "where the engine goes"),
    Flag("--int8", ">=6.0,<11", "lets layers run in INT8", ">=10.12,<11", _WEAK_TYPING),
    Flag("--fp16", ">=6.0,<11", "lets layers run in FP16", ">=10.12,<11", _WEAK_TYPING),
    Flag("--bf16", ">=9.0,<11", "lets layers run in BF16", ">=10.12,<11", _WEAK_TYPING),
    Flag(
        "--calib", ">=6.0,<11", "the calibration cache", ">=10.1,<11", f"{_WEAK_TYPING}; NvInfer.h v10.1: calibrators"
    ),
    Flag(
        "--precisionConstraints",
        ">=8.2.1,<11",
        "whether precisions of layers are kept, preferred or ignored",
        ">=10.12,<11",
        f"{_WEAK_TYPING}; not in tag 8.2.0-EA, in branch release/8.2",
    ),
    Flag("--layerPrecisions", ">=8.4,<11", "the precision a layer computes in", ">=10.12,<11", _BY_LAYER),
    Flag("--layerOutputTypes", ">=8.4,<11", "the output type of a layer", ">=10.12,<11", _BY_LAYER),
    Flag("--useDLACore", ">=6.0", "runs what it can on that DLA core"),
    Flag("--allowGPUFallback", ">=6.0", "lets the GPU run what the DLA cannot"),
    Flag("--buildDLAStandalone", ">=8.6", "makes a loadable for the DLA alone; before 8.6 there was --safe"),
    Flag("--inputIOFormats", ">=6.0", "types and layouts of the inputs, such as int8:dla_hwc4"),
    Flag("--outputIOFormats", ">=6.0", "types and layouts of the outputs"),
    Flag("--shapes", ">=6.0", "one shape for inputs with dynamic dimensions"),
    Flag(
        "--minShapes", ">=6.0", "the smallest shape of inputs with dynamic dimensions", see=_FROM_MEMORY, status="guess"
    ),
    Flag("--optShapes", ">=6.0", "the size that is tuned for", see=_FROM_MEMORY, status="guess"),
    Flag("--maxShapes", ">=6.0", "the largest size", see=_FROM_MEMORY, status="guess"),
    Flag("--explicitBatch", ">=6.0,<10", "takes the batch from the model; always so from 8.0 on", ">=8.0,<10"),
    Flag("--workspace", ">=6.0,<10", "megabytes of scratch memory, 16 unless said", ">=8.4,<10"),
    Flag("--memPoolSize", ">=8.4", "scratch memory by pool; all there is unless said"),
    Flag("--stronglyTyped", ">=9.0", "takes every precision from the graph", ">=11"),
    Flag("--best", ">=7.1,<11", "lets layers run in every precision", ">=10.12,<11", _WEAK_TYPING),
)


def flag(name: str) -> Flag:
    """The row of a flag; KeyError where the table has none (our own fault)."""
    return _BY_NAME[name]


def has_flag(name: str, version: TrtVersion) -> bool:
    """Whether that version's trtexec takes the flag."""
    return in_range(version, flag(name).trt)


def is_deprecated(name: str, version: TrtVersion) -> bool:
    """Whether that version's trtexec takes the flag and says that it will go."""
    row = flag(name)
    return bool(row.deprecated) and in_range(version, row.trt) and in_range(version, row.deprecated)


def require_flag(name: str, version: TrtVersion) -> None:
    """Refuse to print a flag that a version does not take.

    Raises:
        QdqError: that version's trtexec stops at the flag.
    """
    row = flag(name)
    if not in_range(version, row.trt):
        raise QdqError(f"trtexec {version.text}", f"does not know {name}", f"it is in {row.trt}")


_BY_NAME = {row.name: row for row in FLAGS}
