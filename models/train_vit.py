# SPDX-License-Identifier: Apache-2.0
"""Train the small vision transformer and write shapes_vit.onnx, its weights alone: pictures are drawn from seeds.

python models/train_vit.py    (models/requirements.txt; about eight minutes of one core)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx_file
import torch
from shapes import SHAPES, SIDE, TEST, VALIDATION, draw
from torch import nn
from train_classifier import top1

SEED = 5
BATCH = 64
WIDTH, HEADS, LAYERS = 64, 4, 4
TOKENS = (SIDE // 4) ** 2
OPSET = 17  # the first with LayerNormalization as an operator


class ViTAttention(nn.Module):
    """Multi-head attention out of one linear layer, as most vision transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).reshape(-1, TOKENS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        weights = (query @ key.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(-1, TOKENS, WIDTH))


class ViTBlock(nn.Module):
    """Attention and two linear layers, each behind a LayerNormalization and beside a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), ViTAttention()
        self.norm2, self.wide, self.narrow = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        self.gelu = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(self.gelu(self.wide(self.norm2(x))))


class Vit(nn.Module):
    """Images [N, 3, 32, 32] to logits [N, 12]: two convolutions of stride 2, then 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.stem1, self.stem2 = nn.Conv2d(3, WIDTH // 2, 3, 2, 1), nn.Conv2d(WIDTH // 2, WIDTH, 3, 2, 1)
        self.relu = nn.ReLU()
        self.place = nn.Parameter(0.02 * torch.randn(1, TOKENS, WIDTH))
        self.blocks = nn.Sequential(*(ViTBlock() for _ in range(LAYERS)))
        self.norm, self.fc = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(SHAPES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem2(self.relu(self.stem1(x))).flatten(2).transpose(1, 2)
        return self.fc(self.norm(self.blocks(x + self.place)).mean(1))


def train(steps: int) -> Vit:
    """AdamW with a one-cycle rate on cross-entropy, each picture seen once."""
    model = Vit()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    total = 0.0
    for step in range(steps):
        images, labels = map(torch.from_numpy, draw(1000 + step, BATCH))
        optimizer.zero_grad()
        cost = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.05)
        cost.backward()
        optimizer.step()
        rate.step()
        total += cost.item()
        if step % 100 == 99:
            print(f"step {step + 1}/{steps}: loss {total / 100:.4f}", flush=True)
            total = 0.0
    return model


def main() -> None:
    """Train, measure on the validation pictures, and once on the test pictures."""
    parser = argparse.ArgumentParser(description="train the small vision transformer")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--steps", type=int, default=3500)
    chosen = parser.parse_args()
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are split by thread: one thread gives the same bits on any count of cores
    model = train(chosen.steps)
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out / "shapes_vit.onnx"
    onnx_file.write(model, (3, SIDE, SIDE), ["logits"], path, keep_batch_norm=False, opset=OPSET)
    print(f"validation: {top1(path, *draw(*VALIDATION)):.4f}")
    print(f"held out: {top1(path, *draw(*TEST)):.4f}")


if __name__ == "__main__":
    main()
