# SPDX-License-Identifier: Apache-2.0
"""Arrays in files that sessions map."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.runtime import array_file
from qdqtool.runtime.activations import OrtActivations
from qdqtool.runtime.array_file import ArrayFile, drop_pages, maps_files, place_of
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.session import session_options, stand_in, start_session, strip_weights
from tests.graphs import model_of

LARGE = np.arange(1 << 16, dtype=np.float32).reshape(256, 256)
PRODUCT = "g (float[A,256] x) => (float[A,256] z) { z = MatMul(x, w) }"


def _product() -> onnx.ModelProto:
    model = model_of(PRODUCT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(LARGE / np.float32(LARGE.size), "w"))
    return model


def test_an_array_in_a_file_holds_its_values_and_the_file_goes_with_the_last_one() -> None:
    file = ArrayFile()
    first, second = file.add(LARGE), file.add(-LARGE[:, ::2])
    for found, wanted in ((first, LARGE), (second, -LARGE[:, ::2])):
        np.testing.assert_array_equal(found, wanted)
        place = place_of(found)
        assert place is not None
        assert np.fromfile(place.path, np.float32, wanted.size, offset=place.offset).tobytes() == wanted.tobytes()
    path = place.path
    del file, first
    assert path.exists()
    drop_pages(second)
    np.testing.assert_array_equal(second, -LARGE[:, ::2])
    del found, second
    assert not path.exists()


def test_small_arrays_stay_in_memory_and_mapped_ones_where_they_are() -> None:
    file, small = ArrayFile(), np.ones(8, np.float32)
    assert file.add(small) is small
    once = file.add(LARGE)
    assert ArrayFile().add(once) is once


@pytest.mark.parametrize("part", [lambda one: one[1:], lambda one: one.T, lambda one: one + 1, lambda one: one.copy()])
def test_what_is_made_of_a_mapped_array_has_no_place(part: object, tmp_path: Path) -> None:
    LARGE.tofile(tmp_path / "data.bin")
    external = np.memmap(tmp_path / "data.bin", np.float32, "r", 0, LARGE.shape)
    for array in (ArrayFile().add(LARGE), external):
        assert place_of(array) is not None
        assert place_of(part(array)) is None  # type: ignore[operator]
    drop_pages(LARGE)  # in memory: nothing happens


@pytest.mark.parametrize(("module", "call"), [(array_file.tempfile, "mkstemp"), (array_file.os, "pwrite")])
def test_without_room_for_a_file_arrays_stay_in_memory(
    module: object, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    file, before = ArrayFile(), ArrayFile()
    held = before.add(LARGE)
    monkeypatch.setattr(module, call, full)
    assert file.add(LARGE) is LARGE
    np.testing.assert_array_equal(held, LARGE)


def test_what_is_written_in_parts_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(array_file.os, "pwrite", lambda number, data, at: write(number, data[:100_000], at))
    file = ArrayFile()
    for array in (LARGE, -LARGE):
        np.testing.assert_array_equal(file.add(array), array)


IN_A_CYCLE = """
import gc, sys, tempfile
import numpy as np
from qdqtool.runtime.array_file import ArrayFile, place_of
tempfile.tempdir = sys.argv[1]
gc.disable()
held = [ArrayFile().add(np.zeros((256, 256), np.float32))]
held.append(held)
assert place_of(held[0]).path.exists()
del held
gc.freeze()
"""


def test_a_file_goes_with_the_process_whoever_still_holds_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", IN_A_CYCLE, tmp_path], check=True)
    assert not list(tmp_path.iterdir())


def test_a_stand_in_says_where_its_array_lies() -> None:
    array = ArrayFile().add(LARGE)
    place = place_of(array)
    assert place is not None
    found = {item.key: item.value for item in stand_in("w", 1, array.shape, array).external_data}
    assert found == {"location": str(place.path)[1:], "offset": "0", "length": str(LARGE.nbytes)}


@pytest.mark.parametrize("maps", [False, True])
def test_a_session_computes_the_same_with_weights_mapped_and_lent(maps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, model = load_onnxruntime(), _product()
    if maps and not maps_files(runtime):
        pytest.skip("this onnxruntime takes no weights by their place in a file")
    monkeypatch.setattr("qdqtool.runtime.session.maps_files", lambda _: maps)
    x = np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 256)
    parts = strip_weights(Model(model), model.graph.node, file=ArrayFile())
    options = session_options(runtime, "ORT_ENABLE_ALL")
    session = start_session(runtime, (*parts, ["z"]), options, ["CPUExecutionProvider"], "m")
    lent = strip_weights(Model(model), model.graph.node)
    options = session_options(runtime, "ORT_ENABLE_ALL")
    other = start_session(runtime, (*lent, ["z"]), options, ["CPUExecutionProvider"], "m")
    assert session.run(["z"], {"x": x})[0].tobytes() == other.run(["z"], {"x": x})[0].tobytes()


def test_an_observed_model_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_file.tempfile, "tempdir", str(tmp_path))
    activations = OrtActivations(Model(_product()))
    assert len(list(tmp_path.iterdir())) == 1
    ((_, _), (name, found)) = activations.run({"x": np.eye(256, dtype=np.float32)})
    assert name == "z"
    np.testing.assert_array_equal(found, LARGE / np.float32(LARGE.size))
    del activations
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("version", "known"), [("1.20.1", False), ("1.21.0", True), ("1.32.0.dev1", True), ("2.0", True)]
)
def test_sessions_take_places_in_files_from_a_version_on(version: str, known: bool) -> None:
    runtime = type("Runtime", (), {"__version__": version})
    assert maps_files(runtime) is known
