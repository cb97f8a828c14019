# SPDX-License-Identifier: Apache-2.0
"""What label-free fine-tuning brings back, judged on labeled images with intervals.

Judgment and figures are those of the accuracy bench, so any two models have the paired interval of their difference.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy import FP32, PROJECT, AccuracyBench
from accuracy_judge import Span, figure, figures_file, judge, loss
from accuracy_subjects import SUBJECTS, AccuracySubject
from cost import apart, measured

HEAD = (
    "model",
    "way",
    "metric",
    "value and its interval",
    "less than FP32",
    "less than its start",
    "CPU s",
    "held-out",
)
WAYS = ("auto keep", "mse", "condition+mse")
TUNED = ", fine-tuned"


@dataclass(frozen=True)
class RecoveryPlace:
    """One model's folder and data."""

    subject: AccuracySubject
    corpus: Path
    work: Path

    @property
    def plain(self) -> Path:
        return self.corpus / "models" / f"{self.subject.name}.onnx"

    @property
    def bench(self) -> AccuracyBench:
        return AccuracyBench(self.subject, self.corpus, self.work, None)

    def model(self, way: str) -> Path:
        return self.work / f"{way.replace(' ', '_')}.onnx"

    def judged(self, way: str, model: Path) -> None:
        """Judge a model, unless its figures are there."""
        if not figures_file(self.work, way).is_file():
            apart(judge, self.subject, model, self.corpus, self.work, way)

    def tuned(self, way: str, more: Sequence[str]) -> str:
        """Fine-tune one way's model, unless that is done, and judge it; why not, else nothing."""
        name = way + TUNED
        out = self.model(name)
        if not out.is_file():
            command = [sys.executable, "-m", "qdqtool", "finetune", self.model(way), "--data", self.bench.samples]
            path = f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            log = out.with_suffix(".jsonl")
            log.unlink(missing_ok=True)
            cost = measured([*command, "-o", out, "--log", log, *more], environment={"PYTHONPATH": path})
            if cost.code != 0:
                return cost.said
            said = {"cpu_s": cost.cpu_seconds, "held": _held(log), "options": list(more)}
            out.with_suffix(".json").write_text(json.dumps(said))
        self.judged(name, out)
        return ""

    def row(self, way: str, metric: str, start: str | None = None) -> tuple[str, ...]:
        """One line of the table."""
        reported = self.model(way).with_suffix(".json")
        said = json.loads(reported.read_text()) if reported.is_file() else {}
        lost = _loss(self.work, metric, FP32, way) if way != FP32 else None
        gained = loss(self.work, metric, start, way) if start else None
        cost = f"{said['cpu_s']:.0f}" if said else ""
        found = figure(self.work, metric, way)
        value = f"{found.value:.3f} ({found.low:.3f} {found.high:.3f})"
        return (
            self.subject.name,
            way,
            metric,
            value,
            _span(lost),
            _span(gained),
            cost,
            said.get("held", ""),
        )


def _held(log: Path) -> str:
    """The held-out loss before and at its best, the steps, and how often the learning rate was halved."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    found = [one["measure"] for one in events if one["event"] == "measure"]
    best = min(found)
    steps = max((one["step"] for one in events), default=0)
    halved = sum(one["event"] == "halved" for one in events)
    return f"{found[0]:.3g} -> {best:.3g}, {steps} steps{f', {halved} halvings' if halved else ''}"


def _loss(work: Path, metric: str, before: str, after: str) -> Span | None:
    """As `loss`; the agreement of FP32 with itself is 1."""
    if metric.startswith("agreement") and before == FP32:
        one = figure(work, metric, after)
        return Span(1 - one.value, 1 - one.high, 1 - one.low)
    return loss(work, metric, before, after)


def _span(span: Span | None) -> str:
    return "" if span is None else f"{span.value:+.3f} ({span.low:+.3f} {span.high:+.3f})"


def yolox_rows(corpus: Path, work: Path, names: Sequence[str], more: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """FP32, every way of PTQ and each of them fine-tuned: agreement and mAP on coco_val128."""
    place = opened_place(corpus, work, "yolox_nano_coco")
    yield apart(place.row, FP32, "map")
    for way in names or WAYS:
        if not place.model(way).is_file():
            row = place.bench.row(way)
            if "failed" in row:
                yield place.subject.name, way, *[""] * 5, row["failed"]
                continue
        place.judged(way, place.model(way))
        yield from (apart(place.row, way, metric) for metric in ("agreement", "map"))
        teacher = ("--teacher", str(place.plain)) if way.startswith("condition") else ()
        failed = place.tuned(way, (*teacher, *more))
        if failed:
            yield place.subject.name, way + TUNED, *[""] * 5, failed
        else:
            yield from (apart(place.row, way + TUNED, metric, way) for metric in ("agreement", "map"))


def opened_place(corpus: Path, work: Path, name: str) -> RecoveryPlace:
    from accuracy_judge import prepare

    place = RecoveryPlace(SUBJECTS[name], corpus, work / name)
    place.work.mkdir(parents=True, exist_ok=True)
    if not place.bench.samples.is_file():
        apart(prepare, place.subject, corpus, place.work)
    place.judged(FP32, place.plain)
    return place
