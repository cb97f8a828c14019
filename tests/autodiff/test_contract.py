# SPDX-License-Identifier: Apache-2.0
"""What both gradient back ends must do: the slope of every operator, and the contract's order of inputs and outputs."""

from __future__ import annotations

import pytest

from qdqtool.autodiff.backend import GradientBackend
from qdqtool.autodiff.backends import Builtin, OrtTraining
from qdqtool.runtime.installed import installed_flavors
from tests.autodiff.cases import CASES, GradientCase
from tests.autodiff.contract import assert_in_order, assert_slopes
from tests.autodiff.detector_net import detector
from tests.autodiff.running import feed_of, forward_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
_LACKING = not any("training" in flavor for flavor in installed_flavors())
_WHEEL = pytest.mark.skipif(_LACKING, reason="onnxruntime-training is not installed: make train")
_BOTH = [
    pytest.param(Builtin(), id="builtin"),
    pytest.param(OrtTraining(), id="ort-training", marks=[pytest.mark.train, _WHEEL]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("backend", _BOTH)
def test_gradient_is_the_slope(backend: GradientBackend, case: GradientCase) -> None:
    assert_slopes(backend, case)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("backend", _BOTH)
def test_inputs_and_outputs_are_in_order(backend: GradientBackend, learned: bool) -> None:
    model, parameters = detector(learned)
    assert_in_order(backend, forward_of(model, parameters, feed_of(model), ("scores", "boxes")))
