# SPDX-License-Identifier: Apache-2.0
"""What `peel` makes of every Q/DQ model of the corpus: entries, names that are absent or empty, failures.

A script, not a test: python tests/bench/foreign.py [--target gpu|dla] [--on-asymmetric error|widen] [MODEL ...]

Names are what is counted, so tensors that the DLA needs and no Q/DQ covers are calibrated on random values.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.trtversion import TrtVersion
from tests.conftest import shared_folder

VERSION = TrtVersion(8, 5, 2)
# qdq_translator 0.2 on a Q/DQ detector of opset 9, as published counts have it.
TRANSLATOR = "qdq_translator 0.2, an opset-9 detector: 148 entries, 35 absent, 315 of 434 layer names empty"
_SIZES = (1, 3, 64, 64, 8, 8)


@dataclass(frozen=True)
class ForeignRow:
    """One model: what came out, or why nothing did."""

    model: str
    entries: int = 0
    absent: int = 0
    layers: int = 0
    empty: int = 0
    channels: int = 0
    baked: int = 0
    failure: str = ""

    def cells(self) -> tuple[str, ...]:
        numbers = (self.entries, self.absent, self.layers, self.empty, self.channels, self.baked)
        return self.model, *("" if self.failure else str(number) for number in numbers), self.failure


def quantized_models(folder: Path) -> Iterator[Path]:
    """Every file of `qdq/`, and those of `structure/` that hold Q/DQ or other operators that quantize."""
    yield from sorted((folder / "corpus" / "qdq").glob("*.onnx"))
    for file in sorted((folder / "corpus" / "structure").glob("*.onnx")):
        try:
            proto = open_model(file).proto
        except QdqError:
            continue
        nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
        if any("Quant" in node.op_type or "Dequant" in node.op_type for node in nodes):
            yield file


def row_of(file: Path, target: str, on_asymmetric: str) -> ForeignRow:
    """Peel one model, into a folder that is thrown away."""
    proto = open_model(file).proto
    options: dict[str, Any] = {
        "target": target,
        "on_conflict": "max",
        "on_asymmetric": on_asymmetric,
        "bake_weights": True,
        "emit": ("json",),
    }
    if target == "dla":
        options["data"] = [_random(proto, seed) for seed in range(2)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            places = {"output": Path(folder, "clean.onnx"), "cache": Path(folder, "clean.cache")}
            result = verbs.peel(file, verbs.PeelOptions(VERSION, **options), **places)
            clean = onnx.load(result.model, load_external_data=False)
            layers = json.loads(Path(result.emitted["json"]).read_text())["layers"]
    except QdqError as error:
        return ForeignRow(file.stem, failure=f"{error.reason}; {error.todo}")
    known = _tensors(clean)
    return ForeignRow(
        file.stem,
        len(result.cache.entries),
        sum(name not in known for name in result.cache.entries),
        len(layers),
        sum(not name.strip() for name in layers),
        result.weights.channels,
        result.weights.agreeing,
    )


def _tensors(proto: onnx.ModelProto) -> set[str]:
    made = {name for node in proto.graph.node for name in node.output}
    return made | {value.name for value in proto.graph.input} | {tensor.name for tensor in proto.graph.initializer}


def _random(proto: onnx.ModelProto, seed: int) -> dict[str, Any]:
    """Normal values for every input: of what the clean model takes, where integers have become floats."""
    values, stored = np.random.default_rng(seed), {tensor.name for tensor in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name in stored:
            continue
        dims = value.type.tensor_type.shape.dim
        shape = [dim.dim_value or _SIZES[min(axis, 5)] for axis, dim in enumerate(dims)]
        feeds[value.name] = values.standard_normal(shape).astype(np.float32)
    return feeds


def main(words: list[str]) -> int:
    """Print the table. The number of absent and empty names, and of failures without a reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--target", choices=("gpu", "dla"), default="gpu")
    parser.add_argument("--on-asymmetric", choices=("error", "widen"), default="error")
    args = parser.parse_args(words)
    shared = shared_folder()
    files = args.models or (list(quantized_models(shared)) if shared else [])
    rows = []
    print("| model | entries | absent | layers | empty | channels | agree when baked | why not |\n" + "|---" * 8 + "|")
    for file in files:
        rows.append(row_of(file, args.target, args.on_asymmetric))
        print("| " + " | ".join(rows[-1].cells()) + " |", flush=True)
    done = [row for row in rows if not row.failure]
    absent, empty = sum(row.absent for row in done), sum(row.empty for row in done)
    print(
        f"{len(done)} of {len(rows)} peeled: {sum(row.entries for row in done)} entries, {absent} absent, {empty} empty"
    )
    print(f"beside it {TRANSLATOR}")
    return min(absent + empty + (not rows), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
