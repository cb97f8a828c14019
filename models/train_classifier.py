# SPDX-License-Identifier: Apache-2.0
"""Train the tiny classifier and write it with its data: tiny_classifier.onnx, digits8_calib.npz, digits8_test.npz.

python models/train_classifier.py    (models/requirements.txt; under a minute)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx_file
import torch
from digits import Digits, load_split, resize
from torch import nn

SIDE = 16
CLASSES = 10
SEED = 11
BATCH = 64
CALIB_IMAGES = 128


class ConvBnSilu(nn.Module):
    """Convolution, batch normalization, SiLU (or none); `groups` equal to the channels makes it depthwise."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, *, silu: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.silu = nn.SiLU() if silu else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.silu(self.bn(self.conv(x)))


class Separable(nn.Module):
    """A depthwise and a pointwise convolution, each with SiLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depthwise = ConvBnSilu(inputs, inputs, 3, stride, inputs)
        self.pointwise = ConvBnSilu(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pointwise(self.depthwise(x))


class Inverted(nn.Module):
    """Widen, convolve depthwise, narrow without an activation, add (Sandler 2018)."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.widen = ConvBnSilu(channels, wide, 1)
        self.depthwise = ConvBnSilu(wide, wide, 3, groups=wide)
        self.narrow = ConvBnSilu(wide, channels, 1, silu=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.depthwise(self.widen(x)))


class DigitClassifier(nn.Module):
    """Images [N, 1, 16, 16] to logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnSilu(1, 16)
        self.down8 = Separable(16, 24, 2)
        self.block8 = Inverted(24, 48)
        self.down4 = Separable(24, 48, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.down4(self.block8(self.down8(self.stem(x))))
        return self.fc(torch.flatten(self.pool(features), 1))


def as_input(digits: Digits) -> np.ndarray:
    """Digits as the model takes them: [K, 1, 16, 16] float32 in steps of 1/255."""
    large = np.stack([resize(image, SIDE, SIDE) for image in digits.images])
    return (np.rint(large[:, None] * 255) / 255).astype(np.float32)


def disturb(images: torch.Tensor) -> torch.Tensor:
    """Shift a batch by up to two pixels, scale its contrast, add noise; drawn from torch's seeded generator."""
    shift = torch.randint(-2, 3, (2,)).tolist()
    moved = torch.roll(nn.functional.pad(images, (2, 2, 2, 2)), shift, (2, 3))[:, :, 2:-2, 2:-2]
    contrast = 0.7 + 0.3 * torch.rand(len(images), 1, 1, 1)
    return (contrast * moved + 0.05 * torch.randn_like(moved)).clamp(0, 1)


def train(digits: Digits, epochs: int) -> DigitClassifier:
    """Adam with a one-cycle rate on cross-entropy."""
    model = DigitClassifier()
    images, labels = torch.from_numpy(as_input(digits)), torch.from_numpy(digits.labels)
    steps = len(labels) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=epochs * steps)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(labels))[: steps * BATCH].split(BATCH):
            optimizer.zero_grad()
            cost = nn.functional.cross_entropy(model(disturb(images[rows])), labels[rows], label_smoothing=0.05)
            cost.backward()
            optimizer.step()
            rate.step()
            total += cost.item()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.4f}", flush=True)
    return model


def top1(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images whose largest logit is the label's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images})
    return float((logits.argmax(1) == labels).mean())


def main() -> None:
    """Train on the training digits, measure on the calibration digits and once on the test digits."""
    parser = argparse.ArgumentParser(description="train the tiny classifier")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--epochs", type=int, default=60)
    chosen = parser.parse_args()
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are split by thread: one thread gives the same bits on any count of cores
    digits = load_split()
    calib, test = as_input(digits["calib"]), as_input(digits["test"])
    order = np.random.default_rng(SEED).permutation(len(calib))
    chosen.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(chosen.out / "digits8_calib.npz", images=calib[order[:CALIB_IMAGES]])
    np.savez_compressed(chosen.out / "digits8_test.npz", x=test, y=digits["test"].labels)
    model = train(digits["train"], chosen.epochs)
    path = chosen.out / "tiny_classifier.onnx"
    onnx_file.write(model, (1, SIDE, SIDE), ["logits"], path, keep_batch_norm=False)
    print(f"calibration digits: {top1(path, calib, digits['calib'].labels):.4f}")
    print(f"held out: {top1(path, test, digits['test'].labels):.4f}")


if __name__ == "__main__":
    main()
