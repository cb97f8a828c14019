# SPDX-License-Identifier: Apache-2.0
"""A small classifier for the tests of deploy, data for it, and deployments that are made once. No tests here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qdqtool import DeployOptions, DeployResult, deploy
from tests.graphs import SMALL_NET, model_of


def write_net(folder: Path) -> Path:
    """A classifier of fixed batch at an old opset in a folder, and data for it; the folder."""
    onnx.save(model_of(SMALL_NET.replace("float[N", "float[1"), opset=11), folder / "net.onnx")
    samples = np.random.default_rng(0).normal(size=(24, 4, 8, 8)).astype(np.float32)
    np.save(folder / "data.npy", samples)
    np.savez(folder / "other.npz", x=samples[::-1] * 0.9, y=np.zeros(24, np.int64))
    return folder


_MADE: dict[tuple[Path, str], DeployResult] = {}


def made(here: Path, place: str, **more: Any) -> DeployResult:
    """A fast deployment, made once for all tests of a file."""
    key = here, f"{place} {sorted(more)}"
    if key not in _MADE:
        folder = here / place.replace(":", "_")
        options = DeployOptions(place, effort="fast", progress=False, **more)
        _MADE[key] = deploy(here / "net.onnx", here / "data.npy", folder, options)
    return _MADE[key]


def facts_of(result: DeployResult) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((result.folder / "deploy.json").read_text("utf-8"))
    return found
