# SPDX-License-Identifier: Apache-2.0
"""What every test shares: where the material beside the project lies, and a count of the tests that used it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from graphs import model_of

PROJECT = Path(__file__).resolve().parent.parent


def shared_folder() -> Path | None:
    """The folder with real models, caches and vectors, or None where it is not at hand."""
    folder = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    return folder if (folder / "corpus").is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder that QDQTOOL_SHARED names; skips the test where it is absent."""
    folder = shared_folder()
    if folder is None:
        pytest.skip("no shared material: set QDQTOOL_SHARED to its folder")
    return folder


@pytest.fixture(scope="session")
def text_model() -> Callable[..., onnx.ModelProto]:
    """A model from ONNX text; weights by shape alone (see graphs.py)."""
    return model_of


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of our own small models."""
    return PROJECT / "models"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests read the shared material."""
    passed = [r for r in terminalreporter.getreports("passed") if "shared" in r.keywords and r.when == "call"]
    skipped = [r for r in terminalreporter.getreports("skipped") if "shared" in r.keywords]
    where = shared_folder()
    terminalreporter.write_line(
        f"tests over shared material: {len(passed)} ran, {len(skipped)} skipped ({where or 'absent'})"
    )
