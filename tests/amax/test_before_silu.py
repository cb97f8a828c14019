# SPDX-License-Identifier: Apache-2.0
"""The clipping value of what only a SiLU reads, beside the best one by trial on the values themselves."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.amax.before_silu import amax_mse_before_silu
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.methods import amax_mse

Float32 = npt.NDArray[np.float32]


def silu(x: Float32, behind: float) -> npt.NDArray[np.float64]:
    return np.minimum(x.astype(np.float64) / (1.0 + np.exp(-x.astype(np.float64))), behind)


def error(values: Float32, amax: float, behind: float) -> float:
    scale = amax / 127
    rounded = (np.clip(np.rint(values / scale), -128, 127) * scale).astype(np.float32)
    return float(((silu(rounded, behind) - silu(values, behind)) ** 2).mean())


def of(values: Float32) -> Histogram:
    hist = Histogram()
    hist.add(values)
    return hist


def drawn(spread: float, shift: float) -> Float32:
    draw = np.random.default_rng(int(spread * 10 + shift))
    return (draw.standard_t(5, 40_000) * spread + shift).astype(np.float32)


@pytest.mark.parametrize("behind", [math.inf, 3.0])
@pytest.mark.parametrize(("spread", "shift"), [(0.5, 0.0), (2.0, -1.0), (4.0, -6.0), (4.0, 3.0)])
def test_no_clipping_value_errs_clearly_less(spread: float, shift: float, behind: float) -> None:
    values = drawn(spread, shift)
    best = min(error(values, share * float(np.abs(values).max()), behind) for share in np.geomspace(1, 1 / 64, 200))
    assert error(values, float(amax_mse_before_silu(of(values), behind)), behind) < 1.15 * best


def test_what_lies_far_below_0_is_no_reason_for_a_larger_scale() -> None:
    values = drawn(1.0, 0.0)
    far = np.append(values, np.float32(-100)).astype(np.float32)
    near, own = float(amax_mse_before_silu(of(values))), float(amax_mse(of(far)))
    assert math.isclose(float(amax_mse_before_silu(of(far))), near, rel_tol=0.05)
    assert error(far, own, math.inf) > error(far, near, math.inf)


def test_what_is_cut_off_behind_it_is_none_either() -> None:
    values = np.append(drawn(1.0, 0.0), np.full(400, 50, np.float32))
    assert float(amax_mse_before_silu(of(values))) > 40
    assert 4 <= float(amax_mse_before_silu(of(values), 4.0)) < 6


@pytest.mark.parametrize("values", [[], [0.0, 0.0]])
def test_nothing_but_zeros_has_none(values: list[float]) -> None:
    assert amax_mse_before_silu(of(np.array(values, np.float32))) == 0


def test_values_of_one_sign() -> None:
    for sign in (1, -1):
        values = (sign * np.abs(drawn(1.0, 0.0))).astype(np.float32)
        assert 0 < amax_mse_before_silu(of(values)) <= np.abs(values).max()
