# SPDX-License-Identifier: Apache-2.0
"""The verb `improve`: a Q/DQ model that loses too much to one that loses less. What is tried: deploying/."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from qdqtool.data.loader import Data, inputs_of
from qdqtool.deploying.boards import Destination
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.choice import CandidateTrial
from qdqtool.deploying.improvements import GIVEN, STAGES, Attempt, attempts, is_within, satisfies, with_rest
from qdqtool.deploying.target import DeployTarget, Kind
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.evaluation.metrics import Figure
from qdqtool.graph.io import ModelSource, give_back, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.types import opset_of
from qdqtool.graph.weighted import float_products
from qdqtool.match.plan import PlanOptions
from qdqtool.metadata import restore_header
from qdqtool.output_paths import check_target, files_of
from qdqtool.passes.peel import has_qdq
from qdqtool.passes.typed_pairs import peel_model
from qdqtool.precision.casts import take_out_types, types_over_pairs
from qdqtool.precision.rounded import open_to_run
from qdqtool.progress import Heartbeat, is_shown
from qdqtool.recipe.command_line import CommandLine
from qdqtool.recipe.content_hash import ContentHashes
from qdqtool.recipe.run_steps import SharedSteps
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.verbs.sensitivity import sensitivity
from qdqtool.verbs.sensitivity_options import SensitivityOptions
from qdqtool.workflows.deploy_cost import cost_of_candidate
from qdqtool.workflows.deploy_split import SplitData, split_data, write_samples
from qdqtool.workflows.deploy_steps import MadeFiles, StepJob, carry_out
from qdqtool.workflows.improve_options import ImproveOptions
from qdqtool.workflows.improve_refusal import refusal_of
from qdqtool.workflows.improve_result import ImproveResult
from qdqtool.workflows.judge import Judge, Judges, target_of_candidate

_BLAMED = 5
_KINDS: dict[str, Kind] = {"gpu": "gpu", "dla": "dla", RTX_TARGET: "rtx"}


def improve(
    model: ModelSource, data: Data, output: str | Path, options: ImproveOptions, commands: CommandLine
) -> ImproveResult:
    """Improve as `qdqtool.improve` does (`cli/in_python.py`), with the command line that runs the attempts' steps."""
    opened = open_model(model)
    if not has_qdq(opened.view):
        raise QdqError(opened.name, "has no Q/DQ to improve", "qdqtool deploy or qdqtool insert --data places them")
    target_file = Path(output)
    judged_by = options.eval_data, options.labels, options.eval_labels, options.names, options.postprocess
    check_target(target_file, [*opened.files, *files_of(data, options.source, *judged_by)])
    options, said = with_known(options, opened, data)
    with (
        tempfile.TemporaryDirectory(prefix="qdqtool-") as folder,
        Heartbeat("improve", options.progress) as beat,
    ):
        run = _Improvement(opened, data, options, Path(folder), beat, commands)
        run.notes += said
        trials, best = run.try_all()
        result = replace(run.result(trials, best, target_file), reference_warning=run.judges.reference_warning)
        made = open_model(run.made[best.candidate.name].model)
        give_back(made.proto, made, target_file)
    return result


class _Improvement:
    """One run: models are made in a folder of work and judged there."""

    def __init__(
        self,
        opened: Model,
        data: Data,
        options: ImproveOptions,
        work: Path,
        beat: Heartbeat,
        commands: CommandLine,
    ) -> None:
        self._options, self._work, self._beat = options, work, beat
        self._since = time.monotonic()
        self._most = options.max_loss or 0.0
        given, plain, typed = _write_both(opened, options, work)
        self._rest = "fp16" if typed else None
        version = options.trt_version
        kind: Kind = _KINDS[options.target]
        new = version is not None and not version.has_caches
        self._target = DeployTarget(Destination(None, version), kind, "qdq", True, typed=new or kind == "rtx")
        beat.begin("splitting the data")
        inputs = inputs_of(opened.proto.graph)
        self._split: SplitData = split_data(data, options.eval_data, inputs, options.data_options, "default")
        samples, how = self._split.calibrate
        preprocess = options.data_options.preprocess
        if not isinstance(samples, (str, os.PathLike)):
            samples = write_samples(self._split, inputs, work)
        shared = SharedSteps(ContentHashes(work / "hashes.json"))
        self._job = StepJob(
            plain, "model", samples, how, preprocess, self._target, options.provider, beat.begin, commands, shared
        )
        self.notes: list[str] = []
        self.judges = Judges(open_to_run(plain), options, self.notes, beat)
        self._count = 0
        self._chosen_by = ""
        self.made = {GIVEN.name: MadeFiles(given, None, given)}

    def try_all(self) -> tuple[list[CandidateTrial], CandidateTrial]:
        """Every attempt until one satisfies, and the best of them."""
        self._beat.begin("measuring FP32")
        judge = self.judges.to_choose(self._split.choose)
        self._chosen_by = judge.chosen.task.title
        self._beat.begin(f"{GIVEN.name}: linting")
        refused = refusal_of(self.made[GIVEN.name].model, self._job.model, self._target)
        trials = [self._judged(GIVEN, judge, refused)]
        best = trials[0]
        for stage in STAGES if self._options.finetune else STAGES[:-1]:
            for one in attempts(stage, best.candidate):
                if self._meets(best):
                    return trials, best
                if one.on_best and best.refused:
                    continue  # training leaves pairs where they are
                trials.append(self._try(with_rest(one, self._rest), best.candidate, judge))
                before, best = best, _better(best, trials[-1])
                if best is before and not best.refused and best.loss is not None and is_within(best.loss, self._most):
                    break  # on to the next stage
        return trials, best

    def _told(self, trial: CandidateTrial) -> CandidateTrial:
        """The trial, of which a line is told."""
        self._beat.clear()
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        told = f", after {seconds:.0f} s" if is_shown(self._options.progress) else ""  # a log has none: see `in_log`
        self._options.say(f"{trial.line()}{told}")
        return trial

    def _meets(self, trial: CandidateTrial, loss: Figure | None = None) -> bool:
        """Whether a trial is enough, by its own loss or by another one, as the user wants it judged."""
        judged = is_within if self._options.by_value else satisfies
        loss = loss or trial.loss
        return not trial.refused and loss is not None and judged(loss, self._most)

    def _try(self, attempt: Attempt, best: DeployCandidate, judge: Judge) -> CandidateTrial:
        candidate = attempt.candidate
        self._count += 1
        folder = self._work / f"{self._count}"
        folder.mkdir()
        try:
            start = self.made[best.name] if attempt.on_best else None
            self.made[candidate.name] = carry_out(candidate, self._job, folder, start=start)
        except MissingPackageError:
            raise
        except QdqError as error:
            return self._told(CandidateTrial.of_failure(candidate, error, self._work))
        return self._judged(candidate, judge)

    def _judged(self, candidate: DeployCandidate, judge: Judge, refused: str = "") -> CandidateTrial:
        made = self.made[candidate.name]
        self._beat.begin(f"{candidate.name}: measuring")
        try:
            loss = judge.loss(target_of_candidate(candidate, made, self._target))
            cost = cost_of_candidate(candidate, made, self._target)
            return self._told(CandidateTrial(candidate, loss, cost, notes=made.notes, refused=refused))
        except MissingPackageError:
            raise
        except QdqError as error:
            return self._told(CandidateTrial.of_failure(candidate, error, self._work, refused))

    def result(self, trials: list[CandidateTrial], best: CandidateTrial, output: Path) -> ImproveResult:
        """What is told of the best, on samples that nothing was chosen by."""
        self._beat.begin(f"{best.candidate.name}: measuring for the report")
        judge = self.judges.to_report(self._split.report)
        loss = judge.loss(target_of_candidate(best.candidate, self.made[best.candidate.name], self._target))
        meets = self._meets(best, loss)
        view = open_model(self.made[best.candidate.name].model).view
        in_float = tuple(node.name or node.key for node in float_products(view))
        blamed = {} if meets else self._to_blame(in_float)
        title = judge.chosen.task.title
        if title != self._chosen_by:
            self.notes.append(f"attempts are held against --max-loss by {self._chosen_by}, the result by {title}")
        counts, notes = self._split.counts, tuple(dict.fromkeys(self.notes))
        return ImproveResult(
            output,
            tuple(trials),
            best,
            title,
            self._chosen_by,
            counts,
            loss,
            self._most,
            meets,
            in_float,
            blamed,
            notes,
            labeled=judge.chosen.labeled,
        )

    def _to_blame(self, in_float: tuple[str, ...]) -> dict[str, float]:
        """The operators that lose most by themselves, of those that the written model has in INT8."""
        self._beat.begin("ranking operators")
        plan = PlanOptions(self._target.kind, self._target.version)
        samples, how = self._split.calibrate
        asked = SensitivityOptions(plan, self._job.calibration("mse"), replace(how, limit=32), ends=False)
        try:
            found = sensitivity(self._job.model, samples, asked).ranking.findings
        except QdqError as error:
            self.notes.append(f"ranking operators failed: {error.line()}")
            return {}
        left = [one for one in found if not {one.name, one.node} & set(in_float)]
        return {one.name: one.local for one in left[:_BLAMED]}


def _better(best: CandidateTrial, other: CandidateTrial) -> CandidateTrial:
    """The one that loses less; the earlier of two that lose the same. One that TensorRT refuses makes way for any."""
    if other.loss is None:
        return best
    if best.refused:
        return other
    return other if best.loss is None or other.loss.value < best.loss.value else best


def _write_both(opened: Model, options: ImproveOptions, work: Path) -> tuple[Path, Path, bool]:
    """The model as given and the plain one in files, and whether it has types of its own."""
    given, plain = work / "given.onnx", work / "model.onnx"
    give_back(opened.proto, replace(opened, kind="path"), given)
    record = types_over_pairs(opened.proto)
    if options.source is not None:
        source = open_model(options.source)
        if has_qdq(source.view):
            raise QdqError(f"--source {source.name}", "has Q/DQ, so no loss against it is known", "give the FP32 model")
        give_back(source.proto, replace(source, kind="path"), plain)
        return given, plain, record is not None
    peeled = opened.copy() if record is None else take_out_types(opened, record)
    peel_model(peeled, on_asymmetric="widen", opset=opset_of(peeled.proto), drop_scales=True)
    restore_header(peeled.proto)
    give_back(peeled.proto, replace(opened, kind="path"), plain)
    return given, plain, record is not None
