# SPDX-License-Identifier: Apache-2.0
"""Requirements as they are spelled, compared and found, in a checkout and in an installation."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from qdqtool import requirements
from qdqtool.requirements import Requirement, own_requirements, parse_requirement

PROJECT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("numpy>=1.26", Requirement("numpy", ((">=", "1.26"),))),
        ("onnx_GraphSurgeon >= 0.6.1", Requirement("onnx-graphsurgeon", ((">=", "0.6.1"),))),
        ("tensorrt<11,>=8.5; extra == 'tensorrt'", Requirement("tensorrt", (("<", "11"), (">=", "8.5")), "tensorrt")),
        ('dask[distributed]; extra == "dask"', Requirement("dask", (), "dask")),
        ("pillow (>=10) ; extra == 'images'", Requirement("pillow", ((">=", "10"),), "images")),
        ("tomli>=2.0; python_version < '3.11'", Requirement("tomli", ((">=", "2.0"),), "", (("<", "3.11"),))),
        (
            "onnxruntime-training-cpu==1.19.2; (python_version < '3.13') and extra == 'train'",
            Requirement("onnxruntime-training-cpu", (("==", "1.19.2"),), "train", (("<", "3.13"),)),
        ),
    ],
)
def test_spelling(text: str, want: Requirement) -> None:
    assert parse_requirement(text) == want


def test_extra_that_it_stands_under() -> None:
    assert parse_requirement("pycuda", "pycuda").extra == "pycuda"
    with pytest.raises(ValueError, match="cannot read"):
        parse_requirement(">=3")


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("8.4.3", False),
        ("8.5", True),
        ("8.5.0.12", True),
        ("10.16.1.11", True),
        ("10.99rc1", True),
        ("11", False),
        ("11.0.0", False),
        ("11.0+cu13", False),
        ("unknown", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, fits: bool) -> None:
    assert parse_requirement("tensorrt>=8.5,<11").allows(version) == fits


def test_equal_but_for_zeros() -> None:
    exactly = parse_requirement("a==1.19")
    assert exactly.allows("1.19.0") and exactly.allows("1.19.0+cpu")
    assert not exactly.allows("1.19.1") and not exactly.allows("1.190")
    assert exactly.spelled == "a==1.19"


def test_python_that_is_not_asked() -> None:
    running = ".".join(map(str, sys.version_info[:2]))
    assert parse_requirement(f"a; python_version <= '{running}'").applies
    assert not parse_requirement(f"a; python_version < '{running}'").applies


def test_own_file_is_understood_to_the_last_word() -> None:
    found = own_requirements()
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    base = re.search(r"^dependencies = \[(.*?)^\]", text, re.M | re.S)
    assert base is not None
    assert [one.name for one in found if not one.extra] == re.findall(r'^ *"([\w-]+)', base[1], re.M)
    assert {one.extra for one in found} >= {"", "cpu", "gpu", "train", "tensorrt", "images", "eval", "dask"}
    for one in found:
        spelled = one.name + ",".join(a + b for a, b in one.clauses)
        assert spelled in re.sub(r"\[\w+\]", "", text), "a clause was not read"


def test_checkout_before_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["numpy>=9", "pillow>=10; extra == 'images'"])
    assert Requirement("numpy", ((">=", "9"),)) not in own_requirements()
    (tmp_path / "qdqtool").mkdir()
    monkeypatch.setattr(requirements, "__file__", str(tmp_path / "qdqtool" / "requirements.py"))
    assert own_requirements() == (
        Requirement("numpy", ((">=", "9"),)),
        Requirement("pillow", ((">=", "10"),), "images"),
    )


@pytest.mark.parametrize("text", ['[project]\nname = "other"\ndependencies = ["a>=1"]\n', "no toml", "[tool.ruff]\n"])
def test_pyproject_of_somebody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    def requires(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(requirements, "__file__", str(tmp_path / "qdqtool" / "requirements.py"))
    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert own_requirements() == ()
