# SPDX-License-Identifier: Apache-2.0
"""Train the digit detector and write it with its scenes: digits_detector.onnx, digits_calib.npz, digits_test.npz.

python models/train_detector.py    (models/requirements.txt; a few minutes on two cores)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx_file
import torch
from detection_map import STRIDE, evaluate
from digits import load_split
from scenes import CALIB, SIDE, TEST, VALIDATION, Scene, as_input, compose_many, labeled
from torch import nn

CELLS = SIDE // STRIDE
CLASSES = 10
REACH = 6.0  # a cell whose center lies this near (pixels, each axis) to a digit's center answers for it
SEED = 7
SCENES = 8_000
BATCH = 64


class ConvBnRelu(nn.Module):
    """Convolution without bias, batch normalization, ReLU (or none, before a residual addition)."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, relu: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.bn(self.conv(x)))


class Residual(nn.Module):
    """Two convolutions around a shortcut, which is a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = ConvBnRelu(inputs, outputs, 3, stride)
        self.second = ConvBnRelu(outputs, outputs, 3, relu=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else ConvBnRelu(inputs, outputs, 1, stride, relu=False)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = x if self.shortcut is None else self.shortcut(x)
        return self.relu(self.second(self.first(x)) + skip)


class SceneHead(nn.Module):
    """One convolution block and a 1x1 convolution with bias."""

    def __init__(self, inputs: int, outputs: int, bias: float) -> None:
        super().__init__()
        self.block = ConvBnRelu(inputs, 24)
        self.conv = nn.Conv2d(24, outputs, 1)
        nn.init.constant_(self.conv.bias, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.block(x))


class SceneDetector(nn.Module):
    """Stem with max-pooling, residual stages at stride 4 and 8, a view from stride 16 merged back, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnRelu(1, 24, 5, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stage4 = Residual(24, 24)
        self.stage8a = Residual(24, 40, 2)
        self.stage8b = Residual(40, 40)
        self.stage16 = ConvBnRelu(40, 40, 3, 2)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.merge = ConvBnRelu(80, 40, 1)
        self.score_head = SceneHead(40, CLASSES, -4.0)
        self.box_head = SceneHead(40, 4, 0.5)

    def logits(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores before the Sigmoid [N, 10, 12, 12] and raw boxes [N, 4, 12, 12]."""
        fine = self.stage8b(self.stage8a(self.stage4(self.pool(self.stem(x)))))
        both = self.merge(torch.cat([fine, self.up(self.stage16(fine))], 1))
        return self.score_head(both), self.box_head(both)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, boxes = self.logits(x)
        return torch.sigmoid(scores), boxes


def targets(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """What each cell should say: the class or -1 [12, 12], and the corners of its box in pixels [4, 12, 12]."""
    label = np.full((CELLS, CELLS), -1, np.int64)
    corners = np.zeros((4, CELLS, CELLS), np.float32)
    if not len(scene.labels):
        return label, corners
    cells = (np.mgrid[0:CELLS, 0:CELLS][::-1] + 0.5) * STRIDE
    middle = (scene.boxes[:, :2] + scene.boxes[:, 2:]) / 2
    away = np.abs(cells[None] - middle[:, :, None, None]).max(1)
    nearest = away.argmin(0)
    mine = away.min(0) < REACH
    label[mine] = scene.labels[nearest][mine]
    corners[:, mine] = scene.boxes[nearest][mine].T
    return label, corners


def corners_of(raw: torch.Tensor) -> torch.Tensor:
    """Raw boxes [N, 4, 12, 12] to corners in pixels; the same arithmetic as `detection_map.decode`."""
    line = torch.arange(CELLS, dtype=raw.dtype) + 0.5
    center = torch.stack([line[None, None] + raw[:, 0], line[None, :, None] + raw[:, 1]], 1)
    half = raw[:, 2:].clamp(max=4).exp() / 2
    return torch.cat([center - half, center + half], 1) * STRIDE


def generalized_iou(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """IoU and GIoU (Rezatofighi 2019) of paired boxes [K, 4]."""
    both = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - both
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(1)
    return both / union, both / union - (hull - union) / hull


def loss(model: SceneDetector, images: torch.Tensor, label: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
    """Quality focal loss on the scores, whose target is the IoU reached (Li 2020), and GIoU on the boxes."""
    logits, raw = model.logits(images)
    scene, row, column = torch.nonzero(label >= 0, as_tuple=True)
    overlap, giou = generalized_iou(corners_of(raw)[scene, :, row, column], corners[scene, :, row, column])
    wanted = torch.zeros_like(logits)
    wanted[scene, label[scene, row, column], row, column] = overlap.detach().clamp(min=0)
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    focal = (wanted - logits.sigmoid()).abs().square() * entropy
    return (focal.sum() + 2 * (1 - giou).sum()) / max(len(scene), 1)


def train(scenes: list[Scene], epochs: int) -> SceneDetector:
    """Adam with a one-cycle rate; the order of the scenes is drawn from torch's seeded generator."""
    model = SceneDetector()
    images = torch.from_numpy(as_input(np.stack([scene.image for scene in scenes])))
    label, corners = (torch.from_numpy(np.stack(column)) for column in zip(*map(targets, scenes), strict=True))
    steps = len(scenes) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * steps)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(scenes))[: steps * BATCH].split(BATCH):
            optimizer.zero_grad()
            cost = loss(model, images[rows], label[rows], corners[rows])
            cost.backward()
            optimizer.step()
            rate.step()
            total += cost.item()
        print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.4f}", flush=True)
    return model


def main() -> None:
    """Train on the training digits, choose on scenes of the calibration digits, measure once on the test digits."""
    parser = argparse.ArgumentParser(description="train the digit detector")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--scenes", type=int, default=SCENES)
    chosen = parser.parse_args()
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are split by thread: one thread gives the same bits on any count of cores
    digits = load_split()
    calib = labeled(compose_many(*CALIB, digits["calib"]))
    test = labeled(compose_many(*TEST, digits["test"]))
    chosen.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(chosen.out / "digits_calib.npz", images=as_input(calib["images"]))
    np.savez_compressed(chosen.out / "digits_test.npz", **test)
    model = train(compose_many(SEED, chosen.scenes, digits["train"]), chosen.epochs)
    path = chosen.out / "digits_detector.onnx"
    onnx_file.write(model, (1, SIDE, SIDE), ["scores", "boxes"], path, keep_batch_norm=True)
    validation = labeled(compose_many(*VALIDATION, digits["calib"]))
    print("on scenes of the calibration digits:", evaluate(path, validation))
    print("held out:", evaluate(path, test))


if __name__ == "__main__":
    main()
