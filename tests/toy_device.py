# SPDX-License-Identifier: Apache-2.0
"""A device whose times are those of one figure, for forecasts by hand."""

from __future__ import annotations

from qdqtool.forecasting.devices import CostConstants, Device
from qdqtool.forecasting.layer_time import LayerTimes

NO_LIMIT = 1e9


def toy_times(
    int8: float = NO_LIMIT, half: float = NO_LIMIT, memory: float = NO_LIMIT, launch: float = 0.0
) -> LayerTimes:
    """Times by multiply-adds per microsecond, bytes per microsecond, and microseconds of a launch; no share is lost."""
    rates = {"int8": int8 / 1e3, "half": half / 1e3, "vector": half / 1e3, "single": half / 1e3, "fp8": 0.0, "fp4": 0.0}
    device = Device("toy", "87", units=1, clock=1.0, memory=memory / 1e3, l2=0.0, rates=rates, modes={})
    constants = CostConstants(1.0, 1.0, 1.0, 1.0, 0.0, launch, 1.0, 1.0, 1.0, 2.0, 1.2)
    return LayerTimes(device, constants)
