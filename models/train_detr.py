# SPDX-License-Identifier: Apache-2.0
"""Train the small DETR and write shapes_detr.onnx, its weights alone: scenes are drawn from seeds.

python models/train_detr.py --out somewhere    (models/requirements.txt; about fifteen minutes of one core)

Stopped, it goes on from its last checkpoint when it is started again with the same words, and ends in the same weights.
"""

from __future__ import annotations

import argparse
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx_file
import torch
from scipy.optimize import linear_sum_assignment
from shape_detections import score
from shape_scenes import NAMES, SIDE, TEST, VALIDATION, draw_scene
from torch import nn

SEED = 11
STEPS, WARM, HORIZON, FALL, PIECE = 2200, 120, 4000, 400, 100
BATCH = 16
RATE = 1e-3
WIDTH, HEADS, LAYERS, QUERIES = 48, 3, 3, 12
CELLS = SIDE // 8
WAVES = WIDTH // 8  # frequencies of each of four coordinates, a sine and a cosine of each
CLASS_WEIGHT, SIDES_WEIGHT, IOU_WEIGHT = 2.0, 5.0, 2.0
PRIOR = 0.02  # probability of a class before any training
OPSET = 17  # the first with LayerNormalization as an operator

Truth = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # image, box by center and sides, label of each shape


def inverse_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """The logit of fractions, which are kept off 0 and 1."""
    x = x.clamp(1e-3, 1 - 1e-3)
    return torch.log(x / (1 - x))


def waves(x: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of coordinates: [..., k] fractions to [..., k * 2 * WAVES]."""
    steps = 2 * math.pi * 2.0 ** torch.arange(WAVES, dtype=torch.float32) / 2
    turned = x.unsqueeze(-1) * steps
    return torch.cat([turned.sin(), turned.cos()], -1).flatten(-2)


class Mlp(nn.Sequential):
    """Linear layers with a ReLU between them."""

    def __init__(self, *widths: int) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers[:-1])


class MultiHead(nn.Module):
    """Attention of tokens to others, with linear layers of their own for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(self.query(query)), self._heads(self.key(key)), self._heads(self.value(value))
        weights = (q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    @staticmethod
    def _heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2)


class Encoder(nn.Module):
    """Attention among the tokens of the image, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm1 = MultiHead(), nn.LayerNorm(WIDTH)
        self.mlp, self.norm2 = Mlp(WIDTH, 2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x + place, x + place, x))
        return self.norm2(x + self.mlp(x))


class QueryLayer(nn.Module):
    """Attention among queries, then to the image, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.among, self.norm1 = MultiHead(), nn.LayerNorm(WIDTH)
        self.cross, self.norm2 = MultiHead(), nn.LayerNorm(WIDTH)
        self.mlp, self.norm3 = Mlp(WIDTH, 2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, at: torch.Tensor, tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.among(x + at, x + at, x))
        x = self.norm2(x + self.cross(x + at, tokens + place, tokens))
        return self.norm3(x + self.mlp(x))


class Detr(nn.Module):
    """Images [N, 3, 64, 64] to logits [N, 12, 6] and boxes [N, 12, 4]: center and sides in fractions of the image.

    Convolutions to 64 tokens, an encoder layer, the best tokens as queries (two-stage, as in Deformable DETR and
    RT-DETR), and decoder layers each of which refines the boxes of the one before: sigmoid(delta + logit(reference)).
    """

    def __init__(self) -> None:
        super().__init__()
        sides = (3, 16, 32, 32, WIDTH)
        self.stem = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
                for a, b, stride in zip(sides[:-1], sides[1:], (2, 2, 1, 2), strict=True)
            )
        )
        self.encoder = Encoder()
        self.token_class, self.token_box = nn.Linear(WIDTH, len(NAMES)), Mlp(WIDTH, WIDTH, 4)
        self.at = Mlp(8 * WAVES, WIDTH, WIDTH)
        self.layers = nn.ModuleList(QueryLayer() for _ in range(LAYERS))
        self.classes = nn.ModuleList(nn.Linear(WIDTH, len(NAMES)) for _ in range(LAYERS))
        self.boxes = nn.ModuleList(Mlp(WIDTH, WIDTH, 4) for _ in range(LAYERS))
        for layer in (self.token_class, *self.classes):
            nn.init.constant_(layer.bias, -math.log((1 - PRIOR) / PRIOR))
        for box in (self.token_box, *self.boxes):
            nn.init.zeros_(box[-1].weight)
            nn.init.zeros_(box[-1].bias)
        centers = (torch.arange(CELLS, dtype=torch.float32) + 0.5) / CELLS
        down, right = torch.meshgrid(centers, centers, indexing="ij")
        cells = torch.stack([right, down], -1).reshape(1, CELLS * CELLS, 2)
        anchors = torch.cat([cells, torch.full_like(cells, 0.3)], -1)
        self.register_buffer("anchors", inverse_sigmoid(anchors), persistent=False)
        self.register_buffer("place", waves(cells).repeat(1, 1, 2), persistent=False)

    def answers(self, x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Logits and boxes of the tokens, then of each decoder layer."""
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        tokens = self.encoder(tokens, self.place)
        logits, raw = self.token_class(tokens), self.token_box(tokens) + self.anchors
        found = [(logits, raw.sigmoid())]
        best = logits.amax(-1).topk(QUERIES, 1).indices.unsqueeze(-1)
        x = tokens.gather(1, best.expand(-1, -1, WIDTH))
        reference = raw.gather(1, best.expand(-1, -1, 4)).sigmoid()
        for layer, classes, boxes in zip(self.layers, self.classes, self.boxes, strict=True):
            reference = reference.detach()
            x = layer(x, self.at(waves(reference)), tokens, self.place)
            reference = (boxes(x) + inverse_sigmoid(reference)).sigmoid()
            found.append((classes(x), reference))
        return found

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.answers(x)[-1]


def corners(boxes: torch.Tensor) -> torch.Tensor:
    """Centers and sides [..., 4] to corners."""
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def generalized_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GIoU (Rezatofighi 2019) of corners that broadcast against each other."""
    both = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    return both / union - (hull - union) / hull


def matching_cost(
    logits: torch.Tensor, boxes: torch.Tensor, wanted: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """What it costs that a row answers for a true box, [N, rows, true boxes of all images] (Carion 2020)."""
    chance = logits[..., labels].sigmoid()
    hit = 0.25 * (1 - chance).square() * -(chance + 1e-8).log()
    missed = 0.75 * chance.square() * -(1 - chance + 1e-8).log()
    far = (boxes[:, :, None] - wanted).abs().sum(-1)
    over = generalized_iou(corners(boxes)[:, :, None], corners(wanted))
    return CLASS_WEIGHT * (hit - missed) + SIDES_WEIGHT * far - IOU_WEIGHT * over


def layer_loss(logits: torch.Tensor, boxes: torch.Tensor, truth: Truth) -> torch.Tensor:
    """Focal loss whose target is the overlap of a matched box (Zhang 2021), distance of sides, GIoU; by true boxes.

    Each true box is answered for by one row of its image: least cost of all together.
    """
    image, wanted, labels = truth
    with torch.no_grad():
        cost = matching_cost(logits, boxes, wanted, labels).numpy()
    row = torch.empty_like(image)
    for number in range(len(logits)):
        mine = (image == number).nonzero()[:, 0]
        rows, columns = linear_sum_assignment(cost[number][:, mine.numpy()])
        row[mine[torch.from_numpy(columns)]] = torch.from_numpy(rows)
    found = boxes[image, row]
    over = generalized_iou(corners(found), corners(wanted))
    quality = torch.zeros_like(logits)
    quality[image, row, labels] = over.detach().clamp(min=0)
    chance = logits.sigmoid().detach()
    weight = torch.where(quality > 0, quality, 0.75 * chance.square())
    named = nn.functional.binary_cross_entropy_with_logits(logits, quality, weight, reduction="sum")
    sides, off = (found - wanted).abs().sum(), (1 - over).sum()
    return (CLASS_WEIGHT * named + SIDES_WEIGHT * sides + IOU_WEIGHT * off) / len(labels)


def batch_of(step: int) -> tuple[torch.Tensor, Truth]:
    """Images and what they hold, drawn for one step alone."""
    draws = np.random.default_rng((SEED, step))
    images, boxes, labels = zip(*(draw_scene(draws) for _ in range(BATCH)), strict=True)
    sides = np.concatenate(boxes)
    middle, size = (sides[:, :2] + sides[:, 2:]) / 2, sides[:, 2:] - sides[:, :2]
    image = np.repeat(np.arange(BATCH), [len(one) for one in labels])
    truth = image, np.concatenate([middle, size], 1) / np.float32(SIDE), np.concatenate(labels)
    numbers, wanted, named = map(torch.from_numpy, truth)
    return torch.from_numpy(np.stack(images)), (numbers, wanted, named)


class DetrTraining:
    """The state that a checkpoint holds: weights, the optimizer, the steps done."""

    def __init__(self, steps: int) -> None:
        torch.manual_seed(SEED)
        self.steps, self.done, self.model = steps, 0, Detr()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=1e-2)

    def run(self, count: int) -> float:
        """Some steps; the mean of their losses."""
        total = 0.0
        self.model.train()
        for _ in range(count):
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate()
            images, truth = batch_of(self.done)
            self.optimizer.zero_grad()
            cost = sum(layer_loss(logits, boxes, truth) for logits, boxes in self.model.answers(images))
            cost.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.done += 1
            total += cost.item()
        return total / count

    def _rate(self) -> float:
        """Up in the first steps, then along a cosine of a longer training, and down to nothing in the last ones."""
        if self.done < WARM:
            return max(RATE * self.done / WARM, RATE * 0.01)
        along = 0.5 * (1 + math.cos(math.pi * (self.done - WARM) / (HORIZON - WARM)))
        return max(RATE * along * min(1, (self.steps - self.done) / FALL), RATE * 0.01)

    def save(self, path: Path) -> None:
        """Write the state whole, or not at all."""
        fresh = path.with_suffix(".tmp")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "done": self.done, "steps": self.steps}, fresh)
        fresh.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint, where there is one of the same length."""
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        if state["steps"] != self.steps:
            raise SystemExit(f"{path}: is of another number of steps; give another --out")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]


def main() -> None:
    """Train, measure on the validation scenes, and once on the test scenes."""
    parser = argparse.ArgumentParser(description="train the small DETR")
    parser.add_argument("--out", type=Path, required=True, help="where the model and its checkpoint go")
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are split by thread: one thread gives the same bits on any count of cores
    training, checkpoint = DetrTraining(chosen.steps), chosen.out / "shapes_detr.pt"
    chosen.out.mkdir(parents=True, exist_ok=True)
    training.resume(checkpoint)
    while training.done < chosen.steps:
        cost = training.run(min(PIECE, chosen.steps - training.done))
        training.save(checkpoint)
        print(f"step {training.done}/{chosen.steps}: loss {cost:.4f}", flush=True)
    path = chosen.out / "shapes_detr.onnx"
    onnx_file.write(training.model, (3, SIDE, SIDE), ["logits", "boxes"], path, keep_batch_norm=False, opset=OPSET)
    print(f"{path}: {sum(one.numel() for one in training.model.parameters())} parameters")
    for name, scenes in (("validation", VALIDATION), ("held out", TEST)):
        print(f"{name}: {score(path, *scenes)}")


if __name__ == "__main__":
    main()
