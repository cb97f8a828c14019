# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md begins with the version of the package, and names every verb."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qdqtool
from qdqtool.cli import main as cli

TEXT = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_newest_version_is_that_of_the_package() -> None:
    found = re.search(r"^## (\S+)( \(unreleased\))?$", TEXT, re.M)
    assert found and found[1] == qdqtool.__version__


def test_the_citation_is_of_this_version_and_ci_runs_every_python_of_the_classifiers() -> None:
    root = Path(__file__).resolve().parents[2]
    assert f"\nversion: {qdqtool.__version__}\n" in (root / "CITATION.cff").read_text(encoding="utf-8")
    workflow = root / ".github" / "workflows" / "ci.yml"
    if not workflow.is_file():
        pytest.skip("an sdist has no workflows")
    listed = re.findall(r"Python :: (3\.\d+)\"", (root / "pyproject.toml").read_text(encoding="utf-8"))
    ran = re.search(r"^ +python: \[(.*)\]$", workflow.read_text(encoding="utf-8"), re.M)
    assert ran and re.findall(r"3\.\d+", ran[1]) == listed


def test_every_verb_is_named() -> None:
    words = re.findall(r"`([a-z]+)(?: [^`]*)?`", TEXT)
    assert [verb for verb in cli.VERBS if verb not in words] == []
