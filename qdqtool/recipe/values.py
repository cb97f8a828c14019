# SPDX-License-Identifier: Apache-2.0
"""A recipe as values: steps with their options. Not what a step reads or writes (`plan_steps.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.precision.element_types import FIRST_STRONGLY_TYPED
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.trtversion import parse

Scalar = str | int | float | bool
OptionValue = Scalar | tuple[Scalar, ...]
_HALVES = frozenset({"fp16", "bf16"})


@dataclass(frozen=True)
class RecipeStep:
    """One step.

    Attributes:
        name: what other steps call it.
        verb: a verb of qdqtool, with its action where it has some: "insert", "cache check".
        models: files, or names of earlier steps; empty for the model of the step before.
        arguments: further words of the command that are no options.
        output: file name of the main output, relative to the run's folder; None for `<name><ending of the verb>`.
        options: long option without dashes -> value, in the order of the file.
    """

    name: str
    verb: str
    models: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    output: str | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """Steps in order, and what they share.

    Attributes:
        path: the file; its folder is what relative paths in it are relative to.
        steps: in the order in which they run.
        model: the model of steps before which none wrote one; None where each names its own.
        out: the run's folder, relative to the recipe; None for `<recipe>.run`.
        device: of rules/devices.toml, whose latency is forecast; "none" for no forecast, None for the default device.
    """

    path: Path
    steps: tuple[RecipeStep, ...]
    model: str | None = None
    out: str | None = None
    device: str | None = None

    @property
    def base(self) -> Path:
        """What relative paths are relative to."""
        return self.path.parent

    @property
    def folder(self) -> Path:
        """Where outputs go."""
        return self.base / (self.out if self.out is not None else f"{self.path.stem}.run")


def builds_by_file_types(steps: Iterable[RecipeStep]) -> bool:
    """Whether a step names TensorRT 11 or later or TensorRT for RTX, or puts FP16 or BF16 into a file."""
    return any(_is_typed(step) for step in steps)


def _is_typed(step: RecipeStep) -> bool:
    if step.verb == "amp" or step.options.get("target") == RTX_TARGET or step.options.get("rest") in _HALVES:
        return True
    try:
        return parse(str(step.options["trt-version"])).major >= FIRST_STRONGLY_TYPED
    except (KeyError, QdqError):
        return False
