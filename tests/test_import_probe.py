# SPDX-License-Identifier: Apache-2.0
"""Modules that load, that fail in every way a module can, and what is told of each."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qdqtool import import_probe
from qdqtool.import_probe import DRIVER, Loaded, load_apart, look_at

MODULES = {
    "good_one": "import os\n__version__ = '1.2'\nprint('noise')\nos.write(1, b'more noise')",
    "needs_another": "import no_such_module_at_all",
    "bad_syntax": "def",
    "leaves": "raise SystemExit(0)",
    "falls": "import os\nos._exit(3)",
    "crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "long_words": "raise ValueError('x' * 999)",
    "two_lines": "raise ValueError('first' + chr(10) + 'second')",
    "silent": "raise KeyError",
    "sleeps": "import time\ntime.sleep(60)",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of such modules that Python looks into."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_every_end_is_told_and_the_next_go_on() -> None:
    names = [
        "good_one",
        "crashes",
        "needs_another",
        "bad_syntax",
        "falls",
        "leaves",
        "absent",
        "long_words",
        "two_lines",
        "silent",
    ]
    found = load_apart(names)
    assert list(found) == names
    assert found["good_one"] == Loaded(version="1.2")
    assert found["absent"] == Loaded(missing=True)
    assert found["needs_another"].error == "ModuleNotFoundError: No module named 'no_such_module_at_all'"
    assert found["bad_syntax"].error.startswith("SyntaxError: ")
    assert found["leaves"].error == "SystemExit: 0"
    assert found["crashes"].error.endswith("signal 9")
    assert found["falls"].error.endswith("exit code 3")
    assert found["long_words"].error.startswith("ValueError: xxx") and len(found["long_words"].error) == 200
    assert found["two_lines"].error == "ValueError: first"
    assert found["silent"].error == "KeyError"
    assert not sys.modules.keys() & {*MODULES}


@pytest.mark.usefixtures("folder")
def test_what_hangs_is_left_after_a_while() -> None:
    assert load_apart(["sleeps"], seconds=0.5)["sleeps"].error.endswith("within 0.5 s")


def test_part_of_a_package_that_lacks_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer_one").mkdir()
    (tmp_path / "outer_one" / "__init__.py").write_text("")
    (tmp_path / "outer_one" / "inner.py").write_text("import numpy_of_old")
    monkeypatch.syspath_prepend(tmp_path)
    assert look_at("outer_one.inner")["error"].startswith("ModuleNotFoundError")
    assert look_at("outer_one.other") == {"missing": True}
    assert look_at("outer_two.inner") == {"missing": True}


def test_files_in_the_working_folder_are_no_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tqdm", "json"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')")
    monkeypatch.chdir(tmp_path)
    assert load_apart(["tqdm"])["tqdm"].error == ""


def test_runtime_tells_its_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SimpleNamespace(InferenceSession=object, get_available_providers=lambda: ["A", "B"], __version__="1.31.1")
    monkeypatch.setitem(sys.modules, "onnxruntime", whole)
    assert look_at("onnxruntime") == {"version": "1.31.1", "facts": {"whole": True, "providers": ["A", "B"]}}
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace())
    assert look_at("onnxruntime") == {"version": "", "facts": {"whole": False, "providers": []}}


@pytest.mark.parametrize(
    ("number", "code", "reported"),
    [
        (12040, 0, {"version": "12.4"}),
        (13000, 0, {"version": "13.0"}),
        (0, 34, {"error": "libcuda.so.1 is there but gives error 34"}),
    ],
)
def test_driver_says_which_cuda(
    monkeypatch: pytest.MonkeyPatch, number: int, code: int, reported: dict[str, str]
) -> None:
    class FakeModule:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuDriverGetVersion(self, found: Any) -> int:
            found._obj.value = number
            return code

    monkeypatch.setattr(import_probe, "_DRIVER_FILES", ("libcuda.so.1",))
    monkeypatch.setattr(import_probe.ctypes, "CDLL", FakeModule)
    assert look_at(DRIVER) == reported


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_probe, "_DRIVER_FILES", ("libno_such_driver_at_all.so",))
    assert look_at(DRIVER) == {"missing": True}


def test_a_function_is_called_and_gives_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tried_by_us.py").write_text("def fine():\n    return {'a': 1}\ndef bad():\n    raise KeyError('b')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load_apart(["tried_by_us:fine", "tried_by_us:bad", "tried_by_us:none"])
    assert found["tried_by_us:fine"].facts == {"a": 1}
    assert found["tried_by_us:bad"].error == "KeyError: 'b'"
    assert found["tried_by_us:none"].error.startswith("AttributeError")


def test_a_slow_machine_has_the_time_for_each_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"slow_{number}" for number in range(3)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("import time\ntime.sleep(2)")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_apart(names, seconds=5) == dict.fromkeys(names, Loaded())
