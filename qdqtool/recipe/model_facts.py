# SPDX-License-Identifier: Apache-2.0
"""What a table says of a model file: its size, parameters, multiply-adds and the bytes its layers should move."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.engine.layer_work import find_products
from qdqtool.errors import QdqError
from qdqtool.forecasting.devices import Device, load_device
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.forecasting.model_layers import predict_engine
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.graph.parameters import count_parameters
from qdqtool.graph.shapes import sample_shapes

NO_DEVICE = "none"  # where no latency is forecast


@dataclass(frozen=True)
class ModelFacts:
    """A model's figures.

    Attributes:
        file_bytes: of the file and its data files.
        parameters: values of weights and other constants in float or INT8; scales and zero points left out.
        macs: multiply-adds of its products for one sample; None where a shape is not known.
        bytes_moved: read and written by the layers that TensorRT should build of it (newest rules, GPU), by
            prediction; None where a shape is not known or the rules do not reach.
        forecast_microseconds: of those layers by the cost model for a device of rules/devices.toml, at the rate of
            FP16 where they are not INT8; no measurement. None where `bytes_moved` is, and where there is no device.
        forecast_for: the device, or "none".
        typed: whether floats count as the file has them, as TensorRT 11 builds it; else as FP16.
    """

    file_bytes: int
    parameters: int
    macs: int | None
    bytes_moved: int | None
    forecast_microseconds: float | None = None
    forecast_for: str = NO_DEVICE
    typed: bool = False

    def to_json(self) -> dict[str, Any]:
        """As a record keeps it."""
        return dict(vars(self))


def forecast_device(name: str | None) -> Device | None:
    """The device that a recipe names, its default device where it names none; None for "none".

    Raises:
        QdqError: no such device; the known ones are named.
    """
    return None if name == NO_DEVICE else load_device(name)


def model_facts(path: Path, device: Device | None, *, whole: bool = True, typed: bool = False) -> ModelFacts:
    """Look at a model file.

    Raises:
        QdqError: it cannot be opened.
    """
    opened = open_model(path)
    view = opened.view
    products = [product for _, product in find_products(view, sample_shapes(view))]
    macs = None if None in products else sum(one.macs for one in products if one is not None)
    moved, time = (
        (None, None) if macs is None or not whole else _predicted(opened, device, typed=typed)
    )  # sides that are open would count as 1
    size, said = sum(file.stat().st_size for file in opened.files), NO_DEVICE if device is None else device.name
    return ModelFacts(size, count_parameters(view), macs, moved, time, said, typed)


def _predicted(opened: Model, device: Device | None, *, typed: bool) -> tuple[int | None, float | None]:
    """Bytes moved and the forecast time of the predicted layers."""
    try:
        engine = predict_engine(opened, rest="file" if typed else "as-built")
    except QdqError:
        return None, None
    time = None if engine.work is None or device is None else LayerTimes(device).total(engine.work)
    return engine.forecast().bytes_moved, None if time is None else round(time, 3)
