# SPDX-License-Identifier: Apache-2.0
"""What `evaluate` prints of classes that are not shown."""

from __future__ import annotations

import pytest

from qdqtool import Evaluation
from qdqtool.evaluation.metrics import Figure, Interval


@pytest.mark.parametrize("paired", [True, False])
def test_the_classes_that_are_left_out_are_said_to_be_no_worse(paired: bool) -> None:
    figures = {"top1": tuple(Figure(0.5, Interval(0.4, 0.6)) for _ in range(14))}
    losses = {"top1": tuple(Figure(0.01 * k, Interval(0, 0.2)) for k in range(14))} if paired else {}
    result = Evaluation(
        "top1", "m", "b" if paired else "", 99, figures, figures if paired else {}, losses, tuple(range(13))
    )
    what = "lost no more than these" if paired else "have no lower figure than these"
    assert f"and 3 more classes that {what} (--per-class shows all)" in result.summary()
