# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of onnxruntime: missing, broken, in part, one flavor over another."""

from __future__ import annotations

import re

import pytest

from qdqtool import doctor
from qdqtool.doctor import Item, diagnose
from qdqtool.errors import QdqError
from qdqtool.import_probe import DRIVER, Loaded
from tests.doctor_world import HERE, RUNTIME, TRIAL, WITH_CUDA, World, sound_machine


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return sound_machine(monkeypatch)


# ------------------------------------------------------------------ onnxruntime


def test_a_runtime_that_lacks_what_the_verbs_need(world: World) -> None:
    error = "AttributeError: module 'onnxruntime' has no attribute 'OrtValue'"
    world.loaded[TRIAL] = Loaded(error=error)
    item = runtime_of(world)
    assert item.state == "wrong" and item.text.startswith("loads, ") and item.text.endswith(f"({error})")
    assert item.todo == 'pip install --force-reinstall "onnxruntime>=1.20"'
    assert TRIAL in world.asked


def test_a_runtime_that_ends_python(world: World) -> None:
    world.loaded[TRIAL] = Loaded(error="ends Python with signal 11")
    assert runtime_of(world).state == "wrong" and not diagnose().ok


@pytest.mark.parametrize(("gradients", "state"), [(True, "ok"), (False, "wrong")])
def test_the_training_wheel_builds_gradients(world: World, gradients: bool, state: str) -> None:
    del world.recorded["onnxruntime"]
    world.add("onnxruntime-training-cpu", "1.19.2")
    world.loaded["onnxruntime"] = Loaded(version="1.19.2", facts=RUNTIME.facts)
    world.loaded[TRIAL] = Loaded(facts={"gradients": gradients})
    item = runtime_of(world)
    assert (item.name, item.state) == ("onnxruntime-training-cpu", state)
    assert ("no gradients" not in item.text) is bool(gradients) and "gradients" in item.text


def test_nothing_is_tried_where_no_runtime_is(world: World) -> None:
    del world.recorded["onnxruntime"]
    world.loaded["onnxruntime"] = Loaded(missing=True)
    assert runtime_of(world).state == "missing" and TRIAL not in world.asked


def test_the_trial_runs_here() -> None:
    pytest.importorskip("onnxruntime", reason="it is what is tried")
    from qdqtool.autodiff.installed import has_gradient_kernels

    assert doctor.try_runtime() == {"gradients": has_gradient_kernels()}


def test_the_trial_tells_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="it is what is tried")
    monkeypatch.delattr(runtime, "OrtValue")
    with pytest.raises(QdqError, match="OrtValue"):
        doctor.try_runtime()


def runtime_of(world: World) -> Item:
    found = [item for item in diagnose().items if item.name.startswith("onnxruntime")]
    assert len(found) == 1
    return found[0]


def test_runtime_names_its_providers_and_who_needs_it(world: World) -> None:
    item = runtime_of(world)
    assert (item.state, item.version) == ("ok", "1.31.1")
    assert "CPUExecutionProvider" in item.text and "every verb" in item.text


@pytest.mark.parametrize(("driver", "first"), [(Loaded(missing=True), "cpu"), (HERE, "gpu")])
def test_no_runtime(world: World, driver: Loaded, first: str) -> None:
    del world.recorded["onnxruntime"], world.loaded["onnxruntime"]
    world.loaded[DRIVER] = driver
    item = runtime_of(world)
    assert item.state == "missing" and diagnose().ok
    assert item.todo.startswith(f'pip install "qdqtool[{first}]"') and "[train]" in item.todo


def test_flavors_over_one_another(world: World) -> None:
    world.recorded["onnxruntime-gpu"] = "1.31.1"
    item = runtime_of(world)
    assert item.state == "wrong" and re.match("onnxruntime and onnxruntime-gpu .*over one another", item.text)
    assert item.todo.startswith("pip uninstall -y onnxruntime onnxruntime-gpu")


@pytest.mark.parametrize("left", [Loaded(facts={"whole": False, "providers": []}), Loaded(missing=True)])
def test_runtime_in_part(world: World, left: Loaded) -> None:
    world.loaded["onnxruntime"] = left
    item = runtime_of(world)
    assert item.state == "wrong" and "in part" in item.text
    assert item.todo == "pip install --force-reinstall --no-deps onnxruntime"


def test_leftovers_of_a_runtime_that_pip_does_not_know(world: World) -> None:
    del world.recorded["onnxruntime"]
    world.loaded["onnxruntime"] = Loaded(facts={"whole": False, "providers": []})
    assert runtime_of(world).state == "wrong"


def test_runtime_that_another_flavor_was_written_over(world: World) -> None:
    world.recorded["onnxruntime"] = "1.30.0"
    item = runtime_of(world)
    assert item.state == "wrong" and re.search("1.30.0, .* 1.31.1:", item.text)


def test_runtime_that_does_not_load(world: World) -> None:
    world.loaded["onnxruntime"] = Loaded(error="ImportError: libstdc++.so.6: version not found")
    item = runtime_of(world)
    assert item.state == "wrong" and "libstdc++" in item.text and "force-reinstall" in item.todo


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        ("onnxruntime", "1.19.2", "wrong"),
        ("onnxruntime", "1.20.0", "ok"),
        ("onnxruntime-gpu", "1.19.0", "wrong"),
        ("onnxruntime-directml", "1.19.0", "wrong"),
        ("onnxruntime-directml", "1.24.0", "ok"),
        ("onnxruntime-training-cpu", "1.19.2", "ok"),
        ("onnxruntime-training", "1.19.2", "ok"),
        ("onnxruntime-training-cpu", "1.18.0", "wrong"),
    ],
)
def test_each_flavor_has_its_floor(world: World, name: str, version: str, state: str) -> None:
    del world.recorded["onnxruntime"]
    world.recorded[name] = version
    world.loaded["onnxruntime"] = Loaded(version=version, facts=RUNTIME.facts)
    world.loaded[TRIAL] = Loaded(facts={"gradients": "training" in name})
    item = runtime_of(world)
    assert (item.name, item.state, item.version) == (name, state, version)
    assert state == "ok" or f'"{name}' in item.todo


def test_runtime_for_gpus_without_a_driver(world: World) -> None:
    world.loaded["onnxruntime"] = WITH_CUDA
    item = runtime_of(world)
    assert item.state == "note" and "no CUDA driver" in item.todo and diagnose().ok
    world.loaded[DRIVER] = HERE
    assert runtime_of(world).state == "ok"
