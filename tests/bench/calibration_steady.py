# SPDX-License-Identifier: Apache-2.0
"""One model in one process: CPU per image of calibrating over that of plain inference, by the slope between two counts.

Run by calibration.py. With `--chain`, one calibration of a long chain, taken apart.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime

from qdqtool.calibration.engine import calibrate_scales
from qdqtool.data.loader import Batch, inputs_of, open_loader
from qdqtool.graph.io import open_model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.observers.collect import count_batches
from qdqtool.observers.options import CalibrationOptions
from qdqtool.runtime.activations import ObservableModel, OrtActivations

FEW, ROUNDS = 4, 3


def cpu() -> float:
    """User and system seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def bank_of(graph: onnx.GraphProto) -> list[Batch]:
    """Eight batches of seeded noise for a model's one input."""
    one = inputs_of(graph)[0]
    shape = [size if isinstance(size, int) else 1 for size in one.shape or ()]
    return [{one.name: np.random.default_rng(k).normal(size=shape).astype(np.float32)} for k in range(8)]


def scripted(folder: Path, bank: list[Batch], count: int) -> Path:
    """A loader script that gives the bank's batches in turn."""
    (name,) = bank[0]
    np.save(folder / "bank.npy", np.stack([batch[name] for batch in bank]))
    script = folder / f"{count}.py"
    script.write_text(
        f"import numpy as np, pathlib\n"
        f"bank = np.load(pathlib.Path(__file__).with_name('bank.npy'))\n"
        f"def load_data():\n    for k in range({count}):\n        yield {{{name!r}: bank[k % 8]}}\n"
    )
    return script


def plain_seconds(path: Path, bank: list[Batch], images: int) -> float:
    """CPU per image of the model alone, initializers no longer inputs, as the engine runs it."""
    model = onnx.load(str(path))
    stored = {tensor.name for tensor in model.graph.initializer}
    fed = [value for value in model.graph.input if value.name not in stored]
    del model.graph.input[:]
    model.graph.input.extend(fed)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(count: int) -> None:
        for k in range(count):
            session.run(None, bank[k % 8])

    run(FEW)
    return slope(run, images)[0]


def slope(run: Callable[[int], object], images: int) -> tuple[float, float]:
    """CPU and wall seconds per image: the median over rounds of the difference between few and many."""
    found = []
    for _ in range(ROUNDS):
        marks = []
        for count in (FEW, FEW + images):
            start, clock = cpu(), time.monotonic()
            run(count)
            marks.append((cpu() - start, time.monotonic() - clock))
        found.append([(many - few) / images for few, many in zip(*marks, strict=True)])
    cpu_each, wall_each = zip(*found, strict=True)
    return median(cpu_each), median(wall_each)


def steady(path: Path, images: int) -> None:
    """Print one line for all tensors and one for the points."""
    opened = open_model(path)
    bank = bank_of(opened.proto.graph)
    plain = plain_seconds(path, bank, images)
    view = GraphView(opened.proto.graph, opened.folder)
    points = [point.tensor for point in make_plan(view, PlanOptions()).activations]
    for label, wanted in (("all", None), ("points", points)):

        def run(count: int, folder: Path | None = None, wanted: list[str] | None = wanted) -> object:
            """By two workers where there is a folder, with data that are read from it."""
            options = CalibrationOptions(progress=False, workers=1 if folder is None else 2)
            feed: Iterable[Batch] = (bank[k % 8] for k in range(count))
            if folder is not None:
                feed = open_loader(scripted(folder, bank, count), inputs_of(opened.proto.graph))
            return count_batches(opened, feed, options, wanted)

        alone, _ = slope(run, images)
        with tempfile.TemporaryDirectory() as folder:
            _, both = slope(lambda count: run(count, Path(folder)), images)
        fetched = len(run(1).plan.fetched)  # type: ignore[attr-defined]
        total = len(run(1).plan.names)  # type: ignore[attr-defined]
        print(f"{label} {fetched}/{total} {plain * 1e3:.2f} {alone / plain:.2f} {both / plain:.2f}")


def chain(path: Path) -> None:
    """Seconds of CPU: the session with all it fetches, the batches, everything else."""
    opened = open_model(path)
    bank = bank_of(opened.proto.graph)[:2]
    start = cpu()
    calibrate_scales(opened, bank, CalibrationOptions(progress=False))
    whole = cpu() - start
    model = ObservableModel(opened)
    fetched = count_batches(opened, bank[:1], CalibrationOptions(progress=False)).plan.fetched
    start = cpu()
    activations = OrtActivations.of(model, fetched)
    session = cpu() - start
    start = cpu()
    for batch in bank:
        list(activations.run(batch))
    batches = cpu() - start
    own = whole - session - batches
    print(f"{session:.2f} {batches:.2f} {own:.2f} {own / len(opened.proto.graph.node) * 1e6:.0f}")


if __name__ == "__main__":
    if sys.argv[1] == "--chain":
        chain(Path(sys.argv[2]))
    else:
        steady(Path(sys.argv[1]), int(sys.argv[2]))
