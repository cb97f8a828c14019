# SPDX-License-Identifier: Apache-2.0
"""The verb `improve`: a Q/DQ model that loses too much to one that loses less. What is tried: deploying/."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool import __version__
from qdqtool.conditioning.edits import require_reference
from qdqtool.data.loader import Data, inputs_of
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.choice import CandidateTrial, DeployCost
from qdqtool.deploying.improvements import (
    GIVEN,
    Attempt,
    Measured,
    attempts,
    best_of,
    is_enough,
    is_shown,
    is_within,
    stages_of,
    with_edits_apart,
    with_kept,
)
from qdqtool.deploying.target import DeployTarget, Kind
from qdqtool.diagnosis.cause import LossCauses
from qdqtool.diagnosis.diagnose import DiagnosisOptions, diagnose
from qdqtool.diagnosis.suspects import kept_options
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.evaluation.loss_scale import WITHOUT_LABELS, Word, word_of
from qdqtool.evaluation.metrics import Figure, ResampledFigure, loss_between
from qdqtool.files import FileSet
from qdqtool.forecasting.boards import Destination
from qdqtool.formats import INT8
from qdqtool.graph.io import ModelSource, give_back, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.types import opset_of
from qdqtool.linting.lint_context import LintContext
from qdqtool.match.plan import PlanOptions
from qdqtool.metadata import restore_header
from qdqtool.output_paths import check_target, files_of
from qdqtool.passes.peel import has_qdq
from qdqtool.passes.typed_pairs import peel_model
from qdqtool.precision.casts import take_out_types, types_over_pairs
from qdqtool.precision.rounded import open_to_run
from qdqtool.progress import Heartbeat
from qdqtool.progress import is_shown as has_terminal
from qdqtool.recipe.command_line import CommandLine
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.trtversion import NEWEST
from qdqtool.verbs.sensitivity import sensitivity
from qdqtool.verbs.sensitivity_options import SensitivityOptions
from qdqtool.workflows.deploy_cost import cost_of_candidate
from qdqtool.workflows.deploy_split import SplitData, cross_fitted, write_samples
from qdqtool.workflows.deploy_steps import READS_DATA, MadeFiles, StepJob, carry_out
from qdqtool.workflows.deploy_work import DeployWork, Measurement, unfinished
from qdqtool.workflows.improve_changes import faults_of, pairs_of
from qdqtool.workflows.improve_judge import CrossFigures, CrossJudge
from qdqtool.workflows.improve_options import ImproveOptions
from qdqtool.workflows.improve_result import Bought, ImproveResult
from qdqtool.workflows.judge import Judges, target_of_candidate

_BLAMED = 5
_DIAGNOSED = 64  # samples
_KINDS: dict[str, Kind] = {"gpu": "gpu", "dla": "dla", RTX_TARGET: "rtx"}
_ALL = 2  # the job that calibrates by all samples, after those of the halves
# They end the search sooner or change messages alone: measurements are the same without them. A file holds `source`.
_WITHOUT_EFFECT = frozenset(["max_loss", "max_minutes", "progress", "say", "source", "warn"])


def improve(
    model: ModelSource, data: Data, output: str | Path, options: ImproveOptions, commands: CommandLine
) -> ImproveResult:
    """Improve as `qdqtool.improve` does (`cli/in_python.py`), with the command line that runs the attempts' steps."""
    opened = open_model(model)
    if not has_qdq(opened.graph):
        raise QdqError(opened.name, "has no Q/DQ to improve", "qdqtool deploy or qdqtool insert --data places them")
    target_file = Path(output)
    judged_by = options.eval_data, options.labels, options.eval_labels, options.names, options.postprocess
    sources = [*opened.files, *files_of(data, options.source, *judged_by)]
    check_target(target_file, sources)
    options, said = with_known(options, opened, data)
    with (
        Heartbeat("improve", options.progress) as beat,
        FileSet(sources) as files,
        unfinished(target_file, files.scratch(target_file.absolute().parent), "improve") as work,
    ):
        run = _Improvement(opened, data, options, work, beat, commands)
        run.notes += said
        run.try_all()
        result = run.result(target_file)
        made = open_model(run.written)
        give_back(made.proto, made, target_file)
    return result


@dataclass(frozen=True)
class _Tried:
    """An attempt that could be made and measured."""

    attempt: Attempt
    trial: CandidateTrial
    figures: CrossFigures


class _Improvement:
    """One run: models are made in a folder of work and judged there."""

    def __init__(
        self,
        opened: Model,
        data: Data,
        options: ImproveOptions,
        work: DeployWork,
        beat: Heartbeat,
        commands: CommandLine,
    ) -> None:
        self._options, self._work, self._beat = options, work, beat
        self._began, self._since = time.process_time(), time.monotonic()
        self._most = options.max_loss or 0.0
        folder = work.given()
        given, self._plain = _write_both(opened, options, folder)
        version = options.trt_version
        kind: Kind = _KINDS[options.target]
        context = LintContext(open_model(given), kind, version)
        self._kept, self._format = kept_options(context), context.number_format
        new = version is not None and not version.has_caches
        self._target = DeployTarget(Destination(None, version), kind, "qdq", True, typed=new or kind == "rtx")
        # Costs are those of the release that the next step builds with: the newest one where none is named.
        newest = version if kind != "gpu" else version or NEWEST
        self._priced = replace(self._target, place=Destination(None, newest))
        beat.begin("splitting the data")
        inputs = inputs_of(opened.proto.graph)
        self._splits = cross_fitted(data, options.eval_data, inputs, options.data_options, options.effort)
        self._jobs = [self._job(one, inputs, folder / f"{number}", commands) for number, one in enumerate(self._splits)]
        work.begin(_command([given, self._plain], data, self._splits[_ALL].digest, options, work))
        self.notes: list[str] = []
        self._judges = Judges(open_to_run(self._plain), options, self.notes, beat)
        self._made: dict[tuple[str, int], MadeFiles] = {(GIVEN.name, 0): MadeFiles(given, None, given)}
        self._given = given
        self._attempts: dict[str, Attempt] = {}
        self._tried: dict[str, _Tried] = {}
        self._trials: list[CandidateTrial] = []
        self._unreached: list[str] = []
        self._float_megabytes: float | None = None
        self.written = given

    def _job(self, split: SplitData, inputs: Any, folder: Path, commands: CommandLine) -> StepJob:
        samples, how = split.calibrate
        if not isinstance(samples, (str, os.PathLike)):
            folder.mkdir()
            samples, how = write_samples(split, inputs, folder)
        preprocess, provider = self._options.data_options.preprocess, self._options.provider
        say, shared = self._beat.begin, self._work.shared
        return StepJob(self._plain, "model", samples, how, preprocess, self._target, provider, say, commands, shared)

    def try_all(self) -> None:
        """Every attempt, in order, until one is shown to be within the bound and loses nothing, or the time is over."""
        self._beat.begin("measuring FP32")
        self._judge = CrossJudge([self._judges.to_choose(one.choose) for one in self._splits[:_ALL]])
        self._beat.begin(f"{GIVEN.name}: linting")
        self._pairs = pairs_of(self._given)
        faults, self._refused = faults_of(self._given, self._plain, self._pairs, self._target)
        self._causes = self._diagnosed()
        self._try(Attempt(GIVEN))
        stages = stages_of(self._options.effort, self._format)
        for number, stage in enumerate(stages):
            best = self._best().attempt.candidate if self._tried else GIVEN
            for one in attempts(stage, faults, best, self._format):
                if self._tried and self._is_enough(self._best()):
                    return
                if self._is_late():
                    self._unreached = list(stages[number:])
                    return
                if stage == "finetune" and (not self._tried or self._best().trial.refused):
                    continue  # training leaves pairs where they are
                if one.without_float is None or self._keeps_more_in_float(one):
                    apart = self._target.kind == "gpu" and self._format == INT8.name
                    one = with_edits_apart(one) if apart else one
                    self._try(with_kept(one, stage, self._kept))

    def _diagnosed(self) -> LossCauses | None:
        """Why the model as given loses; None where that cannot be measured."""
        self._beat.begin(f"{GIVEN.name}: looking for the cause")
        job = self._jobs[_ALL]
        how = replace(job.data_options, limit=_DIAGNOSED)
        target, version = self._target.kind, self._options.trt_version
        options = DiagnosisOptions(target, version, how, provider=job.provider, progress=False)
        try:
            return diagnose(open_model(self._given), job.data, options, source=open_model(self._plain))
        except QdqError as error:
            if error.is_of_system:
                raise
            self.notes.append(f"the cause was not looked for: {error.line()}")
            return None

    def _is_enough(self, tried: _Tried) -> bool:
        loss = tried.trial.loss
        return not tried.trial.refused and loss is not None and is_enough(loss, self._most, self._judge.count)

    def _is_late(self) -> bool:
        minutes = self._options.max_minutes
        return minutes is not None and time.process_time() - self._began > 60 * minutes

    def _keeps_more_in_float(self, one: Attempt) -> bool:
        """Whether what an attempt repeats keeps more operators in float than what it is held against."""
        both = [self._made.get((str(name), 0)) for name in (one.without_float, one.over)]
        counts = [0 if made is None else len(pairs_of(made.model).in_float) for made in both]
        return counts[0] > counts[1]

    def _best(self, half: int | None = None) -> _Tried:
        """The best so far, by all samples or by those of a half; what TensorRT refuses makes way for any other."""
        fit = [one for one in self._tried.values() if not one.trial.refused] or list(self._tried.values())
        if not fit:
            raise QdqError("improve", f"nothing could be measured ({self._trials[0].failed})", "check the data")

        def figures(one: _Tried) -> Measured:
            own = one.figures.whole if half is None else one.figures.halves[half]
            return replace(own, cost=one.trial.cost)

        measured = {figures(one).name: figures(one) for one in fit}
        reference = self._judge.reference.whole if half is None else self._judge.reference.halves[half]
        labeled, given = self._judge.labeled, measured.get(GIVEN.name)
        samples = self._judge.count if half is None else self._judge.counts[half]
        best = best_of(list(measured.values()), given, reference.figure, self._most, samples, labeled=labeled)
        return self._tried[best.name]

    def _try(self, attempt: Attempt) -> None:
        candidate = attempt.candidate
        self._attempts[candidate.name] = attempt
        refused = self._refused if candidate is GIVEN else ""
        try:
            made = [self._files(attempt, half) for half in range(_ALL)]
            found = self._work.measured(candidate.name)
            if found is None:
                found = self._measured(candidate, made)
                self._work.keep(candidate.name, found)
        except QdqError as error:
            if isinstance(error, MissingPackageError) or error.is_of_system:
                raise
            return self._tell(CandidateTrial.of_failure(candidate, error, self._work.path, refused))
        if candidate is not GIVEN:
            refused = self._no_cheaper_than_float(found.cost)
        figures = CrossFigures.of_named(candidate.name, dict(found.more))
        loss = loss_between(self._judge.reference.whole.figure, figures.whole.figure)
        trial = CandidateTrial(candidate, loss, found.cost, "", found.notes, found.change, refused=refused)
        if attempt.over is None and self._tried:
            attempt = replace(attempt, over=self._best().attempt.candidate.name)
        self._tried[candidate.name] = _Tried(attempt, trial, figures)
        return self._tell(trial)

    def _no_cheaper_than_float(self, cost: DeployCost) -> str:
        """Why a model is of no use that moves as many bytes as FP16, where the model as given moves fewer."""
        given = self._trials[0].cost
        if self._target.kind != "gpu" or given is None or given.megabytes is None or cost.megabytes is None:
            return ""
        if self._float_megabytes is None:
            plain = DeployCandidate("float", "fp16", (), "no INT8")
            # The builder's FP16 where it chooses types, and in place of the Casts that the plain model is without.
            target = replace(self._priced, place=Destination(None, None)) if "rest" in self._kept else self._priced
            self._float_megabytes = cost_of_candidate(plain, MadeFiles(self._plain), target).megabytes or math.inf
        if not given.megabytes < self._float_megabytes <= cost.megabytes:
            return ""
        return f"it moves no fewer bytes than the model without INT8 ({self._float_megabytes:.2f} MB), by the forecast"

    def _files(self, attempt: Attempt, number: int) -> MadeFiles:
        """What a candidate's steps write whose scales come from the samples of a job."""
        candidate, start = attempt.candidate, attempt.start
        if candidate is GIVEN or not any(step.verb in READS_DATA for step in candidate.steps):
            number = 0  # no sample has a part in it
        if (candidate.name, number) not in self._made:
            begun = None if start is None else self._files(self._attempts[start.name], number)
            folder = self._work.folder(f"{candidate.name}, {number}")
            self._made[candidate.name, number] = carry_out(candidate, self._jobs[number], folder, start=begun)
        return self._made[candidate.name, number]

    def _measured(self, candidate: DeployCandidate, made: Sequence[MadeFiles]) -> Measurement:
        self._beat.begin(f"{candidate.name}: measuring")
        figures = self._judge.figures([target_of_candidate(candidate, one, self._target) for one in made])
        costs = [cost_of_candidate(candidate, one, self._priced) for one in {id(one): one for one in made}.values()]
        cost = max(costs, key=lambda one: one.order)  # each half may keep other operators in float
        beside = figures.whole.beside
        change = None if beside is None else 1 - beside.value
        return Measurement(figures.whole.figure, change, cost, made[0].notes, figures.named())

    def _tell(self, trial: CandidateTrial) -> None:
        """Keep a trial and tell a line of it."""
        self._trials.append(trial)
        self._beat.clear()
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        passed = (
            f", after {seconds:.0f} s" if has_terminal(self._options.progress) else ""
        )  # no log has it: see `in_log`
        self._options.say(f"{trial.line()}{passed}")

    def result(self, output: Path) -> ImproveResult:
        """Make the best attempt again with all samples, and its report."""
        best, judge = self._best(), self._judge
        candidate = best.attempt.candidate
        self._beat.begin(f"{candidate.name}: by all samples")
        made = self._by_all(best)
        self.written = made.model
        self._beat.begin(f"{candidate.name}: measuring for the report")
        count, title, labeled, fp32 = judge.count, judge.title, judge.labeled, judge.reference.whole.figure.value
        loss = self._loss_of_choosing(best)
        word, measure = self._word(best, loss)
        if self._options.eval_data is not None:
            report = self._judges.to_report(self._splits[_ALL].report)
            judgment = report.judgment(target_of_candidate(candidate, made, self._target))
            loss, word = loss_between(report.reference, judgment.figure), report.word(judgment)
            measure = ""
            count, title, labeled = report.count, report.chosen.task.title, report.chosen.labeled
            fp32 = report.reference.value
            if title != judge.title:
                self.notes.append(f"attempts are held against --max-loss by {judge.title}, the result by {title}")
        pairs = pairs_of(made.model)
        cost, judged = cost_of_candidate(candidate, made, self._priced), best.trial.cost
        written = replace(best.trial, cost=cost)
        if judged is not None and cost.text() != judged.text():
            both = f"{cost.text()} as it is written, {judged.text()} as it was tried, with scales from a half"
            self.notes.append(f"{candidate.name} costs {both}")
        half = self._float_megabytes
        if half is not None and cost.megabytes is not None and half <= cost.megabytes:
            self.notes.append(
                f"the FP32 model in FP16, without INT8, moves no more bytes ({half:.2f} MB by the forecast) and loses "
                "less: qdqtool amp writes it"
            )
        meets = not best.trial.refused and is_within(loss, self._most)
        bought = {
            one.attempt.candidate.name: Bought(over, loss_between(one.figures.whole.figure, self._whole(over)))
            for one in self._tried.values()
            if (over := one.attempt.over) in self._tried and over is not None
        }
        return ImproveResult(
            output,
            tuple(written if one is best.trial else one for one in self._trials),
            written,
            title,
            judge.title,
            {"calibrate": self._splits[_ALL].counts["calibrate"], "choose": judge.count, "report": count},
            loss,
            self._most,
            meets,
            pairs.in_float,
            {} if meets else self._to_blame(pairs.in_float),
            tuple(dict.fromkeys(note.removeprefix("to choose: ") for note in self.notes)),
            self._judges.reference_warning,
            labeled,
            bought,
            None if GIVEN.name not in self._tried else loss_between(best.figures.whole.figure, self._whole(GIVEN.name)),
            tuple(self._pairs.changes_to(pairs)),
            tuple(self._unreached),
            tuple(one for one in stages_of("best", self._format) if one not in stages_of(self._options.effort)),
            meets and is_shown(loss, self._most, count),
            judge.beside,
            word=word,
            word_measure=measure,
            independent=self._options.eval_data is not None,
            causes=self._causes,
            fp32=fp32 if labeled else None,
        )

    def _word(self, best: _Tried, loss: Figure) -> tuple[Word, str]:
        """The word for the loss, and the measure that it follows from; "" for the metric.

        Without labels a classifier's word follows from the outputs, as agreement falls sooner than accuracy.
        """
        reference, found = self._judge.reference.whole, best.figures.whole
        beside = reference.beside, found.beside
        if self._judge.labeled or reference.figure.metric in WITHOUT_LABELS or beside[0] is None or beside[1] is None:
            return word_of(reference.figure.metric, loss, reference.figure.value), ""
        word = word_of(beside[0].metric, loss_between(beside[0], beside[1]), beside[0].value)
        return word, self._judge.beside

    def _whole(self, name: str) -> ResampledFigure:
        return self._tried[name].figures.whole.figure

    def _by_all(self, best: _Tried) -> MadeFiles:
        """The best with scales from all samples; as it was judged where that costs more or is surely worse."""
        made = self._files(best.attempt, _ALL)
        judged = self._files(best.attempt, 0)
        if made is judged:
            return made
        cost, most = cost_of_candidate(best.attempt.candidate, made, self._priced), best.trial.cost
        if most is not None and most.is_below(cost):
            self.notes.append(
                f"by all samples it keeps more operators in float ({cost.text()}): the model with scales of a half is "
                "written"
            )
            return judged
        whole = target_of_candidate(best.attempt.candidate, made, self._target)
        again = self._judge.figures([whole, whole]).whole
        if not loss_between(best.figures.whole.figure, again.figure).interval.low > 0:
            return made
        self.notes.append(
            "with scales from all samples it loses surely more than with those of a half: that one is written"
        )
        return judged

    def _loss_of_choosing(self, best: _Tried) -> Figure:
        """What the choice loses on samples that did not choose it: each half judges what the other one would choose.

        What that loses more than the best is added to the loss of the best on all samples. Some measures give other
        figures on half of the samples.
        """
        whole, counts = best.figures.whole.figure, self._judge.counts
        own = _mean([one.figure for one in best.figures.halves], counts)
        chosen = _mean([self._best(1 - half).figures.halves[half].figure for half in range(_ALL)], counts)
        found = replace(
            whole, value=whole.value + chosen.value - own.value, drawn=whole.drawn + chosen.drawn - own.drawn
        )
        return loss_between(self._judge.reference.whole.figure, found)

    def _to_blame(self, in_float: tuple[str, ...]) -> dict[str, float]:
        """The operators that lose most by themselves, of those that the written model has in INT8."""
        self._beat.begin("ranking operators")
        plan = PlanOptions(self._target.kind, self._target.version, format=self._format)
        job = self._jobs[_ALL]
        asked = SensitivityOptions(plan, job.calibration("mse"), replace(job.data_options, limit=32), ends=False)
        try:
            found = sensitivity(job.model, job.data, asked).ranking.findings
        except QdqError as error:
            if error.is_of_system:
                raise
            self.notes.append(f"ranking operators failed: {error.line()}")
            return {}
        left = [one for one in found if not {one.name, one.node} & set(in_float)]
        return {one.name: one.local for one in left[:_BLAMED]}


def _mean(figures: Sequence[ResampledFigure], counts: Sequence[int]) -> ResampledFigure:
    """The mean over parts of the samples, each with its weight."""
    shares = np.array(counts, np.float64) / sum(counts)
    drawn = sum(share * one.drawn for share, one in zip(shares, figures, strict=True))
    value = sum(float(share) * one.value for share, one in zip(shares, figures, strict=True))
    return ResampledFigure(figures[0].metric, value, np.asarray(drawn, np.float64))


def _command(
    models: Sequence[Path], data: Data, digest: str, options: ImproveOptions, work: DeployWork
) -> dict[str, Any]:
    """All that attempts and their figures follow from; another command's work is of no use."""
    given = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in _WITHOUT_EFFECT}
    judged_by = options.eval_data, options.labels, options.eval_labels, options.names, options.postprocess
    files = [file for file in (*models, *files_of(data, *judged_by)) if file.exists()]
    return {
        "qdqtool": __version__,
        "samples": digest,
        "files": [[str(file), work.shared.hashes.of(file)] for file in files],
        "options": {name: str(value) if name != "eval_data" else type(value).__name__ for name, value in given.items()},
    }


def _write_both(opened: Model, options: ImproveOptions, work: Path) -> tuple[Path, Path]:
    """The model as given and the plain one in files."""
    given, plain = work / "given.onnx", work / "model.onnx"
    give_back(opened.proto, replace(opened, kind="path"), given)
    if options.source is not None:
        source = open_model(options.source)
        if has_qdq(source.graph):
            raise QdqError(f"--source {source.name}", "has Q/DQ, so no loss against it is known", "give the FP32 model")
        give_back(source.proto, replace(source, kind="path"), plain)
        return given, plain
    require_reference(opened, "--source")
    record = types_over_pairs(opened.proto)
    peeled = opened.copy() if record is None else take_out_types(opened, record)
    peel_model(peeled, on_asymmetric="widen", opset=opset_of(peeled.proto), drop_scales=True)
    restore_header(peeled.proto)
    give_back(peeled.proto, replace(opened, kind="path"), plain)
    return given, plain
