# SPDX-License-Identifier: Apache-2.0
"""The trial build that doctor asks for: the real library builds it, a broken one is one line of doctor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qdqtool import doctor
from qdqtool.doctor import RTX, Item
from qdqtool.errors import MissingPackageError
from qdqtool.import_probe import Loaded, load_apart
from qdqtool.tensorrt_rtx import installed
from qdqtool.tensorrt_rtx.installed import RtxLibrary, require_library
from qdqtool.tensorrt_rtx.trial import try_build
from tests.tensorrt_rtx.fake_python import ACCEPTED, giving

LIBRARY = RtxLibrary("/env/bin/python", "1.7.1.116")


def item_of(tried: Loaded) -> Item:
    return doctor._tensorrt_rtx(RTX, doctor._Seen((), {RTX.module: tried}))


@pytest.mark.rtx
def test_the_real_library_builds_the_trial_in_int8() -> None:
    assert try_build(require_library()).products == {"INT8": 1}


@pytest.mark.rtx
def test_doctor_tries_the_real_library_in_a_process_of_its_own() -> None:
    item = item_of(load_apart([RTX.module])[RTX.module])
    assert (item.state, item.version) == ("ok", require_library().version)
    assert "trial engine" in item.text


@pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")
def test_a_trial_is_never_taken_from_the_cache(tmp_path: Path) -> None:
    built = {**ACCEPTED, "build": {"layers": "", "shapes": {}, "engine_bytes": 1}}
    child = giving(tmp_path, built)
    try_build(child)
    try_build(child)
    assert len((tmp_path / "jobs").read_text().splitlines()) == 2


def test_doctor_tells_version_trial_place_and_license(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_library", lambda: LIBRARY)
    item = item_of(Loaded(facts={"cpu_seconds": 0.34}))
    assert (item.state, item.version) == ("ok", "1.7.1.116")
    assert "/env/bin/python; " in item.text and "trial engine in 0.3 CPU s" in item.text
    assert "redistributed" in item.text


def test_doctor_tells_a_library_that_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_library", lambda: LIBRARY)
    item = item_of(Loaded(error="QdqError: trial: TensorRT for RTX 1.7.1.116 was ended by SIGSEGV"))
    assert item.state == "wrong" and "was ended by SIGSEGV" in item.text
    assert item.todo == "/env/bin/python -m pip install --force-reinstall tensorrt-rtx-cu12"


@pytest.mark.parametrize(("reason", "todo"), [("", 'pip install "qdqtool[rtx]"'), ("there is no wheel for macOS", "")])
def test_doctor_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, reason: str, todo: str) -> None:
    monkeypatch.setattr(installed, "why_no_wheel", lambda: reason)
    item = item_of(Loaded(missing=True))
    assert (item.state, item.todo) == ("missing", todo) and reason in item.text


def test_doctor_where_the_named_python_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingPackageError("QDQTOOL_RTX_PYTHON", "names x, which does not run", "name another")

    monkeypatch.setattr(installed, "find_library", missing)
    item = item_of(Loaded(missing=True))
    assert (item.state, item.todo) == ("wrong", "name another")
