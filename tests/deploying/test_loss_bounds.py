# SPDX-License-Identifier: Apache-2.0
"""From which loss on deploy warns, and from which on INT8 is of no use."""

from __future__ import annotations

import math
import re

import pytest

from qdqtool.deploying.loss_bounds import loss_bounds, loss_warning


@pytest.mark.parametrize("metric", ["top1", "map", "voc_ap", "agreement", "agreement1", "fidelity"])
def test_a_warning_comes_long_before_int8_is_left(metric: str) -> None:
    bounds = loss_bounds(metric)
    assert 0 < bounds.warned < bounds.useless < 1
    assert bounds.warned >= loss_bounds("map").warned, "what is no figure of the task says less"


def test_a_large_loss_is_told_with_its_interval_and_the_option() -> None:
    said = "mAP (0.5:0.95) loss 0.0300 (95 %: 0.0200 to 0.0400, 99 samples)"
    warning = f"INT8 loses a lot: {said}; --max-loss 0.02 keeps INT8 only where it loses no more"
    assert loss_warning("map", said, 0.03) == warning
    assert re.search("--labels .*--max-loss 0.15 ", loss_warning("agreement", said, 0.2))


@pytest.mark.parametrize("loss", [0.02, -0.3, math.nan])
def test_a_small_loss_is_not_warned_of(loss: float) -> None:
    assert loss_warning("map", "", loss) == ""
