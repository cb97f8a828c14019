# SPDX-License-Identifier: Apache-2.0
"""What a weight adds up to, read in blocks; the bounds themselves are tested with the constraints that read them."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.precision import accumulation
from qdqtool.precision.accumulation import largest_sum


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_sums_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch, block: int, axis: int) -> None:
    monkeypatch.setattr(accumulation, "BLOCK_BYTES", block)
    weight = np.random.default_rng(2).normal(size=(6, 5, 3, 2)).astype(np.float32)
    others = tuple(at for at in range(4) if at != axis % 4)
    total, largest = largest_sum(weight, axis)
    assert total == pytest.approx(np.abs(weight).sum(others).max(), rel=1e-6)
    assert largest == np.abs(weight).max()


def test_an_empty_weight_adds_up_nothing() -> None:
    assert largest_sum(np.zeros((0, 3), np.float32), 0) == (0.0, 0.0)
