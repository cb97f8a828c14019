# SPDX-License-Identifier: Apache-2.0
"""What a calibration on many machines costs: the parts, measured here; then 1 M images on 100 workers, on paper.

python tests/bench/dask_scaling.py [--models cifar_resnet20=2000,yolox_nano_coco=40] [--names 20000] [--dask]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cost import table

from qdqtool.amax.method_table import Method
from qdqtool.data.loader import DataOptions, Input, inputs_of, open_loader
from qdqtool.distributed.shards import ShardSum, calibrate_shard
from qdqtool.graph.io import open_model
from qdqtool.observers.collect import pending
from qdqtool.observers.observer_state import BatchSet
from qdqtool.observers.options import CalibrationOptions
from qdqtool.observers.state_file import State, state_from_bytes, state_to_bytes

PROJECT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
MODELS = "cifar_resnet20=2000,yolox_nano_coco=40"
SHARDS_PER_WORKER = 4
REPEATS = 3
QUIET = CalibrationOptions(progress=False)
GRID = [(images, workers) for images in (10_000, 100_000, 1_000_000) for workers in (1, 10, 100)]


@dataclass(frozen=True)
class Parts:
    """CPU seconds of each part of the work; `shipped` in bytes, `image` and `name` per image, the others per shard.

    Attributes:
        image: an image run and counted.
        start: opening model and data, and the session.
        name: a name of a folder of images listed, sorted, its size asked for, its number compared with the shard's.
        pack: a state compressed.
        shipped: what goes over the network for it.
        merge: a state unpacked and added, by the client.
        table: the scales read from the sum, once.
    """

    image: float
    start: float
    name: float
    pack: float
    shipped: int
    merge: float
    table: float

    def wall(self, images: int, workers: int, task: float, connect: float) -> tuple[float, float]:
        """Seconds that `images` take on `workers` of one thread each, and those that the client is at work in them.

        A worker:  4 * (start + pack + images * name) + images / workers * image
        Client:    shards * (task + merge)   while the workers are at work: the slower of the two decides
        Then:      connect + the last state's merge + table
        """
        shards = min(SHARDS_PER_WORKER * workers, images)
        worker = SHARDS_PER_WORKER * (self.start + self.pack + images * self.name) + images / workers * self.image
        client = shards * (task + self.merge)
        return connect + max(worker, client) + self.merge + self.table, client


def cpu(function: object, *args: object) -> tuple[float, object]:
    """CPU seconds of this process for one call, the least of several, and what it gave."""
    best, result = float("inf"), None
    for _ in range(REPEATS):
        start = time.process_time()
        result = function(*args)  # type: ignore[operator]
        best = min(best, time.process_time() - start)
    return best, result


def measure(model: Path, images: int, name: float, folder: Path) -> Parts:
    """The parts for one model; `images` are the difference that the cost of one is taken from."""
    data = folder / f"{model.stem}.npz"
    np.savez(data, **{one.name: _noise(one, images + 1) for one in inputs_of(open_model(model).proto.graph)})

    def shard(count: int) -> State:
        return calibrate_shard(model, data, (0, 1), QUIET, DataOptions(limit=count))

    one, _ = cpu(shard, 1)
    many, state = cpu(shard, images + 1)
    image = (many - one) / images
    pack, packed = cpu(state_to_bytes, state)
    merge, _ = cpu(_merge, packed)
    scales, _ = cpu(_table, packed)
    return Parts(image, one - image, name, pack, len(packed), merge, scales - merge)  # type: ignore[arg-type]


def _noise(one: Input, count: int) -> np.ndarray:
    shape = [size if isinstance(size, int) else 1 for size in (one.shape or ())][1:]
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)


def _merge(packed: bytes) -> ShardSum:
    total = ShardSum()
    total.add(state_from_bytes(packed), "one")
    return total


def _table(packed: bytes) -> object:
    return _merge(packed).table(Method("mse"))


def measure_names(count: int, folder: Path) -> float:
    """CPU seconds that one name of a folder of images costs a shard; files are empty, none is opened."""
    place = folder / "names"
    place.mkdir()
    for number in range(count):
        (place / f"{number:08d}.jpg").touch()
    inputs = [Input("x", (None, 3, 32, 32), np.dtype(np.float32))]

    def walk() -> int:
        feed = open_loader(place, inputs, DataOptions(preprocess="imagenet"))
        return len(feed.fingerprint) + sum(1 for _ in pending(feed, (0, 400), BatchSet()))

    return cpu(walk)[0] / count


def measure_dask(tasks: int) -> tuple[float, float]:
    """CPU seconds that client and scheduler have of an empty task, and wall seconds of starting one worker here."""
    from distributed import Client, LocalCluster, as_completed

    start = time.perf_counter()
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        connect = time.perf_counter() - start
        start = time.process_time()
        for _ in as_completed(client.map(bytes, range(tasks), pure=False), with_results=True):
            pass
        return (time.process_time() - start) / tasks, connect


def parts_table(found: dict[str, Parts]) -> str:
    """The measured parts."""
    head = ["model", "image ms", "start ms", "1,000 names ms", "pack ms", "state kB", "merge ms", "table ms"]
    rows = [
        [
            name,
            *(f"{1000 * seconds:.2f}" for seconds in (one.image, one.start, 1000 * one.name, one.pack)),
            f"{one.shipped / 1000:.0f}",
            *(f"{1000 * seconds:.2f}" for seconds in (one.merge, one.table)),
        ]
        for name, one in found.items()
    ]
    return table(head, rows)


def growth(name: str, parts: Parts, task: float, connect: float) -> Iterator[list[str]]:
    """One row per size of job: seconds, which part of them the images are, what is shipped, how busy the client is."""
    for images, workers in GRID:
        wall, client = parts.wall(images, workers, task, connect)
        share = images / workers * parts.image / wall
        shipped = SHARDS_PER_WORKER * workers * parts.shipped / 1e6
        yield [
            name,
            f"{images:,}",
            str(workers),
            f"{wall:,.0f}",
            f"{100 * share:.0f} %",
            f"{shipped:,.1f}",
            f"{100 * client / wall:.1f} %",
        ]


def main(words: Sequence[str]) -> int:
    """Measure, then print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=MODELS, help="name=images that the cost of one is taken from, ...")
    parser.add_argument("--names", type=int, default=20_000, help="files in the folder that is listed")
    parser.add_argument("--tasks", type=int, default=500, help="empty tasks given to Dask")
    args = parser.parse_args(words)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        name = measure_names(args.names, Path(place))
        for model, images in (word.split("=") for word in args.models.split(",")):
            path = SHARED / "corpus" / "models" / f"{model}.onnx"
            if path.is_file():
                found[model] = measure(path, int(images), name, Path(place))
            else:
                sys.stdout.write(f"{model}: left out, {path} is not there\n")
    task, connect = measure_dask(args.tasks)
    sys.stdout.write(parts_table(found) + "\n")
    sys.stdout.write(f"Dask: {1000 * task:.2f} ms for an empty task, {connect:.1f} s to start a worker here\n\n")
    head = ["model", "images", "workers", "seconds", "images' share", "shipped MB", "client busy"]
    sys.stdout.write(table(head, [row for model, one in found.items() for row in growth(model, one, task, connect)]))
    sys.stdout.write("\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
