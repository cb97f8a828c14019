# SPDX-License-Identifier: Apache-2.0
"""One flavor of onnxruntime per environment, and the gradient back end that it allows."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from qdqtool.autodiff import backends, installed
from qdqtool.errors import MissingPackageError, QdqError

BINDING = SimpleNamespace(GradientGraphBuilder=1)


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
