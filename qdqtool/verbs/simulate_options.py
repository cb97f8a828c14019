# SPDX-License-Identifier: Apache-2.0
"""What `simulate` is asked for. `-h` reads it: no onnx here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from qdqtool.options import Option, TextOption, option
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.target_options import CACHE_TARGETS, VERSION_OF_CACHE, TargetOptions, cache_target
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.cache.text import Cache


@dataclass(frozen=True)
class SimulateOptions(TargetOptions, ExecutionOptions):
    """Whose INT8 is computed. Without a version, it is that of the cache's header, or without a cache the newest.

    Attributes:
        cache: of a plain model: a calibration cache, or its file.
    """

    target: str = option(
        "gpu", "--target", "whose INT8 (default %(default)s)", choices=CACHE_TARGETS, read=cache_target
    )
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion, parse, Option("--trt-version", VERSION_OF_CACHE, metavar="V")
    )
    cache: Cache | str | Path | None = option(None, "--cache", "the calibration cache of a plain model", metavar="C")
    targets: ClassVar[tuple[str, ...]] = CACHE_TARGETS
