# SPDX-License-Identifier: Apache-2.0
"""The back end that needs no GPU: onnxruntime runs the model, the search is ours. It only calls the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qdqtool.amax.method_table import parse_method
from qdqtool.calibration.engine import calibrate_scales
from qdqtool.calibration.tensorrt.backend import Calibrated, Request
from qdqtool.observers.options import CalibrationOptions


@dataclass(frozen=True)
class EmbeddedBackend:
    """Keeps `contract.Backend`; see `calibrate_scales`.

    Attributes:
        options: provider, progress and whatever else the engine takes; the request's method and name go before its own.
    """

    options: CalibrationOptions = field(default_factory=CalibrationOptions)
    name: str = "embedded"

    def check(self, request: Request) -> None:
        """Say no to a method that there is not.

        Raises:
            QdqError: see `parse_method`.
        """
        parse_method(request.method)

    def calibrate(self, request: Request, batches: Iterable[Mapping[str, Any]]) -> Calibrated:
        """Scales as `calibrate_scales` finds them, each of its own tensor as TensorRT does; it writes no cache."""
        options = replace(self.options, method=request.method, where=request.where, inner=False)
        loader: Any = batches
        return Calibrated(calibrate_scales(request.model, loader, options))
