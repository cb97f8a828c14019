# SPDX-License-Identifier: Apache-2.0
"""Whose rounding costs what: labeled models with only their weights in INT8, only their activations, both, and better.

`9 bits` rounds activations twice as finely; `zero points` gives each of them 256 levels from its smallest to its
largest value, where symmetric scales leave half of them unused behind a Relu. TensorRT takes neither: they are limits.

`python tests/bench/rounding_parts.py --work DIR --models M,M [--float-heads none] [--condition equalize,smooth]`, DIR
as `accuracy.py --work` left it. The model is that of `insert --keep-float 0`; pairs of the other
part are taken out. Judged as in accuracy.py. Rows are kept in DIR/parts.jsonl, and are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy_judge import judge
from accuracy_subjects import SUBJECTS
from cost import apart, table

from qdqtool.graph.model import Model

PARTS = ("both", "weights", "activations", "9 bits", "zero points")
FEW = 16  # samples that ranges are taken from


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


def refine(model: Path, samples: Path, part: str, out: Path) -> None:
    """The same model with activations in finer steps: twice as fine, or with zero points."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    proto = onnx.load(model)
    graph = proto.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    found = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in constants]
    spans = ranges(proto, [node.input[0] for node in found], samples) if part == "zero points" else {}
    for node in found:
        step = float(numpy_helper.to_array(constants[node.input[1]]))
        zero = np.array(0, np.int16)
        if spans:
            low, high = (float(np.clip(one, -127 * step, 127 * step)) for one in spans[node.input[0]])
            step = max(max(high, 0.0) - min(low, 0.0), 1e-12) / 255
            zero = np.array(round(-min(low, 0.0) / step), np.uint8)
        else:
            step /= 2
        names = [f"{node.output[0]}.{word}" for word in ("step", "zero")]
        graph.initializer.append(numpy_helper.from_array(np.array(step, np.float32), names[0]))
        graph.initializer.append(numpy_helper.from_array(zero, names[1]))
        for one in (node, *(n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] == node.output[0])):
            del one.input[1:]
            one.input.extend(names)
            one.domain = "com.microsoft"  # which takes 16 bits at any opset
    del graph.value_info[:]
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(proto, out)


def ranges(proto: Any, names: Sequence[str], samples: Path) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of each tensor on a few samples."""
    import numpy as np
    import onnx

    from qdqtool.runtime.executor import Executor

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    given = {value.name for value in (*copy.graph.output, *copy.graph.input)}
    copy.graph.output.extend(onnx.helper.make_empty_tensor_value_info(one) for one in set(names) - given)
    held, run, found = np.load(samples), Executor(Model(copy)), dict[str, tuple[float, float]]()
    for index in range(FEW):
        feed = {name: held[name][index : index + 1] for name in held.files}
        for name, array in {**run.run(feed), **feed}.items():
            low, high = found.get(name, (np.inf, -np.inf))
            found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found


def part_row(name: str, folder: Path, shared: Path, heads: str, condition: str) -> list[dict[str, object]]:
    """One model's rows."""
    corpus, rows = shared / "corpus", []
    model = corpus / "models" / f"{name}.onnx"
    for part in PARTS:
        out = folder / f"parts_{heads}_{part.replace(' ', '_')}.onnx"
        if part == "both":
            apart(insert_all, model, folder / "samples.npz", out, heads, condition)
        elif part in PARTS[3:]:
            apart(refine, folder / f"parts_{heads}_both.onnx", folder / "samples.npz", part, out)
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
