# SPDX-License-Identifier: Apache-2.0
"""Accuracy of INT8 on labeled images: qdqtool's ways beside nvidia-modelopt and onnxruntime, with intervals.

A script, not a test: see README.md here. Heavy libraries are imported in the functions that use them (see cost.py).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy_judge import Span, counts, figure, figures_file, judge, loss, prepare
from accuracy_subjects import SUBJECTS, AccuracySubject
from cost import Cost, apart, measured, table

PROJECT = Path(__file__).resolve().parents[2]
FP32, ALL_INT8 = "FP32", ", all INT8"
PEER_LIMIT = 900  # CPU seconds
# Gates and aims for the network that stock tools lose: agreement with every operator in INT8, with heads in float; mAP.
LOST = "yolox_nano_coco"
BARS = {"agreement, all INT8": (0.87, 0.90), "agreement": (0.885, 0.92), "map": (0.320, 0.335)}
TOUCHES = 5e-4  # an interval that ends this near to 0 holds it: less than one of the images in a thousand
# How much a model may lose at the upper end of the interval.
LIMITS = {"top1": 0.01, "map": 0.02, "ap50": 0.02}
OURS = (
    "mse;entropy;auto;auto keep;condition+mse;condition+auto;condition+auto keep;"
    "condition+percentile=99.99, all INT8;condition+auto, all INT8"
)
PEERS = "modelopt entropy;modelopt max;onnxruntime Entropy;onnxruntime Percentile"


_SHIFTING = ("--steps", "equalize,smooth,shift", "--muls", "all")
_LONGER = ("--steps", "3000")


@dataclass(frozen=True)
class Way:
    """One way to an INT8 model with qdqtool, as its name spells it: ``condition+auto keep=3, all INT8``.

    ``blocks+`` is conditioning without what blocks learn by themselves, and `finetune --blocks --ranges learn`;
    ``shift+`` is that with the step `shift`, every Mul and Add that wins, and `--steps 3000` of each block;
    ``within=0.003`` is `--max-output-loss`.
    """

    method: str
    first: str
    keep: str
    heads: str
    within: str = ""

    @property
    def floats(self) -> list[str]:
        """What says which operators stay in float, in the words of `insert`."""
        return ["--max-output-loss", self.within] if self.within else ["--keep-float", self.keep]

    @classmethod
    def parse(cls, name: str) -> Way:
        """Read a name; what it does not say is the default."""
        heads = "none" if name.endswith(ALL_INT8) else "regression"
        words = name.removesuffix(ALL_INT8).split()
        first, _, method = words[0].rpartition("+")
        within = next((word.removeprefix("within=") for word in words[1:] if word.startswith("within=")), "")
        keep = next((word.removeprefix("keep").removeprefix("=") or "auto" for word in words[1:]), "0")
        return cls(method, first, keep, heads, within)


@dataclass(frozen=True)
class AccuracyBench:
    """One model with its prepared data, and the interpreters."""

    subject: AccuracySubject
    corpus: Path
    work: Path
    peers: Path | None

    @property
    def plain(self) -> Path:
        return self.corpus / "models" / f"{self.subject.name}.onnx"

    @property
    def samples(self) -> Path:
        return self.work / "samples.npz"

    def row(self, tool: str) -> dict[str, Any]:
        """Make one model and judge it."""
        print(f"{self.subject.name}: {tool} ...", file=sys.stderr, flush=True)
        named = {"model": self.subject.name, "tool": tool}
        if tool == FP32:
            return {**named, "figures": apart(judge, self.subject, self.plain, self.corpus, self.work, tool)}
        out, costs = self.by_peer(tool) if tool.startswith(("modelopt", "onnxruntime")) else self._by_us(tool)
        spent = [{"cpu_s": round(cost.cpu_seconds, 1), "mb": round(cost.peak_mb)} for cost in costs]
        if costs[-1].code != 0 or not out.is_file():
            return {**named, "costs": spent, "failed": _why(costs[-1])}
        try:
            figures = apart(judge, self.subject, out, self.corpus, self.work, tool)
        except Exception as error:  # a model that no runtime takes is a result
            return {**named, "costs": spent, "failed": str(error).splitlines()[0]}
        row = {**named, "costs": spent, "figures": figures, **apart(counts, out)}
        for other in (FP32, "mse"):
            if other != tool and (lost := apart(losses, self.work, row, other)):
                row[f"loss to {other}"] = lost
        return row

    def _by_us(self, tool: str) -> tuple[Path, list[Cost]]:
        way, model, costs = Way.parse(tool), self.plain, []
        out, keep = self.work / f"{tool.replace(' ', '_')}.onnx", way.floats
        if way.first in ("blocks", "shift"):
            start, how = self.work / f"before_{out.name}", ["--condition", "equalize,smooth"]
            if way.first == "shift":
                model, how = self.work / f"shifted_{way.method}_{way.heads}.onnx", []
                costs.append(self._qdqtool("condition", way, model, None, *_SHIFTING))
            costs.append(self._qdqtool("insert", way, start, model, *how, *keep))
            if start.is_file():  # also with exit code 1: the loss that was asked for is not met
                costs.append(self._finetune(start, out, *(_LONGER if way.first == "shift" else ())))
            return out, costs
        if way.first and way.floats[-1] != "0":  # what stays in float is chosen before biases are corrected
            return out, [self._qdqtool("insert", way, out, None, "--condition", "auto", *keep)]
        if way.first:
            model = self.work / f"conditioned_{way.method}_{way.heads}.onnx"
            costs.append(self._qdqtool("condition", way, model))
            if costs[-1].code != 0:
                return model, costs
        costs.append(self._qdqtool("insert", way, out, model, *keep))
        return out, costs

    def _qdqtool(self, verb: str, way: Way, out: Path, model: Path | None = None, *more: str) -> Cost:
        return self._run(verb, model or self.plain, out, "--method", way.method, "--float-heads", way.heads, *more)

    def _finetune(self, start: Path, out: Path, *more: str) -> Cost:
        return self._run("finetune", start, out, "--blocks", "--ranges", "learn", *more)

    def _run(self, verb: str, model: Path, out: Path, *more: str) -> Cost:
        command = [sys.executable, "-m", "qdqtool", verb, model, "--data", self.samples, "-o", out, *more, "-q"]
        path = f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        return measured(command, environment={"PYTHONPATH": path})

    def by_peer(self, tool: str) -> tuple[Path, list[Cost]]:
        """A peer, with a copy of the model: nvidia-modelopt writes to its input."""
        name, how = tool.split()
        folder = self.work / tool.replace(" ", "_")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        model, out = Path(shutil.copyfile(self.plain, folder / "model.onnx")), folder / "q.onnx"
        if name == "modelopt":
            files = ["--onnx_path", model, "--calibration_data_path", self.samples, "--output_path", out]
            more = ["--quantize_mode", "int8", "--calibration_eps", "cpu", "--high_precision_dtype", "fp32"]
            command = [self.peers, "-m", "modelopt.onnx.quantization", *files, "--calibration_method", how, *more]
        else:
            worker = Path(__file__).with_name("accuracy_peers.py")
            command = [self.peers, worker, name, how, model, self.samples, out]
        return out, [measured(command, limit_seconds=PEER_LIMIT)]  # type: ignore[list-item]


def _why(cost: Cost) -> str:
    code = f"more than {PEER_LIMIT} CPU s" if cost.code is None else f"exit {cost.code}"
    return f"no model, {code}: {cost.said}"


def losses(work: Path, row: Mapping[str, Any], other: str) -> dict[str, list[float]]:
    """What the row's model has less than another's of each metric: value, low, high."""
    found = {metric: _loss(work, metric, other, row["tool"]) for metric in row["figures"]}
    return {metric: [round(v, 4) for v in (s.value, s.low, s.high)] for metric, s in found.items() if s}


def _loss(work: Path, metric: str, before: str, after: str) -> Span | None:
    """As `loss`; the agreement of FP32 with itself is 1."""
    if metric.startswith("agreement") and before == FP32:
        one = figure(work, metric, after)
        return Span(1 - one.value, 1 - one.high, 1 - one.low)
    return loss(work, metric, before, after)


# ---------------------------------------------------------------- the run


def run(
    bench: AccuracyBench, tools: Sequence[str], done: dict[tuple[str, str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows of one model, those that are there already as they are."""
    bench.work.mkdir(parents=True, exist_ok=True)
    if not bench.samples.is_file():
        apart(prepare, bench.subject, bench.corpus, bench.work)
    for tool in (FP32, *tools):
        held = done.get((bench.subject.name, tool))
        if held and ("failed" in held or figures_file(bench.work, tool).is_file()):
            continue
        yield bench.row(tool)


def read_rows(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(model, tool) -> its row; of several the last."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {(row["model"], row["tool"]): row for row in map(json.loads, lines)}


# ---------------------------------------------------------------- the tables


def _format_span(span: Sequence[float] | None) -> str:
    return "" if span is None else f"{span[0]:+.3f} ({span[1]:+.3f} {span[2]:+.3f})"


def shown(work: Path, metric: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One model's table: figures, losses to FP32 and to mse, what it cost."""
    second = "agreement" if metric != "top1" else "top5"
    head = ["tool", metric, "less than FP32", "less than mse", second, "less than mse", "float", "MACs", "CPU s", "MB"]
    lines = []
    for row in rows:
        if "failed" in row:
            lines.append([row["tool"], row["failed"][:60], *[""] * 8])
            continue
        to_mse = losses(work, row, "mse") if row["tool"] not in (FP32, "mse") else {}
        costs, figures = row.get("costs", []), row["figures"]
        lines.append(
            [
                row["tool"],
                f"{figures[metric]:.4f}",
                _format_span(None if row["tool"] == FP32 else losses(work, row, FP32)[metric]),
                _format_span(to_mse.get(metric)),
                f"{figures[second]:.4f}" if second in figures else "",
                _format_span(to_mse.get(second)),
                str(row.get("in_float", "")),
                f"{row['float_macs']:.0%}" if row.get("float_macs") is not None else "",
                "+".join(f"{one['cpu_s']:.0f}" for one in costs),
                "+".join(str(one["mb"]) for one in costs),
            ]
        )
    return table(head, lines)


def verdicts(work: Path, subject: AccuracySubject, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What holds of one model, a line each; MISSED where a bar that was set is not reached."""
    good = {tool: row for tool, row in rows.items() if "figures" in row}
    lines = _bars(good) if subject.name == LOST else []
    metrics = [subject.metric, *(["agreement"] if subject.detector else [])]
    for tool in [tool for tool in ("auto", "auto keep", "condition+mse", "condition+auto") if tool in good]:
        for metric in metrics:
            lines += _against(work, metric, tool, [m for m in ("mse", "entropy") if m in good])
        worst = losses(work, good[tool], FP32)[subject.metric][2]
        within = "within" if worst <= LIMITS[subject.metric] else "BEYOND"
        lines.append(f"{tool}: at the worst {worst:.3f} {subject.metric} lost, {within} {LIMITS[subject.metric]}")
    return lines


def _bars(good: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each way that conditions, held against gates and aims."""
    lines = []
    for tool, row in good.items():
        if not tool.startswith("condition"):
            continue
        for metric in ("agreement", "map"):
            gate, aim = BARS[metric + (ALL_INT8 if metric == "agreement" and tool.endswith(ALL_INT8) else "")]
            value = row["figures"][metric]
            reached = f"aim {aim} reached" if value >= aim else f"gate {gate} {'held' if value >= gate else 'MISSED'}"
            lines.append(f"{tool}: {metric} {value:.4f}, {reached}")
    return lines


def _against(work: Path, metric: str, tool: str, others: Sequence[str]) -> list[str]:
    """A word on each other method that a way is worse or better than beyond the interval of the difference."""
    lines = []
    for other in others:
        span = _loss(work, metric, other, tool)
        if span and (span.low > TOUCHES or span.high < -TOUCHES):
            how = "WORSE" if span.low > TOUCHES else "better"
            lines.append(
                f"{tool}: {metric} {how} than {other} by {abs(span.value):.3f} ({span.low:+.3f} {span.high:+.3f})"
            )
    return lines


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(SUBJECTS), help="with commas; default all labeled ones")
    parser.add_argument("--tools", default=OURS, help="ways of qdqtool, with semicolons")
    parser.add_argument("--peers", default=PEERS, help="with semicolons; used with --peers-python")
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt and onnxruntime")
    parser.add_argument(
        "--work", type=Path, help="folder for models and figures, to go on from; default a temporary one"
    )
    parser.add_argument("--images", metavar="D,C", help="images to judge on, of detectors and classifiers; default all")
    parser.add_argument("--table", action="store_true", help="run nothing, print the tables of what is there")
    parser.add_argument("--against", action="append", default=[], metavar="A;B", help="also: what B has less than A")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the bench and print its tables; 1 where a gate is missed."""
    args = arguments(argv)
    if args.images:
        os.environ["QDQTOOL_BENCH_IMAGES"] = args.images  # every judgment is a process of its own
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    if not (shared / "corpus/models").is_dir():
        print(f"accuracy: {shared / 'corpus/models'} is absent; set QDQTOOL_SHARED", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        return _run_all(args, shared / "corpus", args.work or Path(folder))


def _run_all(args: argparse.Namespace, corpus: Path, work: Path) -> int:
    work.mkdir(parents=True, exist_ok=True)
    log = work / "rows.jsonl"
    tools = [one for one in args.tools.split(";") if one]
    tools += [one for one in args.peers.split(";") if one] if args.peers_python else []
    missed = False
    for name in args.models.split(","):
        bench = AccuracyBench(SUBJECTS[name], corpus, work / name, args.peers_python)
        for row in [] if args.table else run(bench, tools, read_rows(log)):
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")
        rows = {tool: row for (model, tool), row in read_rows(log).items() if model == name}
        if not rows:
            continue
        lines = apart(verdicts, bench.work, bench.subject, rows)
        print(f"\n{name}", apart(shown, bench.work, bench.subject.metric, list(rows.values())), *lines, sep="\n")
        for pair in args.against:
            print(*apart(_paired, bench, rows, *pair.split(";")), sep="\n", flush=True)
        missed |= any("MISSED" in line for line in lines)
    return int(missed)


def _paired(bench: AccuracyBench, rows: Mapping[str, Mapping[str, Any]], before: str, after: str) -> list[str]:
    """Every metric that two tools share: what the second has less."""
    if not {before, after} <= {tool for tool, row in rows.items() if "figures" in row}:
        return [f"{after} less than {before}: not measured"]
    spans = {metric: _loss(bench.work, metric, before, after) for metric in rows[after]["figures"]}
    return [
        f"{after} less than {before}: {metric} {_format_span((s.value, s.low, s.high))}"
        for metric, s in spans.items()
        if s
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
