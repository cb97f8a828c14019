# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""onnxruntime-training: where it is taken, what it refuses, and that its kernels change no more than rounding.

Both back ends read one table, so their agreement is empty about a derivative: differences do, in `test_contract.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.autodiff.backend import Forward
from qdqtool.autodiff.builtin import Builtin
from qdqtool.autodiff.non_differentiable import STEPS
from qdqtool.autodiff.ort_training import OrtTraining
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.runtime.installed import installed_flavors
from tests.autodiff.cases import CASES, GradientCase
from tests.autodiff.contract import assert_in_order, largest_difference
from tests.autodiff.detector_net import detector
from tests.autodiff.running import feed_of, forward_of, gradients_of, parameters_of, prepared, with_loss
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
_HAS_WHEEL = any("training" in flavor for flavor in installed_flavors())
with_wheel = pytest.mark.skipif(not _HAS_WHEEL, reason="onnxruntime-training is not installed: make train")


def forward_from(text: str, opset: int = 17) -> tuple[Forward, dict[str, np.ndarray]]:
    model = with_loss(model_of(f"net {text}", opset))
    feed = feed_of(model)
    return forward_of(model, parameters_of(text, model), feed), feed


def test_operators_are_those_of_the_other_back_end() -> None:
    names = OrtTraining().operators()
    assert names == Builtin().operators()
    assert {case.operator for case in CASES} <= {*names, *STEPS}
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.skipif(_HAS_WHEEL, reason="the wheel is there")
def test_without_the_wheel_it_says_what_to_install() -> None:
    forward, _ = forward_from("(float[2,3] x) => (float[2,3] y) <float[2,3] p> { y = Mul(x, p) }")
    with pytest.raises(MissingPackageError, match=r'onnxruntime-training-cpu: .*pip install "qdqtool\[train\]"'):
        OrtTraining().build(forward)


def test_an_opset_that_the_wheel_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.autodiff.ort_training.check_training_wheel", lambda: None)
    forward, _ = forward_from("(float[2,3] x) => (float[2,3] y) <float[2,3] p> { y = Mul(x, p) }")
    forward.proto.opset_import[0].version = 22
    with pytest.raises(QdqError, match=r"net: .*opset 22, .*ort-training .* 21 "):
        OrtTraining().build(forward)


# --- with the wheel ---


@pytest.mark.train
@with_wheel
@pytest.mark.parametrize("learned", [False, True])
def test_both_back_ends_agree_on_a_detector(learned: bool) -> None:
    model, parameters = detector(learned)
    feed = feed_of(model)
    forward = forward_of(model, parameters, feed, ("scores", "boxes"))
    assert_in_order(OrtTraining(), forward)
    own, other = (gradients_of(backend, forward, feed) for backend in (OrtTraining(), Builtin()))
    assert all(np.abs(gradient).max() > 0 for gradient in own.values())
    difference, name = largest_difference(own, other)
    assert difference <= 1e-5, name


@pytest.mark.train
@with_wheel
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_back_ends_agree_on_each_operator(case: GradientCase) -> None:
    forward, feed = prepared(case)
    difference, name = largest_difference(*(gradients_of(one, forward, feed) for one in (OrtTraining(), Builtin())))
    assert difference <= 2e-5, name


@pytest.mark.train
@with_wheel
def test_it_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Not about a parameter that is also read by a branch without a gradient, nor about an initializer without readers."""
    model, parameters = detector(False)
    OrtTraining().build(forward_of(model, parameters, feed_of(model)))
    text = "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float[2] nobody = {1.0,2.0}> { f = Floor(p) y = Mul(x, p) }"
    OrtTraining().build(forward_from(text)[0])
    assert capfd.readouterr() == ("", "")


@pytest.mark.train
@with_wheel
def test_same_graph_twice() -> None:
    model, parameters = detector(True)
    forward = forward_of(model, parameters, feed_of(model))
    before = model.SerializeToString(deterministic=True)
    one, other = (OrtTraining().build(forward).proto.SerializeToString(deterministic=True) for _ in range(2))
    assert one == other and model.SerializeToString(deterministic=True) == before
