# SPDX-License-Identifier: Apache-2.0
"""How often are the words for a loss right? What `insert` says on calibration data beside what the metric really lost.

`python tests/bench/loss_words.py --work DIR [--models M,M] [--table] [--write docs/evaluate.md]`. Every labeled model
is quantized in several ways. The words of a model are judged with the bounds that the other models give (`bounds`);
those of all models are what `evaluation/loss_scale.py` should have. Exit code 1 where "much" is right fewer than eight
times in ten or said of more than a fifth of what loses less than 2 %, or where a lost 5 % is called little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy_judge import figure, figures_file, judge, loss, prepare
from accuracy_subjects import SUBJECTS
from cost import apart, table
from pages import rewrite

LITTLE, MUCH = 0.02, 0.05  # of the metric itself
RIGHT, FALSE_ALARMS = 0.8, 0.2
FITTED = 0.9  # of the models that bounds are taken from, so that RIGHT holds of others
FP32 = "FP32"
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "max": {"method": "max", "keep_float": 0},
    "per tensor": {"weights": "per-tensor", "keep_float": 0},
    "all INT8": {"float_heads": "none", "method": "mse", "keep_float": 0},
    "entropy": {"method": "entropy", "keep_float": 0},
    "clipped": {"method": "percentile=99", "keep_float": 0},
    "FP8": {"format": "fp8"},
    "FP8, all": {"format": "fp8", "keep_float": 0},
    "INT4": {"format": "int4"},
}


def said(model: Path, samples: Path, out: Path, way: str) -> dict[str, Any]:
    """What `insert` says of its loss on calibration data."""
    import qdqtool
    from qdqtool.match.options import PlanOptions
    from qdqtool.verbs.insert_options import InsertOptions

    asked = dict(WAYS[way])
    plan = PlanOptions(**{key: asked.pop(key) for key in ("weights", "float_heads", "format") if key in asked})
    method = {"calibration": asked.pop("method")} if "method" in asked else {}
    result = qdqtool.insert(model, data=samples, options=InsertOptions(plan=plan, **method, **asked), output=out)
    found = result.output_loss
    answers = None if found is None else found.answers
    return {
        "outputs": None if found is None else found.value,
        "outputs_high": None if found is None else found.interval.high,
        "metric": None if answers is None else answers.metric,
        "answers": None if answers is None else answers.loss.value,
        "high": None if answers is None else answers.loss.interval.high,
    }


def measured(name: str, way: str, corpus: Path, work: Path) -> dict[str, Any]:
    """A row: what was said, and what the metric lost; `lost` is None where the format has no operator in the model."""
    from qdqtool.errors import QdqError

    subject, plain, out = SUBJECTS[name], corpus / "models" / f"{name}.onnx", work / f"{way.replace(' ', '_')}.onnx"
    try:
        words = said(plain, work / "samples.npz", out, way)
    except QdqError as error:
        if not error.reason.startswith("has nothing to quantize"):
            raise
        return {"model": name, "way": way, "lost": None}
    if not figures_file(work, way).is_file():
        judge(subject, out, corpus, work, way)
    lost = loss(work, subject.metric, FP32, way)
    assert lost is not None
    before = figure(work, subject.metric, FP32).value
    shares = [one / before for one in (lost.value, lost.low, lost.high)]
    return {"model": name, "way": way, "before": before, "lost": shares, **words}


# ---------------------------------------------------------------- bounds and words


def bounds(rows: Sequence[dict[str, Any]], key: str) -> tuple[float, float]:
    """Where `little` ends and `much` begins.

    Little ends at a third of the least figure with which 5 % of the metric were lost. Much begins in the middle, on a
    logarithmic scale, between the least figure from which on nine of ten lost as much, and the next one below it.
    """
    ordered = sorted(((row[key], row["lost"][0] >= MUCH) for row in rows), reverse=True)
    losers = [value for value, much in ordered if much]
    if not losers:
        return math.inf, math.inf
    right = [sum(much for _, much in ordered[: end + 1]) / (end + 1) for end in range(len(ordered))]
    last = max(end for end, share in enumerate(right) if share >= FITTED and ordered[end][1])
    below = ordered[last + 1][0] if ordered[last + 1 :] else ordered[last][0] / 4
    return losers[-1] / 3, math.sqrt(ordered[last][0] * max(below, ordered[last][0] / 4))


def word(value: float, high: float, little: float, much: float) -> str:
    """As `word_of` has it."""
    return "little" if high < little else "much" if value >= much else "some"


def judged(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[dict[str, Any], str]]:
    """Each row with its word, by the bounds that the other models give."""
    found = []
    for row in rows:
        others = [one for one in rows if one["model"] != row["model"]]
        high = row["high" if key == "answers" else "outputs_high"]
        found.append((row, word(row[key], high, *bounds(others, key))))
    return found


def counted(pairs: Sequence[tuple[dict[str, Any], str]]) -> tuple[list[str], bool]:
    """How often the words were right, as cells, and whether the limits hold."""
    lost = [(row["lost"][0], said) for row, said in pairs]
    much = [share for share, said in lost if said == "much"]
    little = [share for share, said in lost if said == "little"]
    least = [said for share, said in lost if share < LITTLE]
    most = [said for share, said in lost if share >= MUCH]
    right, false = sum(share >= MUCH for share in much), least.count("much")
    holds = (not much or right >= RIGHT * len(much)) and false <= FALSE_ALARMS * max(1, len(least))
    cells = [
        f"{len(pairs)}",
        f"{right} of {len(much)}",
        f"{false} of {len(least)}",
        f"{sum(share < LITTLE for share in little)} of {len(little)}",
        f"{most.count('little')} of {len(most)}",
    ]
    return cells, holds and not most.count("little")


def report(rows: Sequence[dict[str, Any]]) -> tuple[list[str], bool]:
    """The lines of the page, and whether the limits hold."""
    kinds = {
        "nearness": ("answers", [row for row in rows if row["metric"] == "nearness"]),
        "agreement": ("answers", [row for row in rows if row["metric"] == "agreement"]),
        "outputs": ("outputs", list(rows)),
    }
    head = [
        "measured",
        "models",
        "much: lost 5 %",
        "much, of those below 2 %",
        "little: below 2 %",
        "little, of those that lost 5 %",
    ]
    lines, fine = [f"| {' | '.join([*head, 'little below', 'much from'])} |", f"|{'---|' * (len(head) + 2)}"], True
    for kind, (key, own) in kinds.items():
        cells, holds = counted(judged(own, key))
        fine &= holds
        ends = [f"{one:.3f}" for one in bounds(own, key)]
        lines.append(f"| {' | '.join([f'`{kind}`', *cells, *ends])} |")
    return lines, fine


def main() -> int:
    """Measure what is missing, print every model and the table; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for models and rows, to go on from")
    parser.add_argument("--models", default=",".join(SUBJECTS), help="with commas; default all labeled ones")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--write", type=Path, help="the page that holds the table")
    args = parser.parse_args()
    corpus = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "corpus"
    log = args.work / "words.jsonl"
    lines = log.read_text().splitlines() if log.is_file() else []
    rows = {(row["model"], row["way"]): row for row in map(json.loads, lines)}
    for name in [] if args.table else args.models.split(","):
        work = args.work / name
        work.mkdir(parents=True, exist_ok=True)
        for way in WAYS:
            if (name, way) in rows:
                continue
            if not (work / "samples.npz").is_file():
                apart(prepare, SUBJECTS[name], corpus, work)
            if not (work / f"{FP32}.figures.npz").is_file():
                apart(judge, SUBJECTS[name], corpus / "models" / f"{name}.onnx", corpus, work, FP32)
            rows[name, way] = apart(measured, name, way, corpus, work)
            with log.open("a") as file:
                file.write(json.dumps(rows[name, way]) + "\n")
    every = sorted((row for row in rows.values() if row["lost"]), key=lambda row: row["lost"][0])
    cells = []
    for row in every:
        figures = ["" if row[key] is None else f"{row[key]:.4f}" for key in ("answers", "outputs")]
        cells.append(
            [row["model"], row["way"], *(f"{100 * one:+.1f}" for one in row["lost"]), row["metric"] or "", *figures]
        )
    print(table(["model", "way", "% lost", "low", "high", "measured", "loss", "loss at outputs"], cells))
    page, fine = report(every)
    print(*page, sep="\n")
    if args.write:
        rewrite(args.write, "loss_words.py", page)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
