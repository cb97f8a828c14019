# SPDX-License-Identifier: Apache-2.0
"""Parts of the data of `prune`, and the bar with its time left."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.verbs.prune_samples import HeldOutBatches, Shown, not_held

FEEDS = [{"x": np.full((2,), number)} for number in range(12)]


@pytest.mark.parametrize(("samples", "batches", "count"), [(12, 12, 10), (24, 12, 20), (4, 4, 4), (None, None, None)])
def test_as_many_are_not_held_as_are_walked(samples: int | None, batches: int | None, count: int | None) -> None:
    assert not_held(samples, batches) == count
    if samples == batches == 12:
        assert len(list(HeldOutBatches(FEEDS, held=False))) == count


def test_the_bar_knows_how_many_come(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(Shown(FEEDS, 8, True, there=10))) == 8
    said = capsys.readouterr().err
    assert "importance" in said and "0/8" in said, "of the most that are taken"
    assert len(list(Shown(FEEDS, 20, True, there=12))) == 12
    assert "0/12" in capsys.readouterr().err
    assert len(list(Shown(FEEDS, 8, False))) == 8
    assert capsys.readouterr().err == ""
