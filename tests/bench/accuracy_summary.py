# SPDX-License-Identifier: Apache-2.0
"""One table of what accuracy.py measured: each model's figure in FP32, by qdqtool's ways and by the peers.

    python tests/bench/accuracy_summary.py --work accuracy [--write docs/peers.md]

`--work` is the folder of accuracy.py. A figure with a star is below FP32 beyond its interval. `half-width` is half of
the widest 95 % interval of a loss without a star. A detector has a second row: its agreement with FP32's detections.
Ways that were not measured have no column. `in float` is the share of the multiply-adds that everything leaves there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy import FP32, losses, read_rows
from accuracy_subjects import SUBJECTS, AccuracySubject
from pages import rewrite

EVERYTHING = "blocks+auto within=0.003"
WAYS = {
    "mse": "`mse`",
    "auto keep": "default",
    "condition+mse": "condition + `mse`",
    "condition+auto keep": "condition + default",
    EVERYTHING: "everything",
    "modelopt entropy": "modelopt",
    "onnxruntime Entropy": "onnxruntime",
}
METRICS = {"map": "mAP", "ap50": "AP50", "top1": "top-1", "agreement": "agreement"}

Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def main() -> int:
    """Print the table; 1 where accuracy.py measured nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="the folder of accuracy.py")
    parser.add_argument("--write", type=Path, help="a page with the two comments, between which the table is put")
    args = parser.parse_args()
    rows = read_rows(args.work / "rows.jsonl")
    if not rows:
        print(f"{args.work / 'rows.jsonl'}: no rows; run accuracy.py with this --work", file=sys.stderr)
        return 1
    lines = summary(args.work, rows)
    print("\n".join(lines))
    if args.write is not None:
        rewrite(args.write, "accuracy_summary.py", lines)
    return 0


def summary(work: Path, rows: Rows) -> list[str]:
    """The table as Markdown: models in the order of the subjects, those that have an FP32 row."""
    measured = {tool for _, tool in rows}
    ways = [way for way in WAYS if way in measured]
    share = ["in float"] if EVERYTHING in ways else []
    head = ["model", "metric", FP32, *(WAYS[way] for way in ways), *share, "half-width"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for subject in SUBJECTS.values():
        if (subject.name, FP32) in rows:
            lines += _lines(work / subject.name, subject, rows, ways)
    return lines


def _lines(work: Path, subject: AccuracySubject, rows: Rows, ways: Sequence[str]) -> list[str]:
    lines = []
    for metric in (subject.metric, *(["agreement"] if subject.detector else [])):
        cells, widths = [], [0.0]
        for way in ways:
            cell, width = _cell(work, rows.get((subject.name, way)), metric)
            cells.append(cell)
            widths += [] if cell.endswith("*") else [width]
        if EVERYTHING in ways:
            cells.append(_share(rows.get((subject.name, EVERYTHING), {})) if metric == subject.metric else "")
        plain = "" if metric == "agreement" else f"{rows[subject.name, FP32]['figures'][metric]:.3f}"
        width = "" if metric == "agreement" else f"{max(widths):.3f}"
        lines.append(f"| {subject.name} | {METRICS[metric]} | {plain} | {' | '.join(cells)} | {width} |")
    return lines


def _share(row: Mapping[str, Any]) -> str:
    """The share of the multiply-adds in float; a question mark where sizes are not known."""
    if "in_float" not in row:
        return ""
    share = row["float_macs"] if row["in_float"] else 0.0
    return f"{share:.0%}" if share or not row["in_float"] else "?"


def _cell(work: Path, row: Mapping[str, Any] | None, metric: str) -> tuple[str, float]:
    """A figure, with a star where it is below FP32 beyond its interval; half of the interval."""
    if row is None:
        return "", 0.0
    if "failed" in row:
        return "fails", 0.0
    value, (_, low, high) = row["figures"][metric], losses(work, row, FP32)[metric]
    star = " *" if metric != "agreement" and low > 0 else ""
    return f"{value:.3f}{star}", (high - low) / 2


if __name__ == "__main__":
    sys.exit(main())
