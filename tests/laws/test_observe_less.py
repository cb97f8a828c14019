# SPDX-License-Identifier: Apache-2.0
"""On every trained model: fetching less and by two workers gives the scales of fetching everything by one.

To the bit, but where a tensor that is not fetched lets onnxruntime fuse what it else computes in two steps: a
convolution with its BatchNormalization or activation, and more in gtcrn. There values may differ in their last bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.calibration.engine import calibrate_scales
from qdqtool.graph.io import open_model
from qdqtool.observers.options import CalibrationOptions
from qdqtool.scales import ScaleTable
from tests.laws.law_checks import inputs_for, session_of

# Relative: last bits in the largest value (2e-6 seen), bins of the histogram in what mse chooses (1e-3 seen).
APART = {"max": 1e-5, "entropy": 1e-5, "mse": 5e-3}


def scales(path: Path, method: str, **options: object) -> ScaleTable:
    opened = open_model(path)
    feed = [inputs_for(session_of(path), seed) for seed in range(2)]
    made = CalibrationOptions(method, progress=False, **options)  # type: ignore[arg-type]
    return calibrate_scales(opened.proto, opened.folder, feed, made)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("method", ["max", "mse", "entropy"])
def test_less_is_the_same(shared: Path, method: str) -> None:
    files = sorted((shared / "corpus" / "models").glob("*.onnx"))
    assert files
    for path in files:
        less, everything = scales(path, method, workers=2), scales(path, method, derive=False)
        assert list(less) == list(everything), path.name
        assert less.unscaled == everything.unscaled, path.name
        fused = path.stem == "gtcrn" or any(scale.origin == "derived" for scale in less.scales.values())
        for name, scale in less.scales.items():
            if scale.origin == "derived":  # by another rule than the method; tests/calibration/test_before.py
                continue
            if fused:
                np.testing.assert_allclose(
                    scale.bits, everything[name].bits, APART[method], err_msg=f"{path.name} {name}"
                )
            else:
                assert scale.same_bits(everything[name]), (path.name, name)
