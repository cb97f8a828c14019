# SPDX-License-Identifier: Apache-2.0
"""`insert --build`: what INT8 costs and gives, from engines of the model before and after, built on this CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.io import Opened
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_opened
from qdqtool.tensorrt_rtx.cost import EngineCost, cost_of
from qdqtool.tensorrt_rtx.installed import RtxLibrary, require_library


@dataclass(frozen=True)
class Int8Costs:
    """The engine of the Q/DQ model beside that of the model as it was given.

    Attributes:
        int8: of the Q/DQ model as it is written.
        float: of the model before.
    """

    int8: EngineCost
    float: EngineCost

    @property
    def fp16_bytes(self) -> int:
        """Bytes that the model before would move in FP16, an estimate: half of what it moves in FP32."""
        return self.float.bytes_moved // 2

    @property
    def pays(self) -> bool:
        """Whether the INT8 file moves fewer bytes than FP16 would."""
        return self.int8.bytes_moved < self.fp16_bytes

    def lines(self) -> list[str]:
        """What both cost, and whether INT8 may pay: two lines."""
        plans = f"compiler's plan ({self.int8.told}): INT8 file {self.int8.text()}; float file {self.float.text()}"
        half = f"the {self.fp16_bytes / 1e6:.1f} MB that FP16 would move (half of the float file's)"
        if self.pays:
            return [plans, f"INT8 moves fewer bytes than {half}; whether it is faster, only a GPU tells"]
        return [
            plans,
            f"INT8 will not pay: {self.int8.bytes_moved / 1e6:.1f} MB are no fewer bytes than {half}: prefer FP16",
        ]

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "built": self.int8.told,
            "int8": self.int8.to_json(),
            "float": self.float.to_json(),
            "fp16_bytes_estimated": self.fp16_bytes,
            "pays": self.pays,
        }


class CostBuilder:
    """Builds the engine of a model as it was given, and later that of what became of it, for SM89."""

    def __init__(self, opened: Opened, target: str, library: RtxLibrary | None = None) -> None:
        """Build the first engine; before the model is edited.

        Args:
            opened: the model as it was given.
            target: what the Q/DQ are for.
            library: None for the installed one.

        Raises:
            QdqError: the target is not rtx, or the model is refused or not built.
            MissingPackageError: TensorRT for RTX is not installed.
        """
        if target != RTX_TARGET:
            raise QdqError("--build", "engines are built for the target rtx only", "add --target rtx, or leave it out")
        self._library = library or require_library()
        self._opened = opened
        self._before = self._cost(opened)

    def costs(self, proto: onnx.ModelProto) -> Int8Costs:
        """Both engines.

        Args:
            proto: the Q/DQ model, its external data in the same folder.

        Raises:
            QdqError: it is refused or not built.
        """
        written = replace(self._opened, proto=proto, kind="proto", path=None, sha256=None)
        return Int8Costs(self._cost(written), self._before)

    def _cost(self, opened: Opened) -> EngineCost:
        return cost_of(build_opened(opened, RtxBuildOptions(), self._library))
