# SPDX-License-Identifier: Apache-2.0
"""Is every INT8 model that loses more than 2 % of its figure named by `insert`: its messages beside measured losses.

`python tests/bench/loss_hints.py --work DIR [--models M,M]`, DIR as `accuracy.py --work` left it, with the way
`auto keep`, which is `insert` with its defaults. Messages are kept in DIR/hints.jsonl, and not asked for again.
Exit code 1 where a loss goes unsaid.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from accuracy import FP32, losses, read_rows
from accuracy_subjects import SUBJECTS
from cost import apart, table

DEFAULT = "auto keep"
MOST = 0.02  # of the figure itself


def messages(model: Path, samples: Path, out: Path) -> dict[str, Any]:
    """What `insert` says of its loss, and the figure that it goes by."""
    import qdqtool

    result = qdqtool.insert(model, data=samples, output=out)
    found = result.output_loss
    if found is None:
        return {"loss": None, "large": False, "hint": []}
    return {"loss": found.value, "large": found.large, "hint": found.hint()}


def hint_row(name: str, work: Path, row: dict[str, Any], said: dict[str, Any]) -> tuple[list[str], bool]:
    """A line of the table, and whether a loss goes unsaid."""
    metric = SUBJECTS[name].metric
    value, low, high = apart(losses, work / name, row, FP32)[metric]
    before = row["figures"][metric] + value
    named = said["large"] or bool(said["hint"])
    loss = "" if said["loss"] is None else f"{said['loss']:.3f}"
    shares = [f"{100 * one / before:+.1f}" for one in (value, low, high)]
    cells = [name, metric, f"{before:.3f}", f"{row['figures'][metric]:.3f}", *shares, loss]
    how = "large" if said["large"] else "hint" if said["hint"] else ""
    return [*cells, how], value / before > MOST and not named


def main() -> int:
    """Print the table; 1 where a loss goes unsaid."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="the folder of accuracy.py")
    parser.add_argument("--models", default=",".join(SUBJECTS), help="with commas; those without a row are left out")
    args = parser.parse_args()
    shared = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    log = args.work / "hints.jsonl"
    known = {one["model"]: one for one in map(json.loads, log.read_text().splitlines())} if log.is_file() else {}
    rows, lines, unsaid = read_rows(args.work / "rows.jsonl"), [], False
    for name in args.models.split(","):
        row = rows.get((name, DEFAULT))
        if row is None or "figures" not in row:
            continue
        if name not in known:
            model = shared / "corpus/models" / f"{name}.onnx"
            files = model, args.work / name / "samples.npz", args.work / name / "hints.onnx"
            known[name] = {"model": name, **apart(messages, *files)}
            with log.open("a") as file:
                file.write(json.dumps(known[name]) + "\n")
        line, missed = hint_row(name, args.work, row, known[name])
        lines.append(line)
        unsaid |= missed
    head = ["model", "metric", "FP32", "INT8", "% lost", "low", "high", "loss at outputs", "said"]
    print(table(head, lines))
    return int(unsaid)


if __name__ == "__main__":
    sys.exit(main())
