# SPDX-License-Identifier: Apache-2.0
"""Devices against dense peaks of their data sheets, apart from the figures of their rows."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.forecasting.devices import known_devices, load_constants, load_device


@pytest.mark.parametrize(
    ("name", "kind", "tera"),  # dense operations of data sheets, two in a multiply-add
    [
        ("t4", "half", 65), ("t4", "int8", 130),
        ("v100", "half", 125), ("v100", "int8", 62.7),
        ("a10", "half", 125), ("a10", "int8", 250),
        ("a100", "half", 312), ("a100", "int8", 624), ("a100", "single", 156),
        ("rtx3090", "half", 142), ("rtx3090", "int8", 284),
        ("rtx4090", "half", 330), ("rtx4090", "fp8", 661),
        ("rtx5090", "fp8", 838), ("rtx5090", "fp4", 1676),
        ("l4", "half", 121), ("l4", "single", 60), ("l40s", "int8", 733), ("l40s", "single", 183),
        ("pro6000", "single", 252), ("a10", "single", 62.5), ("rtx3060-laptop", "single", 12.9),
        ("h100", "half", 989), ("h100", "fp8", 1979),
        ("b200", "half", 2250), ("b200", "fp4", 9000),
        ("xavier", "half", 11), ("xavier", "int8", 22),
        ("orin", "int8", 85), ("orin-nx", "int8", 30), ("orin-nano", "int8", 20), ("orin-nano-super", "int8", 33.5),
        ("thor", "fp4", 1035), ("thor", "fp8", 517),
    ],
)  # fmt: skip
def test_peaks_are_those_of_data_sheets(name: str, kind: str, tera: float) -> None:
    assert 2 * load_device(name).per_microsecond(kind) / 1e6 == pytest.approx(tera, rel=0.04)


def test_a_power_mode_changes_clock_units_and_memory_alone() -> None:
    whole, small = load_device("orin"), load_device("orin@15w")
    assert (small.name, small.clock, small.units, small.memory) == ("orin@15W", 0.408, 6, 136.5)
    assert (small.rates, small.l2, small.sm) == (whole.rates, whole.l2, whole.sm)


def test_the_mode_of_the_row_can_be_named() -> None:
    for name in ("orin@MAXN", "orin-nano@15W", "orin-nano-super@MAXN_SUPER", "orin-nx@MAXN", "xavier-nx@20W"):
        device, whole = load_device(name), load_device(name.partition("@")[0])
        assert device.name == name
        assert (device.clock, device.units, device.memory) == (whole.clock, whole.units, whole.memory)


@pytest.mark.parametrize(("name", "named"), [("abacus", "orin-nx"), ("orin@99W", "30W"), ("rtx4090@15W", "none")])
def test_an_unknown_device_or_mode_names_the_known_ones(name: str, named: str) -> None:
    with pytest.raises(QdqError) as caught:
        load_device(name)
    assert name in caught.value.line() and named in caught.value.line()


def test_every_device_has_rates_and_the_constants_are_shares_or_positive() -> None:
    for name in known_devices():
        device = load_device(name)
        assert device.rates["half"] >= device.rates["vector"] > 0 and device.memory > 0 and device.clock > 0
    constants = load_constants()
    shares = (constants.tensor, constants.vector, constants.attention, constants.memory)
    assert all(0 < share <= 1 for share in shares) and min(constants.spread, constants.ratio_spread) > 1
