# SPDX-License-Identifier: Apache-2.0
"""A machine that is played for the doctor."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import pytest

from qdqtool import doctor
from qdqtool.amax import kernel
from qdqtool.doctor import Item, diagnose
from qdqtool.import_probe import Loaded

BASE = {"numpy": "2.4", "onnx": "1.23.2", "onnx-graphsurgeon": "0.6.1", "polygraphy": "0.53.6", "tqdm": "4.70"}
RUNTIME = Loaded(version="1.31.1", facts={"whole": True, "providers": ["CPUExecutionProvider"]})
WITH_CUDA = Loaded(
    version="1.31.1", facts={"whole": True, "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
)
HERE = Loaded(version="12.4")
TRIAL = "qdqtool.doctor:try_runtime"


class World:
    """A machine to look at: what pip has recorded, what becomes of each import, which GPUs the kernel shows."""

    def __init__(self) -> None:
        self.recorded = {**BASE, "tomli": "2.0.1", "onnxruntime": "1.31.1"}
        self.loaded: dict[str, Loaded] = {"onnxruntime": RUNTIME, TRIAL: Loaded(facts={"gradients": False})}
        self.gpus: list[str] = []
        self.asked: list[str] = []

    def version(self, name: str) -> str:
        if name not in self.recorded:
            raise importlib.metadata.PackageNotFoundError(name)
        return self.recorded[name]

    def load(self, modules: Sequence[str]) -> dict[str, Loaded]:
        self.asked = list(modules)
        base = {name.replace("-", "_") for name in BASE} | {"tomli"}
        return {name: self.loaded.get(name, Loaded(missing=name not in base)) for name in modules}

    def add(self, name: str, version: str = "", module: str = "", **found: Any) -> None:
        """A package as pip has recorded it (no version: it has not) and as it loads."""
        if version:
            self.recorded[name] = version
        self.loaded[module or name] = Loaded(**{"version": version, **found})

    def item(self, name: str) -> Item:
        found = [item for item in diagnose().items if item.name == name]
        assert len(found) == 1, name
        return found[0]


def sound_machine(monkeypatch: pytest.MonkeyPatch) -> World:
    """A sound machine with onnxruntime, without any GPU; the C kernel counts."""
    made = World()
    monkeypatch.setattr(importlib.metadata, "version", made.version)
    monkeypatch.setattr(doctor, "load_apart", made.load)
    monkeypatch.setattr(doctor, "visible_gpus", lambda: made.gpus)
    monkeypatch.setattr(kernel, "in_use", lambda: "c")
    monkeypatch.setattr(kernel, "why", lambda: "the C kernel counts")
    return made
