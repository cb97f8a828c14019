# SPDX-License-Identifier: Apache-2.0
"""Writes the models of published latencies as ONNX files: real architectures, seeded random weights. No test.

python tests/bench/forecast_models.py FOLDER [name ...]; `--list` prints the names.

For an environment with torch, onnx, onnxslim and the packages that `--list` names. A package that is missing fails for
its own models only, in one line. Nothing is downloaded. Shapes are static and BatchNormalization is folded, as the
publishers' exporters do it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TWO_GB = 2**31
GEMM_PATTERNS = ("FusionGemm", "FusionGemmMul", "FusionGemmAdd")  # would write MatMul and Add as Reshape, Gemm, Reshape


@dataclass(frozen=True)
class Subject:
    """One model as a publisher timed it.

    `build` is its name or configuration within the package. Where `columns` are given, beside `side` rows, the network
    is of convolutions alone and is traced on one small image.
    """

    package: str
    build: str
    batch: int
    side: int
    columns: int = 0
    opset: int = 17


def _ultralytics(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    """A detector by its configuration, with the head as ultralytics' exporter sets it."""
    tasks = importlib.import_module("ultralytics.nn.tasks")
    if subject.build.startswith("rtdetr"):
        model = tasks.RTDETRDetectionModel(f"{subject.build}.yaml", verbose=False).eval().fuse(verbose=False)
        model.model[-1].export, model.model[-1].format = True, "onnx"
        return model, (_image(subject),)
    kinds = {"-cls": tasks.ClassificationModel, "-seg": tasks.SegmentationModel, "-pose": tasks.PoseModel}
    kind = next((kind for suffix, kind in kinds.items() if subject.build.endswith(suffix)), tasks.DetectionModel)
    model = kind(f"{subject.build}.yaml", verbose=False).eval()
    if hasattr(model.model[-1], "one2one_cv2"):  # decode and TopK inside of the graph, without a second head
        model.end2end = True
    model.fuse(verbose=False)
    for module in model.modules():
        if hasattr(module, "export"):
            module.export, module.format, module.dynamic = True, "onnx", False
    return model, (_image(subject),)


def _torchvision(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    models = importlib.import_module("torchvision.models")
    options = {"weights_backbone": None} if subject.build.startswith("fcn") else {}
    model = models.get_model(subject.build.removesuffix("_features"), weights=None, **options)
    return (model.features if subject.build.endswith("_features") else model), (_image(subject),)


def _timm(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    """A classifier with its attention written out, as exports of opset 17 have it."""
    importlib.import_module("timm.layers").set_fused_attn(False)
    return importlib.import_module("timm").create_model(subject.build, pretrained=False), (_image(subject),)


def _rfdetr(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    """A detector of RF-DETR by the name of its configuration.

    With `pretrain_weights` None the package would fetch DINOv2; with any name, `build_model` itself loads nothing.
    """
    config_module = importlib.import_module("rfdetr.config")
    kind = getattr(config_module, subject.build)
    patches = subject.side // kind.model_fields["patch_size"].default
    config = kind(pretrain_weights="none", resolution=subject.side, positional_encoding_size=patches)
    training = config_module.TrainConfig(dataset_dir=None, output_dir="output")
    settings = importlib.import_module("rfdetr._namespace")._namespace_from_configs(config, training)
    model = importlib.import_module("rfdetr.models.lwdetr").build_model(settings).eval()
    model.export()
    return model, (_image(subject),)


def _fastervit(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    models = importlib.import_module("fastervit.models.faster_vit")
    return getattr(models, subject.build)(pretrained=False), (_image(subject),)


def _yolox(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    """A detector of YOLOX, its boxes decoded outside of the graph, as tools/export_onnx.py leaves it."""
    experiment = importlib.import_module("yolox.exp").get_exp(exp_name=subject.build)
    model = experiment.get_model().eval()
    utilities = importlib.import_module("yolox.utils")
    network_blocks = importlib.import_module("yolox.models.network_blocks")
    model = utilities.replace_module(model, _torch().nn.SiLU, network_blocks.SiLU)
    model.head.decode_in_inference = False
    return model, (_image(subject),)


def _yolov5(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    """The original detector with anchors, by the configuration that its package carries."""
    yolo = importlib.import_module("yolov5.models.yolo")
    folder = Path(yolo.__file__).parent
    model = yolo.Model(str(folder / f"{subject.build}.yaml")).eval().fuse()
    model.model[-1].inplace, model.model[-1].dynamic, model.model[-1].export = False, False, True
    return model, (_image(subject),)


def _yolov6(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    """The original YOLOv6 with its RepVGG blocks merged."""
    folder = Path(importlib.import_module("yolov6").__file__).parent
    config = importlib.import_module("yolov6.utils.config").Config
    config = config.fromfile(str(folder / "configs" / f"{subject.build}.py"))
    config.setdefault("training_mode", "repvgg")
    model = importlib.import_module("yolov6.models.yolo").build_model(config, 80, "cpu").eval()
    for layer in model.modules():
        if hasattr(layer, "switch_to_deploy"):
            layer.switch_to_deploy()
    return model, (_image(subject),)


def _super_gradients(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    models = importlib.import_module("super_gradients.training.models")
    model = models.get(subject.build, num_classes=17, pretrained_weights=None).eval()
    model.prep_model_for_conversion(input_size=[subject.batch, 3, subject.side, subject.side])
    return model, (_image(subject),)


def _diffusers(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    """The UNet of Stable Diffusion by its published configuration; the side is that of the image."""
    diffusers, torch = importlib.import_module("diffusers"), _torch()
    words, rest = {
        "stable-diffusion-1-5": (768, {"attention_head_dim": 8}),
        "stable-diffusion-2-1": (1024, {"attention_head_dim": (5, 10, 20, 20), "use_linear_projection": True}),
    }[subject.build]
    model = diffusers.UNet2DConditionModel(sample_size=subject.side // 8, cross_attention_dim=words, **rest)

    class Noise(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.unet = model

        def forward(self, sample: Any, timestep: Any, encoder_hidden_states: Any) -> Any:
            return self.unet(sample, timestep, encoder_hidden_states, return_dict=False)[0]

    latents = torch.zeros(subject.batch, 4, subject.side // 8, subject.side // 8)
    return Noise(), (latents, torch.ones(1), torch.zeros(subject.batch, 77, words))


def _transformers(subject: Subject) -> tuple[Any, tuple[Any, ...]]:
    """RT-DETRv2-S: the published sizes of its ResNet-18 variant."""
    library, torch = importlib.import_module("transformers"), _torch()
    widths = [64, 128, 256, 512]
    backbone = library.RTDetrResNetConfig(
        embedding_size=64, hidden_sizes=widths, depths=[2, 2, 2, 2], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = library.RTDetrV2Config(
        backbone_config=backbone, encoder_in_channels=widths[1:], decoder_layers=3, hidden_expansion=0.5,
        num_labels=80, anchor_image_size=[subject.side, subject.side],
    )  # fmt: skip
    model = library.RTDetrV2ForObjectDetection(config).eval()

    class Boxes(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.detector = model

        def forward(self, images: Any) -> Any:
            given = self.detector(images, return_dict=True)
            return given.logits, given.pred_boxes

    return Boxes(), (_image(subject),)


FAMILIES: dict[str, Callable[[Subject], tuple[Any, tuple[Any, ...]]]] = {
    "ultralytics": _ultralytics,
    "torchvision": _torchvision,
    "timm": _timm,
    "rfdetr": _rfdetr,
    "fastervit": _fastervit,
    "yolox": _yolox,
    "yolov5": _yolov5,
    "yolov6detect": _yolov6,
    "super-gradients": _super_gradients,
    "diffusers": _diffusers,
    "transformers": _transformers,
}

SUBJECTS: dict[str, Subject] = {
    "yolo11n_640_b1": Subject("ultralytics", "yolo11n", 1, 640),
    "yolo11s_640_b1": Subject("ultralytics", "yolo11s", 1, 640),
    "yolo11l_640_b1": Subject("ultralytics", "yolo11l", 1, 640),
    "yolo11x_640_b1": Subject("ultralytics", "yolo11x", 1, 640),
    "yolov8n_640_b1": Subject("ultralytics", "yolov8n", 1, 640),
    "yolov8s_640_b1": Subject("ultralytics", "yolov8s", 1, 640),
    "yolov8m_640_b1": Subject("ultralytics", "yolov8m", 1, 640),
    "vit_base_patch16_224_b1": Subject("timm", "vit_base_patch16_224", 1, 224),
    "vit_base_patch16_224_b32": Subject("timm", "vit_base_patch16_224", 32, 224),
    "vit_base_patch16_384_b1": Subject("timm", "vit_base_patch16_384", 1, 384),
    "vit_base_patch16_384_b32": Subject("timm", "vit_base_patch16_384", 32, 384),
    "rfdetr_nano_384_b1": Subject("rfdetr", "RFDETRNanoConfig", 1, 384),
    "rfdetr_nano_640_b1": Subject("rfdetr", "RFDETRNanoConfig", 1, 640),
    "rfdetr_seg_xlarge_624_b1": Subject("rfdetr", "RFDETRSegXLargeConfig", 1, 624),
    "yolo12n_640_b1": Subject("ultralytics", "yolo12n", 1, 640),
    "yolo12s_640_b1": Subject("ultralytics", "yolo12s", 1, 640),
    "resnet50_224_b1": Subject("torchvision", "resnet50", 1, 224),
    "resnet50_224_b32": Subject("torchvision", "resnet50", 32, 224),
    "mobilenet_v2_224_b1": Subject("torchvision", "mobilenet_v2", 1, 224),
    "yolov5n_640_b1": Subject("yolov5", "yolov5n", 1, 640),
    "yolov5nu_640_b1": Subject("ultralytics", "yolov5n", 1, 640),
    "yolov6s_640_b1": Subject("yolov6detect", "yolov6s", 1, 640),
    "yolov10x_640_b8": Subject("ultralytics", "yolov10x", 8, 640),
    "yolo26n_640_b1": Subject("ultralytics", "yolo26n", 1, 640),
    "yolo26m_416_b1": Subject("ultralytics", "yolo26m", 1, 416),
    "crossvit_9_240_b1": Subject("timm", "crossvit_9_240", 1, 240),
    "mobilevit_s_256_b1": Subject("timm", "mobilevit_s", 1, 256),
    "faster_vit_0_224_b1": Subject("fastervit", "faster_vit_0_224", 1, 224),
    "yolox_m_640_b1": Subject("yolox", "yolox-m", 1, 640),
    "yolo_nas_pose_l_640_b1": Subject("super-gradients", "yolo_nas_pose_l", 1, 640),
    "sd21_unet_512_b2": Subject("diffusers", "stable-diffusion-2-1", 2, 512),
    "yolo11m_640_b1": Subject("ultralytics", "yolo11m", 1, 640),
    "yolov8l_640_b1": Subject("ultralytics", "yolov8l", 1, 640),
    "yolov8x_640_b1": Subject("ultralytics", "yolov8x", 1, 640),
    "yolov8n_640_b8": Subject("ultralytics", "yolov8n", 8, 640),
    "yolov8n_seg_640_b8": Subject("ultralytics", "yolov8n-seg", 8, 640),
    "yolov8n_pose_640_b8": Subject("ultralytics", "yolov8n-pose", 8, 640),
    "yolov8n_cls_640_b8": Subject("ultralytics", "yolov8n-cls", 8, 640),
    "yolov8s_320_b8": Subject("ultralytics", "yolov8s", 8, 320),
    "yolov5n_640_b8": Subject("yolov5", "yolov5n", 8, 640),
    "yolov9c_640_b1": Subject("ultralytics", "yolov9c", 1, 640),
    "yolov9c_640_b4": Subject("ultralytics", "yolov9c", 4, 640),
    "yolov9c_640_b8": Subject("ultralytics", "yolov9c", 8, 640),
    "yolov9c_640_b12": Subject("ultralytics", "yolov9c", 12, 640),
    "yolov10x_640_b1": Subject("ultralytics", "yolov10x", 1, 640),
    "yolo26s_640_b1": Subject("ultralytics", "yolo26s", 1, 640),
    "yolo_nas_pose_m_640_b1": Subject("super-gradients", "yolo_nas_pose_m", 1, 640),
    "rtdetr_l_640_b1": Subject("ultralytics", "rtdetr-l", 1, 640),
    "rtdetr_x_640_b1": Subject("ultralytics", "rtdetr-x", 1, 640),
    "rtdetr_resnet50_640_b1": Subject("ultralytics", "rtdetr-resnet50", 1, 640),
    "rtdetr_resnet101_640_b1": Subject("ultralytics", "rtdetr-resnet101", 1, 640),
    "rtdetr_v2_s_640_b1": Subject("transformers", "rtdetr_v2_r18vd", 1, 640),
    "resnet18_224_b1": Subject("torchvision", "resnet18", 1, 224),
    "resnet18_224_b8": Subject("torchvision", "resnet18", 8, 224),
    "resnet18_256_b1": Subject("torchvision", "resnet18", 1, 256),
    "resnet34_256_b1": Subject("torchvision", "resnet34", 1, 256),
    "resnet50_224_b8": Subject("torchvision", "resnet50", 8, 224),
    "resnet50_256_b1": Subject("torchvision", "resnet50", 1, 256),
    "resnet152_224_b1": Subject("torchvision", "resnet152", 1, 224),
    "resnext50_32x4d_224_b1": Subject("torchvision", "resnext50_32x4d", 1, 224),
    "seresnet50_224_b1": Subject("timm", "seresnet50", 1, 224),
    "shufflenet_v2_x1_0_224_b1": Subject("torchvision", "shufflenet_v2_x1_0", 1, 224),
    "mobilenet_v2_224_b8": Subject("torchvision", "mobilenet_v2", 8, 224),
    "squeezenet1_1_224_b1": Subject("torchvision", "squeezenet1_1", 1, 224),
    "alexnet_224_b1": Subject("torchvision", "alexnet", 1, 224),
    "vgg11_224_b1": Subject("torchvision", "vgg11", 1, 224),
    "vgg13_224_b1": Subject("torchvision", "vgg13", 1, 224),
    "vgg19_224_b1": Subject("torchvision", "vgg19", 1, 224),
    "densenet121_224_b1": Subject("torchvision", "densenet121", 1, 224),
    "densenet161_224_b1": Subject("torchvision", "densenet161", 1, 224),
    "fcn_resnet50_512_b1": Subject("torchvision", "fcn_resnet50", 1, 512),
    "vit_large_patch14_clip_224_b8": Subject("timm", "vit_large_patch14_clip_224", 8, 224),
    "sd15_unet_512_b2": Subject("diffusers", "stable-diffusion-1-5", 2, 512),
}


_CLASSIFIERS = (
    "efficientnet_b0", "mnasnet1_0", "mnasnet1_3", "mobilenet_v3_large", "mobilenet_v3_small", "regnet_y_400mf",
    "resnet18", "resnet34", "resnet50", "shufflenet_v2_x1_5", "vgg11_bn_features", "vgg13_bn_features",
    "vgg16_bn_features",
)  # fmt: skip
_SIZES = ((640, 480), (1024, 768), (1920, 1056), (3840, 2144))
_RESNETS = ("mobilenet_v2", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
SUBJECTS |= {
    f"{name}_{columns}x{rows}_b1": Subject("torchvision", name, 1, rows, columns)
    for name in _CLASSIFIERS
    for columns, rows in _SIZES
}
SUBJECTS |= {
    name: Subject("torchvision", build, batch, 224, 224)
    for build in _RESNETS
    for batch in (1, 32)
    if (name := f"{build}_224_b{batch}") not in SUBJECTS
}


def _torch() -> Any:
    return importlib.import_module("torch")


def _image(subject: Subject) -> Any:
    shape = (1, 3, 96, 128) if subject.columns else (subject.batch, 3, subject.side, subject.side)
    return _torch().zeros(shape)


def _with_sizes(path: Path, subject: Subject) -> None:
    """Give a model that was traced on one small image the sizes that were timed."""
    onnx = importlib.import_module("onnx")
    model = onnx.load(str(path))
    sizes = (subject.batch, 3, subject.side, subject.columns)
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, sizes, strict=True):
        dim.dim_value = size
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(model, str(path))


def write(subject: Subject, path: Path) -> None:
    """Build one model and write it, its shapes folded; weights of 2 GB and more go to one file beside it."""
    onnx, torch = importlib.import_module("onnx"), _torch()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    model, example = FAMILIES[subject.package](subject)
    model.eval()
    large = sum(parameter.nbytes for parameter in model.parameters()) >= TWO_GB
    names = ["images"] if len(example) == 1 else ["sample", "timestep", "encoder_hidden_states"]
    options: dict[str, Any] = {"opset_version": subject.opset, "input_names": names, "dynamo": False}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = Path(folder) / path.name
        with torch.no_grad():
            if subject.columns:
                options["dynamic_axes"] = {"images": {0: "batch", 2: "rows", 3: "columns"}}
            torch.onnx.export(model, example, str(written), do_constant_folding=True, **options)
        if subject.columns:
            _with_sizes(written, subject)
        if large:  # the exporter writes one file for each tensor; folding takes models below 2 GB
            del model
            data = f"{path.name}.data"
            path.with_name(data).unlink(missing_ok=True)
            onnx.save_model(onnx.load(str(written)), str(path), save_as_external_data=True, location=data)
            onnx.shape_inference.infer_shapes_path(str(path), str(path), data_prop=True)
        else:
            slim = importlib.import_module("onnxslim").slim(str(written), skip_fusion_patterns=list(GEMM_PATTERNS))
            onnx.save(slim, str(written))
            written.replace(path)
    onnx.checker.check_model(str(path), full_check=not large)


def main(arguments: Iterable[str] | None = None) -> int:
    """Write the models one after another; 1 where an export failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.names if name not in SUBJECTS]:
        parser.error(f"unknown: {', '.join(unknown)}; --list prints the names")
    if args.list or args.folder is None:
        for name, subject in SUBJECTS.items():
            print(f"{name}: {subject.package} {subject.build}, batch {subject.batch}, opset {subject.opset}")
        return 0
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")  # the classic exporter warns that it is the classic one
    args.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in args.names or SUBJECTS:
        start, path = time.process_time(), args.folder / f"{name}.onnx"
        try:
            write(SUBJECTS[name], path)
            size = sum(part.stat().st_size for part in args.folder.glob(f"{path.name}*")) / 2**20
            print(f"{name}: {size:.1f} MB, {time.process_time() - start:.0f} CPU s", flush=True)
        except Exception as error:
            failed += 1
            print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
