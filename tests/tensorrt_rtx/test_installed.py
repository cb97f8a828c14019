# SPDX-License-Identifier: Apache-2.0
"""Which installation serves, and what is said where none does: the line for pip, or why no wheel fits this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from qdqtool.errors import MissingPackageError
from qdqtool.tensorrt_rtx import installed
from qdqtool.tensorrt_rtx.installed import PYTHON, RtxLibrary, find_library, require_library, why_no_wheel

GLIBC = ("glibc", "2.31")


def fake_python(tmp_path: Path, version: str, code: int = 0) -> str:
    """A program that answers as a Python with this version of the wheel would."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho '{version}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("system", "machine", "libc", "expected"),
    [
        ("Linux", "x86_64", GLIBC, ""),
        ("Linux", "x86_64", ("glibc", "2.28"), ""),
        ("Windows", "AMD64", ("", ""), ""),
        ("Linux", "x86_64", ("glibc", "2.27"), "its wheels need glibc 2.28 or later, and this Linux has 2.27"),
        ("Linux", "x86_64", ("", ""), "its wheels need glibc 2.28 or later, and this Linux has another C library"),
        ("Linux", "aarch64", GLIBC, "there is no wheel for aarch64 (Jetson and other ARM machines)"),
        ("Linux", "ppc64le", GLIBC, "there is no wheel for ppc64le"),
        ("Darwin", "arm64", ("", ""), "there is no wheel for macOS"),
    ],
)
def test_where_no_wheel_fits(system: str, machine: str, libc: tuple[str, str], expected: str) -> None:
    assert why_no_wheel(system, machine, libc) == expected


def test_a_python_that_is_too_new_has_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 15, 0))
    assert re.search("Python 3.9 to 3.14, .* 3.15$", why_no_wheel("Linux", "x86_64", GLIBC))


def test_without_it_the_line_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "why_no_wheel", lambda: "")
    with pytest.raises(MissingPackageError) as caught:
        require_library()
    assert caught.value.line() == 'TensorRT for RTX: is not installed; pip install "qdqtool[rtx]"'
    assert caught.value.exit_code == 3


def test_without_a_wheel_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "why_no_wheel", lambda: "there is no wheel for macOS")
    with pytest.raises(MissingPackageError, match="there is no wheel for macOS"):
        require_library()


@pytest.mark.skipif(sys.platform == "win32", reason="starts a shell script")
def test_the_environment_names_the_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = fake_python(tmp_path, "1.7.1.116")
    monkeypatch.setenv(PYTHON, python)
    assert find_library() == require_library() == RtxLibrary(python, "1.7.1.116")


@pytest.mark.skipif(sys.platform == "win32", reason="starts a shell script")
@pytest.mark.parametrize(
    ("version", "code", "reason"), [("", 0, "is not installed for the Python"), ("", 1, "is not a Python that runs")]
)
def test_a_named_python_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, code: int, reason: str
) -> None:
    monkeypatch.setenv(PYTHON, fake_python(tmp_path, version, code))
    with pytest.raises(MissingPackageError, match=reason):
        require_library()


def test_a_named_python_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PYTHON, str(tmp_path / "none here"))
    with pytest.raises(MissingPackageError, match="does not run"):
        find_library()


def test_this_python_is_asked_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON)
    monkeypatch.setattr(installed, "_version_here", lambda: "1.7.1.116")
    assert find_library() == RtxLibrary(sys.executable, "1.7.1.116")


def test_none_leaves_an_installed_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_version_here", lambda: "1.7.1.116")
    assert find_library() is None
