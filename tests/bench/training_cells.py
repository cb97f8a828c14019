# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's QAT table for the blood cell detector: FP32, PTQ and QAT on labels, per class, over several seeds.

The networks are `models/train_bccd.py`'s, one per seed; everything is judged on the 72 photographs of test.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cost import measured

PROJECT = Path(__file__).resolve().parents[2]
MODELS = PROJECT / "models"
NAMES = ("RBC", "WBC", "Platelets")
HEAD = ("way", *NAMES, "mean AP", "of FP32", "seeds", "CPU s")
PREPROCESS = ("--preprocess", "yolox,interpolation=area")
STEPS = "300"
TENSOR = """schema = 1
extends = "gpu"

[[weight]]
name = "conv-weight"
ops = ["Conv"]
axis = "tensor"
why = "One scale for the whole weight, as TAO Toolkit trains."
status = "guess"
see = "TAO Toolkit"
"""
# Way -> how weights are quantized there; QAT starts from the PTQ of the same name.
GRIDS = {"per tensor": ("--rules", "tensor.toml", "--keep-float", "0"), "defaults": ()}


class Cells:
    """One folder of models, and the figures that were made in it."""

    def __init__(self, photos: Path, work: Path) -> None:
        self._photos, self.work = photos, work
        work.mkdir(parents=True, exist_ok=True)
        (work / "tensor.toml").write_text(TENSOR)
        self._split = work / "split"
        if not self._split.is_dir():
            command = [sys.executable, str(MODELS / "bccd.py"), str(photos), "--links", str(self._split)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def figures(self, model: Path) -> list[float]:
        """AP of each class on test, and the mean."""
        kept = model.with_suffix(".json")
        if not kept.is_file():
            truth = ("--labels", str(self._photos / "Annotations"), "--names", ",".join(NAMES))
            how = ("--metric", "voc", "--score", "0.01", "--iou", "0.65", "--json")
            command = ("evaluate", str(model), "--data", str(self._split / "test"), *truth, *PREPROCESS, *how)
            kept.write_text(_called(command, self.work))
        reported = json.loads(kept.read_text())
        classes = [one["figures"]["voc_ap"]["value"] for one in reported["classes"]]
        return [*classes, reported["figures"]["voc_ap"]["value"]]

    def quantized(self, plain: Path, way: str) -> Path:
        """The PTQ of one way, made on 64 photographs of train."""
        out = self.work / f"{plain.stem}.{way.replace(' ', '_')}.onnx"
        if not out.is_file():
            data = ("--data", str(self._split / "train"), "--limit", "64", *PREPROCESS)
            _called(("insert", str(plain), *data, "-o", str(out), *GRIDS[way], "-q"), self.work)
        return out

    def tuned(self, start: Path, more: Sequence[str]) -> tuple[Path, float]:
        """QAT from it with the loss that the network was trained with, and its CPU seconds."""
        out = start.with_suffix(".tuned.onnx")
        reported = out.with_suffix(".cost")
        if not out.is_file():
            how = ("--data", str(MODELS / "bccd_targets.py"), "--loss", str(MODELS / "bccd_loss.py"))
            command = ("finetune", str(start), *how, "--batch", "8", "--steps", STEPS, "-o", str(out), "-q", *more)
            environment = {"PYTHONPATH": str(PROJECT), "BCCD": str(self._photos)}
            cost = measured([sys.executable, "-m", "qdqtool", *command], environment=environment)
            if cost.code != 0:
                raise SystemExit(cost.said)
            reported.write_text(str(cost.cpu_seconds))
        return out, float(reported.read_text())


def _called(arguments: Sequence[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "qdqtool", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip())
    return done.stdout


def cell_rows(photos: Path, work: Path, networks: Sequence[Path], more: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """FP32, and for each way its PTQ and QAT; every network of FP32 is one seed."""
    cells = Cells(photos, work)
    plain = [cells.figures(_placed(network, work)) for network in networks]
    yield _row("FP32", plain, plain, [])
    for way in GRIDS:
        starts = [cells.quantized(work / network.name, way) for network in networks]
        yield _row(f"PTQ, {way}", [cells.figures(start) for start in starts], plain, [])
        done = [cells.tuned(start, more) for start in starts]
        yield _row(f"QAT, {way}", [cells.figures(out) for out, _ in done], plain, [seconds for _, seconds in done])


def _placed(network: Path, work: Path) -> Path:
    """A link to the network in the folder, beside which its figures lie."""
    place = work / network.name
    if not place.exists():
        place.symlink_to(network.absolute())
    return place


def _row(
    way: str, found: Sequence[Sequence[float]], plain: Sequence[Sequence[float]], seconds: Sequence[float]
) -> tuple[str, ...]:
    columns = [_spread([one[index] for one in found]) for index in range(len(NAMES) + 1)]
    parts = [one[-1] / other[-1] for one, other in zip(found, plain, strict=True)]
    spent = f"{statistics.mean(seconds):.0f}" if seconds else ""
    return way, *columns, _spread(parts), str(len(found)), spent


def _spread(values: Sequence[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} +- {deviation:.3f}"
