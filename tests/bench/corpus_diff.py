# SPDX-License-Identifier: Apache-2.0
"""Whether two checkouts write the same files: insert without and with data, peel for the GPU and the DLA. Not a test.

A script: python tests/bench/corpus_diff.py BEFORE AFTER MODELS [--data] [--only WORD] compares every .onnx file in the
folder MODELS. Nodes, initializers, peeled models and caches are compared by their bytes, metadata by meaning: JSON
values as values. Both checkouts run in this Python. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx

SAMPLES = 8
FREE_SIDES = {1: 1, 2: 320, 3: 320}


def samples(model: Path, path: Path) -> Path:
    """A loader script of SAMPLES seeded samples for every input of the model; free sides are 320, a free batch is 1."""
    graph = onnx.load(model, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    shapes = {}
    for value in graph.input:
        if value.name not in constants:
            sides = value.type.tensor_type.shape.dim
            given = [side.dim_value or FREE_SIDES.get(axis, 1) for axis, side in enumerate(sides)]
            shapes[value.name] = (given, onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name)
    path.write_text(
        "import numpy as np\n"
        f"shapes = {shapes!r}\n"
        "def load_data():\n"
        f"    for index in range({SAMPLES}):\n"
        "        draw = np.random.default_rng(index)\n"
        "        values = {name: (2 * draw.normal(size=shape), kind) for name, (shape, kind) in shapes.items()}\n"
        "        yield {name: abs(drawn).astype(kind) if 'int' in kind else drawn.astype(kind)\n"
        "               for name, (drawn, kind) in values.items()}\n"
    )
    return path


def command(checkout: Path, *arguments: str | Path) -> tuple[int, str]:
    """Exit code and last line of one run of the command line of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=checkout,  # -m looks there first
        check=False,
    )
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def written(checkout: Path, model: Path, folder: Path, data: Path | None) -> dict[str, bytes | str]:
    """What a checkout makes of one model: file name to bytes, or what it said where it made none."""
    folder.mkdir(parents=True)
    result: dict[str, bytes | str] = {}

    def keep(name: str, *arguments: str | Path) -> bool:
        code, line = command(checkout, *arguments)
        result[name] = (folder / name).read_bytes() if code == 0 else f"exit {code}: {line}"
        return code == 0

    ways = {"plain": (), "data": ("--data-loader-script", data)} if data else {"plain": ()}
    for way, more in ways.items():
        quantized = folder / f"{way}.onnx"
        if not keep(quantized.name, "insert", model, "-q", *more, "-o", quantized):
            continue
        for target in ("gpu", "dla"):
            if target == "dla" and not data:
                continue
            peeled, cache = folder / f"{way}.{target}.peeled.onnx", folder / f"{way}.{target}.cache"
            versioned = ("--target", target, "--trt-version", "8502", "--allow-estimated", "--source", model)
            if keep(peeled.name, "peel", quantized, "-q", *versioned, "-o", peeled, "--cache", cache):
                result[cache.name] = cache.read_bytes()
    return result


def differing(name: str, before: bytes | str, after: bytes | str) -> Iterator[str]:
    """What differs between two outputs of one name, in words; nothing where they are the same."""
    if before == after:
        return
    if isinstance(before, str) or isinstance(after, str):
        said = [text if isinstance(text, str) else "written" for text in (before, after)]
        yield f"{said[0]} -> {said[1]}"
    elif not name.endswith(".onnx"):
        yield "other bytes"
    else:
        yield from differing_models(onnx.ModelProto.FromString(before), onnx.ModelProto.FromString(after))


def differing_models(before: onnx.ModelProto, after: onnx.ModelProto) -> Iterator[str]:
    """Which parts of two models differ; metadata that are JSON are compared as values."""
    for field in ("node", "initializer", "input", "output", "value_info"):
        pair = [
            [part.SerializeToString(deterministic=True) for part in getattr(model.graph, field)]
            for model in (before, after)
        ]
        if pair[0] != pair[1]:
            yield f"{field}: {len(pair[0])} -> {len(pair[1])}, {len(set(pair[0]) ^ set(pair[1]))} in one only"
    data = [{entry.key: meaning(entry.value) for entry in model.metadata_props} for model in (before, after)]
    for key in sorted(set(data[0]) | set(data[1])):
        paths = sorted(unequal(data[0].get(key), data[1].get(key), key))
        if paths:
            yield f"metadata: {', '.join(paths[:4])}{f' and {len(paths) - 4} more' if len(paths) > 4 else ''}"


def meaning(text: str) -> object:
    """A metadata value as JSON reads it, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def unequal(before: object, after: object, path: str) -> Iterator[str]:
    """The paths at which two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in set(before) | set(after):
            yield from unequal(before.get(key), after.get(key), f"{path}.{key}")
    elif before != after:
        yield path


def compared(model: Path, before: Path, after: Path, with_data: bool) -> tuple[int, list[str]]:
    """How many outputs of one model were compared, and each difference in a line."""
    with tempfile.TemporaryDirectory() as folder:
        data = samples(model, Path(folder) / "data.py") if with_data else None
        both = [
            written(tree, model, Path(folder) / side, data) for side, tree in (("before", before), ("after", after))
        ]
    names = sorted(set(both[0]) | set(both[1]))
    lines = [
        f"{model.stem} {name}: {text}"
        for name in names
        for text in differing(name, both[0].get(name, "absent"), both[1].get(name, "absent"))
    ]
    return len(names), lines


def main() -> int:
    """Print every difference and the number of outputs compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=lambda text: Path(text).resolve())
    parser.add_argument("after", type=lambda text: Path(text).resolve())
    parser.add_argument("models", type=Path, help="a folder of .onnx files")
    parser.add_argument("--data", action="store_true", help="with data too: minutes")
    parser.add_argument("--only", default="", help="models whose names hold this")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    models = sorted(path for path in options.models.resolve().glob("*.onnx") if options.only in path.name)
    with ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(lambda model: compared(model, options.before, options.after, options.data), models)
        count, faulty = 0, 0
        for outputs, lines in found:
            count, faulty = count + outputs, faulty + bool(lines)
            print("\n".join(lines), end="\n" if lines else "", flush=True)
    print(f"{len(models)} models, {count} outputs compared, {faulty} models with a difference")
    return min(faulty, 1)


if __name__ == "__main__":
    sys.exit(main())
