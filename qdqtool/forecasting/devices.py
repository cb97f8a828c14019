# SPDX-License-Identifier: Apache-2.0
"""Devices by their published figures, and the constants of the cost model: both are data (`rules/devices.toml`)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.limited_reading import RULES, read_toml
from qdqtool.rule_files import rules_folder

MODE = "@"
"""Between a device and its power mode."""


@dataclass(frozen=True)
class Device:
    """A device by what its maker publishes.

    Attributes:
        name: as rules/devices.toml has it, and its power mode where one was named.
        sm: compute capability without the dot.
        units: multiprocessors.
        clock: GHz.
        memory: bytes per second of its memory, in units of 10^9.
        l2: bytes of its second-level cache.
        rates: number format, or "vector" (FP16 without Tensor Cores) -> multiply-adds of a multiprocessor in a cycle.
        modes: power modes by name, as the file has them.
    """

    name: str
    sm: str
    units: int
    clock: float
    memory: float
    l2: float
    rates: Mapping[str, float]
    modes: Mapping[str, Mapping[str, float]]

    def per_microsecond(self, kind: str) -> float:
        """Multiply-adds per microsecond at the published peak; 0 where it has no instruction for them."""
        return self.rates[kind] * self.units * self.clock * 1e3

    def in_mode(self, mode: str) -> Device:
        """The device in a power mode.

        Raises:
            QdqError: it has none of that name.
        """
        found = next((name for name in self.modes if name.lower() == mode.strip().lower()), None)
        if found is None:
            known = ", ".join(self.modes) if self.modes else "none"
            raise QdqError(f"{self.name}{MODE}{mode}", "no such power mode", f"known are {known}")
        return replace(self, name=f"{self.name}{MODE}{found}", **self.modes[found])  # type: ignore[arg-type]


@dataclass(frozen=True)
class CostConstants:
    """The constants of the cost model, the same for every device and model.

    Attributes:
        tensor: share of the published peak that large products reach on Tensor Cores.
        vector: the same without Tensor Cores, of depthwise convolutions.
        attention: of what products reach, what those of a fused attention reach.
        memory: share of the published bandwidth.
        l2: bytes that a multiprocessor reads from the second-level cache in a cycle.
        launch: clock cycles, in thousands, that a kernel takes beside its work.
        tile: rows times columns that one multiprocessor computes at a time.
        quantized_product: of the share that FP16 reaches, what matrix products in INT8 and FP8 reach.
        fp8_convolution: likewise of convolutions in FP8; those in INT8 reach what FP16 does.
        spread: by what factor a time was off, for four models of five.
        ratio_spread: by what factor a ratio of two formats was off, likewise.
    """

    tensor: float
    vector: float
    attention: float
    memory: float
    l2: float
    launch: float
    tile: float
    quantized_product: float
    fp8_convolution: float
    spread: float
    ratio_spread: float


def known_devices() -> tuple[str, ...]:
    """The names of the devices of rules/devices.toml."""
    return tuple(entry["name"] for entry in device_rules(rules_folder())["device"])


def load_device(name: str | None = None, folder: Path | None = None) -> Device:
    """A device of rules/devices.toml, such as "orin-nx" or "orin-nx@15W"; its default where no name is given.

    Raises:
        QdqError: no such device, or no such power mode; the known ones are named.
    """
    document = device_rules(folder or rules_folder())
    known = {entry["name"]: entry for entry in document["device"]}
    wanted, _, mode = (name or document["default"]).partition(MODE)
    entry = known.get(wanted)
    if entry is None:
        raise QdqError(str(name), "no such device", f"one of {', '.join(sorted(known))}")
    core = next(one for one in document["core"] if one["sm"] == entry["sm"])
    rates = {key: float(entry.get(key, value)) for key, value in core.items() if isinstance(value, (int, float))}
    modes: Sequence[Mapping[str, Any]] = entry.get("modes", ())
    found = Device(
        name=entry["name"],
        sm=entry["sm"],
        units=int(entry["units"]),
        clock=float(entry["clock"]),
        memory=float(entry["memory"]),
        l2=float(entry["l2"]) * 2**20,
        rates=rates,
        modes={one["name"]: {key: value for key, value in one.items() if key != "name"} for one in modes},
    )
    return found.in_mode(mode) if mode else found


@functools.lru_cache(maxsize=4)
def load_constants(folder: Path | None = None) -> CostConstants:
    """The constants of rules/devices.toml."""
    values = {one["name"]: float(one["value"]) for one in device_rules(folder or rules_folder())["constant"]}
    return CostConstants(**{one.name: values[one.name] for one in fields(CostConstants)})


@functools.lru_cache(maxsize=4)
def device_rules(folder: Path) -> Mapping[str, Any]:
    """The rows of a folder's devices.toml."""
    return read_toml(folder / "devices.toml", RULES)
