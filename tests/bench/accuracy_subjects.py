# SPDX-License-Identifier: Apache-2.0
"""The labeled models of the accuracy bench: where their data lies and how it is prepared. Nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass

FACE_NAMES = "face=with_mask|without_mask|mask_weared_incorrect"
COCO = ("coco_calib48/images", "coco_val128/images", "coco_val128/labels", "coco")
FACES = ("facemask_calib32/images", "facemask_100/images", "facemask_100/xml", FACE_NAMES)
IMAGENET = ("imagenet_calib100", "imagenet_a400", "filename", None)
CIFAR = ("cifar10_1000.npz", "cifar10_1000.npz", None, None)
MNIST = ("mnist_1000.npz", "mnist_1000.npz", None, None)
PERSONS = ("coco_calib48/images", "coco_val128/images", "persons", None)

CIFAR_NORM = "scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"
CROP = "resize=crop,interpolation=area"
NANODET = "color=bgr,mean=103.53:116.28:123.675,std=57.375:57.12:58.395,resize=letterbox,pad=0"
YUNET = "resize=letterbox-topleft,color=bgr,pad=0"


@dataclass(frozen=True)
class AccuracySubject:
    """One trained model.

    Attributes:
        name: of its file, without the ending.
        data: calibration data, evaluation data, labels (below the data's folder), names; an archive holds both data
            sets, the calibration's under `calib`.
        preprocess: `--preprocess`, the same for every tool and for the judgment.
        metric: what the figures are told in: map or ap50 of a detector, top1 of a classifier.
        score, iou: which boxes are judged, as the model's published evaluation has it.
    """

    name: str
    data: tuple[str, str, str | None, str | None]
    preprocess: str
    metric: str = "top1"
    score: float = 0.01
    iou: float | None = None

    @property
    def detector(self) -> bool:
        return self.metric != "top1"


_ALL = (
    AccuracySubject("yolox_nano_coco", COCO, "yolox", "map", iou=0.65),
    AccuracySubject("mlperf_resnet8_fp32", CIFAR, "scale=1"),
    AccuracySubject("winml_cifar_cnn", CIFAR, "scale=1/255,mean=0.5,std=0.5"),
    AccuracySubject("mnist8", MNIST, "scale=1"),
    AccuracySubject("mobilenetv1_025_128", IMAGENET, f"{CROP},scale=1/127.5,mean=1"),
    AccuracySubject("ultraface_rfb320", FACES, "ultraface", "ap50", 0.05, 0.4),
    AccuracySubject("ultraface_slim320", FACES, "ultraface", "ap50", 0.05, 0.4),
    AccuracySubject("cifar_resnet20", CIFAR, CIFAR_NORM),
    AccuracySubject("cifar_resnet20_bn", CIFAR, CIFAR_NORM),
    AccuracySubject("mlperf_vww_fp32", PERSONS, "interpolation=area,scale=1/255"),
    AccuracySubject("nanodet_m_320_coco", COCO, NANODET, "map", iou=0.6),
    AccuracySubject("fastestdet_coco", COCO, "color=bgr,scale=1/255", "map", iou=0.45),
    AccuracySubject("yunet_s_320", FACES, YUNET, "ap50", 0.05, 0.45),
    AccuracySubject("ultraface_rfb320_simplified", FACES, "ultraface", "ap50", 0.05, 0.4),
    AccuracySubject("cifar_resnet20_convsc_bn", CIFAR, CIFAR_NORM),
    AccuracySubject("cifar_resnet32_bn", CIFAR, CIFAR_NORM),
    AccuracySubject("squeezenet11_fp32", IMAGENET, f"{CROP},color=bgr,mean=103.94:116.78:123.68"),
    AccuracySubject("yunet_n_dynamic", FACES, f"{YUNET},size=640", "ap50", 0.05, 0.45),
)
SUBJECTS = {one.name: one for one in _ALL}
