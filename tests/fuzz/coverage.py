# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of every reader of files, by atheris: bytes in, a value or a QdqError out, nothing else.

    pip install atheris
    python -m tests.fuzz.coverage HARNESS FOLDER [options of libFuzzer, such as -max_total_time=300]
    python -m tests.fuzz.coverage until-quiet FOLDER [MINUTES [HARNESS ...]]

FOLDER/HARNESS keeps the inputs that reached new code; it begins with files of the mutation run, which FOLDER/seeds has.
`until-quiet` runs the harnesses (all) side by side, each until MINUTES (30) bring no new edge; a row tells of each.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["qdqtool"]):
    from qdqtool.cache.convert import read_any
    from qdqtool.cli.project import read_project
    from qdqtool.data.arrays import open_npy, open_npz
    from qdqtool.emit.precision_json import read_precisions
    from qdqtool.engine.profile import read_profile
    from qdqtool.engine.read_info import read_layer_info
    from qdqtool.errors import QdqError
    from qdqtool.evaluation.class_names import parse_names
    from qdqtool.evaluation.labels_boxes import open_box_labels
    from qdqtool.evaluation.labels_classes import read_class_labels
    from qdqtool.graph.io import open_model
    from qdqtool.graph.shapes import known_shapes
    from qdqtool.observers.state_file import read_state
    from qdqtool.recipe.read_recipe import read_recipe
    from qdqtool.rule_files import read_rules
    from qdqtool.rulebook import load_rules
    from qdqtool.scales import load_table
    from qdqtool.training import state as training_state

_LARGEST = 20_000  # bytes of a seed: larger ones are slow to run
Reader = Callable[[Path], object]


@dataclass(frozen=True)
class Harness:
    """What reads files, by their ending, and names of the seeds of the mutation run that it begins with."""

    readers: tuple[tuple[str, Reader], ...]
    seeds: tuple[str, ...]


def _model(path: Path) -> object:
    """Parse, check and index a model, as each verb begins."""
    model = open_model(path)
    return len(model.view.nodes), known_shapes(model.view)


def _arrays(path: Path) -> object:
    return [next(iter(array.blocks(2)), None) for array in open_npz(path, 1 << 20).values() if array.shape]


def _names(path: Path) -> object:
    return parse_names(path.read_text("utf-8", "replace"))


def _boxes(path: Path) -> object:
    """Labels of one image `a.png` of 8 x 8, alone in a folder for those that have a file for each image."""
    images = [Path("a.png")]
    labels = open_box_labels(path if path.suffix in (".npz", ".json") else path.parent, images, None)
    return labels.truth(0, 8, 8)


def _classes(path: Path) -> object:
    return read_class_labels(path, [Path("a.png")], 1, None)


HARNESSES = {
    "model": Harness(((".onnx", _model),), ("*.onnx",)),
    "cache": Harness(((".cache", read_any),), ("*.cache", "table.*")),
    "json": Harness(
        ((".json", load_table), (".json", read_precisions), (".json", read_any)), ("scales.json", "table.*json")
    ),
    "toml": Harness(
        ((".toml", read_rules), (".toml", read_project), (".toml", read_recipe), (".toml", load_rules)), ("*.toml",)
    ),
    "npz": Harness(
        ((".npz", _arrays), (".npy", open_npy), (".npz", read_state), (".npz", training_state.read_state)),
        ("*.npz", "*.npy", "*.state", "*.ckpt"),
    ),
    "labels": Harness(
        (
            *((ending, _boxes) for ending in (".json", ".txt", ".xml", ".npz")),
            *((ending, _classes) for ending in (".txt", ".npz")),
            (".txt", _names),
        ),
        ("coco.json", "names.txt", "labels.csv", "labeled.npz"),
    ),
    "engine": Harness(
        ((".json", read_layer_info), (".log", read_layer_info), (".json", read_profile)), ("layers.json", "*.log")
    ),
}


def write_seeds(harness: Harness, seeds: Path, folder: Path) -> int:
    """Copy the seeds of a harness into a folder; how many there are. The seeds of all are made once."""
    if not seeds.exists():  # by verbs, in a process of its own: they are slow where they are traced
        make = (
            "import sys, pathlib; from tests.fuzz.fuzz_seeds import families; families(pathlib.Path(sys.argv[1]), None)"
        )
        subprocess.run([sys.executable, "-c", make, str(seeds)], check=True)
    folder.mkdir(exist_ok=True)
    for path in (path for pattern in harness.seeds for path in seeds.rglob(pattern)):
        if path.is_file() and path.stat().st_size <= _LARGEST:
            data = path.read_bytes()
            (folder / hashlib.sha256(data).hexdigest()).write_bytes(data)
    return len(list(folder.iterdir()))


class Watched:
    """A harness that runs in a process of its own until it finds no new edge for a while, or a fault."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.runs, self.edges, self.first = name, 0, 0, 0
        self.begun = self.grown = time.monotonic()
        words = [sys.executable, "-m", "tests.fuzz.coverage", name, str(folder), f"-artifact_prefix={folder}/{name}-"]
        self.child = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.said: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.child.stderr or ():
            self.said = [*self.said[-30:], line]
            if found := re.match(r"#(\d+)\s.*cov: (\d+)", line):
                self.runs = int(found[1])
                if int(found[2]) > self.edges:
                    self.edges, self.grown = int(found[2]), time.monotonic()
                    self.first = self.first or self.edges

    def row(self) -> str:
        """End it; what it did, as a row of a table, and behind the table what it said of a fault."""
        fault = self.child.poll() is not None
        if not fault:
            self.child.send_signal(signal.SIGINT)
        usage = os.wait4(self.child.pid, 0)[2] if not fault else None
        self.reader.join()
        now, spent = time.monotonic(), f"{(usage.ru_utime + usage.ru_stime) / 60:.1f}" if usage else "-"
        cells = [f"{(now - self.begun) / 60:.0f}", spent, f"{self.runs:,}", self.first, self.edges]
        found = "".join(["a fault\n", *self.said]) if fault else "none"
        return f"| {self.name} | {' | '.join(map(str, cells))} | {(now - self.grown) / 60:.0f} | {found} |"


def until_quiet(folder: Path, minutes: float, names: list[str]) -> None:
    """Run harnesses side by side until none finds a new edge for this long, and print what each did."""
    write_seeds(HARNESSES["cache"], folder / "seeds", folder / "cache")  # the seeds of all, once
    left = [Watched(name, folder) for name in names]
    print(
        "| harness | minutes | CPU minutes | runs | edges of the seeds | edges | minutes without a new one | faults |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    while left:
        time.sleep(1)
        for one in list(left):
            if one.child.poll() is not None or time.monotonic() - one.grown > 60 * minutes:
                left.remove(one)
                print(one.row(), flush=True)


def main() -> None:
    """Fuzz until an option of libFuzzer ends it, or a fault is found."""
    if len(sys.argv) < 3 or sys.argv[1] not in {*HARNESSES, "until-quiet"}:
        sys.exit(f"usage: python -m tests.fuzz.coverage until-quiet|{'|'.join(HARNESSES)} FOLDER [options]")
    if sys.argv[1] == "until-quiet":
        minutes, *names = sys.argv[3:] or ["30"]
        until_quiet(Path(sys.argv[2]).resolve(), float(minutes), names or list(HARNESSES))
        return
    harness, folder = HARNESSES[sys.argv[1]], Path(sys.argv[2]).resolve()
    corpus = folder / sys.argv[1]
    print(f"{write_seeds(harness, folder / 'seeds', corpus)} seeds", file=sys.stderr)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:

        def attack(data: bytes) -> None:
            """Give the bytes to each reader, alone in a folder."""
            for ending, read in harness.readers:
                path = Path(place, f"a{ending}")
                path.write_bytes(data)
                try:
                    read(path)
                except QdqError as error:
                    error.line().encode("ascii", "backslashreplace")
                finally:
                    path.unlink()

        atheris.Setup([sys.argv[0], *sys.argv[3:], str(corpus)], attack)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
