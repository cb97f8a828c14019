# SPDX-License-Identifier: Apache-2.0
"""What the user may say about a calibration, and what holds where nothing is said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from qdqtool.graph.edit import CONDITIONED, get_metadata
from qdqtool.runtime.execution import ExecutionOptions


@dataclass(frozen=True)
class CalibrationOptions(ExecutionOptions):
    """How scales are found.

    Attributes:
        method: auto, mse, max, percentile[=99.99], entropy (TensorRT's) or entropy-stable; "" for the default of who is
            asked, see `with_method` and `default_method`.
        where: what messages call the model.
        beside: another method, whose predicted loss the table tells beside the chosen one's; not `entropy`.
        workers: threads that share one session; the scales are the same for any number.
        max_memory: the most that the arrays of the batches at work and the histograms may take, in bytes; the tensors
            are then fetched in as many walks over the data as that needs.
        checkpoint: a file to keep the work in; see checkpoint.py. It stays there when all is done.
        resume: whether a checkpoint that is there is continued.
        derive: whether histograms that follow exactly from others are derived; False counts every tensor itself.
        inner: whether tensors inside what is fused (before a BatchNormalization, before a Relu) get scales that follow
            from what comes out, and are not fetched; not with `entropy`, which does as TensorRT does, nor without
            `derive`.
        candidates: whether the table lists what `auto` tried for each point and what its consumers lose with it.
    """

    method: str = ""
    where: str = "model"
    beside: str = ""
    workers: int = 1
    max_memory: int | None = None
    checkpoint: Path | None = None
    resume: bool = False
    derive: bool = True
    inner: bool = True
    candidates: bool = False


def with_method(options: CalibrationOptions | None, method: str = "mse") -> CalibrationOptions:
    """The options, with this method where they name none."""
    options = options or CalibrationOptions()
    return options if options.method else replace(options, method=method)


def default_method(proto: onnx.ModelProto, *, once: bool = False) -> str:
    """`auto`; `mse` for a model that `condition` edited, and for data that can be walked only `once`.

    Measured on labeled models (tests/bench/README.md): `auto` is nowhere worse than `mse` beyond the interval of the
    difference, and far better where `mse` fails; behind `condition`, which leaves little to choose, it is worse on two.
    """
    return "mse" if once or get_metadata(proto, CONDITIONED) else "auto"
