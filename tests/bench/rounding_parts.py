# SPDX-License-Identifier: Apache-2.0
"""Whose rounding costs what: labeled models with only their weights in INT8, only their activations, and both.

`python tests/bench/rounding_parts.py --work DIR --models M,M [--float-heads none] [--condition equalize,smooth]`, DIR
as `accuracy.py --work` left it. The model is that of `insert --keep-float 0`; pairs of the other
part are taken out. Judged as in accuracy.py. Rows are kept in DIR/parts.jsonl, and are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from accuracy_judge import judge
from accuracy_subjects import SUBJECTS
from cost import apart, table

PARTS = ("both", "weights", "activations")


def insert_all(model: Path, samples: Path, out: Path, heads: str, condition: str) -> None:
    """The INT8 model with nothing kept in float but, where asked for, heads."""
    import qdqtool
    from qdqtool.match.plan import PlanOptions

    plan = PlanOptions(float_heads=heads)  # type: ignore[arg-type]
    options = qdqtool.InsertOptions(plan=plan, keep_float=0, condition=condition or None, advise=False)
    qdqtool.insert(model, data=samples, options=options, output=out)


def keep_part(model: Path, part: str, out: Path) -> None:
    """The same model with the pairs of weights only, or those of activations only."""
    import onnx

    proto = onnx.load(model)
    graph = proto.graph
    constants = {tensor.name for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    source: dict[str, str] = {}
    for node in graph.node:
        quantize = producers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if quantize is not None and (quantize.input[0] in constants) != (part == "weights"):
            source[node.output[0]] = quantize.input[0]
    for node in graph.node:
        for index, name in enumerate(node.input):
            while name in source:
                name = source[name]
            node.input[index] = name
    onnx.save(proto, out)


def part_row(name: str, folder: Path, shared: Path, heads: str, condition: str) -> list[dict[str, object]]:
    """One model's three rows."""
    corpus, rows = shared / "corpus", []
    model = corpus / "models" / f"{name}.onnx"
    for part in PARTS:
        out = folder / f"parts_{heads}_{part}.onnx"
        if part == "both":
            apart(insert_all, model, folder / "samples.npz", out, heads, condition)
        else:
            apart(keep_part, folder / f"parts_{heads}_both.onnx", part, out)
        figures = apart(judge, SUBJECTS[name], out, corpus, folder, f"parts {part}")
        rows.append({"model": name, "heads": heads, "condition": condition, "part": part, "figures": figures})
    return rows


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="the folder of accuracy.py")
    parser.add_argument("--models", required=True, help="with commas")
    parser.add_argument("--float-heads", default="regression")
    parser.add_argument("--condition", default="equalize,smooth", help='"" for none')
    args = parser.parse_args()
    shared = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    log = args.work / "parts.jsonl"
    asked = args.float_heads, args.condition
    for name in args.models.split(","):
        held = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
        if any((one["model"], one["heads"], one["condition"]) == (name, *asked) for one in held):
            continue
        rows = part_row(name, args.work / name, shared, *asked)
        with log.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    lines = []
    for row in map(json.loads, log.read_text().splitlines()):
        figures = row["figures"]
        second = f"{figures['agreement']:.3f}" if "agreement" in figures else ""
        value = f"{figures[SUBJECTS[row['model']].metric]:.3f}"
        lines.append([row["model"], row["heads"], row["condition"], row["part"], value, second])
    print(table(["model", "float heads", "condition", "in INT8", "figure", "agreement"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
