# SPDX-License-Identifier: Apache-2.0
"""What is installed: the sdist and the wheels, with a compiler and without, run with the sources out of sight."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from qdqtool.amax import kernel
from qdqtool.cli import demo

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
SAY = """
import qdqtool
from qdqtool.amax import kernel
from qdqtool.rule_files import rules_folder
from qdqtool.rulebook import load_rules
print(qdqtool.__file__, rules_folder(), kernel.in_use(), len(load_rules("gpu").fusions), sep="\\n")
"""


# The source tree


def test_every_folder_with_code_is_a_package() -> None:
    """Others would be left out of the wheel without a word."""
    folders = {path.parent for path in (ROOT / "qdqtool").rglob("*.py")}
    assert not sorted(str(folder) for folder in folders if not (folder / "__init__.py").is_file())


def test_a_changed_kernel_is_built_again() -> None:
    stamp = re.search(r"^\$\(VENV\)/installed:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert stamp is not None
    for source in ("pyproject.toml", "setup.py", "$(wildcard qdqtool/amax/_*.[ch])"):
        assert source in stamp[1]


def test_every_file_of_the_kernel_is_built() -> None:
    listed = re.search(r"name in \((.*)\)\]", (ROOT / "setup.py").read_text())
    assert listed is not None
    files = {path.stem for path in (ROOT / "qdqtool" / "amax").glob("_*.c")}
    assert {name.strip(' "') for name in listed[1].split(",")} == files


def test_the_built_kernel_is_one_file_for_every_python_and_not_in_git() -> None:
    module = kernel.choose().module
    if module is None:
        pytest.skip(kernel.why())
    name = Path(module.__file__).name
    assert name in ("_kernel.abi3.so", "_kernel.pyd")
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no git to ask what it ignores")
    asked = subprocess.run(["git", "check-ignore", f"qdqtool/calibration/{name}"], cwd=ROOT, capture_output=True)
    assert asked.returncode == 0


# What is built from it


def skip_without_builder() -> None:
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    if int(version.split(".")[0]) < 77:
        pytest.skip(f"needs setuptools 77 here, as the build does; this is {version}")


def build(kind: str, source: Path, out: Path, compiler: str = "") -> Path:
    """The sdist or wheel of a folder, made without asking the network."""
    out.mkdir(exist_ok=True)
    environment = {**os.environ, **({"CC": compiler} if compiler else {})}
    made = subprocess.run(
        [sys.executable, "-c", BUILD.format(kind=kind), str(out)],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return out / made.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without_builder()
    tree = tmp_path_factory.mktemp("tree") / "qdqtool"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "out", "*.egg-info", "__pycache__", "*.so")
    shutil.copytree(ROOT, tree, ignore=left_out)
    (tree / "qdqtool" / "calibration" / "_kernel.abi3.so").write_bytes(b"left from another build")
    return build("sdist", tree, tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "unpacked"
    with tarfile.open(sdist) as file:
        file.extractall(folder)  # made by this test a moment ago
    (top,) = folder.iterdir()
    return top


def kernel_of(wheel: Path, folder: Path) -> str:
    """Which kernel the installed package says is in use, in a folder where the sources are not."""
    site, away = folder / "site", folder / "away"
    away.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    environment = {name: value for name, value in os.environ.items() if name != kernel.VARIABLE}
    said = subprocess.run(
        [sys.executable, "-c", SAY],
        cwd=away,
        env=environment | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    package, rules, in_use, fusions = said.stdout.splitlines()
    assert Path(package).is_relative_to(site) and Path(rules) == site / "qdqtool" / "rules"
    assert int(fusions) > 0
    return in_use


def rules_in_the_tree() -> set[str]:
    return {f"qdqtool/rules/{path.name}" for path in (ROOT / "rules").glob("*.toml")}


@pytest.mark.slow
def test_the_sdist_has_what_building_and_testing_take(unpacked: Path) -> None:
    for path in ("rules/gpu.toml", "qdqtool/amax/_kernel.c", "setup.py", "Makefile", "LICENSE", "NOTICE"):
        assert (unpacked / path).is_file(), path
    assert (unpacked / "tests" / "test_packaging.py").is_file() and (
        unpacked / "models" / "tiny_classifier.onnx"
    ).is_file()
    assert not list(unpacked.rglob("*.so"))


@pytest.mark.slow
def test_the_wheel_of_the_sdist(unpacked: Path, tmp_path: Path) -> None:
    if kernel.choose().module is None:
        pytest.skip(kernel.why())
    wheel = build("wheel", unpacked, tmp_path / "dist")
    assert "-cp310-abi3-" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"qdqtool/example/{name}" for name in demo.FILES.values()} <= names
    page = {"qdqtool/reporting/report.css", "qdqtool/reporting/report.js"}
    assert rules_in_the_tree() | page | {"qdqtool/py.typed", "qdqtool/__init__.py"} <= names
    assert any(re.fullmatch(r"qdqtool/amax/_kernel\.(abi3\.so|pyd)", name) for name in names)
    assert not any(name.endswith(".c") or name.startswith(("tests", "models", "rules/")) for name in names)
    assert kernel_of(wheel, tmp_path) == "c"


@pytest.mark.slow
def test_without_a_compiler_it_builds_and_works(unpacked: Path, tmp_path: Path) -> None:
    wheel = build("wheel", unpacked, tmp_path / "dist", compiler="/bin/false")
    assert not any("_kernel." in name and not name.endswith(".py") for name in zipfile.ZipFile(wheel).namelist())
    assert kernel_of(wheel, tmp_path) == "numpy"
