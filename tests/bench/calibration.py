# SPDX-License-Identifier: Apache-2.0
"""What calibrating costs: an image beside plain inference, whole jobs beside the peers, long chains; killed, resumed.

python tests/bench/calibration.py [--parts steady,jobs,chains,kills] [--peers-python PEERS/bin/python]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cost import Cost, apart, measured, table
from large_models import make_graph, make_resnet50

PROJECT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
STEADY = Path(__file__).with_name("calibration_steady.py")
PEERS = Path(__file__).with_name("calibration_peers.py")

# model -> images between the two points that the slope is taken from
MODELS = {
    "ultraface_rfb320_raw": 200,
    "yolox_nano_coco": 48,
    "mobilenetv1_025_128": 1000,
    "nanodet_m_320_coco": 64,
    "resnet50": 12,
}
JOBS = (16, 64, 256, 512)
KILLS = 20


def steady(work: Path) -> Iterator[str]:
    """CPU per image over plain inference of one thread, C and NumPy, all tensors and points; wall with two workers."""
    rows = []
    for name, images in MODELS.items():
        path = work / "resnet50.onnx" if name == "resnet50" else SHARED / "corpus" / "models" / f"{name}.onnx"
        if name == "resnet50":
            apart(make_resnet50, path)
        if not path.is_file():
            yield f"{name}: left out, {path} is not there"
            continue
        for kernel in ("c", "numpy"):
            cost = measured([sys.executable, STEADY, path, images], environment=_environment(QDQTOOL_KERNEL=kernel))
            rows += [
                [name, kernel, *line.split()] for line in cost.tail.splitlines() if line.startswith(("all", "points"))
            ]
            if cost.code:
                yield f"{name} {kernel}: {cost.tail}"
    head = ["model", "kernel", "tensors", "fetched", "plain ms", "CPU ratio", "wall ratio, 2 workers"]
    yield table(head, rows)


def jobs(work: Path, peers: Path | None, counts: Sequence[int]) -> Iterator[str]:
    """Whole processes, imports included, on one detector."""
    model = SHARED / "corpus" / "models" / "ultraface_rfb320_raw.onnx"
    rows = []
    for images in counts:
        data = _loader(work / f"{images}.py", images)
        base = [sys.executable, "-m", "qdqtool", "calibrate", model, "--data", data, "-o", work / "s.json", "--method"]
        rows.append(_job_row("qdqtool mse", images, measured([*base, "mse"], environment=_environment())))
        rows.append(
            _job_row(
                "qdqtool mse, 2 workers", images, measured([*base, "mse", "--workers", "2"], environment=_environment())
            )
        )
        rows.append(_job_row("qdqtool entropy", images, measured([*base, "entropy"], environment=_environment())))
        if peers is None:
            continue
        for tool in ("onnxruntime-128", "onnxruntime-2048", "modelopt"):
            copy = Path(shutil.copyfile(model, work / "copy.onnx"))
            command = [peers, PEERS, tool, copy, data, work / "q.onnx"]
            rows.append(_job_row(tool, images, measured(command, limit_seconds=900)))
    yield table(["tool", "images", "CPU s", "wall s", "peak MB"], rows)


def chains(work: Path) -> Iterator[str]:
    """Chains of many nodes: our own part, and what onnxruntime takes to make its session."""
    rows = []
    for nodes in (1_000, 10_000, 100_000):
        path = work / f"{nodes}.onnx"
        apart(make_graph, path, nodes, 4)
        cost = measured([sys.executable, STEADY, "--chain", path], environment=_environment())
        rows.append([str(nodes), *cost.tail.splitlines()[-1].split(), f"{cost.peak_mb:.0f}"])
    yield table(["nodes", "session s", "batches s", "our own s", "us per node", "peak MB"], rows)


def kills(work: Path) -> Iterator[str]:
    """Calibrations killed at random moments and resumed, held against one that ran through."""
    model = SHARED / "corpus" / "models" / "cifar_resnet20.onnx"
    data = _loader(work / "kill.py", 150, name="input", shape=(1, 3, 32, 32), delay=0.02, model=model)
    random.seed(7)
    for method in ("mse", "entropy"):
        whole = work / f"{method}.json"
        _calibrate(model, data, method, whole)
        equal = 0
        for _ in range(KILLS // 2):
            out, checkpoint = work / "parts.json", work / "c"
            deaths = 0
            while not out.exists():
                process = subprocess.Popen(
                    _command(model, data, method, out, "--checkpoint", checkpoint, "--resume", "--workers", "2"),
                    env=_environment(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                try:
                    process.wait(random.uniform(0.5, 4.5) if deaths < 3 else None)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    deaths += 1
            equal += out.read_bytes() == whole.read_bytes()
            out.unlink()
        yield f"{method}: {equal} of {KILLS // 2} calibrations, each killed up to three times, end with the same bytes"


def _calibrate(model: Path, data: Path, method: str, out: Path) -> None:
    subprocess.run(_command(model, data, method, out), env=_environment(), check=True, stdout=subprocess.DEVNULL)


def _command(model: Path, data: Path, method: str, out: Path, *more: object) -> list[str]:
    words = [sys.executable, "-m", "qdqtool", "calibrate", model, "--data", data, "--method", method, "-o", out, *more]
    return [str(word) for word in words]


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **more}


def _job_row(tool: str, images: int, cost: Cost) -> list[str]:
    if cost.code != 0:
        return [tool, str(images), "over the limit" if cost.code is None else f"failed: {cost.said[:60]}", "", ""]
    return [tool, str(images), f"{cost.cpu_seconds:.1f}", f"{cost.wall_seconds:.1f}", f"{cost.peak_mb:.0f}"]


def _loader(
    path: Path,
    images: int,
    name: str = "input",
    shape: Sequence[int] = (1, 3, 240, 320),
    delay: float = 0.0,
    model: Path | None = None,
) -> Path:
    """A Polygraphy loader script of seeded noise, eight different images in turn."""
    if model is not None:
        name = apart(_input_name, model)
    path.write_text(
        f"import time\nimport numpy as np\n"
        f"bank = [np.random.default_rng(k).normal(size={tuple(shape)}).astype('float32') for k in range(8)]\n"
        f"def load_data():\n    for k in range({images}):\n"
        f"        time.sleep({delay})\n        yield {{{name!r}: bank[k % 8]}}\n"
    )
    return path


def _input_name(model: Path) -> str:
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    given = {tensor.name for tensor in graph.initializer}
    return next(value.name for value in graph.input if value.name not in given)


def main() -> int:
    """Run the parts asked for and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="steady,jobs,chains,kills")
    parser.add_argument("--images", default=",".join(map(str, JOBS)), help="how many images the jobs have")
    parser.add_argument("--peers-python", type=Path, help="interpreter with nvidia-modelopt and onnxruntime")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        parts: dict[str, Callable[[], Iterator[str]]] = {
            "steady": lambda: steady(work),
            "jobs": lambda: jobs(work, args.peers_python, [int(count) for count in args.images.split(",")]),
            "chains": lambda: chains(work),
            "kills": lambda: kills(work),
        }
        for part in args.parts.split(","):
            start = time.monotonic()
            for text in parts[part]():
                print(text, flush=True)
            print(f"({part}: {time.monotonic() - start:.0f} s)\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
