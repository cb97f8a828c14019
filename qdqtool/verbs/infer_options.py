# SPDX-License-Identifier: Apache-2.0
"""What `infer` is asked for. `-h` reads it: no onnx here."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.evaluation.decode_options import NAMES, DecodeOptions
from qdqtool.options import option
from qdqtool.runtime.execution import ExecutionOptions


@dataclass(frozen=True)
class InferOptions(ExecutionOptions):
    """How pictures are made.

    Attributes:
        reading: decoder or script, thresholds; None for `DecodeOptions()`: recognized, score above 0.3.
        names: "coco", a file of class names, or names with commas between; None shows numbers.
        force: whether a folder that holds files will do; those of the same name are replaced.
    """

    reading: DecodeOptions | None = None
    names: str | None = option(None, NAMES)
    force: bool = option(False, "--force", "write into a folder that is not empty")
