# SPDX-License-Identifier: Apache-2.0
"""The steps of a candidate carried out by the verbs that they name, in files of a folder. Which steps: deploying/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.data.loader import Data, DataOptions
from qdqtool.data.preprocess import Preprocess
from qdqtool.deploying.candidates import CandidateStep, DeployCandidate
from qdqtool.deploying.target import DeployTarget
from qdqtool.emit.layers import FloatLayer
from qdqtool.emit.trtexec_flags import has_flag
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.options import Rest
from qdqtool.recipe.values import Scalar
from qdqtool.training.options import RunOptions
from qdqtool.verbs.amp import amp
from qdqtool.verbs.amp_options import AmpOptions
from qdqtool.verbs.finetune import FinetuneOptions, finetune
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from qdqtool.verbs.ptq import ptq
from qdqtool.verbs.ptq_options import PtqOptions

if TYPE_CHECKING:
    from qdqtool.trtversion import TrtVersion


@dataclass(frozen=True)
class StepJob:
    """What every step of every candidate is given.

    Attributes:
        model: the plain model's file.
        stem: what files are named after.
        data: the samples, of which `data_options` name the part to calibrate by.
        data_options: batch, limit, preprocessing, part.
        preprocess: what is done to images, as emitted files have it; None where that is not known.
        target: what it is for.
        provider: execution provider of onnxruntime (default cpu).
        say: is called when a step begins.
        dla_warning: what more DLA subgraphs than a core holds mean; "" where they fit.
        max_batch: the most samples in one run of the engine, where the model leaves the batch open.
        in_memory: whether the model was given in memory, so that its file is gone when all is done.
    """

    model: Path
    stem: str
    data: Data
    data_options: DataOptions
    preprocess: str | Preprocess | None
    target: DeployTarget
    provider: str
    say: Callable[[str], None]
    dla_warning: str = ""
    max_batch: int | None = None
    in_memory: bool = False

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


def carry_out(
    candidate: DeployCandidate, job: StepJob, folder: Path, emit: tuple[str, ...] = (), start: MadeFiles | None = None
) -> MadeFiles:
    """Run a candidate's steps, each on what the one before it wrote.

    Raises:
        QdqError: what the verbs refuse.
    """
    made = start or MadeFiles(job.model)
    for number, step in enumerate(candidate.steps, 1):
        job.say(f"{candidate.name}: {step.verb}")
        made = _STEPS[step.verb](step, made, StepPlace(job, folder, step_name(candidate, job.stem, number)), emit)
    return made


@dataclass(frozen=True)
class StepPlace:
    """One step with the names of its files."""

    job: StepJob
    folder: Path
    output: str

    def file(self, ending: str) -> Path:
        """A file of this step."""
        return self.folder / f"{self.output}{ending}"


def kept_name(candidate: DeployCandidate, stem: str) -> str:
    """What the files of a deployment are called, without their ending."""
    return f"{stem}.fp16" if candidate.form == "fp16" else f"{stem}.int8"


def step_name(candidate: DeployCandidate, stem: str, number: int) -> str:
    """What the files of a step are called, without their ending; the last ones keep their names, model and cache."""
    behind = candidate.steps[number:]
    last = not behind or behind[0].verb == "ptq"  # which writes a cache alone
    return kept_name(candidate, stem) if last else f"{stem}.step{number}"


def _lint(step: CandidateStep, before: MadeFiles, place: StepPlace, emit: tuple[str, ...]) -> MadeFiles:

    target = place.job.target
    codes = [(str(step.options[word]),) for word in ("select", "fix")]
    asked = LintOptions("dla", target.version, select=codes[0], fix=codes[1], platform=target.dla)
    done = lint(before.model, asked, output=place.file(".onnx"))
    assert done.model is not None
    return MadeFiles(done.model, notes=(*before.notes, *done.notes), plain=done.model)


def _insert(step: CandidateStep, before: MadeFiles, place: StepPlace, emit: tuple[str, ...]) -> MadeFiles:

    job, options = place.job, step.options
    asked = InsertOptions(
        plan=PlanOptions(insert_target(job.target, options), job.version),
        calibration=job.calibration(str(options.get("method", ""))),
        data_options=job.data_options,
        keep_float=_keep_float(options.get("keep-float")),
        max_output_loss=_number(options.get("max-output-loss")),
        condition=str(options.get("condition", "")),
        rest=_rest(job.target, options),
    )
    done = insert(before.model, data=job.data, options=asked, output=place.file(".onnx"))
    refused = {one.site: one.reason for one in done.plan.refusals}
    notes = (*before.notes, *done.notes)
    return replace(before, model=done.model, qdq=done.model, notes=notes, refused=refused)


def insert_target(target: DeployTarget, options: Mapping[str, Scalar]) -> str:
    """Whose rules `insert` places pairs by: the step's, else the target's where that takes the model itself."""
    asked = options.get("target")
    if asked is not None:
        return str(asked)
    return target.kind if target.form == "qdq" else "gpu"


def _rest(target: DeployTarget, options: Mapping[str, Scalar]) -> Rest | None:
    """The float type of what is not INT8: the step's, else FP16 where no version says so."""
    asked = options.get("rest")
    return "fp16" if asked is not None or target.kind == "rtx" else None


def _keep_float(value: Scalar | None) -> Any:
    return value if value is None or value == "auto" else int(value)


def _number(value: Scalar | None) -> float | None:
    return None if value is None else float(value)


def _peel(step: CandidateStep, before: MadeFiles, place: StepPlace, emit: tuple[str, ...]) -> MadeFiles:

    job = place.job
    assert job.version is not None and before.qdq is not None
    asked = PeelOptions(
        job.version,
        job.target.kind,
        source=before.plain or job.model,
        data_options=DataOptions(preprocess=job.preprocess),
        emit=emit,
        max_batch=job.max_batch,
    )
    cache = place.file(".cache")
    done = peel(before.qdq, asked, output=place.file(".onnx"), cache=cache)
    return replace(before, model=done.model, cache=cache, notes=(*before.notes, *done.notes), layers=done.layers)


def _ptq(step: CandidateStep, before: MadeFiles, place: StepPlace, emit: tuple[str, ...]) -> MadeFiles:

    job = place.job
    assert job.version is not None
    asked = PtqOptions(
        job.version, job.target.kind, job.calibration(str(step.options["method"])), data_options=job.data_options
    )
    cache = place.file(".cache")
    done = ptq(before.model, job.data, asked, cache=cache)
    return replace(
        before, cache=cache, notes=(*before.notes, *done.notes)
    )  # as the calibrator gives it: no layer is told


def _finetune(step: CandidateStep, before: MadeFiles, place: StepPlace, emit: tuple[str, ...]) -> MadeFiles:

    job = place.job
    run = RunOptions(steps=int(step.options["steps"]), progress=False)
    teacher = job.model if step.options.get("teacher") else None
    asked = FinetuneOptions(run=run, provider=job.provider, teacher=teacher)
    assert before.qdq is not None
    done = finetune(before.qdq, job.data, asked, replace(job.data_options, batch=1), output=place.file(".onnx"))
    return replace(before, model=done.model, qdq=done.model, notes=(*before.notes, *done.notes))


def _amp(step: CandidateStep, before: MadeFiles, place: StepPlace, emit: tuple[str, ...]) -> MadeFiles:

    job = place.job
    asked = AmpOptions(calibration=job.calibration(), data_options=job.data_options)
    done = amp(before.model, job.data, options=asked, output=place.file(".onnx"))
    return replace(before, model=done.model, notes=(*before.notes, *done.notes))


_STEPS: Mapping[str, Callable[[CandidateStep, MadeFiles, StepPlace, tuple[str, ...]], MadeFiles]] = {
    "lint": _lint,
    "insert": _insert,
    "peel": _peel,
    "ptq": _ptq,
    "finetune": _finetune,
    "amp": _amp,
}
