# SPDX-License-Identifier: Apache-2.0
"""What `deploy` chooses beside every single candidate, and beside peers, on labeled images that chose nothing.

A script, not a test: see README.md here. Candidates are made and chosen by the verb's own parts; then each of them,
not the chosen one alone, is judged on the evaluation data, so that the choice can be held against the best of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy import AccuracyBench
from accuracy_judge import prepare
from accuracy_subjects import SUBJECTS, AccuracySubject
from cost import apart, table

if TYPE_CHECKING:
    from qdqtool.deploying.candidates import DeployCandidate
    from qdqtool.deploying.choice import CandidateTrial
    from qdqtool.evaluation.metrics import Figure, MeasuredModel
    from qdqtool.verbs.deploy_steps import MadeFiles

PEERS = ("modelopt entropy", "modelopt max", "onnxruntime Entropy", "onnxruntime Percentile")
PLACES = ("jp4.6.1+dla", "11.4")
HEAD = (
    "model, target",
    "candidate",
    "to choose",
    "to report",
    "95 % interval",
    "kept less it",
    "95 % interval",
    "cost",
)


@dataclass(frozen=True)
class Asked:
    """One model for one target.

    Attributes:
        subject: the model and its data.
        place: as `--for` has it, with +dla behind it for the DLA.
        effort: fast, default or best.
        corpus: the folder of models and datasets.
        peers: the interpreter that has them; None for none.
        most: how many samples are calibrated and chosen by, and how many are reported by, at most; 0 for all.
    """

    subject: AccuracySubject
    place: str
    effort: str
    corpus: Path
    peers: Path | None
    most: tuple[int, int] = (0, 0)

    @property
    def model(self) -> Path:
        return self.corpus / "models" / f"{self.subject.name}.onnx"

    @property
    def dla(self) -> bool:
        return self.place.endswith("+dla")

    def labels(self, work: Path) -> str | Path | None:
        name = self.subject.data[2]
        if name == "persons":
            return work / "persons.npy"
        return name if name in (None, "filename") else self.corpus / "datasets" / str(name)


def rows_of(asked: Asked) -> list[dict[str, Any]]:
    """Every candidate with its losses and its cost, and what the kept one loses more than it."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        apart(prepare, asked.subject, asked.corpus, work)
        rows: list[dict[str, Any]] = apart(_rows, asked, work)
        return rows


def _rows(asked: Asked, work: Path) -> list[dict[str, Any]]:
    from qdqtool.data.loader import DataOptions, inputs_of
    from qdqtool.deploying.boards import find_place
    from qdqtool.deploying.candidates import candidates_for
    from qdqtool.deploying.choice import CandidateTrial, choose
    from qdqtool.deploying.target import target_at
    from qdqtool.errors import QdqError
    from qdqtool.graph.io import open_model
    from qdqtool.verbs.deploy_cost import cost_of_candidate
    from qdqtool.verbs.deploy_judge import judged_model
    from qdqtool.verbs.deploy_options import DeployOptions
    from qdqtool.verbs.deploy_split import split_data
    from qdqtool.verbs.deploy_steps import StepJob, carry_out
    from qdqtool.verbs.deploy_task import judge_part

    target = target_at(find_place(asked.place.removesuffix("+dla")), dla=asked.dla)
    plain = open_model(asked.model)
    evaluation = asked.corpus / "datasets" / asked.subject.data[1]
    how = DataOptions(preprocess=asked.subject.preprocess)
    _shorten(work / "samples.npz", asked.most[0])
    split = split_data(work / "samples.npz", evaluation, inputs_of(plain.proto.graph), how, asked.effort)  # type: ignore[arg-type]
    options = DeployOptions(asked.place, labels=asked.labels(work), names=asked.subject.data[3], data_options=how)
    job = StepJob(asked.model, "m", *split.calibrate, None, target, "cpu", _say)
    chooser = judge_part(plain, split.choose, options, ("", False, []), _say)
    report = split.report[0], replace(split.report[1], limit=asked.most[1] or None)
    reporter = judge_part(plain, report, options, ("", True, []), _say)
    beside = chooser.beside_labels()
    trials: list[CandidateTrial] = []
    found: dict[str, MeasuredModel] = {}
    for one in candidates_for(target, asked.effort):  # type: ignore[arg-type]
        place = work / one.name
        place.mkdir()
        try:
            made: MadeFiles = carry_out(one, job, place)
            judged = judged_model(one, made, target)
            change = None if beside is None else beside.loss(judged).value
            trials.append(
                CandidateTrial(one, chooser.loss(judged), cost_of_candidate(one, made, target), change=change)
            )
            found[one.name] = reporter.measured(judged)
        except QdqError as error:
            trials.append(CandidateTrial(one, failed=error.line()))
    kept = choose(trials, None)[0]
    if target.form == "qdq" and asked.peers is not None:
        trials += _peers(asked, work, split.calibrate, reporter, found)
    counts = [split.counts["calibrate"], split.counts["choose"], reporter.count]
    return [{**_row(asked, one, kept.candidate, found, reporter), "samples": counts} for one in trials]


def _shorten(samples: Path, most: int) -> None:
    """Keep the first samples of an archive alone."""
    import numpy as np

    arrays = dict(np.load(samples))
    if most:
        np.savez(samples, **{name: array[:most] for name, array in arrays.items()})  # type: ignore[arg-type]


def _peers(asked: Asked, work: Path, data: Any, reporter: Any, found: dict[str, MeasuredModel]) -> list[CandidateTrial]:
    """Q/DQ models of the peers, by the same samples to calibrate."""
    import numpy as np

    from qdqtool.data.loader import inputs_of, open_loader
    from qdqtool.deploying.candidates import DeployCandidate
    from qdqtool.deploying.choice import CandidateTrial
    from qdqtool.errors import QdqError
    from qdqtool.graph.io import open_model
    from qdqtool.precision.rounded import open_to_run
    from qdqtool.verbs.deploy_judge import TargetModel

    inputs = inputs_of(open_model(asked.model).proto.graph)
    batches = [batch[inputs[0].name] for batch in open_loader(data[0], inputs, data[1])]
    own = work / "peers"
    own.mkdir()
    np.savez(own / "samples.npz", **{inputs[0].name: np.concatenate(batches)})
    bench = AccuracyBench(asked.subject, asked.corpus, own, asked.peers)
    trials = []
    for tool in PEERS:
        candidate = DeployCandidate(tool, "qdq", (), "a peer")
        try:
            out, costs = bench.by_peer(tool)
            if costs[-1].code != 0 or not out.is_file():
                raise QdqError(tool, "made no model")
            opened = open_to_run(out)
            found[tool] = reporter.measured(TargetModel(opened.proto, opened.folder, tool))
            trials.append(CandidateTrial(candidate))
        except Exception as error:  # a model that no runtime takes is a result
            trials.append(CandidateTrial(candidate, failed=str(error).splitlines()[0]))
    return trials


def _row(
    asked: Asked, trial: CandidateTrial, kept: DeployCandidate, found: dict[str, MeasuredModel], reporter: Any
) -> dict[str, Any]:
    from qdqtool.verbs.deploy_judge import loss_between

    name = trial.candidate.name
    row: dict[str, Any] = {"model": asked.subject.name, "for": asked.place, "name": name, "kept": name == kept.name}
    if name not in found:
        return {**row, "failed": trial.failed}
    row["metric"] = reporter.chosen.task.title
    row["chosen by"] = None if trial.loss is None else round(trial.loss.value, 4)
    row["change"] = trial.change
    row["loss"] = _numbers(loss_between(reporter.reference, found[name]))
    row["kept less it"] = _numbers(loss_between(found[name], found[kept.name]))
    return {**row, "cost": "" if trial.cost is None else trial.cost.text()}


def _numbers(figure: Figure) -> list[float]:
    return [round(value, 4) for value in (figure.value, figure.interval.low, figure.interval.high)]


def _say(text: str) -> None:
    if "judged on" not in text:
        print(f"  {text}", file=sys.stderr, flush=True)


def printed(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table; a star stands before what was kept."""
    cells = []
    for row in rows:
        name = f"{'* ' if row['kept'] else ''}{row['name']}"
        if "loss" not in row:
            cells.append((f"{row['model']}, {row['for']}", name, "failed", "", "", "", "", ""))
            continue
        loss, less = row["loss"], row["kept less it"]
        shown = "" if row["chosen by"] is None else f"{row['chosen by']:.4f}"
        spans = (f"{loss[1]:.4f} to {loss[2]:.4f}", f"{less[1]:.4f} to {less[2]:.4f}")
        figures = (shown, f"{loss[0]:.4f}", spans[0], f"{less[0]:.4f}", spans[1], row["cost"])
        cells.append((f"{row['model']}, {row['for']}", name, *figures))
    return table(HEAD, cells)


def worse_than(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where something else in INT8 is better than what was kept, beyond the interval of the difference."""
    return [
        f"{row['model']} for {row['for']}: {row['name']} is better by {row['kept less it'][0]:.4f}"
        for row in rows
        if "loss" in row and row["name"] != "fp16" and row["kept less it"][1] > 0
    ]


def main() -> int:
    """Run the models and print; exit code 1 where a single candidate or a peer is better beyond noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    parser.add_argument("--shared", type=Path, default=default)
    parser.add_argument("--models", default="fastestdet_coco,ultraface_rfb320,mlperf_resnet8_fp32")
    parser.add_argument("--for", dest="places", default=",".join(PLACES))
    parser.add_argument("--effort", default="default", choices=("fast", "default", "best"))
    parser.add_argument("--peers", type=Path, help="the interpreter of an environment with the peers")
    parser.add_argument("--samples", default="0,0", help="the most to calibrate and choose by, and to report by")
    parser.add_argument(
        "--json", type=Path, help="where rows are kept: models and targets that it has are not run again"
    )
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if args.json is not None and args.json.is_file():
        rows = json.loads(args.json.read_text(encoding="utf-8"))
    most = tuple(map(int, args.samples.split(",")))
    for name in args.models.split(","):
        for place in args.places.split(","):
            if any((row["model"], row["for"]) == (name, place) for row in rows):
                continue
            print(f"{name} for {place}", file=sys.stderr, flush=True)
            asked = Asked(SUBJECTS[name], place, args.effort, args.shared / "corpus", args.peers, most)  # type: ignore[arg-type]
            rows += rows_of(asked)
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(printed(rows))
    worse = worse_than(rows)
    print("\n".join(worse) if worse else "nothing in INT8 is better than what was kept, beyond the intervals")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
