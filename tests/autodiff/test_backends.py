# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""One flavor of onnxruntime per environment, and the gradient back end that it allows."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from qdqtool.autodiff import backends, installed
from qdqtool.autodiff.activity import STEPS
from qdqtool.autodiff.backend import Forward
from qdqtool.autodiff.backends import Builtin, OrtTraining
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.runtime.installed import installed_flavors
from tests.autodiff.cases import CASES, GradientCase
from tests.autodiff.contract import assert_in_order, largest_difference
from tests.autodiff.detector_net import detector
from tests.autodiff.running import feed_of, forward_of, gradients_of, parameters_of, prepared, with_loss
from tests.graphs import model_of

BINDING = SimpleNamespace(GradientGraphBuilder=1)
_HAS_WHEEL = any("training" in flavor for flavor in installed_flavors())
with_wheel = pytest.mark.skipif(not _HAS_WHEEL, reason="onnxruntime-training is not installed: make train")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Flavors that pip knows of, and the compiled part that is there."""
    made = SimpleNamespace(flavors=["onnxruntime-training-cpu"], binding=BINDING)
    monkeypatch.setattr(installed, "installed_flavors", lambda: made.flavors)
    monkeypatch.setattr(installed, "_binding", lambda: made.binding)
    return made


def test_the_wheel_is_taken_where_it_is(world: SimpleNamespace) -> None:
    assert installed.check_environment() == "onnxruntime-training-cpu"
    assert installed.has_gradient_kernels()
    installed.check_training_wheel()
    assert [backends.make_backend(name).name for name in ("auto", "ort-training")] == ["ort-training"] * 2


def test_without_the_wheel(world: SimpleNamespace) -> None:
    world.flavors, world.binding = ["onnxruntime"], SimpleNamespace()
    assert not installed.has_gradient_kernels()
    with pytest.raises(MissingPackageError) as error:
        backends.make_backend("ort-training")
    assert error.value.exit_code == 3
    assert re.match("onnxruntime-training-cpu: onnxruntime .*no kernels", str(error.value))


def test_without_any_onnxruntime(world: SimpleNamespace) -> None:
    world.flavors = []
    assert installed.check_environment() == "" and not installed.has_gradient_kernels()
    with pytest.raises(MissingPackageError, match="onnxruntime-training-cpu: is not installed"):
        installed.check_training_wheel()


@pytest.mark.parametrize("name", ["auto", "builtin", "ort-training"])
def test_two_flavors_stop_every_back_end(world: SimpleNamespace, name: backends.BackendName) -> None:
    world.flavors = ["onnxruntime", "onnxruntime-training-cpu"]
    with pytest.raises(MissingPackageError, match="over one another; pip uninstall -y onnxruntime onnx"):
        backends.make_backend(name)


def test_a_wheel_that_was_written_over(world: SimpleNamespace) -> None:
    world.binding = SimpleNamespace()
    assert not installed.has_gradient_kernels()
    with pytest.raises(
        MissingPackageError, match=r"only in part .*--force-reinstall --no-deps onnxruntime-training-cpu"
    ):
        installed.check_training_wheel()


def test_no_such_back_end() -> None:
    with pytest.raises(QdqError, match=r"--backend: 'torch' .*auto, builtin, ort-training"):
        backends.make_backend("torch")  # type: ignore[arg-type]


pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


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
    monkeypatch.setattr("qdqtool.autodiff.backends.check_training_wheel", lambda: None)
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
