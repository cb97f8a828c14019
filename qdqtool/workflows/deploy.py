# SPDX-License-Identifier: Apache-2.0
"""The verb `deploy`: a model, images and a board to a folder that builds there. What is decided: deploying/."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from qdqtool import __version__
from qdqtool.data.loader import Data, DataOptions, inputs_of, open_loader
from qdqtool.deploying.bench_script import BuildScript
from qdqtool.deploying.candidates import DeployCandidate, candidates_for, without_shuffles
from qdqtool.deploying.choice import CandidateTrial, Choice, choose, slow_int8
from qdqtool.deploying.layers_left import LayersLeft
from qdqtool.deploying.target import DeployTarget, require_opset, target_at, target_lines
from qdqtool.emit import ENDINGS
from qdqtool.emit.input_shapes import tensors_of
from qdqtool.emit.write_files import refuse_unwritable
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess, resize_note
from qdqtool.evaluation.loss_scale import Word, is_at_most
from qdqtool.evaluation.metrics import Figure, ResampledFigure, figure_json, loss_between, loss_in_words
from qdqtool.evaluation.output_dir import check_folder, filling
from qdqtool.evaluation.tasks import BoxAgreement, LabeledBoxes
from qdqtool.forecasting.boards import device_of, find_place
from qdqtool.forecasting.formats import Format
from qdqtool.formats import FP8
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.io import ModelSource, give_back, open_model
from qdqtool.graph.model import Model
from qdqtool.linting.check_builds import wrong_build_text, wrong_builds_in
from qdqtool.linting.lint_context import LintContext
from qdqtool.output_paths import files_of
from qdqtool.passes.peel import has_qdq
from qdqtool.precision.rounded import open_to_run
from qdqtool.progress import Heartbeat, counting
from qdqtool.recipe.command_line import CommandLine
from qdqtool.recipe.step_store import is_own
from qdqtool.verbs.forecast import BoardForecast, fix_shapes, forecast_board, forecast_of_engines
from qdqtool.verbs.target_model import TargetModel
from qdqtool.workflows.deploy_cost import cost_of_candidate, engine_of_candidate
from qdqtool.workflows.deploy_files import (
    draw_worst,
    peel_kinds,
    write_guide,
    write_other_build,
    write_package,
    write_recipe,
)
from qdqtool.workflows.deploy_layers import has_shuffles, layers_left
from qdqtool.workflows.deploy_network import network_of, nvinfer_cache_note
from qdqtool.workflows.deploy_options import DeployOptions
from qdqtool.workflows.deploy_other_builds import added_layers_note, loss_of_other_build
from qdqtool.workflows.deploy_result import DeployResult, judged_on, trials_json
from qdqtool.workflows.deploy_split import split_data, write_samples
from qdqtool.workflows.deploy_steps import MadeFiles, StepJob, carry_out, kept_name
from qdqtool.workflows.deploy_verdict import verdict_line
from qdqtool.workflows.deploy_work import DeployWork, Measurement, unfinished
from qdqtool.workflows.judge import Judge, Judges, target_of_candidate

_FEW = 30  # samples, below which an interval comes with a warning
_GUESSES = (
    "FP32 itself fails by the labels, so no loss and no scale of INT8 can be trusted: the warning says what to try"
)
_WITHOUT_EFFECT = frozenset(["force", "progress", "say", "tried", "warn"])
FILE, RECIPE, TABLE = "deploy.json", "recipe.toml", "candidates.txt"
LABELS = "labels.txt"


def deploy(
    model: ModelSource, data: Data, output: str | Path, options: DeployOptions, commands: CommandLine
) -> DeployResult:
    """Deploy as `qdqtool.deploy` does (`cli/in_python.py`), with the command line that runs the candidates' steps."""
    folder = Path(output)
    with Heartbeat("deploy", options.progress) as beat:
        beat.begin("reading the model")
        opened = open_model(model)
        require_finite(opened.view)
        judged_by = options.eval_data, options.labels, options.eval_labels, options.postprocess
        names = [file for file in files_of(options.names) if file.is_file()]  # else they are the names themselves
        sources = [*opened.files, *files_of(data, *judged_by), *names]
        target, wrong = _checked(opened, sources, folder, options)
        reading, said = apply_known(opened.name, data, options.data_options, [known_preprocess(opened.proto)])
        fed = _fed(opened, data, reading, options.max_batch or 1)
        expected, attended = _forecast(opened, target, options, fed)
        verdict = verdict_line(target, expected, opened, options.place, attended)
        beat.clear()
        options = replace(options, data_options=reading)
        with filling(folder, sources) as place, unfinished(folder, place.parent) as work:
            run = _Deployment(opened, target, data, options, work, beat, commands, fed)
            run.expected, run.fp16_first = expected, expected is not None and not expected.pays
            run.notes += said
            if (options.max_batch or 1) > 1 and not any(one.batched for one in inputs_of(opened.proto.graph)):
                run.notes.append("--max-batch changes nothing: the batch of the model is fixed, not dynamic")
            elif (options.max_batch or 1) > 1:
                run.notes.append(f"times and verdict are of runs of {options.max_batch} samples")
            best = attended or expected
            slow = [one for one in ([] if best is None else best.rows) if one.verdict == "does not pay"]
            for row in (one for one in slow if one.format == FP8.name):
                run.without_fp8 = True
                run.notes.append(f"insert-fp8 was not tried: by forecast at most {row.ratio_high:.2f}x FP16's speed")
            run.verdict = verdict
            run.untold = [partial(options.say, line) for line in (verdict, *wrong)]
            done = run.fill(place, folder)
    changes = () if expected is None else expected.changes
    lines = (*target_lines(target, opened.proto, done.left.dla), *changes, *target.place.notes)
    return replace(done, target=lines, known_wrong=tuple(wrong))


def _checked(opened: Model, inputs: list[Path], folder: Path, options: DeployOptions) -> tuple[DeployTarget, list[str]]:
    """The target, and warnings of the version, before any work is done; `deploy` says what is refused."""
    check_folder(folder, inputs, force=options.force)
    refuse_unwritable(inputs, "the scripts and the recipe", "rename it")
    if has_qdq(opened.graph):
        raise QdqError(opened.name, "has Q/DQ already", "give the FP32 model; qdqtool improve takes a Q/DQ model")
    target = target_at(find_place(options.place), dla=options.dla)
    require_opset(target, opened.proto, opened.name)
    wrong = [f"warning: {text}" for text in _known_wrong(target, opened)]
    if target.version is not None and target.version.unknown_note:
        wrong.append(f"warning: {target.version.unknown_note}")
    return target, wrong


def _fed(opened: Model, data: Data, reading: DataOptions, batch: int) -> dict[str, list[int]]:
    """Input -> shape, of inputs with open sizes: those of the data, and of the batch what the engine is best for."""
    inputs = inputs_of(opened.proto.graph)
    shapes: dict[str, list[int]] = dict(open_loader(data, inputs, reading).facts().get("shapes", {}))
    if batch > 1:
        batched = {one.name: one.shape for one in inputs if one.batched and one.shape is not None}
        known = {name: [*(shapes.get(name) or shape)][1:] for name, shape in batched.items()}
        shapes |= {
            name: [batch, *map(int, rest)] for name, rest in known.items() if all(isinstance(n, int) for n in rest)
        }
    return shapes


def _forecast(
    opened: Model, target: DeployTarget, options: DeployOptions, fed: Mapping[str, Sequence[int]]
) -> tuple[BoardForecast | None, BoardForecast | None]:
    """The forecast of the target at the shapes that the data have, and the one with attention quantized."""
    if fed:
        opened = opened.copy()
        fix_shapes(opened, {name: 3 * (tuple(shape),) for name, shape in fed.items()})
    formats: tuple[Format, ...] = ("int8", "fp8") if target.fp8 else ("int8",)
    expected = forecast_board(opened, options.place, formats) if target.kind != "dla" and target.int8 else None
    attends = (
        [] if expected is None else [one.shares["attention"] + one.shares["unfused_attention"] for one in expected.rows]
    )
    attended = forecast_board(opened, options.place, formats, "int8") if any(attends) else None
    return expected, attended


def _known_wrong(target: DeployTarget, opened: Model) -> list[str]:
    """What is known of builds of such a model that go wrong with the version, what to do at the end of each."""
    if target.version is None or target.kind != "gpu":
        return []
    context = LintContext(opened, version=target.version)
    found = wrong_builds_in(context, half=True)
    return [f"{wrong_build_text(row, target.version.text)}; {row.todo}" for _, row in found]


@dataclass(frozen=True)
class Outcome:
    """What came of the kept candidate.

    Attributes:
        loss: on the samples that nothing was chosen by.
        word: how much that is (`evaluation/loss_scale.py`).
        reference: FP32's own figure there.
        warning: a sentence where it loses a lot and no largest loss was named; else "".
        build: what builds the engine.
        notes: sentences for the user.
        left: what does not run in INT8, or not on the DLA.
        labeled: whether the figures are held against labels.
        beside: what the model to time it against loses on the same samples, in words; "" without one.
    """

    loss: Figure
    word: Word
    reference: float
    warning: str
    build: BuildScript
    notes: tuple[str, ...]
    left: LayersLeft
    labeled: bool = False
    beside: str = ""


class _Deployment:
    """One run: the candidates are made in a folder of work and judged there."""

    def __init__(
        self,
        opened: Model,
        target: DeployTarget,
        data: Data,
        options: DeployOptions,
        work: DeployWork,
        beat: Heartbeat,
        commands: CommandLine,
        fed: Mapping[str, Sequence[int]],
    ) -> None:
        self._opened, self._target, self._options = opened, target, options
        self._sha256 = opened.sha256  # now: the file may be another once the work is done
        self._work, self._beat = work, beat
        beat.begin("splitting the data")
        inputs = inputs_of(opened.proto.graph)
        self._split = split_data(data, options.eval_data, inputs, options.data_options, options.effort)
        samples, how = self._split.calibrate
        given = work.given()
        path = opened.path or given / "model.onnx"
        if opened.path is None:
            give_back(opened.proto, opened, path)
        in_memory = not isinstance(samples, (str, os.PathLike))
        if in_memory:
            samples, how = write_samples(self._split, inputs, given)
        self._job = StepJob(
            path,
            path.stem,
            samples,
            how,
            options.data_options.preprocess,
            target,
            options.provider,
            beat.begin,
            commands,
            work.shared,
            peel_kinds(opened),
            max_batch=options.max_batch,
            in_memory=opened.path is None,
            data_in_memory=in_memory,
            fed=fed,
        )
        work.begin(_command(path, data, self._split.digest, options, work))
        self._plain = open_to_run(path)
        self.notes: list[str] = []
        self.expected: BoardForecast | None = None  # before anything is tried
        self.without_fp8 = False  # where the forecast says that it surely does not pay
        self.fp16_first = False  # of the candidates, where the forecast says that neither INT8 nor FP8 pays
        self.untold: list[Callable[[], None]] = []  # until a candidate is made: a fault is one line
        self._has_one = False
        self._judges = Judges(self._plain, options, self.notes, beat)
        self._made: dict[str, MadeFiles] = {}
        self._figures: dict[str, ResampledFigure] = {}
        self.metric = self.chosen_by = self.verdict = ""
        self._device = None if target.kind == "dla" else device_of(options.place)  # whose times are known

    def fill(self, place: Path, folder: Path) -> DeployResult:
        """Try everything, keep one and write its files to a place that becomes the folder."""
        trials, options = self.try_all(), self._options
        chosen = choose(trials, options.max_loss, self._compared, self._split.counts["choose"])
        floats = [one for one in trials if one.candidate.is_float and one.loss is not None]
        if self._judges.reference_warning and floats:  # no calibration spoils them
            chosen = Choice(floats[0], _GUESSES, None)
        kept, reason = chosen.kept, chosen.reason
        verdict = self._verdict_of(trials, kept)
        outcome = self.write(chosen, place, folder)
        outcome = replace(outcome, notes=(*outcome.notes, *filter(None, [added_layers_note(kept)])))
        builds = [outcome.build]
        if chosen.other is not None:
            other, made = chosen.other.candidate, self._made[chosen.other.candidate.name]
            cut = layers_left(other, made, self._target).warning
            builds.append(write_other_build(other, made, replace(self._job, dla_warning=cut), place))
            if not other.is_float:
                beside = f"{builds[1].stem}.onnx, to time beside it, is {other.name}"
                outcome = replace(outcome, notes=(*outcome.notes, beside))
        slow = "" if self._device is None else slow_int8(kept, trials, self._device.name)
        loss = loss_in_words(self.metric, outcome.loss, self._split.counts["report"])
        where = judged_on(independent=options.eval_data is not None)
        said = [verdict, f"Kept {kept.candidate.name}: {reason}. On {where}: {loss}.", *filter(None, [outcome.beside])]
        warnings = (outcome.warning, self._judges.reference_warning, outcome.left.warning)
        said += [f"Warning: {text}." for text in warnings if text]
        write_guide(place, self._target.place.title, said, builds, self._job)
        written = (path.name for path in place.iterdir() if not is_own(Path(path.name)))
        names = tuple(sorted([*written, FILE, TABLE]))
        facts = {
            "schema": 1,
            "qdqtool": __version__,
            "verdict": verdict,
            **self.facts(trials, kept.candidate, reason, outcome),
            "forecast_warning": slow or None,
            "build": outcome.build.name,
            "other_build": builds[1].name if builds[1:] else None,
            "files": list(names),
            "notes": list(outcome.notes),
            "how": "losses are simulated by onnxruntime with the target's rounding; nothing was run on the board",
        }
        (place / FILE).write_text(
            json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace"
        )
        result = DeployResult(
            folder=folder,
            files=names,
            target=(),
            trials=tuple(trials),
            chosen=kept.candidate,
            reason=reason,
            metric=self.metric,
            chosen_by=self.chosen_by,
            samples=self._split.counts,
            loss=outcome.loss,
            word=outcome.word,
            meets=_within(outcome.loss, options.max_loss),
            warning=outcome.warning,
            slow=slow,
            notes=outcome.notes,
            next_step=str(folder / outcome.build.name),
            verdict=verdict,
            forecast_verdict=self.verdict,
            left=outcome.left,
            fp32=outcome.reference if outcome.labeled else None,
            reference_warning=self._judges.reference_warning,
            independent=options.eval_data is not None,
        )
        (place / TABLE).write_text("\n".join(line.rstrip() for line in result.choice()) + "\n", encoding="utf-8")
        return result

    def _verdict_of(self, trials: list[CandidateTrial], kept: CandidateTrial) -> str:
        """The first line, by the engines of the candidates' files: of each format the kept one or the fastest."""
        fastest = dict[str, CandidateTrial]()
        for one in sorted(trials, key=lambda one: one is not kept):
            name = one.candidate.form if one.candidate.is_float else one.candidate.format
            if one.cost is None or one.cost.microseconds is None or one.is_useless:
                continue
            first = fastest.setdefault(name, one)
            if first is not kept and first.cost is not None and one.cost.order < first.cost.order:
                fastest[name] = one
        if self.expected is None or not fastest:
            return self.verdict
        found = {
            name: engine_of_candidate(one.candidate, self._made[one.candidate.name], self._target, self._job.fed).work
            for name, one in fastest.items()
        }
        engines = {name: work for name, work in found.items() if work is not None}
        tried = forecast_of_engines(self.expected, engines)
        return verdict_line(self._target, tried, self._opened, self._options.place)

    def try_all(self) -> list[CandidateTrial]:
        """Every candidate, made and measured; one that fails is listed with the reason."""
        self._beat.begin("measuring FP32")
        judge = self._judges.to_choose(self._split.choose)
        self.chosen_by = judge.chosen.task.title
        if judge.chosen.family:
            given = self._options.data_options.preprocess
            self.notes += resize_note(given, judge.chosen.family, self._split.choose[0])
        candidates = candidates_for(self._target, self._options.effort)
        if self.without_fp8:
            candidates = [one for one in candidates if one.format != FP8.name]
        candidates.sort(key=lambda one: self.fp16_first and not one.is_float)
        shuffles = has_shuffles(self._job.model, self._target)
        if shuffles:  # FP16's builds are cut at them, too
            candidates = [without_shuffles(one) if one.form == "fp16" else one for one in candidates]
        others = shuffles and not all(one.is_float for one in candidates)
        total, trials = len(candidates) + others, list[CandidateTrial]()
        with counting("way", total) as count:
            while len(trials) < total:
                if len(trials) < len(candidates):
                    candidate = candidates[len(trials)]
                else:
                    quantized = [one for one in trials if not one.candidate.is_float]
                    if all(one.failed for one in quantized):
                        break
                    best = choose(quantized, self._options.max_loss, self._compared).kept
                    candidate = without_shuffles(best.candidate)
                self._beat.begin(candidate.name)
                trials.append(self._try(candidate, judge))
                self._tell(f"way {len(trials)} of {total}: {trials[-1].line()}", trials[-1])
                count.advance()
        return trials

    def _tell(self, line: str, trial: CandidateTrial) -> None:
        """Report the result of a trial; nothing is printed before the first succeeds."""
        self.untold.append(partial(self._options.tried, line))
        self._has_one = self._has_one or trial.loss is not None
        if self._has_one:
            self._beat.clear()
            for tell in self.untold:
                tell()
            self.untold.clear()

    def _compared(self, one: str, other: str) -> Figure:
        """What a candidate loses more than another one, on the samples to choose by."""
        return loss_between(self._figures[other], self._figures[one])

    def _try(self, candidate: DeployCandidate, judge: Judge) -> CandidateTrial:
        try:
            made = carry_out(candidate, self._job, self._work.folder(candidate.name))
            self._made[candidate.name] = made
            found = self._work.measured(candidate.name)
            if found is None:
                found = self._measured(candidate, made, judge)
                self._work.keep(candidate.name, found)
        except QdqError as error:
            if isinstance(error, MissingPackageError) or error.is_of_system:
                raise
            return CandidateTrial.of_failure(candidate, error, self._work.path)
        self._figures[candidate.name] = found.figure
        loss, notes = loss_between(judge.reference, found.figure), (*made.notes, *found.notes)
        metric = judge.reference.metric
        return CandidateTrial(candidate, loss, found.cost, notes=notes, change=found.change, metric=metric)

    def _measured(self, candidate: DeployCandidate, made: MadeFiles, judge: Judge) -> Measurement:
        self._beat.begin(f"{candidate.name}: measuring")
        judged = target_of_candidate(candidate, made, self._target)
        found = judge.judgment(judged)
        self._beat.begin(f"{candidate.name}: predicting its cost")
        cost = cost_of_candidate(candidate, made, self._target, self._device, self._job.fed)
        return Measurement(found.figure, found.change, cost, judged.notes)

    def write(self, choice: Choice, place: Path, folder: Path) -> Outcome:
        """Report on the kept candidate and the one beside it, and write the files of the first."""
        candidate = choice.kept.candidate
        self._beat.begin(f"{candidate.name}: measuring for the report")
        judge = self._judges.to_report(self._split.report)
        self.metric = judge.chosen.task.title
        if judge.count < _FEW:
            few = f"{judge.count} samples for the report are few, so the interval is wide"
            self.notes.append(
                f"{few if judge.count > 1 else '1 sample for the report gives no interval'}; give more data"
            )
        made = self._made[candidate.name]
        judged = target_of_candidate(candidate, made, self._target)
        judgment = judge.judgment(judged)
        loss, word = loss_between(judge.reference, judgment.figure), judge.word(judgment)
        left = layers_left(candidate, made, self._target)
        self._job = replace(self._job, dla_warning=left.warning)
        self._beat.begin(f"{candidate.name}: writing")
        _, outputs = tensors_of(self._opened.proto)
        network = network_of(judge.chosen.task, self._options.names, outputs, LABELS)
        package = write_package(candidate, made, self._job, place, network)
        write_recipe(candidate, self._job, folder, place / RECIPE, self._device)
        notes = [*self.notes, *judged.notes, *package.notes]
        if any(name.endswith(ENDINGS["deepstream"]) for name in package.files):
            notes += filter(None, [nvinfer_cache_note(candidate, self._job, self._options, folder)])
        notes += filter(None, [self._loss_of_other_build(candidate, judge)])
        if isinstance(judge.chosen.task, (BoxAgreement, LabeledBoxes)) and self._opened.files[1:] == ():
            assert isinstance(judged.model, Model)
            models = (self._plain.proto, judged.model.proto)
            drawing = self._work.emptied("pictures")
            why_not = draw_worst(models, self._split.report, self._options, drawing, place)
            notes += [why_not] if why_not else []
        warning = ""
        if self._options.max_loss is None and not candidate.is_float and word == "much":
            said, kept = loss_in_words(self.metric, loss, judge.count), candidate.title
            how = "" if judge.chosen.labeled else "; --labels gives the loss of the task"
            first = "" if judge.chosen.labeled else "without labels: "
            warning = (
                f"{first}{kept} may lose much: {said}{how}; --max-loss X keeps {kept} only where it loses at most X"
            )
        labeled = judge.chosen.labeled
        of_float = judged.notes if candidate.is_float else ()
        beside = "" if choice.other is None else self._loss_beside(choice.other.candidate, judge, of_float)
        told = tuple(dict.fromkeys(notes))
        return Outcome(loss, word, judge.reference.value, warning, package.build, told, left, labeled, beside)

    def _loss_beside(self, other: DeployCandidate, judge: Judge, of_float: Sequence[str]) -> str:
        """A sentence on what the model to time beside the kept one loses on the samples of the report.

        It ends with what is to be known of the figure of the one without INT8.
        """
        name = f"{kept_name(other, self._job.stem)}.onnx ({other.name}) is there to time beside it"
        self._beat.begin(f"{other.name}: measuring for the report")
        try:
            model = target_of_candidate(other, self._made[other.name], self._target)
            loss = loss_in_words(self.metric, judge.loss(model), judge.count)
        except QdqError as error:
            if error.is_of_system:
                raise
            return f"{name}; it was not measured on the same samples: {error.reason}."
        notes = model.notes if other.is_float else of_float
        return " ".join([f"{name}; on the same samples: {loss}.", *(f"{note}." for note in notes)])

    def _loss_of_other_build(self, candidate: DeployCandidate, judge: Judge) -> str:
        def said(model: TargetModel) -> str:
            return loss_in_words(self.metric, judge.loss(model), judge.count)

        return loss_of_other_build(candidate, self._made[candidate.name], self._job, said)

    def facts(
        self, trials: list[CandidateTrial], kept: DeployCandidate, reason: str, outcome: Outcome
    ) -> dict[str, Any]:
        """What deploy.json says of the model, the place, the candidates and the kept one."""
        options, place = self._options, self._target.place
        return {
            "model": {"name": self._job.model.name, "sha256": self._sha256},
            "for": options.place,
            "board": None if place.board is None else place.board.title,
            "platform": place.platform or None,
            "tensorrt": None if place.version is None else place.version.text,
            "target": self._target.kind,
            "effort": options.effort,
            "max_loss": options.max_loss,
            "metric": self.metric,
            "chosen_by": self.chosen_by,
            "fp32": outcome.reference,
            "samples": self._split.counts,
            "parts": self._split.parts,
            "candidates": trials_json(tuple(trials)),
            "kept": kept.name,
            "form": kept.form,
            "format": None if kept.is_float else kept.format,
            "reason": reason,
            "loss": figure_json(outcome.loss),
            "loss_word": outcome.word or None,
            "within_max_loss": _within(outcome.loss, options.max_loss),
            "warning": outcome.warning or None,
            "reference_warning": self._judges.reference_warning or None,
            "known_wrong": _known_wrong(self._target, self._opened),
            "dla_warning": outcome.left.warning or None,
            "dla_guesses": outcome.left.guesses or None,
            **outcome.left.to_json(),
        }


def _command(model: Path, data: Data, digest: str, options: DeployOptions, work: DeployWork) -> dict[str, Any]:
    """All that the files of a deployment follow from; another command's work is of no use."""
    given = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in _WITHOUT_EFFECT}
    judged_by = options.eval_data, options.labels, options.eval_labels, options.names, options.postprocess
    files = [file for file in (model, *files_of(data, *judged_by)) if file.exists()]
    return {
        "qdqtool": __version__,
        "samples": digest,
        "files": [[str(file), work.shared.hashes.of(file)] for file in files],
        "options": {name: str(value) if name != "eval_data" else type(value).__name__ for name, value in given.items()},
    }


def _within(loss: Figure, most: float | None) -> bool | None:
    """Whether a loss is no more than allowed; None where nothing was said."""
    return None if most is None else is_at_most(loss.value, most)
