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
    from qdqtool.deploying.choice import CandidateTrial
    from qdqtool.evaluation.metrics import Figure, ResampledFigure
    from qdqtool.workflows.deploy_steps import MadeFiles

    Measured = dict[str, ResampledFigure]  # candidate or peer -> its figures

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
        place: as `--for` has it, with +dla after it for the DLA.
        effort: fast, default or best.
        corpus: the folder of models and datasets.
        peers: the interpreter that has them; None for none.
        most: how many samples are calibrated and chosen by, and how many are reported by, at most; 0 for all.
        boards: those for whose GPU each candidate's time is forecast.
    """

    subject: AccuracySubject
    place: str
    effort: str
    corpus: Path
    peers: Path | None
    most: tuple[int, int] = (0, 0)
    boards: tuple[str, ...] = ()

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
    from qdqtool.cli.commands import Commands
    from qdqtool.data.loader import DataOptions, inputs_of
    from qdqtool.deploying.candidates import candidates_for, without_shuffles
    from qdqtool.deploying.choice import LAYERS, CandidateTrial, choose
    from qdqtool.deploying.target import target_at
    from qdqtool.errors import QdqError
    from qdqtool.evaluation.metrics import loss_between
    from qdqtool.forecasting.boards import device_of, find_place
    from qdqtool.graph.io import open_model
    from qdqtool.progress import Heartbeat
    from qdqtool.workflows.deploy_cost import cost_of_candidate
    from qdqtool.workflows.deploy_layers import has_shuffles
    from qdqtool.workflows.deploy_options import DeployOptions
    from qdqtool.workflows.deploy_split import split_data
    from qdqtool.workflows.deploy_steps import StepJob, carry_out
    from qdqtool.workflows.judge import Judges, target_of_candidate

    target = target_at(find_place(asked.place.removesuffix("+dla")), dla=asked.dla)
    plain = open_model(asked.model)
    evaluation = asked.corpus / "datasets" / asked.subject.data[1]
    how = DataOptions(preprocess=asked.subject.preprocess)
    _shorten(work / "samples.npz", asked.most[0])
    split = split_data(work / "samples.npz", evaluation, inputs_of(plain.proto.graph), how, asked.effort)  # type: ignore[arg-type]
    options = DeployOptions(
        asked.place,
        labels=asked.labels(work),
        eval_data=evaluation,
        names=asked.subject.data[3],
        data_options=how,
    )
    job = StepJob(asked.model, "m", *split.calibrate, None, target, "cpu", _say, Commands())
    report = split.report[0], replace(split.report[1], limit=asked.most[1] or None)
    judges = Judges(plain, options, [], Heartbeat("deploy", False))
    chooser, reporter = judges.to_choose(split.choose), judges.to_report(report)
    trials: list[CandidateTrial] = []
    found: dict[str, ResampledFigure] = {}
    chosen_by: dict[str, ResampledFigure] = {}
    times: dict[str, dict[str, float | None]] = {}
    tried = candidates_for(target, asked.effort)  # type: ignore[arg-type]
    rewrites = has_shuffles(asked.model, target)
    tried = [without_shuffles(one) if rewrites and one.form == "fp16" else one for one in tried]
    for number, one in enumerate(tried, 1):
        place = work / one.name
        place.mkdir()
        try:
            made: MadeFiles = carry_out(one, job, place)
            judged = target_of_candidate(one, made, target)
            judgment = chooser.judgment(judged)
            chosen_by[one.name] = judgment.figure
            loss, metric = loss_between(chooser.reference, judgment.figure), judgment.figure.metric
            cost = cost_of_candidate(one, made, target)
            if cost.unit == LAYERS:
                devices = {board: device_of(board) for board in asked.boards}
                runs = {board: each for board, each in devices.items() if each is None or each.rates[one.format]}
                boards = {board: cost_of_candidate(one, made, target, each) for board, each in runs.items()}
                times[one.name] = {board: timed.microseconds for board, timed in boards.items()}
            trials.append(CandidateTrial(one, loss, cost, change=judgment.change, metric=metric))
            found[one.name] = reporter.reference if one.form == "as-is" else reporter.figure(judged)
        except QdqError as error:
            trials.append(CandidateTrial(one, failed=error.line()))
        if rewrites and number == len(tried):  # as the verb does: the best of them, behind lint --fix Q030
            rewrites = False
            quantized = [one for one in trials if not one.candidate.is_float]
            best = choose(quantized, None, lambda a, b: loss_between(chosen_by[b], chosen_by[a])).kept
            tried.append(without_shuffles(best.candidate))
    if target.form == "qdq" and asked.peers is not None:
        trials += _peers(asked, work, split.calibrate, reporter, found)
    counts = [split.counts["calibrate"], split.counts["choose"], reporter.count]
    int8 = [one.candidate.name for one in trials if one.candidate.form != "fp16" and one.candidate.name in found]
    rows = [{**_row(asked, one, (chosen_by, found), int8, reporter), "samples": counts} for one in trials]
    return [{**row, "microseconds": times.get(row["name"], {})} for row in rows]


def _shorten(samples: Path, most: int) -> None:
    """Keep the first samples of an archive alone."""
    import numpy as np

    arrays = dict(np.load(samples))
    if most:
        np.savez(samples, **{name: array[:most] for name, array in arrays.items()})  # type: ignore[arg-type]


def _peers(
    asked: Asked, work: Path, data: Any, reporter: Any, found: dict[str, ResampledFigure]
) -> list[CandidateTrial]:
    """Q/DQ models of the peers, by the same samples to calibrate."""
    import numpy as np

    from qdqtool.data.loader import inputs_of, open_loader
    from qdqtool.deploying.candidates import DeployCandidate
    from qdqtool.deploying.choice import CandidateTrial
    from qdqtool.errors import QdqError
    from qdqtool.graph.io import open_model
    from qdqtool.precision.rounded import open_to_run
    from qdqtool.verbs.target_model import TargetModel

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
            found[tool] = reporter.figure(TargetModel(opened, tool))
            trials.append(CandidateTrial(candidate))
        except Exception as error:  # a model that no runtime takes is a result
            trials.append(CandidateTrial(candidate, failed=str(error).splitlines()[0]))
    return trials


def _together(others: Measured, one: ResampledFigure) -> dict[str, list[float]]:
    """What one model has less than each of some others, with 95 % intervals that hold for all of them at once.

    The best of many is picked by the figures that it is judged by, so that its own interval says too much. The bound is
    the largest deviation of all differences in a draw, each by its own spread (the bootstrap's max-t).
    """
    import numpy as np

    if not others:
        return {}
    drawn = np.stack([other.drawn - one.drawn for other in others.values()], axis=1)
    spread = drawn.std(axis=0)
    bound = np.quantile((np.abs(drawn - drawn.mean(axis=0)) / np.maximum(spread, 1e-12)).max(axis=1), 0.95)
    less = [(other.value - one.value, bound * width) for other, width in zip(others.values(), spread, strict=True)]
    spans = ([value, value - half, value + half] for value, half in less)
    return {name: [round(float(figure), 4) for figure in span] for name, span in zip(others, spans, strict=True)}


def _row(
    asked: Asked, trial: CandidateTrial, judged: tuple[Measured, Measured], int8: Sequence[str], reporter: Any
) -> dict[str, Any]:
    """All that the choice and the table want of a trial: figures with intervals, paired with every other trial's.

    Args:
        asked: model and target.
        trial: the candidate, or a peer.
        judged: by name, on the samples to choose by and on those to report by.
        int8: names of what is in INT8 and was judged, peers among it.
        reporter: the judge of the latter.
    """
    from qdqtool.evaluation.metrics import loss_between

    name, (chosen_by, found) = trial.candidate.name, judged
    row: dict[str, Any] = {"model": asked.subject.name, "for": asked.place, "name": name, "form": trial.candidate.form}
    row["peer"] = name in PEERS
    if name not in found:
        return {**row, "failed": trial.failed}
    row["metric"] = reporter.chosen.task.title
    row["loss"] = _numbers(loss_between(reporter.reference, found[name]))
    row["beside"] = {other: _numbers(loss_between(found[other], found[name])) for other in found if other != name}
    row["together"] = _together({other: found[other] for other in int8 if other != name}, found[name])
    if trial.loss is None or trial.cost is None:
        return row
    pairs = {other: _numbers(loss_between(chosen_by[other], chosen_by[name])) for other in chosen_by if other != name}
    weighed = trial.cost
    cost = {"megabytes": weighed.megabytes, "layers": weighed.layers, "unit": weighed.unit}
    cost |= {"on_gpu": weighed.on_gpu, "fits": weighed.fits}
    by = {"metric": trial.metric, "loss": _numbers(trial.loss), "change": trial.change, "beside": pairs}
    return {**row, "to choose": by, "cost": cost}


def kept_row(rows: Sequence[dict[str, Any]], board: str) -> dict[str, Any]:
    """What `deploy` keeps of the candidates of one model and target, by the figures of the choosing part."""
    from qdqtool.deploying.choice import choose

    own = {row["name"]: row for row in rows if not row["peer"]}
    compared = lambda one, other: _figure(own[one]["to choose"]["beside"][other])  # noqa: E731
    return own[choose([_trial(row, board) for row in own.values()], None, compared).kept.candidate.name]


def _trial(row: dict[str, Any], board: str) -> CandidateTrial:
    from qdqtool.deploying.candidates import DeployCandidate
    from qdqtool.deploying.choice import CandidateTrial, DeployCost

    candidate = DeployCandidate(row["name"], row["form"], (), "")
    if "to choose" not in row:
        return CandidateTrial(candidate, failed=row["failed"])
    by, cost = row["to choose"], row["cost"]
    on_dla = {"on_gpu": cost.get("on_gpu", 0), "fits": cost.get("fits", True)}
    weighed = DeployCost(cost["megabytes"], cost["layers"], "", cost["unit"], row["microseconds"].get(board), **on_dla)
    return CandidateTrial(candidate, _figure(by["loss"]), weighed, change=by["change"], metric=by["metric"])


def _figure(numbers: Sequence[float]) -> Figure:
    from qdqtool.evaluation.bootstrap import Interval
    from qdqtool.evaluation.metrics import Figure

    return Figure(numbers[0], Interval(numbers[1], numbers[2]))


def _numbers(figure: Figure) -> list[float]:
    return [round(value, 4) for value in (figure.value, figure.interval.low, figure.interval.high)]


def _say(text: str) -> None:
    if "judged on" not in text:
        print(f"  {text}", file=sys.stderr, flush=True)


def printed(rows: Sequence[dict[str, Any]], board: str) -> str:
    """The rows as a table; a star stands before what is kept."""
    cells = []
    for case, own in _cases(rows).items():
        kept = kept_row(own, board)
        for row in own:
            name = f"{'* ' if row is kept else ''}{row['name']}"
            if "loss" not in row:
                cells.append((case, name, "failed", "", "", "", "", ""))
                continue
            less = kept["beside"].get(row["name"], [0.0, 0.0, 0.0])
            shown = f"{row['to choose']['loss'][0]:.4f}" if "to choose" in row else ""
            cost = _trial(row, board).cost if "to choose" in row else None
            text = "" if cost is None else cost.with_time
            cells.append((case, name, shown, *_shown(row["loss"]), *_shown(less), text))
    return table(HEAD, cells)


def _cases(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each model and target."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(f"{row['model']}, {row['for']}", []).append(row)
    return found


def _shown(span: Sequence[float]) -> tuple[str, str]:
    return f"{span[0]:.4f}", f"{span[1]:.4f} to {span[2]:.4f}"


def summary(rows: Sequence[dict[str, Any]], board: str) -> str:
    """A line of Markdown for each model and target: what is kept, its loss and cost, and those of FP16."""
    head = ("model", "for", "kept", "its loss, 95 %", "its cost", "cost of FP16", "least loss", "kept loses more")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for case, own in _cases(rows).items():
        kept, (model, place) = kept_row(own, board), case.split(", ")
        half = next(row for row in own if row["form"] == "fp16")
        rivals = [row for row in own if "loss" in row and row["form"] not in ("fp16", "as-is")]
        best = min(rivals, key=lambda row: float(row["loss"][0]))
        less = kept["beside"].get(best["name"])
        costs = [_cost(row, board) for row in (kept, half)]
        named = f"{best['loss'][0]:.4f} {best['name']}"
        cells = [model, f"`{place}`", f"`{kept['name']}`", _span(kept["loss"]), *costs, named]
        lines.append(f"| {' | '.join([*cells, '0' if less is None else _span(less)])} |")
    return "\n".join(lines)


def _cost(row: dict[str, Any], board: str) -> str:
    """What decides: the forecast time, else the bytes, else layers."""
    cost = _trial(row, board).cost
    assert cost is not None
    if cost.microseconds is not None:
        return f"{cost.microseconds / 1000:.3f} ms"
    return cost.text() if cost.megabytes is None else f"{cost.megabytes:.2f} MB"


def _span(figure: Sequence[float]) -> str:
    return f"{figure[0]:.4f} ({figure[1]:.4f} {figure[2]:.4f})"


def beating(rows: Sequence[dict[str, Any]], beside: str, board: str) -> list[str]:
    """Candidates that are cheaper than what is kept and lose less, both beyond noise, on the evaluation data."""
    found = []
    for case, own in _cases(rows).items():
        kept = kept_row(own, board)
        cost, spans = _trial(kept, board).cost, kept[beside]
        for row in own:
            other = _trial(row, board).cost if not row["peer"] and "to choose" in row else None
            if other is None or cost is None or row["name"] not in spans or cost.counts_layers_alone:
                continue
            if other.is_below(cost) and spans[row["name"]][1] > 0:
                found.append(f"{case}: {row['name']} by {_span(spans[row['name']])}")
    return found


def worse_than(rows: Sequence[dict[str, Any]], beside: str, board: str) -> list[str]:
    """Where something else in INT8, a peer's model too, surely loses less than what is kept."""
    found = []
    for case, own in _cases(rows).items():
        spans = kept_row(own, board)[beside]
        int8 = [row["name"] for row in own if row["form"] not in ("fp16", "as-is") and row["name"] in spans]
        found += [f"{case}: {name} is better by {_span(spans[name])}" for name in int8 if spans[name][1] > 0]
    return found


def main() -> int:
    """Run the models and print; exit code 1 where a candidate beats what was kept in loss and cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    parser.add_argument("--shared", type=Path, default=default)
    parser.add_argument("--models", default="fastestdet_coco,ultraface_rfb320,mlperf_resnet8_fp32")
    parser.add_argument("--for", dest="places", default=",".join(PLACES))
    parser.add_argument("--effort", default="default", choices=("fast", "default", "best"))
    parser.add_argument("--peers", type=Path, help="the interpreter of an environment with the peers")
    parser.add_argument("--boards", default="orin-nano-4gb,rtx4090", help="whose forecast time decides, a table each")
    parser.add_argument("--samples", default="0,0", help="the most to calibrate and choose by, and to report by")
    parser.add_argument(
        "--json", type=Path, help="where rows are kept: models and targets that it has are not run again"
    )
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if args.json is not None and args.json.is_file():
        rows = json.loads(args.json.read_text(encoding="utf-8"))
    most = tuple(map(int, args.samples.split(",")))
    boards = tuple(args.boards.split(","))
    for name in args.models.split(","):
        for place in args.places.split(","):
            if any((row["model"], row["for"]) == (name, place) for row in rows):
                continue
            print(f"{name} for {place}", file=sys.stderr, flush=True)
            asked = Asked(SUBJECTS[name], place, args.effort, args.shared / "corpus", args.peers, most, boards)  # type: ignore[arg-type]
            rows += rows_of(asked)
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    beaten: list[str] = []
    every = rows
    for board in boards:
        rows = [row for row in every if not row["microseconds"] or board in row["microseconds"]]  # what it runs
        print(f"{board}\n{printed(rows, board)}\n{summary(rows, board)}")
        for beside in ("beside", "together"):
            how = "each by its own interval" if beside == "beside" else "by intervals that hold for all at once"
            beaten += beating(rows, beside, board)
            print(
                f"cheaper and surely better than what was kept, {how}:",
                "; ".join(beating(rows, beside, board)) or "nothing",
            )
            print(f"better in INT8 alone, {how}:", "; ".join(worse_than(rows, beside, board)) or "nothing")
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
