# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of installations: sound ones, broken ones, clashes. Packages are played, but for one look."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qdqtool
from qdqtool import doctor
from qdqtool.amax import kernel
from qdqtool.doctor import OPTIONAL, Diagnosis, Item, diagnose, version_of, visible_gpus
from qdqtool.errors import QdqError
from qdqtool.import_probe import DRIVER, Loaded
from qdqtool.requirements import own_requirements
from tests.doctor_world import HERE, World, sound_machine


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return sound_machine(monkeypatch)


def test_sound_machine(world: World) -> None:
    found = diagnose()
    assert found.ok and found.wrong == ()
    assert {item.name for item in found.items if item.state == "missing"} == {
        "tensorrt-rtx",
        *(one.name for one in OPTIONAL),
    }
    assert not [item for item in found.items if item.state == "note"]
    sections = [item.section for item in found.items]
    assert sections == sorted(sections, key=["program", "needed", "optional", "machine"].index)
    assert found.to_json()["ok"] is True


# ------------------------------------------------------------------ the program and what it needs


def test_program(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    item = world.item("qdqtool")
    assert (item.state, item.version) == ("ok", qdqtool.__version__)
    assert str(Path(qdqtool.__file__).parent) in item.text and "by pip" in item.text
    world.recorded["qdqtool"] = qdqtool.__version__
    assert "not installed" not in world.item("qdqtool").text
    world.recorded["qdqtool"] = "0.0.1"
    item = world.item("qdqtool")
    assert item.state == "note" and "beside the 0.0.1" in item.text and item.todo
    del world.recorded["qdqtool"]
    monkeypatch.setattr(doctor, "own_requirements", lambda: ())
    assert world.item("qdqtool").state == "wrong"
    assert world.item("Python").version == ".".join(map(str, sys.version_info[:3]))


def test_needed_package_that_is_missing(world: World) -> None:
    del world.recorded["onnx-graphsurgeon"]
    world.loaded["onnx_graphsurgeon"] = Loaded(missing=True)
    item = world.item("onnx-graphsurgeon")
    assert (item.state, item.text) == ("wrong", "is missing")
    assert item.todo == 'pip install "onnx-graphsurgeon>=0.6.1"'


@pytest.mark.parametrize(
    ("version", "state"), [("1.21.9", "wrong"), ("1.22", "ok"), ("1.22.0rc1", "ok"), ("2.0", "ok")]
)
def test_needed_package_that_is_too_old(world: World, version: str, state: str) -> None:
    world.recorded["onnx"] = version
    item = world.item("onnx")
    assert (item.state, item.version) == (state, version)
    if state == "wrong":
        assert re.match("is 1.21.9, .*onnx>=1.22$", item.text) and item.todo == 'pip install "onnx>=1.22"'


def test_needed_package_that_does_not_load(world: World) -> None:
    world.loaded["numpy"] = Loaded(error="ImportError: numpy.core failed")
    item = world.item("numpy")
    assert item.state == "wrong" and "ImportError: numpy.core failed" in item.text
    assert item.todo == 'pip install --force-reinstall "numpy>=1.26"'


def test_needed_package_without_pip_s_record(world: World) -> None:
    del world.recorded["tqdm"]
    world.loaded["tqdm"] = Loaded(version="4.1")
    assert (world.item("tqdm").state, world.item("tqdm").version) == ("wrong", "4.1")


# ------------------------------------------------------------------ the other optional packages


def test_every_extra_is_looked_at() -> None:
    extras = {one.extra for one in own_requirements()} - {""}
    assert extras == {one.extra for one in OPTIONAL} | {
        "cpu",
        "gpu",
        "rtx",
        "train",
        "test",
        "lint",
        "dev",
        "docs",
        "browser",
    }


@pytest.mark.parametrize("one", OPTIONAL, ids=lambda one: one.name)
def test_optional_package(world: World, one: doctor.Extra) -> None:
    item = world.item(one.name)
    assert item.state == "missing" and item.todo == f'pip install "qdqtool[{one.extra}]"' and one.serves in item.text
    if one.name != "tensorrt":
        assert one.module not in world.asked, "what is not there need not be imported"
    world.loaded[DRIVER] = HERE
    world.add(one.wheels[0], "10.3.0", one.module)
    item = world.item(one.name)
    assert (item.state, item.version) == ("ok", "10.3.0") and one.serves in item.text
    assert one.module in world.asked or not one.module


@pytest.mark.parametrize("one", [one for one in OPTIONAL if one.module], ids=lambda one: one.name)
def test_optional_package_that_is_broken(world: World, one: doctor.Extra) -> None:
    world.loaded[DRIVER] = HERE
    world.add(one.wheels[0], "10.3.0", one.module, error="ImportError: libx.so.1: cannot open")
    item = world.item(one.name)
    assert item.state == "wrong" and "libx.so.1" in item.text and item.todo.startswith("pip install")
    assert not diagnose().ok
    world.add(one.wheels[0], "10.3.0", one.module, missing=True)
    assert "files" in world.item(one.name).text


def test_optional_package_that_is_too_old(world: World) -> None:
    world.add("pillow", "9.5.0", "PIL.Image")
    item = world.item("pillow")
    assert item.state == "wrong" and item.text.startswith("is 9.5.0, ") and item.text.endswith(" pillow>=10")


def test_torch_is_not_imported(world: World) -> None:
    world.recorded["torch"] = "2.9.0"
    item = world.item("torch")
    assert (item.state, item.version) == ("ok", "2.9.0") and "not loaded" in item.text
    assert "torch" not in world.asked


@pytest.mark.parametrize(
    ("version", "state"),
    [("8.4.3.1", "note"), ("8.5.1.7", "ok"), ("10.16.1.11", "ok"), ("11.0.0.114", "note")],
)
def test_tensorrt_with_and_without_calibrators(world: World, version: str, state: str) -> None:
    world.add("tensorrt", version)
    item = world.item("tensorrt")
    assert (item.state, item.version) == (state, version) and diagnose().ok
    assert ("has no calibrators" if state == "note" else "it has calibrators") in item.text


def test_tensorrt_of_a_system_without_pip_s_record(world: World) -> None:
    world.add("tensorrt", version="", module="tensorrt", missing=False)
    world.loaded["tensorrt"] = Loaded(version="8.5.2.2")
    assert (world.item("tensorrt").state, world.item("tensorrt").version) == ("ok", "8.5.2.2")


def test_tensorrt_wheels_over_one_another(world: World) -> None:
    world.add("tensorrt", "10.3.0")
    world.recorded["tensorrt-cu12"] = "10.3.0"
    assert world.item("tensorrt").state == "ok"
    world.recorded["tensorrt-cu13"] = "10.16.1"
    item = world.item("tensorrt")
    assert item.state == "wrong" and re.match("tensorrt-cu12 and tensorrt-cu13 .*over one another", item.text)


def test_pycuda_without_a_driver(world: World) -> None:
    world.add("pycuda", "2025.1", "pycuda.driver", error="ImportError: libcuda.so.1")
    item = world.item("pycuda")
    assert item.state == "note" and "driver" in item.todo


# ------------------------------------------------------------------ the machine


@pytest.mark.parametrize(
    ("driver", "gpus", "state", "part"),
    [
        (Loaded(missing=True), [], "ok", "not found; only a GPU or TensorRT needs it"),
        (Loaded(missing=True), ["Orin"], "note", "there is a GPU (Orin)"),
        (HERE, [], "ok", "CUDA up to 12.4; GPU: none found"),
        (HERE, ["A", "B"], "ok", "GPU: A, B"),
        (Loaded(error="libcuda.so.1 is there but gives error 34"), [], "wrong", "error 34"),
    ],
)
def test_driver(world: World, driver: Loaded, gpus: list[str], state: str, part: str) -> None:
    world.loaded[DRIVER], world.gpus = driver, gpus
    item = world.item("CUDA driver")
    assert item.state == state and part in item.text


def test_gpus_that_the_kernel_shows(tmp_path: Path) -> None:
    assert visible_gpus(tmp_path) == []
    (tmp_path / "dev").mkdir()
    for name in ("nvidia1", "nvidia0", "nvidiactl", "null"):
        (tmp_path / "dev" / name).touch()
    assert visible_gpus(tmp_path) == ["/dev/nvidia0", "/dev/nvidia1"]
    for bus, model in (("0000:02", "NVIDIA B"), ("0000:01", "NVIDIA A")):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   5\n")
    assert visible_gpus(tmp_path) == ["NVIDIA A", "NVIDIA B"]


def test_kernel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (world.item("histograms").state, world.item("histograms").text) == ("ok", "the C kernel counts")
    monkeypatch.setattr(kernel, "in_use", lambda: "numpy")
    assert world.item("histograms").state == "note" and diagnose().ok

    def refuse() -> str:
        raise QdqError("QDQTOOL_KERNEL", "is 'rust'", "set it to c or numpy, or unset it")

    monkeypatch.setattr(kernel, "in_use", refuse)
    item = world.item("histograms")
    assert (item.state, item.text) == ("wrong", "QDQTOOL_KERNEL is 'rust'") and "unset" in item.todo


def test_kernel_without_numpy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("qdqtool.amax.kernel")
    monkeypatch.setitem(sys.modules, "qdqtool.amax.kernel", None)
    assert world.item("histograms").state == "note"


def test_cpus(world: World) -> None:
    assert re.match(r"\d+", world.item("CPUs").text)


# ------------------------------------------------------------------ this machine


def test_damaged_record_of_pip_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(_: str) -> str:
        raise KeyError("Version")

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert version_of("numpy") == ""


@pytest.mark.slow
def test_real_look_brings_no_package_here() -> None:
    code = (
        "import sys, qdqtool; found = qdqtool.diagnose()\n"
        "print(*sorted({'onnx', 'onnxruntime', 'PIL', 'distributed', 'torch'} & sys.modules.keys()))\n"
        "print(*(f'{i.name}={i.version}' for i in found.items if i.section == 'needed'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    want = [f"{one.name}={version_of(one.name)}" for one in own_requirements() if not one.extra and one.applies]
    assert done.stdout.split() == want


def test_item_without_an_ailment_is_ok() -> None:
    ill = Item("machine", "a", "wrong")
    assert Diagnosis((Item("machine", "b", "note"), ill)).wrong == (ill,)
    assert not Diagnosis((ill,)).ok
