# SPDX-License-Identifier: Apache-2.0
"""What fine-tuning brings back of pruned models, judged on labeled images: shares of the multiply-adds, label-free.

    python tests/bench/prune_recovery.py MODEL... [--macs 0.9,0.8,0.65,0.5] [--minutes 20] [--corpus C] [--work W]
    python tests/bench/prune_recovery.py bccd --ratio 0.32 --steps 600 --relative-lr 0.6

One line for each model and share: the figure of the original, of the pruned model and of the fine-tuned one, each with
its 95 % interval, the loss relative to the original, and the CPU seconds of `prune` and of `finetune`. `bccd` is the
blood-cell detector of `models/`, which learns with labels and is told once more in INT8. What was made is not again.
With `--minutes 0` a label-free model is pruned and not trained.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from accuracy import FP32, PROJECT
from accuracy_judge import figure
from cost import apart, measured
from training_recovery import RecoveryPlace, opened_place

BCCD = "bccd"
_LIKE_YOLOX = ("--preprocess", "yolox,interpolation=area")
_IMPORTANCE = ("--importance", "taylor")


@dataclass(frozen=True)
class Chosen:
    """What is measured: shares of the multiply-adds, minutes of training, and where."""

    shares: tuple[float, ...]
    minutes: float
    corpus: Path
    work: Path
    importance: tuple[str, ...] = _IMPORTANCE
    steps: int | None = None
    by: str = "macs"
    rate: float | None = None


def main() -> int:
    """Print the table."""
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared")) / "corpus"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--macs", default="0.9,0.8,0.65,0.5")
    parser.add_argument("--ratio")
    parser.add_argument("--relative-lr", type=float)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--importance", default="taylor")
    parser.add_argument("--corpus", type=Path, default=shared)
    parser.add_argument("--work", type=Path, default=Path("out/prune_recovery"))
    args = parser.parse_args()
    shares = tuple(float(one) for one in (args.ratio or args.macs).split(","))
    how, by = ("--importance", args.importance), "ratio" if args.ratio else "macs"
    chosen = Chosen(shares, args.minutes, args.corpus, args.work, how, args.steps, by, args.relative_lr)
    for name in args.models:
        for share in chosen.shares:
            print(
                *(_blood_cells(chosen, share) if name == BCCD else _label_free(chosen, name, share)),
                sep="\n",
                flush=True,
            )
    return 0


def _label_free(chosen: Chosen, name: str, share: float) -> list[str]:
    """The lines of one model of the accuracy bench."""
    place = opened_place(chosen.corpus, chosen.work, name)
    data = ["--data", str(place.bench.samples)]
    pruned, tuned = (place.model(f"{kind} {share:g}") for kind in ("pruned", "tuned"))
    if not chosen.minutes:
        tuned = pruned
    batch = ["--batch", "16"] if not place.subject.detector else []
    costs = _made(chosen, place.plain, (pruned, tuned), [*data, *batch], share, [])
    lines = []
    for metric in ("map", "agreement") if place.subject.detector else ("top1",):
        found = []
        for way, model in ((FP32, place.plain), (f"pruned {share:g}", pruned), (f"tuned {share:g}", tuned)):
            place.judged(way, model)
            found.append(1.0 if metric == "agreement" and way == FP32 else apart(_value, place, metric, way))
        lines.append(_line(name, share, metric, found, costs))
    return lines


def _value(place: RecoveryPlace, metric: str, way: str) -> float:
    return figure(place.work, metric, way).value


def _blood_cells(chosen: Chosen, share: float) -> list[str]:
    """The lines of the blood-cell detector, trained with labels; the second one in INT8."""
    work, models = chosen.work / BCCD, PROJECT / "models"
    work.mkdir(parents=True, exist_ok=True)
    data = chosen.corpus / "datasets" / "bccd" / "BCCD"
    os.environ["BCCD"] = str(data)
    split = work / "split"
    if not split.is_dir():
        measured([sys.executable, models / "bccd.py", data, "--links", split])
    plain = models / "bccd_detector.onnx"
    pruned, tuned, int8 = (work / f"{kind}_{share:g}.onnx" for kind in ("pruned", "tuned", "int8"))
    images = ["--data", str(split / "train"), "--limit", "80", *_LIKE_YOLOX]
    labels = ["--data", str(models / "bccd_targets.py"), "--loss", str(models / "bccd_loss.py"), "--batch", "8"]
    costs = _made(chosen, plain, (pruned, tuned), images, share, [*labels, "--distill-weight", "1"])
    if not int8.is_file():
        _run("insert", [str(tuned), *images, "-o", str(int8), "-q"])
    judge = ["--data", str(split / "test"), "--labels", str(data / "Annotations"), "--names", "RBC,WBC,Platelets"]
    judge += [*_LIKE_YOLOX, "--metric", "voc", "--json"]
    found = {one: _average_precision(one, plain, judge) for one in (pruned, tuned, int8)}
    original = found[pruned][0]
    ways = {"float": tuned, "INT8": int8}
    return [
        _line(f"{BCCD} {way}", share, "voc_ap", [original, found[pruned][1], found[one][1]], costs)
        for way, one in ways.items()
    ]


def _made(
    chosen: Chosen, plain: Path, targets: tuple[Path, Path], data: list[str], share: float, instead: list[str]
) -> tuple[float, float]:
    """CPU seconds of `prune` and of `finetune`, kept beside their files; `instead` are other data of the latter."""
    pruned, tuned = targets
    if not pruned.is_file():
        words = [str(plain), f"--{chosen.by}", f"{share:g}", *chosen.importance, *data, "-o", str(pruned), "-q"]
        pruned.with_suffix(".json").write_text(json.dumps(_run("prune", words)))
    if not tuned.is_file():
        length = ["--max-minutes", f"{chosen.minutes:g}", "--patience", "0"]
        length += [] if chosen.steps is None else ["--steps", str(chosen.steps)]
        length += [] if chosen.rate is None else ["--relative-lr", f"{chosen.rate:g}"]
        words = [str(pruned), "--teacher", str(plain), *(instead or data), *length, "-o", str(tuned), "-q"]
        tuned.with_suffix(".json").write_text(json.dumps(_run("finetune", words)))
    return tuple(json.loads(one.with_suffix(".json").read_text()) for one in targets)  # type: ignore[return-value]


def _run(verb: str, words: list[str]) -> float:
    """CPU seconds of a command of qdqtool; an error where it fails."""
    path = f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    cost = measured([sys.executable, "-m", "qdqtool", verb, *words], environment={"PYTHONPATH": path})
    if cost.code != 0:
        raise SystemExit(f"{verb}: {cost.said}")
    return cost.cpu_seconds


def _average_precision(model: Path, plain: Path, judge: list[str]) -> tuple[float, float]:
    """Of the original and of a model."""
    import subprocess

    command = [sys.executable, "-m", "qdqtool", "evaluate", str(model), "--baseline", str(plain), *judge]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=PROJECT).stdout)
    original, found = (said[key]["voc_ap"] for key in ("baseline_figures", "figures"))
    return float(original["value"]), float(found["value"])


def _line(name: str, share: float, metric: str, found: list[float], costs: tuple[float, float]) -> str:
    original, pruned, tuned = found
    lost = (original - tuned) / original
    values = f"{original:.3f}, pruned {pruned:.3f}, fine-tuned {tuned:.3f} ({lost:+.1%} of the original lost)"
    return f"{name} at {share:g}: {metric} {values}; {costs[0]:.0f} + {costs[1]:.0f} CPU s"


if __name__ == "__main__":
    sys.exit(main())
