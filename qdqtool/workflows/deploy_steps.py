# SPDX-License-Identifier: Apache-2.0
"""Candidates as recipes: each is run by the engine of `run`, and the one that is kept is written as it was run."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool import __version__
from qdqtool.data.loader import Data, DataOptions
from qdqtool.data.polygraphy_loader import split_script
from qdqtool.data.preprocess import Preprocess
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.target import DeployTarget
from qdqtool.emit.layers import FloatLayer
from qdqtool.emit.trtexec_flags import has_flag
from qdqtool.errors import QdqError
from qdqtool.forecasting.devices import Device
from qdqtool.observers.options import CalibrationOptions
from qdqtool.recipe.command_line import CommandLine
from qdqtool.recipe.model_facts import NO_DEVICE
from qdqtool.recipe.plan_steps import PlannedStep, plan_steps
from qdqtool.recipe.run_steps import RunRequest, SharedSteps, run_steps
from qdqtool.recipe.values import OptionValue, Recipe, RecipeStep

if TYPE_CHECKING:
    from qdqtool.trtversion import TrtVersion

_OUT = "again"  # the folder of a recipe's run, beside the recipe
READS_DATA = frozenset(["insert", "condition", "ptq", "finetune", "amp"])
_NOT_MET = 1  # exit code of a verb that wrote its files and found them to be less than was asked for


@dataclass(frozen=True)
class StepJob:
    """What every step of every candidate is given.

    Attributes:
        model: the plain model's file.
        stem: what files are named after.
        data: the samples, of which `data_options` name the part to calibrate by: a path, as `--data` takes it.
        data_options: batch, limit, preprocessing, part.
        preprocess: what is done to images, as emitted files have it; None where that is not known.
        target: what it is for.
        provider: execution provider of onnxruntime (default cpu).
        say: is called when a step begins.
        commands: what runs a step.
        shared: what the candidates have in common; None where each does all by itself.
        emit: what `peel` writes beside a cache.
        dla_warning: what more DLA subgraphs than a core holds mean; "" where they fit.
        max_batch: the most samples in one run of the engine, where the model leaves the batch open.
        in_memory: whether the model was given in memory, so that its file is gone when all is done.
        data_in_memory: whether the data was.
        fed: input -> the shape that the data feed it at, where the model leaves more open than its batch.
    """

    model: Path
    stem: str
    data: Data
    data_options: DataOptions
    preprocess: str | Preprocess | None
    target: DeployTarget
    provider: str
    say: Callable[[str], None]
    commands: CommandLine
    shared: SharedSteps | None = None
    emit: tuple[str, ...] = ()
    dla_warning: str = ""
    max_batch: int | None = None
    in_memory: bool = False
    data_in_memory: bool = False
    fed: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def calibration(self, method: str = "") -> CalibrationOptions:
        """A calibration by a method, without a bar of its own."""
        return CalibrationOptions(method, provider=self.provider, progress=False)

    @property
    def version(self) -> TrtVersion | None:
        """Of TensorRT; None for TensorRT for RTX."""
        return self.target.version


@dataclass(frozen=True)
class MadeFiles:
    """What a candidate's steps wrote.

    Attributes:
        model: what TensorRT is given: with Q/DQ, plain beside a cache, or without INT8.
        cache: the calibration cache, for the form "cache".
        qdq: the model with Q/DQ that a cache was peeled from; the model itself for the form "qdq".
        notes: of the verbs, a sentence each.
        plain: the model that INT8 was put into, where a step rewrote the one that was given; else None.
        refused: node or tensor -> why `insert` left it in float.
        layers: what builders that read a cache are told to keep in float.
    """

    model: Path
    cache: Path | None = None
    qdq: Path | None = None
    notes: tuple[str, ...] = ()
    plain: Path | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[FloatLayer, ...] = ()

    def told_to(self, version: TrtVersion | None) -> tuple[FloatLayer, ...]:
        """Those of `layers` that the script for trtexec keeps in float: none before it has the flag."""
        return self.layers if version is not None and has_flag("--layerPrecisions", version) else ()

    def after(self, step: PlannedStep, folder: Path) -> MadeFiles:
        """The same with what a step wrote and printed."""
        report: dict[str, Any] = json.loads((folder / step.report).read_text(encoding="utf-8"))
        made = replace(self, notes=(*self.notes, *report.get("notes", ())))
        written, verb = folder / step.outputs[""], step.step.verb
        if verb == "ptq":
            return replace(made, cache=written)  # as the calibrator gives it: no layer is told
        if verb == "lint":
            return replace(made, model=written, plain=written)
        if verb == "peel":
            layers = tuple(FloatLayer(**{**one, "outputs": tuple(one["outputs"])}) for one in report["layers"])
            return replace(made, model=written, cache=folder / step.outputs["cache"], layers=layers)
        if verb in ("amp", "condition"):
            return replace(made, model=written)
        if verb == "graft":  # the cache is in the model now
            return replace(made, model=written, qdq=written, cache=None, layers=())
        if verb == "insert":
            made = replace(made, refused={one["site"]: one["reason"] for one in report["refusals"]})
        return replace(made, model=written, qdq=written)


def carry_out(candidate: DeployCandidate, job: StepJob, folder: Path, start: MadeFiles | None = None) -> MadeFiles:
    """Run a candidate's recipe in a folder; steps that are done there are not repeated.

    Raises:
        QdqError: what the verbs refuse.
    """
    made = start or MadeFiles(job.model)
    if not candidate.steps:
        return made

    def call(words: Sequence[str]) -> int:
        job.say(f"{candidate.name}: {words[0]}")
        with contextlib.redirect_stderr(io.StringIO()):
            code = job.commands.call((*words, "-q"))
        return 0 if code == _NOT_MET else code

    named = _Named(str(made.model), str(job.model), os.fspath(job.data))  # type: ignore[arg-type]
    recipe = _recipe(candidate, job, Path("recipe.toml"), named)
    try:
        steps = plan_steps(recipe, job.commands, folder)
        request = RunRequest(steps, folder, __version__, shared=job.shared, described=False)
        run_steps(request, call, lambda text: None)
    except QdqError as error:
        if isinstance(error.__cause__, QdqError):
            raise error.__cause__ from error.__cause__.__cause__  # without the step, which the user did not name
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # what goes on, and how, the verb says
    for step in steps:
        made = made.after(step, folder)
    return made


def kept_name(candidate: DeployCandidate, stem: str) -> str:
    """What the files of a deployment are called, without their ending."""
    return f"{stem}.{candidate.form if candidate.is_float else candidate.format}"


def candidate_recipe(candidate: DeployCandidate, job: StepJob, path: Path, device: Device | None = None) -> Recipe:
    """The recipe of a candidate as it was run, with the files named as seen from where it is written.

    What was given in memory is named by words: its file is gone.
    """
    model = "the model that was given in Python" if job.in_memory else _seen(job.model, path.parent)
    data = "the data that was given in Python" if job.data_in_memory else _seen_data(job.data, path.parent)
    recipe = _recipe(candidate, job, path, _Named(model, model, data))
    return replace(recipe, out=_OUT, device=NO_DEVICE if device is None else device.name)


@dataclass(frozen=True)
class _Named:
    """What a recipe calls the files that it begins with: the first step's model, the FP32 model, the data."""

    model: str
    plain: str
    data: str


def _recipe(candidate: DeployCandidate, job: StepJob, path: Path, named: _Named) -> Recipe:
    steps = []
    for number, step in enumerate(candidate.steps, 1):
        behind = candidate.steps[number:]
        last = not behind or behind[0].verb == "ptq"  # which writes a cache alone
        name = kept_name(candidate, job.stem) if last else f"{job.stem}.step{number}"
        ending = ".cache" if step.verb == "ptq" else ".onnx"
        rewritten = candidate.steps[0].verb == "lint"
        source = "${step:1-lint}" if rewritten else named.plain
        words = _words(step, job, named, source)
        steps.append(replace(step, name=f"{number}-{step.verb}", output=name + ending, options=words))
    return Recipe(path, tuple(steps), named.model)


def _words(step: RecipeStep, job: StepJob, named: _Named, source: str) -> dict[str, OptionValue]:
    """A step's options as the command line has them; `source` is the model that INT8 is put into."""
    words, target = dict(step.options), job.target
    if words.get("teacher"):
        words["teacher"] = named.plain
    if step.verb in READS_DATA:
        words |= _data_words(job, step, named.data)
    if step.verb == "insert":
        placed_by = target.kind if target.form == "qdq" else "gpu"
        words["target"] = step.options.get("target", placed_by)  # the target's own rules where it takes the model
        if target.kind == "rtx":
            words["rest"] = "fp16"
    if step.verb in ("lint", "peel", "ptq"):
        words["target"] = target.kind
    if step.verb == "lint" and target.dla is not None:
        words["platform"] = target.dla
    if step.verb in ("lint", "insert", "condition", "peel", "ptq", "graft") and target.version is not None:
        words.setdefault("trt-version", target.version.text)
    if step.verb == "peel":
        words["source"] = source
        if job.emit:
            words["emit"] = ",".join(job.emit)
        if job.max_batch is not None:
            words["max-batch"] = job.max_batch
        if job.preprocess is not None:
            words["preprocess"] = str(job.preprocess)
    return words


def _data_words(job: StepJob, step: RecipeStep, data: str) -> Mapping[str, OptionValue]:
    options = job.data_options
    words: dict[str, OptionValue] = {"data": data}
    if options.preprocess is not None:
        words["preprocess"] = str(options.preprocess)
    if options.part is not None:
        words["part"] = str(options.part)
    if options.batch > 1 and step.verb != "finetune":  # which makes its own
        words["batch"] = options.batch
    if options.max_bytes != DataOptions().max_bytes:
        words["max-data"] = options.max_bytes
    if job.provider != "cpu":
        words["provider"] = job.provider
    return words


def _seen_data(data: Data, folder: Path) -> str:
    """The data as seen from a folder."""
    text = os.fspath(data)  # type: ignore[arg-type]
    script = split_script(text)
    if script is None:
        return _seen(Path(text), folder)
    return _seen(script[0], folder) + text[len(str(script[0])) :]


def _seen(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()
