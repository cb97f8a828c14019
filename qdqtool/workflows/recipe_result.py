# SPDX-License-Identifier: Apache-2.0
"""What `run` gives back: the commands of a recipe, and the table of what its steps made."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.command_lines import run_script
from qdqtool.display import Cells, Displayed, counted, table
from qdqtool.recipe.figures import judged_text, latency_text, measured_latency, times_text
from qdqtool.recipe.model_facts import forecast_device
from qdqtool.recipe.plan_steps import PlannedStep
from qdqtool.recipe.run_steps import DoneStep
from qdqtool.recipe.values import builds_by_file_types

_HEAD = ("step", "file", "bytes", "parameters", "MACs", "bytes moved", "latency")
_HOW = "bytes moved: predicted from TensorRT's layers (GPU, newest rules), not measured; - for a model beside a cache"
_TYPED = "floats: in the types of the files, as TensorRT 11 and TensorRT for RTX build them"
_HALVES = "floats: as FP16, unless a file has FP16 or BF16 tensors, as no step is for TensorRT 11"
_TIMES = (
    "latency: forecast of those layers for {}, with the rate of FP16 where not INT8, unless a bench step measured it"
)
_NO_TIMES = (
    "latency: measured by a bench step; none is forecast, of a DLA as of a board without figures in rules/devices.toml"
)
_JUDGED = "task metrics: from the evaluate steps, losses with 95 % intervals; nothing was run in TensorRT"


@dataclass(frozen=True, repr=False)
class RecipePlan(Displayed):
    """What a recipe would run.

    Attributes:
        folder: where outputs would go.
        steps: in order.
        notes: what will go wrong, a sentence each.
    """

    folder: Path
    steps: tuple[PlannedStep, ...]
    notes: tuple[str, ...] = ()

    def commands(self) -> list[str]:
        """The command of each step, as one would type it."""
        return [
            f"{shlex.join(('qdqtool', *one.command))} > {shlex.quote(str(self.folder / one.report))}"
            for one in self.steps
        ]

    def headline(self) -> str:
        """How many steps there are, and where they would write."""
        return f"{counted(len(self.steps), 'step')}, to {self.folder}"

    def summary(self) -> list[str]:
        """The commands."""
        return self.commands()

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool run --dry-run --json` prints."""
        lines = zip(self.steps, self.commands(), strict=True)
        steps = [{"name": one.step.name, "verb": one.step.verb, "command": line} for one, line in lines]
        return {"schema": 1, "folder": str(self.folder), "steps": steps, "notes": list(self.notes)}


@dataclass(frozen=True, repr=False)
class RecipeResult(Displayed):
    """What a recipe made.

    Attributes:
        folder: where its files are.
        model: the model that it began with; None where each step names its own.
        model_facts: what is known of that model.
        steps: in order, all done.
        device: whose latency is forecast, as a recipe names it.
    """

    folder: Path
    model: Path | None
    model_facts: Mapping[str, Any]
    steps: tuple[DoneStep, ...]
    device: str | None = None

    def path(self, name: str) -> Path:
        """The main output of a step."""
        step = next(one.planned for one in self.steps if one.planned.step.name == name)
        return self.folder / step.outputs[""]

    def headline(self) -> str:
        """How many steps ran, and how many were done already."""
        ran = sum(one.ran for one in self.steps)
        return f"{counted(len(self.steps), 'step')}, {ran} of them ran now, in {self.folder}"

    def rows(self) -> Cells:
        """The first model and what each step made, with its figures; those of the task and times stand behind."""
        body = list(self._rows())
        width = max((len(more) for _, more in body), default=0)
        head = (*_HEAD, *(["figures"] if width else []))
        return [head, *((*cells, *([", ".join(more)] if width else [])) for cells, more in body)]

    def summary(self) -> list[str]:
        """The table that `qdqtool run` prints."""
        cells = self.rows()
        lines = [self.headline(), "", *table(cells[0], cells[1:]), "", _HOW, self._floats(), _times(self.device)]
        if any(one.planned.step.verb == "evaluate" for one in self.steps):
            lines.append(_JUDGED)
        return [*lines, *self._warnings()]

    def next_lines(self) -> list[str]:
        """The scripts that its steps wrote for trtexec, for the machine whose TensorRT they name."""
        return [run_script(path) for path in self.scripts()]

    def _warnings(self) -> list[str]:
        """What evaluate steps say of an FP32 model that no loss can be measured against."""
        said = ((one.planned.step.name, one.facts.get("figures", {}).get("reference_warning")) for one in self.steps)
        return [f"warning: {name}: {text}" for name, text in said if text]

    def scripts(self) -> list[Path]:
        """The scripts for trtexec that its steps wrote, in order."""
        stems = [
            self.folder / Path(one.planned.outputs[""]).with_suffix("") for one in self.steps if one.planned.outputs
        ]
        return [path for path in (stem.with_name(f"{stem.name}.trtexec.sh") for stem in stems) if path.is_file()]

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool run --json` prints."""
        return {
            "schema": 1,
            "folder": str(self.folder),
            "model": None if self.model is None else {"file": str(self.model), **self.model_facts.get("model", {})},
            "steps": [self._step(one) for one in self.steps],
            "forecast": "; ".join((_HOW, self._floats(), _times(self.device))),
        }

    def _floats(self) -> str:
        return _TYPED if builds_by_file_types([one.planned.step for one in self.steps]) else _HALVES

    def _step(self, one: DoneStep) -> dict[str, Any]:
        named = {name or "output": str(self.folder / file) for name, file in one.planned.outputs.items()}
        return {
            "name": one.planned.step.name,
            "verb": one.planned.step.verb,
            "ran": one.ran,
            "files": named,
            "report": str(self.folder / one.planned.report),
            **one.facts,
        }

    def _rows(self) -> Iterator[tuple[tuple[str, ...], list[str]]]:
        if self.model is not None:
            yield self._cells("-", self.model, self.model.name, self.model_facts), self._figures(self.model)
        for one in self.steps:
            if one.planned.outputs:
                path = self.folder / one.planned.outputs[""]
                cells = self._cells(one.planned.step.name, path, one.planned.outputs[""], one.facts)
                yield cells, self._figures(path, one.planned.outputs.get("cache"))

    def _cells(self, step: str, path: Path, file: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
        model = facts.get("model", {})
        size = model.get("file_bytes", facts.get("bytes"))
        counts = map(_number, (size, *(model.get(key) for key in ("parameters", "macs", "bytes_moved"))))
        return (step, file, *counts, latency_text(self._measured(path), model.get("forecast_microseconds")))

    def _measured(self, path: Path) -> float | None:
        """The latency of a file by the last bench step that measured it."""
        found = None
        for one in self.steps:
            figures = one.facts.get("figures", {})
            for number, model in enumerate(one.planned.models if "runs" in figures else ()):
                found = measured_latency(figures, number) if model == path else found
        return found

    def _figures(self, path: Path, cache: str | None = None) -> list[str]:
        """What steps say of a file, or of the cache that was written with it: of a task, and times."""
        judged = (path, None if cache is None else self.folder / cache)
        said = []
        for one in self.steps:
            figures = one.facts.get("figures", {})
            name = one.planned.step.name
            if "figures" in figures and _judged(one.planned) in judged:
                said.append(f"{name}: {judged_text(figures)}")
            for number, model in enumerate(one.planned.models if "runs" in figures else ()):
                if model == path:
                    said.append(f"{name}: {times_text(figures, number)}")
        return said


def _judged(step: PlannedStep) -> Path:
    """What an evaluation is of: the cache where it has one, else the model."""
    for option, value in itertools.pairwise(step.words):
        if option.typed == "--cache" and value.reads:
            return value.reads[0]
    return step.models[0]


def _times(name: str | None) -> str:
    device = forecast_device(name)
    return _NO_TIMES if device is None else _TIMES.format(device.name)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
