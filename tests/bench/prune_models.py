# SPDX-License-Identifier: Apache-2.0
"""Networks of real size for prune.py, random weights, exported by PyTorch. Runs in an environment with torch.

    python tests/bench/prune_models.py FOLDER [NAME ...]

Wants torch, torchvision, timm, transformers and ultralytics; nothing is fetched. An export that is there stays.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SEED, OPSET = 7, 17


def _torchvision() -> Any:
    """Networks of torchvision; its binary operators, which fit another build of torch, need not load for them."""
    usual = torch.library.register_fake
    torch.library.register_fake = lambda *_, **__: lambda function: function
    try:
        import torchvision
    finally:
        torch.library.register_fake = usual
    return torchvision.models


def _vision(name: str) -> Callable[[], tuple[Any, int]]:
    return lambda: (getattr(_torchvision(), name)(weights=None), 224)


def _timm(name: str) -> Callable[[], tuple[Any, int]]:
    def build() -> tuple[Any, int]:
        _torchvision()
        import timm

        return timm.create_model(name, pretrained=False, exportable=True), 224

    return build


def _yolov8s() -> tuple[Any, int]:
    _torchvision()
    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolov8s.yaml", verbose=False).eval()
    model.fuse(verbose=False)
    head = model.model[-1]
    head.export, head.format = True, "onnx"
    return model, 320


def _detr() -> tuple[Any, int]:
    _torchvision()
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(out_features=["stage4"])
    config = DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone)
    config._attn_implementation = "eager"
    inner = DetrForObjectDetection(config).eval()

    class JudgedOutputs(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            mask = torch.ones((1, 320, 320), dtype=torch.long)
            found = inner(pixel_values=x, pixel_mask=mask, return_dict=True)
            return found.logits, found.pred_boxes

    ends = JudgedOutputs()
    ends.inner = inner
    return ends, 320


NETWORKS: dict[str, Callable[[], tuple[Any, int]]] = {
    "resnet50": _vision("resnet50"),
    "mobilenet_v3_large": _vision("mobilenet_v3_large"),
    "mobilenet_v3_small": _vision("mobilenet_v3_small"),
    "efficientnet_b0": _vision("efficientnet_b0"),
    "shufflenet_v2_x1_0": _vision("shufflenet_v2_x1_0"),
    "vit_b_16": _timm("vit_base_patch16_224"),
    "yolov8s": _yolov8s,
    "detr_resnet50": _detr,
}


def _spread(model: Any) -> None:
    """Statistics as training leaves them: none 0 or 1, so that nothing cancels by accident."""
    random = torch.Generator().manual_seed(SEED)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for one, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -0.3, 0.3),
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.5, 1.5),
            ):
                one.data.copy_(low + (high - low) * torch.rand(one.shape, generator=random))


def main() -> int:
    """Export what is asked for."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(NETWORKS)
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    for name in names:
        path = folder / f"{name}.onnx"
        if path.is_file():
            continue
        torch.manual_seed(SEED)
        model, side = NETWORKS[name]()
        model = model.eval()
        _spread(model)
        unwritten = path.with_suffix(".part")
        torch.onnx.export(
            model, torch.randn(1, 3, side, side), str(unwritten), opset_version=OPSET, dynamo=False, input_names=["x"]
        )
        unwritten.rename(path)
        print(name, path.stat().st_size, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
