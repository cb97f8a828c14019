# SPDX-License-Identifier: Apache-2.0
"""Writes the models of real_size.py as PyTorch's exporters write them; random weights, nothing is downloaded. No test.

A script for an environment with torch, torchvision, timm, transformers and ultralytics:
python tests/bench/export_models.py FOLDER [--models resnet50,bert-base] [--small] [--opset 17] [--dynamo] [--photos D]
Statistics of BatchNormalization are taken from photographs, gains of LayerNormalization from a fixed heavy-tailed draw.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PHOTOS = 8


def torchvision_model(name: str, side: int, small: bool, **less: Any) -> tuple[Any, tuple[int, ...]]:
    """A classifier of torchvision; `less` are arguments of its small form."""
    models = importlib.import_module("torchvision.models")
    if small and "blocks" in less:
        settings = [models.convnext.CNBlockConfig(*row) for row in less["blocks"]]
        return models.ConvNeXt(settings), (1, 3, side, side)
    if small and "resnet" in less:
        return models.ResNet(models.resnet.Bottleneck, less["resnet"]), (1, 3, side, side)
    if small:
        class_name = {"vit_b_16": "VisionTransformer", "swin_t": "SwinTransformer"}[name]
        return getattr(models, class_name)(**less), (1, 3, side, side)
    return models.get_model(name, weights=None), (1, 3, 224, 224)


def timm_model(name: str, small: bool, **less: Any) -> tuple[Any, tuple[int, ...]]:
    """A classifier or a backbone of timm."""
    timm = importlib.import_module("timm")
    whole = {"img_size": 224} if "dinov2" in name else {}
    model = timm.create_model(name, pretrained=False, **(less if small else whole))
    side = model.pretrained_cfg["input_size"][-1] if "mobilevit" in name else 224
    return model, (1, 3, *[less.get("img_size", 64) if small else side] * 2)


def ultralytics_model(name: str, small: bool) -> tuple[Any, tuple[int, ...]]:
    """A detector of ultralytics by its configuration, with the head as its own exporter sets it."""
    tasks = importlib.import_module("ultralytics.nn.tasks")
    kind = tasks.RTDETRDetectionModel if name.startswith("rtdetr") else tasks.DetectionModel
    side = 64 if small else 640
    model = kind(f"{name[:-1] + 'n' if small and not name.startswith('rtdetr') else name}.yaml", verbose=False)
    head = model.model[-1]
    if name.startswith("rtdetr") and small:
        head.num_queries = 20
    if hasattr(head, "num_queries"):
        head.eval_idx = head.num_decoder_layers - 1
    head.export, head.format, head.dynamic = True, "onnx", False
    return model.float(), (1, 3, side, side)


def transformers_model(name: str, small: bool) -> tuple[Any, tuple[int, ...]]:
    """A model of transformers by its configuration."""
    library = importlib.import_module("transformers")
    made, shape = TRANSFORMERS[name](library, small)
    return _FirstOutputs(made.eval()), shape


def _bert(library: Any, small: bool) -> tuple[Any, tuple[int, ...]]:
    less = (
        {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128} if small else {}
    )
    config = library.BertConfig(**less, attn_implementation="eager")
    return library.BertForQuestionAnswering(config), (1, 32 if small else 128)


def _whisper(library: Any, small: bool) -> tuple[Any, tuple[int, ...]]:
    sizes = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}
    whole = {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
    config = library.WhisperConfig(**(sizes if small else whole), max_source_positions=100 if small else 1500)
    model = library.models.whisper.modeling_whisper.WhisperEncoder(config)
    return model, (1, 80, 200 if small else 3000)


def _segformer(library: Any, small: bool) -> tuple[Any, tuple[int, ...]]:
    depths, widths = ([1, 1, 1, 1], [16, 32, 48, 64]) if small else ([3, 4, 6, 3], [64, 128, 320, 512])
    config = library.SegformerConfig(
        depths=depths, hidden_sizes=widths, decoder_hidden_size=64 if small else 768, num_labels=19
    )
    side = 64 if small else 512
    return library.SegformerForSemanticSegmentation(config), (1, 3, side, side)


def _detr(library: Any, small: bool) -> tuple[Any, tuple[int, ...]]:
    few = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "embedding_size": 16}
    backbone = library.ResNetConfig(out_features=["stage4"], **(few if small else {}))
    layers = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    less = {**layers, "num_queries": 10, "encoder_attention_heads": 2, "decoder_attention_heads": 2} if small else {}
    own = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone_config": backbone}
    config = library.DetrConfig(backbone=None, num_labels=91, **own, **less)
    side = 128 if small else 640
    return library.DetrForObjectDetection(config), (1, 3, side, side)


def _decoder(library: Any, small: bool) -> tuple[Any, tuple[int, ...]]:
    width, layers = (64, 2) if small else (2048, 10)
    config = library.LlamaConfig(
        hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=width // 32,
        vocab_size=256 if small else 16000, use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    return library.LlamaForCausalLM(config), (1, 32)


TRANSFORMERS: dict[str, Callable[[Any, bool], tuple[Any, tuple[int, ...]]]] = {
    "bert-base": _bert,
    "whisper-base": _whisper,
    "segformer-b2": _segformer,
    "detr-r50": _detr,
    "decoder": _decoder,
}


def _vit(small: bool) -> tuple[Any, tuple[int, ...]]:
    less = {"image_size": 64, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 64, "mlp_dim": 128}
    return torchvision_model("vit_b_16", 64, small, **less)


def _swin(small: bool) -> tuple[Any, tuple[int, ...]]:
    sizes = {"patch_size": [4, 4], "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": [7, 7]}
    return torchvision_model("swin_t", 64, small, **sizes)


MODELS: dict[str, Callable[[bool], tuple[Any, tuple[int, ...]]]] = {
    "resnet50": lambda small: torchvision_model("resnet50", 64, small, resnet=[1, 1, 1, 1]),
    "yolov8s": lambda small: ultralytics_model("yolov8s", small),
    "yolo11s": lambda small: ultralytics_model("yolo11s", small),
    "yolo26s": lambda small: ultralytics_model("yolo26s", small),
    "rtdetr-l": lambda small: ultralytics_model("rtdetr-l", small),
    "detr-r50": lambda small: transformers_model("detr-r50", small),
    "vit_b_16": _vit,
    "deit_s": lambda small: timm_model("deit_small_patch16_224", small, depth=2, img_size=64),
    "swin_t": _swin,
    "convnext_t": lambda small: torchvision_model("convnext_tiny", 64, small, blocks=[(32, 64, 1), (64, None, 1)]),
    "mobilevit": lambda small: timm_model("mobilevit_s", small),
    "segformer-b2": lambda small: transformers_model("segformer-b2", small),
    "dinov2-s": lambda small: timm_model("vit_small_patch14_dinov2", small, depth=2, img_size=70),
    "whisper-base": lambda small: transformers_model("whisper-base", small),
    "bert-base": lambda small: transformers_model("bert-base", small),
    "decoder": lambda small: transformers_model("decoder", small),
}


def _torch() -> Any:
    return importlib.import_module("torch")


def _FirstOutputs(model: Any) -> Any:
    """A module that gives the tensors of a transformers model, losses and hidden states left out."""
    torch = _torch()

    class FirstOutputs(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            given = self.model(x)
            kept = [
                given[key] for key in KEPT if key in given and (key != "last_hidden_state" or "logits" not in given)
            ]
            return tuple(kept) if len(kept) > 1 else kept[0]

    return FirstOutputs()


KEPT = ("start_logits", "end_logits", "logits", "pred_boxes", "last_hidden_state")


def photographs(folder: Path | None, shape: tuple[int, ...]) -> Any:
    """A batch of photographs as the networks see them; seeded noise where there is no folder."""
    torch = _torch()
    files = sorted(path for path in folder.iterdir() if path.suffix == ".jpg")[:PHOTOS] if folder else []
    if not files:
        return torch.from_numpy(np.random.default_rng(0).normal(size=(PHOTOS, *shape[1:])).astype(np.float32))
    image = importlib.import_module("PIL.Image")
    pictures = [np.asarray(image.open(path).convert("RGB").resize(shape[:1:-1])) / 255 for path in files]
    batch = (np.stack(pictures) - MEAN) / DEVIATION
    return torch.from_numpy(batch.transpose(0, 3, 1, 2).astype(np.float32))


def settle(model: Any, shape: tuple[int, ...], photos: Path | None) -> None:
    """Give modules what training would: norms their statistics and heavy-tailed gains, heads weights beside zero."""
    torch = _torch()
    draw = np.random.default_rng(0)
    batch_norms = []
    for module in model.modules():
        kind = type(module).__name__
        if kind.startswith("LayerNorm") or kind.endswith("RMSNorm"):
            if getattr(module, "weight", None) is not None:
                gains = 1 + 0.3 * draw.standard_t(3, size=tuple(module.weight.shape)).clip(-8, 8)
                module.weight.data = torch.from_numpy(gains.astype(np.float32))
        elif isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
            batch_norms.append(module)
        elif isinstance(module, torch.nn.Linear) and not module.weight.any():  # heads that a training starts from zero
            drawn = draw.normal(size=tuple(module.weight.shape)) / module.weight.shape[1] ** 0.5
            module.weight.data = torch.from_numpy(drawn.astype(np.float32))
    model.eval()
    if batch_norms and len(shape) == 4:
        for module in batch_norms:
            module.train()
        with torch.no_grad():
            model(photographs(photos, shape))
    model.eval()


def example(shape: tuple[int, ...]) -> Any:
    """One input: token numbers for a sequence, else noise."""
    torch = _torch()
    return torch.arange(shape[1]).reshape(shape) % 200 if len(shape) == 2 else torch.zeros(shape)


def write(name: str, path: Path, args: argparse.Namespace) -> None:
    """Build one model and write it."""
    torch = _torch()
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    model, shape = MODELS[name](args.small)
    settle(model, shape, args.photos)
    options: dict[str, Any] = {"opset_version": args.opset, "input_names": ["x"], "dynamo": args.dynamo}
    with torch.no_grad():
        torch.onnx.export(model, (example(shape),), str(path), **options)


def main() -> int:
    """Write the models one after another; 1 where an export failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS), help="default: all")
    parser.add_argument("--small", action="store_true", help="few layers and small images: the structure alone")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--dynamo", action="store_true", help="the exporter of torch.export")
    parser.add_argument("--photos", type=Path, help="folder of .jpg")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.models.split(","):
        start = time.process_time()
        path = args.folder / f"{name}.{'dynamo' if args.dynamo else 'script'}{args.opset}.onnx"
        try:
            write(name, path, args)
            print(f"{path.name}: {time.process_time() - start:.0f} CPU s", flush=True)
        except Exception as error:
            failed.append(name)
            print(f"{path.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
