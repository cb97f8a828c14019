# SPDX-License-Identifier: Apache-2.0
"""Networks of real size with random weights, exported by PyTorch for amp_peers.py: run with a Python that has it.

`python amp_exports.py NAME OUT`: NAME is yolov8s (ultralytics), rtdetr (transformers, ResNet-18 backbone) or dinov2
(timm, ViT-S/14 at 518 pixels). Nothing is downloaded. The decode of yolov8s and the queries of rtdetr are in the graph.
BatchNormalization gets the statistics of noise, without which values of random weights fade layer by layer.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

SEED, OPSET = 7, 18


class OneOutput(torch.nn.Module):
    """A network whose export has plain tensors for outputs."""

    def __init__(self, net: Any, pick: Any) -> None:
        super().__init__()
        self.net, self.pick = net, pick

    def forward(self, image: Any) -> Any:
        """What `pick` takes of the network's own answer."""
        return self.pick(self.net(image))


def settle(net: Any, side: int) -> None:
    """Set every BatchNormalization to what it sees of noise, layer by layer in one run."""
    norms = [one for one in net.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    for one in norms:
        one.reset_running_stats()
        one.momentum = None
        one.train()
    with torch.no_grad():
        net(torch.randn(1, 3, side, side))
    net.eval()


def yolov8s() -> tuple[Any, int]:
    """Boxes in pixels and 80 scores for 8,400 places."""
    from ultralytics.nn.tasks import DetectionModel

    net = DetectionModel("yolov8s.yaml", verbose=False).eval()
    settle(net, 640)
    head = net.model[-1]
    head.export, head.format = True, "onnx"
    return OneOutput(net.fuse(verbose=False), lambda out: out[0] if isinstance(out, (tuple, list)) else out), 640


def rtdetr() -> tuple[Any, int]:
    """Logits and boxes of 300 queries, chosen by TopK; deformable attention by GridSample."""
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 256, 512],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[128, 256, 512],
        decoder_layers=3,
        hidden_expansion=0.5,
        anchor_image_size=[640, 640],
    )
    net = RTDetrForObjectDetection(config).eval()
    net.model.backbone.apply(_plain_norms)
    settle(net, 640)
    return OneOutput(net, lambda out: (out.logits, out.pred_boxes)), 640


def _plain_norms(module: Any) -> None:
    """Frozen BatchNormalization, whose statistics nothing sets, becomes the usual one."""
    for name, child in module.named_children():
        if type(child).__name__ == "RTDetrFrozenBatchNorm2d":
            setattr(module, name, torch.nn.BatchNorm2d(child.weight.numel()).eval())


def dinov2() -> tuple[Any, int]:
    """The class token of 1,370 tokens, twelve blocks with layer scale."""
    import timm

    return timm.create_model("vit_small_patch14_dinov2", pretrained=False, img_size=518).eval(), 518


def main(words: list[str]) -> int:
    """Build, export."""
    name, out = words
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    net, side = {"yolov8s": yolov8s, "rtdetr": rtdetr, "dinov2": dinov2}[name]()
    with torch.no_grad():
        torch.onnx.export(
            net,
            (torch.zeros(1, 3, side, side),),
            out,
            input_names=["image"],
            opset_version=OPSET,
            external_data=False,
            dynamo=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
