# SPDX-License-Identifier: Apache-2.0
"""What a cache loses at the outputs: nothing said of harmless ones, much of channels that one range does not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from qdqtool.observers.options import CalibrationOptions
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs import ptq_loss
from qdqtool.verbs.ptq import ptq
from qdqtool.verbs.ptq_options import PtqOptions, PtqResult
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

NET = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,1,1,1] w = {1, 1, 1, 1}> { z = Conv<group=4>(x, w) }"


def made(largest: float) -> PtqResult:
    """A cache by four samples, the first channel of which is so much larger."""
    data = np.random.default_rng(1).normal(size=(4, 4, 8, 8)).astype(np.float32)
    data[:, 0] *= largest
    options = PtqOptions(TrtVersion(10, 3, 0), "gpu", CalibrationOptions("max", progress=False))
    return ptq(model_of(NET), [{"x": data[i : i + 1]} for i in range(4)], options)


def test_channels_that_one_range_does_not_fit_are_a_large_loss() -> None:
    found = made(2000.0).output_loss
    assert found is not None and found.large and found.samples == 4
    assert found.summary() in made(2000.0).summary()


def test_a_harmless_cache_loses_little() -> None:
    found = made(1.0).output_loss
    assert found is not None and found.value is not None and found.value < 0.01


def test_a_large_model_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptq_loss, "MOST_BYTES", 1)
    found = made(1.0).output_loss
    assert found is not None and found.value is None
    assert re.search("not measured, .*large", found.summary())
