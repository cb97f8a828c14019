# SPDX-License-Identifier: Apache-2.0
"""Options of `lint`. `-h` reads them: no onnx here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdqtool.data.options import DataOptions
from qdqtool.options import Option, TextOption, option
from qdqtool.runtime.execution import PROVIDER
from qdqtool.target_options import TARGETS, TargetOptions
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.dla.rules import Platform
    from qdqtool.graph.io import ModelSource


def split_codes(texts: Iterable[str]) -> tuple[str, ...]:
    """Codes of checks that were given again or with commas between."""
    return tuple(code.strip() for text in texts for code in text.split(",") if code.strip())


@dataclass(frozen=True)
class LintOptions(TargetOptions):
    """What is looked at, beside `TargetOptions`. Without a version, checks for one version only are silent.

    Attributes:
        select: codes to look for; empty for all.
        ignore: codes to leave out.
        fix: codes to repair; empty for none, ("all",) for whatever can be.
        parser: None asks it where TensorRT for RTX is installed and the target is rtx or the version 11 or later.
        source: the FP32 model that the loss on data is measured against; None for the model without its pairs.
        data_options: how data are read, where there are any.
    """

    target: str = option("gpu", "--target", "what runs it (default %(default)s)", choices=TARGETS)
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion,
        parse,
        Option("--trt-version", "such as 7100, 8.5.2, jp4.6 (default: the newest rules)", metavar="V"),
    )
    select: tuple[str, ...] = option(
        (), "--select", "run only these checks: Q001,Q003", metavar="CODES", repeated=True, convert=split_codes
    )
    ignore: tuple[str, ...] = option(
        (), "--ignore", "skip these checks", metavar="CODES", repeated=True, convert=split_codes
    )
    fix: tuple[str, ...] = ()
    platform: Platform | None = option(
        None, "--platform", "whose DLA (default: orin, before TensorRT 8.4 xavier)", choices=("xavier", "orin")
    )
    parser: bool | None = option(
        None,
        "--parser",
        "ask NVIDIA's own parser too (default for rtx and TensorRT 11, where TensorRT for RTX is installed)",
    )
    source: ModelSource | None = option(
        None, "--source", "with --data: the FP32 model (default: MODEL without its Q/DQ)", metavar="M"
    )
    data_options: DataOptions | None = None
    provider: str = option("cpu", PROVIDER)
