# SPDX-License-Identifier: Apache-2.0
"""Train the blood cell detector in FP32 and write it as ONNX, its BatchNormalization still there.

python models/train_bccd.py BCCD --seed 0 --out somewhere    (models/requirements.txt; five minutes on a core)

Stopped, it goes on from its last checkpoint when it is started again with the same words, and ends in the same weights.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import numpy as np
import onnx_file
import torch
from bccd import HEIGHT, NAMES, STRIDES, WIDTH, Photo, augmented, grid, load, refuse_other_folders, targets
from torch import nn
from train_detector import ConvBnRelu, Residual

EPOCHS = 80
BATCH = 16
RATE = 4e-3
KEPT = 0.998  # of the moving average of the weights, at each step
BOX_WEIGHT = 2.0


class Branch(nn.Module):
    """A depthwise and a pointwise convolution, and one to what is asked for."""

    def __init__(self, inputs: int, outputs: int, bias: float = 0.0) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, 1, 1, groups=inputs, bias=False)
        self.bn = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU()
        self.pointwise = ConvBnRelu(inputs, 40, 1)
        self.conv = nn.Conv2d(40, outputs, 1)
        nn.init.constant_(self.conv.bias, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.pointwise(self.relu(self.bn(self.depthwise(x)))))


class CellHead(nn.Module):
    """The three answers of one stride: box, object, class."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.box = Branch(inputs, 4, 0.5)
        self.quality = Branch(inputs, 1, -4.0)
        self.classes = Branch(inputs, len(NAMES))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.box(x), self.quality(x), self.classes(x)


class CellDetector(nn.Module):
    """Residual stages to stride 32, views from strides 32 and 16 merged back, a head at each of 8, 16, 32."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnRelu(3, 16, 3, 2)
        self.stage4 = ConvBnRelu(16, 24, 3, 2)
        self.stage8a = Residual(24, 40, 2)
        self.stage8b = Residual(40, 40)
        self.stage16 = Residual(40, 64, 2)
        self.stage32 = Residual(64, 80, 2)
        self.lateral = ConvBnRelu(80, 48, 1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.merge16 = nn.Sequential(ConvBnRelu(112, 48, 1), ConvBnRelu(48, 48))
        self.merge8 = nn.Sequential(ConvBnRelu(88, 40, 1), ConvBnRelu(40, 40))
        self.head8, self.head16, self.head32 = CellHead(40), CellHead(48), CellHead(48)

    def logits(self, x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Box, object and classes of each stride, as the convolutions give them."""
        fine = self.stage8b(self.stage8a(self.stage4(self.stem(x))))
        middle = self.stage16(fine)
        coarse = self.lateral(self.stage32(middle))
        middle = self.merge16(torch.cat([middle, self.up(coarse)], 1))
        fine = self.merge8(torch.cat([fine, self.up(middle)], 1))
        return [self.head8(fine), self.head16(middle), self.head32(coarse)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """YOLOX's output [N, 735, 8]: offset and log size in strides, probabilities of an object and of each class."""
        rows = []
        for stride, (box, quality, classes) in zip(STRIDES, self.logits(x), strict=True):
            one = torch.cat([box, torch.sigmoid(quality), torch.sigmoid(classes)], 1)
            # the number of cells as a constant: no Shape in the file
            rows.append(one.reshape(-1, 5 + len(NAMES), (WIDTH // stride) * (HEIGHT // stride)))
        return torch.cat(rows, 2).transpose(1, 2)


def corners_of(raw: torch.Tensor, cells: torch.Tensor, stride: torch.Tensor) -> torch.Tensor:
    """Offsets and log sizes [..., 4] of cells to corners in pixels, as YOLOX's decoder reads them."""
    center = (raw[..., :2] + cells) * stride
    half = raw[..., 2:].clamp(max=4).exp() * stride / 2
    return torch.cat([center - half, center + half], -1)


def generalized_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GIoU (Rezatofighi 2019) of paired boxes [K, 4]."""
    both = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - both
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(1)
    return both / union - (hull - union) / hull


def loss(
    model: CellDetector, images: torch.Tensor, wanted: list[torch.Tensor], cells: torch.Tensor, stride: torch.Tensor
) -> torch.Tensor:
    """Quality focal loss of the object score (Li 2020), cross-entropy of the classes, GIoU; by the sum of qualities."""
    answers = [
        torch.cat([one.flatten(2) for one in part], 2).transpose(1, 2)
        for part in zip(*model.logits(images), strict=True)
    ]
    box, score, classes = answers
    quality, truth, corners = wanted
    entropy = nn.functional.binary_cross_entropy_with_logits
    focal = (quality - score.sigmoid()).abs().square() * entropy(score, quality, reduction="none")
    named = entropy(classes, truth, reduction="none").sum(-1, keepdim=True) * quality
    mine = quality[..., 0] > 0
    decoded = corners_of(box, cells, stride)[mine]
    off = (1 - generalized_iou(decoded, corners[mine])) * quality[mine][:, 0]
    return (focal.sum() + named.sum() + BOX_WEIGHT * off.sum()) / quality.sum().clamp(min=1)


def batch_of(photos: list[Photo], rows: np.ndarray, rng: np.random.Generator) -> list[torch.Tensor]:
    """Images and targets of some photographs, each in a window of its own."""
    drawn = [augmented(photos[row], rng) for row in rows]
    columns = zip(*((pixels, *targets(boxes, labels)) for pixels, boxes, labels in drawn), strict=True)
    return [torch.from_numpy(np.stack(column)) for column in columns]


class Training:
    """The state that a checkpoint holds: weights, their moving average, the optimizer, the epochs done."""

    def __init__(self, seed: int, epochs: int, steps: int) -> None:
        torch.manual_seed(seed)
        self.seed, self.epochs, self.steps = seed, epochs, steps
        self.model = CellDetector()
        self.average = copy.deepcopy(self.model).eval()
        decayed = [one for one in self.model.parameters() if one.ndim > 1]
        others = [one for one in self.model.parameters() if one.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, RATE)
        self.done = 0
        cells, stride = grid()
        self.cells, self.stride = torch.from_numpy(cells), torch.from_numpy(stride)

    def epoch(self, photos: list[Photo]) -> float:
        """All photographs once, in an order and in windows that depend on the seed and the epoch alone."""
        rng = np.random.default_rng((self.seed, self.done))
        order = rng.permutation(len(photos))[: self.steps * BATCH].reshape(-1, BATCH)
        total = 0.0
        self.model.train()
        for number, rows in enumerate(order):
            self._set_rate(self.done * self.steps + number)
            images, *wanted = batch_of(photos, rows, rng)
            self.optimizer.zero_grad()
            cost = loss(self.model, images, wanted, self.cells, self.stride)
            cost.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
            self.optimizer.step()
            self._follow(self.done * self.steps + number)
            total += cost.item()
        self.done += 1
        return total / len(order)

    def _set_rate(self, step: int) -> None:
        """Up in the first twentieth, then down along a cosine."""
        share = step / (self.epochs * self.steps)
        rate = RATE * (share / 0.05 if share < 0.05 else 0.5 * (1 + math.cos(math.pi * (share - 0.05) / 0.95)))
        for group in self.optimizer.param_groups:
            group["lr"] = max(rate, RATE * 0.01)

    def _follow(self, step: int) -> None:
        kept = min(KEPT, (1 + step) / (10 + step))
        with torch.no_grad():
            for mine, theirs in zip(self.average.state_dict().values(), self.model.state_dict().values(), strict=True):
                if mine.dtype.is_floating_point:
                    mine.lerp_(theirs, 1 - kept)
                else:
                    mine.copy_(theirs)

    def save(self, path: Path) -> None:
        """Write the state whole, or not at all."""
        parts = {name: getattr(self, name).state_dict() for name in ("model", "average", "optimizer")}
        fresh = path.with_suffix(".tmp")
        torch.save({**parts, "done": self.done, "plan": [self.seed, self.epochs, self.steps]}, fresh)
        fresh.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint, where there is one of the same plan."""
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        if state["plan"] != [self.seed, self.epochs, self.steps]:
            raise SystemExit(f"{path}: is of another seed, number of epochs or data; give another --out")
        for name in ("model", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.done = state["done"]


def main() -> None:
    """Train on one split; nothing is chosen by another."""
    parser = argparse.ArgumentParser(description="train the blood cell detector")
    parser.add_argument("root", type=Path, help="the folder that holds ImageSets, JPEGImages and Annotations")
    parser.add_argument("--out", type=Path, required=True, help="where the model and its checkpoint go")
    parser.add_argument("--split", default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    chosen = parser.parse_args()
    refuse_other_folders(parser, chosen.root)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are split by thread: one thread gives the same bits on any count of cores
    photos = load(chosen.root, chosen.split)
    training = Training(chosen.seed, chosen.epochs, len(photos) // BATCH)
    chosen.out.mkdir(parents=True, exist_ok=True)
    checkpoint = chosen.out / f"bccd_seed{chosen.seed}.pt"
    training.resume(checkpoint)
    while training.done < chosen.epochs:
        start = time.process_time()
        cost = training.epoch(photos)
        training.save(checkpoint)
        spent = time.process_time() - start
        print(f"epoch {training.done}/{chosen.epochs}: loss {cost:.4f}, {spent:.1f} CPU seconds", flush=True)
    path = chosen.out / f"bccd_seed{chosen.seed}.onnx"
    onnx_file.write(training.average, (3, HEIGHT, WIDTH), ["detections"], path, keep_batch_norm=True)
    print(f"{path}: {sum(one.numel() for one in training.model.parameters())} parameters")


if __name__ == "__main__":
    main()
