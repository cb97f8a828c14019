# SPDX-License-Identifier: Apache-2.0
"""What each way against collapse costs: CPU seconds, nodes, predicted layers and bytes, and those of a built engine.

`python -m tests.bench.condition_cost [--models A,B.onnx] [--sm 89|none] [--limit 16] [--steps 200|0]`: models of the
corpus (QDQTOOL_SHARED) or files, all in INT8, random samples: which channels are divided depends on them, what a way
adds hardly does. CPU seconds are of whole commands. Engines are built by TensorRT for RTX where it is installed, on
this CPU; nothing is run. `--steps` are those of each block, 0 leaves blocks out; `--sm none` builds nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cost import apart, measured, table

from tests.bench.shared_material import SHARED

PROJECT = Path(__file__).resolve().parents[2]
MODELS = "blazeface_front,mobilenetv1_025_128,yunet_s_320,cifar_resnet20_bn"
VERSIONS = ("8.6.3", "10.7.0")
WAYS = {
    "insert": (),
    "equalize": ("--condition", "equalize"),
    "equalize,smooth": ("--condition", "equalize,smooth"),
    "auto": ("--condition", "auto"),
    "equalize,smooth + float": ("--condition", "equalize,smooth", "--max-output-loss", "0.005"),
}
BLOCKS = "equalize,smooth + blocks"
HEAD = ["model", "way", "CPU s", "over insert", "nodes", "added"]


def sample(model: Path, folder: Path, count: int) -> Path:
    """Random samples of the network's only input, between 0 and 1."""
    import numpy as np

    from qdqtool.data.loader import inputs_of
    from qdqtool.graph.io import open_model

    (given,) = inputs_of(open_model(model).proto.graph)
    shape = [side or 320 for side in given.shape[1:]]
    path = folder / "samples.npz"
    np.savez(path, **{given.name: np.random.default_rng(0).random([count, *shape], np.float32)})
    return path


def looked_at(path: Path, sm: str) -> dict[str, Any]:
    """Nodes without Q/DQ, predicted layers and megabytes of each version, and those of the engine that RTX builds."""
    import onnx

    from qdqtool.engine.cost import forecast
    from qdqtool.engine.predict import predict_layers
    from qdqtool.errors import QdqError
    from qdqtool.graph.view import GraphView
    from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine
    from qdqtool.tensorrt_rtx.cost import cost_of
    from qdqtool.trtversion import parse

    proto = onnx.load(path)
    view = GraphView(proto.graph)
    found: dict[str, Any] = {"nodes": sum("quantizelinear" not in one.op_type.lower() for one in proto.graph.node)}
    for version in VERSIONS:
        cost = forecast(view, predict_layers(view, parse(version)))
        moved = "?" if cost.bytes_moved is None else f"{cost.bytes_moved / 1e6:.2f}"
        found[version] = f"{cost.layers}, {moved} MB"
    if sm == "none":
        return {**found, "rtx": ""}
    try:
        built = cost_of(build_engine(proto, RtxBuildOptions((sm,))))
        found["rtx"] = f"{built.layers}, {built.bytes_moved / 1e6:.2f} MB"
    except QdqError as error:
        found["rtx"] = error.reason[:40]
    return found


def rows(given: str, folder: Path, sm: str, limit: int, steps: int) -> list[list[str]]:
    """A row for each way to one model."""
    model = Path(given)
    if model.suffix != ".onnx":
        model = SHARED / "corpus" / "models" / f"{given}.onnx"
    name = model.stem
    data = apart(sample, model, folder, limit)
    run = [sys.executable, "-m", "qdqtool"]
    env = {"PYTHONPATH": str(PROJECT)}
    seconds: dict[str, float] = {}
    ways = (*WAYS, BLOCKS) if steps else tuple(WAYS)
    files = {way: folder / f"{name}.{number}.onnx" for number, way in enumerate(ways)}
    for way, words in WAYS.items():
        command = [*run, "insert", model, "--data", data, "--float-heads", "none", "--keep-float", "0", "-q", *words]
        seconds[way] = measured([*command, "-o", files[way]], environment=env).cpu_seconds
    if steps:
        words = ["--data", data, "--blocks", "--ranges", "learn", "--steps", f"{steps}", "-q", "-o", files[BLOCKS]]
        trained = measured([*run, "finetune", files["equalize,smooth"], *words], environment=env).cpu_seconds
        seconds[BLOCKS] = seconds["equalize,smooth"] + trained
    found = {way: apart(looked_at, path, sm) for way, path in files.items()}
    start = found["insert"]["nodes"]
    return [
        [
            name,
            way,
            f"{seconds[way]:.1f}",
            f"{seconds[way] - seconds['insert']:+.1f}",
            str(one["nodes"]),
            f"{one['nodes'] - start:+d}",
            *(one[version] for version in (*VERSIONS, "rtx")),
        ]
        for way, one in found.items()
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--sm", default="89")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            lines = rows(name, Path(folder), args.sm, args.limit, args.steps)
            print(table([*HEAD, *(f"{one}: layers" for one in VERSIONS), "RTX engine: layers"], lines), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
