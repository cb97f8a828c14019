# SPDX-License-Identifier: Apache-2.0
"""A small detector with as many operators as a network can hold, in PyTorch, exported: the oracle of gradients.

Only torch and onnx are needed. No Q/DQ here: what pairs pass on is compared on other networks.
"""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812 - as all of PyTorch has it
from onnx import helper, numpy_helper
from torch import nn

IMAGES, SIZE, WIDTH = 2, 32, 24


class Trunk(nn.Module):  # type: ignore[misc]
    """32x32 images to 24 channels of 8x8: convolutions of every kind, activations, pools."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.depth = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.down = nn.Conv2d(12, 12, 5, padding=2, stride=2, groups=12)
        self.twice = nn.Conv2d(12, WIDTH, 3, padding=1, groups=12)
        self.wide = nn.Conv2d(WIDTH, WIDTH, 3, padding=2, dilation=2, groups=4)
        self.point, self.second = nn.Conv2d(WIDTH, WIDTH, 1), nn.BatchNorm2d(WIDTH)
        self.up, self.tall = nn.Conv2d(WIDTH, 32, 3, padding=1), nn.Conv2d(32, WIDTH, (3, 1), padding=(1, 0))
        self.squeeze, self.excite = nn.Conv2d(WIDTH, 8, 1), nn.Conv2d(8, WIDTH, 1)
        self.prelu, self.place = nn.PReLU(WIDTH), nn.Parameter(torch.randn(1, WIDTH, 1, 1) * 0.3)

    def forward(self, x: Any) -> Any:
        x = F.leaky_relu(self.depth(F.hardswish(self.norm(self.stem(x)))), 0.1)
        x = F.relu(F.max_pool2d(x, 2) + F.silu(self.down(x)))
        x = F.relu6(self.twice(x))
        x = self.wide(x)
        x = F.celu(self.second(self.point(F.mish(x) + F.elu(x))), 0.7)
        x = F.selu(self.tall(F.gelu(self.up(x)))) + x
        x = x * F.hardsigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        x = self.prelu(x) + F.softplus(x) * F.softsign(x) + self.place
        pyramid = torch.cat([x, F.max_pool2d(x, 5, 1, 2), F.max_pool2d(x, 3, 1, 1)], 1)
        return pyramid[:, :24] + pyramid[:, 24:48] * 0.5 - pyramid[:, 48:] * 0.25


class Neck(nn.Module):  # type: ignore[misc]
    """Down and up again, every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Conv2d(WIDTH, WIDTH, 1, stride=2)
        self.back = nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 1)
        self.each = nn.ConvTranspose2d(WIDTH, WIDTH, 2, 2, groups=WIDTH)
        self.instance, self.group = nn.InstanceNorm2d(WIDTH, affine=True), nn.GroupNorm(4, WIDTH)
        self.shuffled, self.lateral = nn.Conv2d(WIDTH, 32, 1), nn.Conv2d(8, WIDTH, 1)

    def forward(self, x: Any) -> Any:
        d = F.max_pool2d(x, 3, 2, 1) + self.side(x) + F.avg_pool2d(x, 2)
        d = d + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        up = F.interpolate(d, scale_factor=2, mode="nearest") + F.interpolate(d, scale_factor=2.0, mode="bicubic")
        up = up + F.interpolate(d, scale_factor=2, mode="bilinear", align_corners=False)
        up = up + F.interpolate(d, size=x.shape[2:], mode="bilinear", align_corners=True)
        u = self.back(d) * 0.3 + self.each(d)
        m = self.instance(u) + self.group(up)
        m = m + self.lateral(F.interpolate(F.pixel_shuffle(self.shuffled(u), 2), size=m.shape[2:], mode="nearest"))
        m = m + F.pad(m[:, :, 1:-1, 1:-1], (1, 1, 1, 1), mode="reflect") + F.pad(m[:, :, 2:, :], (0, 0, 1, 1))
        return m + F.pad(m[:, :, 1:, 1:], (1, 0, 1, 0), mode="replicate")


class Tokens(nn.Module):  # type: ignore[misc]
    """Attention, and all that acts on numbers one by one, on axes, or moves them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.along = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=2)
        self.table = nn.Parameter(torch.randn(7, WIDTH) * 0.3)
        self.power = nn.Parameter(torch.rand(WIDTH) + 1.5)

    def forward(self, m: Any, row: Any) -> Any:
        t = self._attended(self.norm(m.flatten(2).transpose(1, 2)))
        flipped = torch.arange(t.shape[1]).flip(0)[None, :, None].expand(t.shape)
        t = t + self.table[row][None, :1] + torch.gather(t, 1, flipped) * 0.1
        t = torch.where(t > 0.5, t, t * 0.7) + torch.minimum(t, -t * 0.3 + 0.1) + torch.maximum(t, self.power * 0.1)
        t = F.layer_norm(t + t.clamp(-0.5, 0.5), (WIDTH,))
        t = F.layer_norm(self._each(t), (WIDTH,))
        t = F.layer_norm(self._reduced(t), (WIDTH,))
        best, _ = t.topk(3, 1)
        t = t + best.sum(1, keepdim=True) * 0.1
        t = t + torch.einsum("bij,bkj->bik", t, best).mean(2, keepdim=True) * 0.1
        return F.layer_norm(t, (WIDTH,)).transpose(1, 2).reshape(m.shape)

    def _attended(self, t: Any) -> Any:
        q, k, v = self.qkv(t).chunk(3, -1)
        seen = torch.softmax(q @ k.transpose(1, 2) * WIDTH**-0.5, -1) @ v
        return t + self.second(torch.tanh(self.first(seen))) + self.along(t.transpose(1, 2)).transpose(1, 2)

    def _each(self, t: Any) -> Any:
        small = torch.tanh(t) * 0.5
        t = t + torch.exp(-t * t) + torch.log(t.abs() + 1) + torch.sqrt(t * t + 0.5) + torch.sin(t) * torch.cos(t)
        t = t + torch.erf(t) + 1 / (2 + t.sigmoid()) + torch.abs(t) ** 1.5 + torch.pow(self.power, t.sigmoid())
        return (
            t + torch.tan(small) + torch.asin(small) + torch.acos(small) + torch.atan(t) + torch.reciprocal(3 + small)
        )

    def _reduced(self, t: Any) -> Any:
        t = t + torch.cumsum(t, 1) * 0.01 + t.repeat(1, 2, 1)[:, : t.shape[1]] + t.norm(dim=2, keepdim=True) * 0.1
        t = t + (t - t.amax(2, keepdim=True) - t.amin(1, keepdim=True)) * 0.1 + t.norm(1, 2, keepdim=True) * 0.01
        t = t + t.abs().sum(1, keepdim=True) * 0.01 + torch.logsumexp(t, 2, keepdim=True) * 0.1
        placed = t.scatter(1, torch.zeros_like(t[:, :1], dtype=torch.long), t[:, 1:2] * 0.5)
        row = torch.arange(2)
        picked = t[row, row + 1]
        t = t + placed + picked[:, None] * 0.1
        return t + torch.tanh(t[:, :, :5]).prod(2, keepdim=True) * 0.1


class TrainingDetector(nn.Module):  # type: ignore[misc]
    """The whole with its loss. Frozen BatchNormalization, as networks are exported."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.neck, self.tokens = Trunk(), Neck(), Tokens()
        self.solid = nn.Conv3d(1, 2, (2, 3, 3), padding=(0, 1, 1))
        self.classes, self.boxes = nn.Conv2d(WIDTH, 6, 1), nn.Conv2d(WIDTH, 4, 1)
        self.whole = nn.Linear(WIDTH, 10)
        for norm in [one for one in self.modules() if isinstance(one, nn.BatchNorm2d)]:
            norm.running_mean.uniform_(-0.3, 0.3)
            norm.running_var.uniform_(0.5, 2)
            norm.weight.data.uniform_(0.5, 1.5)
            norm.bias.data.uniform_(-0.3, 0.3)

    def forward(self, x: Any, labels: Any, row: Any) -> Any:
        m = self.tokens(self.neck(self.trunk(x)), row)
        deep = self.solid(m[:, None]).sum((1, 2))[:, None] * 0.05
        m = m + deep + F.pixel_unshuffle(m[:, :6], 2).mean(1, keepdim=True).mean((2, 3), keepdim=True)
        m = m + torch.round(m) * m * 0.01  # Round itself passes nothing back
        classes = self.classes(m).permute(0, 2, 3, 1).reshape(-1, 6)
        boxes = self.boxes(m).permute(0, 2, 3, 1).reshape(-1, 4)
        whole = self.whole(F.adaptive_max_pool2d(m, 1).flatten(1) + F.adaptive_avg_pool2d(m, 1).flatten(1))
        loss = F.cross_entropy(classes, labels) + F.binary_cross_entropy_with_logits(whole, torch.full_like(whole, 0.3))
        loss = loss + torch.where(boxes.abs() < 1, 0.5 * boxes * boxes, boxes.abs() - 0.5).mean()
        reported = F.log_softmax(whole, 1)
        return loss + F.nll_loss(reported, labels[:IMAGES])


def write_detector(folder: Path) -> None:
    """Write forward.onnx, batch.npz, the parameters' names, and autograd's gradients in float32 and float64."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = TrainingDetector().eval()
    values = torch.randn(IMAGES, 3, SIZE, SIZE), torch.randint(0, 6, (IMAGES * 64,)), torch.tensor([3])
    model = _exported(net, values)
    inputs = [one.name for one in model.graph.input]
    feed = {name: one.numpy() for name, one in zip(("x", "labels", "row"), values, strict=True) if name in inputs}
    stored = {one.name for one in model.graph.initializer}
    names = [name for name, _ in net.named_parameters() if name in stored]
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "forward.onnx"))
    np.savez(folder / "batch.npz", **feed)
    (folder / "names.json").write_text(json.dumps(names))
    for kind, dtype in (("torch", torch.float32), ("torch64", torch.float64)):
        net.to(dtype).zero_grad()
        loss = net(values[0].to(dtype), *values[1:])
        loss.backward()
        found = {f"g.{name}": one.grad.numpy() for name, one in net.named_parameters() if name in names}
        np.savez(folder / f"{kind}.npz", loss=loss.detach().numpy(), **found)


def _exported(net: TrainingDetector, values: tuple[Any, ...]) -> onnx.ModelProto:
    """By the exporter that keeps BatchNormalization; what it ties of equal values stands by itself again."""
    data, names = io.BytesIO(), ["x", "labels", "row"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keep = torch.onnx.TrainingMode.PRESERVE
        torch.onnx.export(
            net, values, data, opset_version=17, dynamo=False, input_names=names, output_names=["loss"],
            do_constant_folding=False, training=keep,
        )  # fmt: skip
    model = onnx.load_from_string(data.getvalue())
    model.ir_version = 8
    stored = {one.name: one for one in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Identity" and node.input[0] in stored:
            copy = numpy_helper.from_array(numpy_helper.to_array(stored[node.input[0]]), node.output[0])
            model.graph.initializer.append(copy)
            stored[copy.name] = copy
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return model
