# SPDX-License-Identifier: Apache-2.0
"""`finetune --labels`: a recipe's own loss beside one command, labels beside none, losses beside PyTorch.

    python -m tests.bench.training_labels cells [--seeds 5] [--steps 80]
    python -m tests.bench.training_labels yolox [--steps 250]
    python -m tests.bench.training_labels classes|half|faces|shapes|nano [--seeds 2] [--steps 80]
    python -m tests.bench.training_labels losses               # needs torch and torchvision, too

`cells`: the blood-cell detector of `models/`, INT8 by the defaults of `insert`, then trained by `bccd_loss.py` and
`bccd_targets.py`, and by `--labels` alone, which from the plain model gives the same bytes after the same `insert`;
VOC AP on the 72 photographs of test, by seed. `yolox`: yolox_nano from two starts, by what it learns from; mAP on 128
COCO images, what it learns from are 48 others.

The next five start from INT8 by the defaults of `insert`; each way is compared with the first one, paired over seeds.
`classes`: cifar_resnet20 on 500 images, without and with
label smoothing and in half precision; top-1 on 500 others. `half`: the blood cells by `--labels` in half precision.
`faces`: UltraFace (SSD) on 32 photographs; AP50 on 100 others. `shapes`: the bundled DETR on 256 scenes; AP on 500
others by its own judge. `nano`: yolox_nano as in `yolox`, by seed.

`losses`: values and gradients of every loss of `box_losses.py` beside PyTorch and torchvision; 1 where they differ by
more than 1e-5 of the largest. What was made below `--work` is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.accuracy_subjects import CIFAR_NORM as _CIFAR_NORM
from tests.bench.accuracy_subjects import FACE_NAMES

PROJECT = Path(__file__).resolve().parents[2]
MODELS = PROJECT / "models"
_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262}  # of 95 %, by degrees of freedom
_CLASSES = "RBC,WBC,Platelets"
_ALLOWED = 1e-5


def main() -> int:
    """Print the tables that were asked for; 1 where a gradient is off."""
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared")) / "corpus"
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("part", choices=("cells", "yolox", *_TABLES, "losses"))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--corpus", type=Path, default=shared)
    parser.add_argument("--work", type=Path, default=Path("out/training_labels"))
    args = parser.parse_args()
    if args.part == "losses":
        return losses()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.part == "cells":
        cells(args.corpus / "datasets/bccd/BCCD", args.work.resolve(), args.seeds or 5, args.steps or 80)
    elif args.part in _TABLES:
        print_table(_TABLES[args.part](args.corpus, args.work.resolve()), args.work, args.seeds or 2, args.steps or 80)
    else:
        yolox(args.corpus, args.work.resolve(), args.steps or 250)
    return 0


def cells(data: Path, work: Path, seeds: int, steps: int) -> None:
    """The blood-cell detector, INT8: untrained, by its recipe's loss, by one command."""
    os.environ["BCCD"] = str(data)
    if not (work / "split").is_dir():
        subprocess.run([sys.executable, MODELS / "bccd.py", data, "--links", work / "split"], check=True)
    plain, int8, known = MODELS / "bccd_detector.onnx", work / "int8.onnx", ["--preprocess", "yolox,interpolation=area"]
    images, labels = ["--data", work / "split/train", *known], ["--labels", data / "Annotations"]
    test = ["--data", work / "split/test", *labels, "--names", _CLASSES, *known, "--metric", "voc"]
    _make(int8, "insert", plain, *images)
    start = _value(int8, "voc_ap", *test)
    print(
        f"INT8 by insert: VOC AP {start:.4f}\n\n| seed | recipe's loss | `--labels` | difference |\n|---|---|---|---|"
    )
    script = ["--data", MODELS / "bccd_targets.py", "--loss", MODELS / "bccd_loss.py"]
    differences = []
    for seed in range(seeds):
        how = ["--batch", 8, "--steps", steps, "--seed", seed]
        own, one = (work / f"{name}_{steps}_{seed}.onnx" for name in ("own", "one"))
        _make(own, "finetune", int8, *script, *how)
        _make(one, "finetune", int8, *images, *labels, "--eval-names", _CLASSES, *how)
        found = [_value(model, "voc_ap", *test) for model in (own, one)]
        differences.append(found[1] - found[0])
        print(f"| {seed} | {found[0]:.4f} | {found[1]:.4f} | {differences[-1]:+.4f} |", flush=True)
    print(f"\ndifference {_interval(differences)}")


def _interval(differences: Sequence[float]) -> str:
    """The mean of paired differences, and its 95 % interval where there are two or more."""
    count = len(differences)
    mean = sum(differences) / count
    spread = (sum((one - mean) ** 2 for one in differences) / max(count - 1, 1)) ** 0.5
    half = _STUDENT[count - 1] * spread / count**0.5 if count > 1 else float("nan")
    return f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f}, paired over {count} seeds)"


def yolox(corpus: Path, work: Path, steps: int) -> None:
    """yolox_nano from a start that lost little and from one that lost nearly all."""
    known, sets = ["--preprocess", "yolox"], corpus / "datasets"
    images, labels = ["--data", sets / "coco_calib48/images", *known], sets / "coco_calib48/labels"
    test = ["--data", sets / "coco_val128/images", "--labels", sets / "coco_val128/labels", *known, "--names", "coco"]
    labeled = ["--labels", labels, "--eval-names", "coco"]
    ways = {"the float model": [], "labels": labeled, "labels and the float model": [*labeled, "--distill-weight", 1]}
    plain = corpus / "models/yolox_nano_coco.onnx"
    print(f"FP32: mAP {_value(plain, 'map', *test):.3f}\n\n| start | learns from | rate | mAP |\n|---|---|---|---|")
    for start, more in {"default": [], "mse": ["--method", "mse", "--keep-float", 0]}.items():
        int8 = work / f"yolox_{start}.onnx"
        _make(int8, "insert", plain, *images, *more)
        print(f"| {start} | | | {_value(int8, 'map', *test):.3f} |", flush=True)
        for name, words in ways.items():
            for rate in (0.001, 0.004, 0.016) if (start, name) == ("mse", "labels") else (0.004,):
                tuned = work / f"yolox_{start}_{len(words)}_{steps}_{rate:g}.onnx"
                _make(tuned, "finetune", int8, *images, *words, "--steps", steps, "--relative-lr", rate)
                print(f"| {start} | {name} | {rate:g} | {_value(tuned, 'map', *test):.3f} |", flush=True)


# ------------------------------------------------------------------ tables: a model, and ways to train it


@dataclass(frozen=True)
class Trained:
    """A model, its training data with labels, ways to train it, and what judges the result."""

    name: str
    plain: Path
    images: list[object]
    labels: list[object]
    ways: dict[str, list[object]]
    judge: Callable[[Path], float]
    metric: str
    batch: str = "--batch"  # or `--grad-accum`, where the model fixes its batch


def print_table(one: Trained, work: Path, seeds: int, steps: int) -> None:
    """A row for FP32, INT8 and each way, a column for each seed."""
    int8 = work.resolve() / f"{one.name}.onnx"
    _make(int8, "insert", one.plain, *one.images)
    print(f"{one.metric}: FP32 {one.judge(one.plain):.4f}, INT8 {one.judge(int8):.4f}\n")
    head = " | ".join(f"seed {seed}" for seed in range(seeds))
    print(f"| {steps} steps of 8 | {head} | against the first way |\n|---|{'---|' * seeds}---|")
    first = list[float]()
    for number, (way, words) in enumerate(one.ways.items()):
        found = list[float]()
        for seed in range(seeds):
            made = int8.with_name(f"{one.name}_{number}_{steps}_{seed}.onnx")
            given = [] if way == "the float model" else one.labels
            _make(made, "finetune", int8, *one.images, *given, *words, one.batch, 8, "--steps", steps, "--seed", seed)
            found.append(one.judge(made))
        apart = _interval([b - a for a, b in zip(first, found, strict=True)]) if first else ""
        first = first or found
        print(f"| {way} | {' | '.join(f'{value:.4f}' for value in found)} | {apart} |", flush=True)


_HALVES: dict[str, list[object]] = {
    "labels": [],
    "labels, `--precision fp16`": ["--precision", "fp16"],
    "labels, `--precision bf16`": ["--precision", "bf16"],
}


def _classes(corpus: Path, work: Path) -> Trained:
    import numpy as np

    stored, known = np.load(corpus / "datasets/cifar10_1000.npz"), ["--preprocess", _CIFAR_NORM]
    for name, part in (("train", slice(500)), ("test", slice(500, None))):
        np.savez(work / f"cifar_{name}.npz", x=stored["x"][part], y=stored["y"][part])
    smoothed: list[object] = ["--label", "logits:ce=smoothing=0.1"]
    return Trained(
        "resnet20",
        corpus / "models/cifar_resnet20.onnx",
        ["--data", work / "cifar_train.npz", *known],
        ["--labels", "folders"],
        {"the float model": [], "labels, smoothing 0.1": smoothed, **_HALVES},
        lambda model: _value(model, "top1", "--data", work / "cifar_test.npz", *known),
        "top-1",
    )


def _cells(corpus: Path, work: Path) -> Trained:
    data, known = corpus / "datasets/bccd/BCCD", ["--preprocess", "yolox,interpolation=area"]
    if not (work / "split").is_dir():
        os.environ["BCCD"] = str(data)
        subprocess.run([sys.executable, MODELS / "bccd.py", data, "--links", work / "split"], check=True)
    labels = ["--labels", data / "Annotations"]
    test = ["--data", work / "split/test", *labels, "--names", _CLASSES, *known, "--metric", "voc"]
    return Trained(
        "cells",
        MODELS / "bccd_detector.onnx",
        ["--data", work / "split/train", *known],
        [*labels, "--eval-names", _CLASSES],
        _HALVES,
        lambda model: _value(model, "voc_ap", *test),
        "VOC AP",
    )


def _faces(corpus: Path, work: Path) -> Trained:
    data, known = corpus / "datasets", ["--preprocess", "ultraface"]
    train, test, names = data / "facemask_calib32", data / "facemask_100", ["--names", FACE_NAMES]
    judged = ["--data", test / "images", "--labels", test / "xml", *names, *known, "--score", 0.05, "--iou", 0.4]
    return Trained(
        "faces",
        corpus / "models/ultraface_rfb320.onnx",
        ["--data", train / "images", *known],
        ["--labels", train / "xml", "--eval-names", FACE_NAMES],
        {"the float model": [], "labels": [], "labels and the float model": ["--distill-weight", 1]},
        lambda model: _value(model, "ap50", *judged),
        "AP50",
        "--grad-accum",
    )


def _shapes(corpus: Path, work: Path) -> Trained:
    import numpy as np

    sys.path.insert(0, str(MODELS))
    import shape_detections
    import shape_scenes

    scenes = shape_scenes.draw(204, 256)
    np.savez(work / "scenes.npz", images=scenes["images"])
    np.savez(work / "boxes.npz", **{name: scenes[name] for name in ("boxes", "labels", "scene")})
    return Trained(
        "shapes",
        MODELS / "shapes_detr.onnx",
        ["--data", work / "scenes.npz"],
        ["--labels", work / "boxes.npz", "--eval-decoder", "rtdetr"],
        {"the float model": [], "labels": [], "labels and the float model": ["--distill-weight", 1]},
        lambda model: float(shape_detections.score(model)["ap50_95"]),
        "AP50:95",
    )


def _nano(corpus: Path, work: Path) -> Trained:
    data, known, rate = corpus / "datasets", ["--preprocess", "yolox"], ["--relative-lr", 0.004]
    test = ["--data", data / "coco_val128/images", "--labels", data / "coco_val128/labels", *known, "--names", "coco"]
    return Trained(
        "nano",
        corpus / "models/yolox_nano_coco.onnx",
        ["--data", data / "coco_calib48/images", *known],
        ["--labels", data / "coco_calib48/labels", "--eval-names", "coco"],
        {"the float model": rate, "labels": rate},
        lambda model: _value(model, "map", *test),
        "mAP",
        "--grad-accum",
    )


_TABLES: dict[str, Callable[[Path, Path], Trained]] = {
    "classes": _classes,
    "half": _cells,
    "faces": _faces,
    "shapes": _shapes,
    "nano": _nano,
}


def _make(target: Path, verb: str, model: Path, *words: object) -> None:
    if not target.is_file():
        _qdqtool(verb, model, *words, "-q", "-o", target)


def _value(model: Path, metric: str, *words: object) -> float:
    kept = model.with_suffix(".json") if model.parent.name == "training_labels" else None
    if kept is None or not kept.is_file():
        said = _qdqtool("evaluate", model, *words, "-q", "--json")
        if kept is None:
            return float(json.loads(said)["figures"][metric]["value"])
        kept.write_text(said)
    return float(json.loads(kept.read_text())["figures"][metric]["value"])


def _qdqtool(*words: object) -> str:
    command = [sys.executable, "-m", "qdqtool", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


# ------------------------------------------------------------------ beside PyTorch


def losses() -> int:
    """Every head of the suite: the loss and its gradients beside PyTorch and torchvision; 1 where they differ."""
    import torch
    import torchvision

    from tests.training.losses.loss_graphs import gradients_of, outputs_of
    from tests.training.losses.test_box_losses import HEADS, SIZE, WIDE, graph_of

    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}\n")
    print("| head | loss | PyTorch | difference of gradients |\n|---|---|---|---|")
    off = False
    for name, make in HEADS.items():
        model, _, values = make()
        decoder = {"yolov8": "yolov8,classes=3"}.get(name, name.split()[0])
        _, graph, feeds = graph_of(model, decoder, WIDE if "efficientdet" in name else SIZE)
        own, gradients = float(outputs_of(graph.proto, feeds)[graph.loss]), gradients_of(graph, tuple(values), feeds)
        given = {key: torch.tensor(one.astype("float32"), requires_grad=True) for key, one in values.items()}
        targets = {key.removeprefix("boxes/"): torch.tensor(one) for key, one in feeds.items()}
        theirs = _REFERENCES[name.split()[0]](given, targets, name)
        theirs.backward()
        largest = max(float(one.grad.abs().max()) for one in given.values())
        apart = max(float(abs(gradients[key] - one.grad.numpy()).max()) for key, one in given.items()) / largest
        off |= apart > _ALLOWED or abs(own - theirs.item()) > _ALLOWED * abs(own)
        print(f"| {name} | {own:.6f} | {theirs.item():.6f} | {apart:.1e} of the largest |")
    return int(off)


def _corners(middle: Any, sides: Any) -> Any:
    import torch

    return torch.cat((middle - sides / 2, middle + sides / 2), -1)


def _overlap(a: Any, b: Any) -> Any:
    """IoU, box by box."""
    import torch

    both = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return both / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both)


def _places() -> tuple[Any, Any]:
    import torch

    from tests.training.losses.test_box_losses import CELLS, STEPS

    return torch.tensor(CELLS, dtype=torch.float32), torch.tensor(STEPS, dtype=torch.float32)


def _yolox(v: dict[str, Any], t: dict[str, Any], name: str) -> Any:
    from torch.nn.functional import binary_cross_entropy_with_logits as entropy

    cells, steps = _places()
    rows = v["box"].transpose(1, 2)
    iou = _overlap(_corners((rows[..., :2] + cells) * steps, rows[..., 2:].exp() * steps), t["corners"])
    matched = t["matched"][..., 0]
    named = entropy(v["named"].transpose(1, 2), t["classes"], reduction="none").sum(-1)
    score = entropy(v["object"][:, 0], matched, reduction="sum")
    return ((5 * (1 - iou**2) * matched + named * matched).sum() + score) / matched.sum()


def _yolov8(v: dict[str, Any], t: dict[str, Any], name: str) -> Any:
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as entropy
    from torchvision.ops import distance_box_iou_loss

    quality, bins = t["classes"], None
    if name == "yolov8":
        rows = v["box"].transpose(1, 2)
        boxes, named = _corners(rows[..., :2], rows[..., 2:]), v["named"].transpose(1, 2)
    else:
        cells, steps = _places()
        rows = torch.cat([one.flatten(2) for one in v.values()], 2).transpose(1, 2)
        bins, named = rows[..., :64].unflatten(-1, (4, 16)), rows[..., 64:]
        away = (bins.softmax(-1) @ torch.arange(16.0)) * steps
        boxes = torch.cat(((cells + 0.5) * steps - away[..., :2], (cells + 0.5) * steps + away[..., 2:]), -1)
    weight, total = quality.sum(-1), quality.sum().clamp(min=1)
    missed = 7.5 * (distance_box_iou_loss(boxes, t["corners"]) * weight).sum()
    missed = missed + 0.5 * entropy(named, quality, reduction="sum")
    if bins is not None:
        missed = missed + 1.5 * (-(bins.log_softmax(-1) * t["bins"]).sum(-1).mean(-1) * weight).sum()
    return missed / total


def _ssd(v: dict[str, Any], t: dict[str, Any], name: str) -> Any:
    import torch
    from torch.nn.functional import cross_entropy, smooth_l1_loss

    from tests.training.losses.test_box_losses import PRIORS

    x, priors = v["offsets"], torch.tensor(PRIORS, dtype=torch.float32)
    if name == "ssd decoded":
        middle = ((x[..., :2] + x[..., 2:]) / 2 - priors[:, :2]) / priors[:, 2:] / 0.1
        x = torch.cat((middle, ((x[..., 2:] - x[..., :2]) / priors[:, 2:]).log() / 0.2), -1)
    box = (smooth_l1_loss(x, t["offsets"], reduction="none").sum(-1) * t["matched"]).sum()
    named = cross_entropy(v["scores"].flatten(0, 1), t["classes"].flatten(), ignore_index=-1, reduction="sum")
    return (box + named) / t["matched"].sum()


def _focal(x: Any, y: Any) -> Any:
    from torchvision.ops import sigmoid_focal_loss

    return (sigmoid_focal_loss(x, y.clamp(min=0)) * (y >= 0)).sum()  # -1: counts for nothing


def _retinanet(v: dict[str, Any], t: dict[str, Any], name: str) -> Any:
    import torch
    from torch.nn.functional import smooth_l1_loss

    def rows(side: str, numbers: int) -> Any:
        maps = [one.permute(0, 2, 3, 1) if name.endswith("first") else one for key, one in v.items() if side in key]
        return torch.cat([one.reshape(2, -1, numbers) for one in maps], 1)

    box = smooth_l1_loss(rows("v1_", 4), t["offsets"], reduction="none", beta=1 / 9).sum(-1)
    return (_focal(rows("v0_", 3), t["classes"]) + (box * t["matched"]).sum()) / t["matched"].sum()


def _detr(v: dict[str, Any], t: dict[str, Any], name: str) -> Any:
    import torch
    from torch.nn.functional import cross_entropy
    from torchvision.ops import generalized_box_iou_loss

    boxes, matched = v["raw"].sigmoid(), t["matched"]
    if name == "detr":
        weights = torch.tensor([1.0, 1.0, 1.0, 0.1])
        named = cross_entropy(v["logits"].flatten(0, 1), t["classes"].flatten(), weight=weights)
    else:
        named = 2 * _focal(v["logits"], t["classes"]) / matched.sum()
    over = generalized_box_iou_loss(_corners(boxes[..., :2], boxes[..., 2:]) * 64, t["corners"])
    missed = 5 * (boxes - t["boxes"]).abs().sum(-1) + 2 * over
    return named + (missed * matched).sum() / matched.sum()


def _detectnet(v: dict[str, Any], t: dict[str, Any], name: str) -> Any:
    from torch.nn.functional import binary_cross_entropy_with_logits as entropy

    covered = t["coverage"]
    each = entropy(v["cover"], covered, weight=0.95 - 0.9 * covered, reduction="mean")
    return each + 10 * ((v["sides"] - t["distances"]).abs() * t["weight"]).mean()


_REFERENCES = {
    "yolox": _yolox,
    "yolov8": _yolov8,
    "ssd": _ssd,
    "efficientdet": _retinanet,
    "detr": _detr,
    "rtdetr": _detr,
    "detectnet_v2": _detectnet,
}


if __name__ == "__main__":
    sys.exit(main())
