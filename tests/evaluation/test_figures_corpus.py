# SPDX-License-Identifier: Apache-2.0
"""Real trained models on their labeled images: the figures that the corpus' own script has, from the same pixels.

That script's average precision is written by itself, and so is its decoding, so that they check ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqtool.data.geometry import geometry_of
from qdqtool.data.loader import DataOptions
from qdqtool.evaluation import samples
from qdqtool.evaluation.decode_options import Selection
from qdqtool.verbs.evaluate import evaluate
from qdqtool.verbs.evaluate_options import EvaluateOptions

pytestmark = [pytest.mark.shared, pytest.mark.slow]

COCO = ("coco_val128/images", "coco_val128/labels")
FACES = ("facemask_100/images", "facemask_100/xml")
FACE = "face=with_mask|without_mask|mask_weared_incorrect"


@dataclass(frozen=True)
class FigureCase:
    """A detector, the script's class for it, how its images lie in the input, and what the script keeps."""

    adapter: tuple[Any, ...]
    data: tuple[str, str]
    preprocess: str
    selection: Selection
    names: str | None = None
    images: int = 40


DETECTORS = {
    "yolox_nano_coco": FigureCase(("YOLOX",), COCO, "yolox", Selection(0.01, 0.65)),
    "nanodet_m_320_coco": FigureCase(("NanoDet", 320), COCO, "resize=letterbox,color=bgr,pad=0", Selection(0.01, 0.6)),
    "fastestdet_coco": FigureCase(("FastestDet",), COCO, "color=bgr", Selection(0.01, 0.45)),
    "ultraface_rfb320": FigureCase(("UltraFace",), FACES, "ultraface", Selection(0.05, 0.4), FACE),
    "ultraface_slim320": FigureCase(("UltraFace",), FACES, "ultraface", Selection(0.05, 0.4), FACE),
    "yunet_s_320": FigureCase(
        ("YuNet", 320), FACES, "resize=letterbox-topleft,color=bgr,pad=0", Selection(0.05, 0.45), FACE
    ),
}
CLASSIFIERS = {
    "mobilenetv1_025_128": ("imagenet_a400", "filename", "resize=crop,interpolation=area,scale=1/127.5,mean=1"),
    "cifar_resnet20": (
        "cifar10_1000.npz",
        None,
        "scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225",
    ),
    "mnist8": ("mnist_1000.npz", None, "scale=1"),
}


@pytest.fixture
def bench(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("cv2")
    pytest.importorskip("pycocotools")
    monkeypatch.syspath_prepend(str(shared / "corpus" / "scripts"))
    module = importlib.import_module("bench")
    monkeypatch.setattr(module, "A", SimpleNamespace(root=str(shared / "corpus")))
    yield module


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_have_the_script_s_figures(
    name: str, bench: Any, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cv2

    case = DETECTORS[name]
    adapter = getattr(bench, case.adapter[0])(*case.adapter[1:])
    corpus = shared / "corpus"
    dataset = bench.cocoA() if case.data is COCO else bench.faceA()
    dataset.paths, dataset.gts = dataset.paths[: case.images], dataset.gts[: case.images]
    expected, _ = bench.evaluate(str(corpus / "models" / f"{name}.onnx"), adapter, dataset)

    def read(reader: Any, path: Path) -> tuple[Any, Any, None]:
        image = cv2.imread(str(path))
        return adapter.pre(image)[0], geometry_of(reader.spec, (image.shape[1], image.shape[0])), None

    monkeypatch.setattr(samples, "read_image", read)
    result = evaluate(
        corpus / "models" / f"{name}.onnx",
        corpus / "datasets" / case.data[0],
        corpus / "datasets" / case.data[1],
        EvaluateOptions(names=case.names, selection=case.selection, metric="coco"),
        DataOptions(preprocess=case.preprocess, limit=case.images),
    )
    assert result.value("map") == pytest.approx(expected["mAP"], abs=2e-4)
    assert result.value("ap50") == pytest.approx(expected["AP50"], abs=2e-4)
    assert dict(zip(result.classes, [one.value for one in result.figures["ap50"][1:]], strict=True)) == pytest.approx(
        expected["cls50"], abs=5e-3
    )


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_have_the_script_s_figures(name: str, bench: Any, shared: Path) -> None:
    data, labels, preprocess = CLASSIFIERS[name]
    model = shared / "corpus" / "models" / f"{name}.onnx"
    expected = bench.T[name][2](str(model))
    result = evaluate(model, shared / "corpus" / "datasets" / data, labels, None, DataOptions(preprocess=preprocess))
    assert result.value("top1") == pytest.approx(expected["top1"], abs=1e-9)
    if "top5" in expected:
        assert result.value("top5") == pytest.approx(expected["top5"], abs=1e-9)
    assert np.isfinite(result.figures["top1"][0].interval.low)
