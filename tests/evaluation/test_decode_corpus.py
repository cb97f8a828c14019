# SPDX-License-Identifier: Apache-2.0
"""Decoders on trained detectors: the same boxes as the reference decoders of the shared corpus, from real images."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from qdqtool.data.geometry import read_image
from qdqtool.data.images import fit_reader
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.decode.head import HeadDecoder
from qdqtool.evaluation.decode_options import Selection

pytestmark = [pytest.mark.slow, pytest.mark.shared]

IMAGES = 5
COCO, FACES = "coco_val128", "facemask_100"
NANODET = "color=bgr,mean=103.53:116.28:123.675,std=57.375:57.12:58.395,resize=letterbox,pad=0,interpolation=area"


@dataclass(frozen=True)
class DecodeCase:
    """A model with its reference decoder, what is done to its images, and the family that must be recognized."""

    reference: Callable[[ModuleType], Any]
    data: str
    preprocess: str
    score: float
    reported: str


CASES = {
    "yolox_nano_coco": DecodeCase(lambda b: b.YOLOX(), COCO, "yolox", 0.01, "yolox: output [1, 3549, 85], 80 classes"),
    "nanodet_m_320_coco": DecodeCase(
        lambda b: b.NanoDet(320), COCO, NANODET, 0.01, "nanodet: cls_pred_stride_8 and 5 more"
    ),
    "fastestdet_coco": DecodeCase(lambda b: b.FastestDet(), COCO, "color=bgr,scale=1/255", 0.01, "fastestdet: 758"),
    "ultraface_rfb320": DecodeCase(lambda b: b.UltraFace(), FACES, "ultraface", 0.05, "boxes decoded in the graph"),
    "ultraface_rfb320_simplified": DecodeCase(
        lambda b: b.UltraFaceRaw(), FACES, "ultraface", 0.05, "priors of UltraFace"
    ),
    "ultraface_rfb320_raw": DecodeCase(lambda b: b.UltraFaceRaw(), FACES, "ultraface", 0.05, "priors of UltraFace"),
    "yunet_n_dynamic": DecodeCase(
        lambda b: b.YuNet(640), FACES, "color=bgr,resize=letterbox-topleft,pad=0,size=640x640", 0.05, "yunet: cls_8"
    ),
}


@pytest.fixture(scope="module")
def bench(shared: Path) -> Iterator[ModuleType]:
    """The corpus' own scripts, imported as they import one another."""
    pytest.importorskip("cv2", reason="the reference decoders read images with OpenCV")
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    pytest.importorskip("PIL.Image", reason="Pillow reads the images")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(shared / "corpus" / "scripts"))
        yield importlib.import_module("bench")
        for name in ("bench", "detlib"):
            sys.modules.pop(name, None)


def expected(bench: ModuleType, adapter: Any, outputs: list[np.ndarray], meta: Any, size: tuple[int, int]) -> Any:
    """Boxes cut off at the image's borders as the corpus' evaluation does, scores and classes."""
    boxes, scores, labels = adapter.post(outputs, meta)
    edges = np.array(size * 2, np.float64)
    return np.clip(np.array(boxes).reshape(-1, 4), 0, edges), scores, labels


@pytest.mark.parametrize("name", CASES)
def test_detections_are_those_of_the_reference_decoder(name: str, bench: ModuleType, shared: Path) -> None:
    case, cv2 = CASES[name], importlib.import_module("cv2")
    adapter = case.reference(bench)
    session = bench.session(str(shared / "corpus" / "models" / f"{name}.onnx"), 1)
    entry, names = session.get_inputs()[0], [output.name for output in session.get_outputs()]
    reader = fit_reader(parse_preprocess(case.preprocess), entry.name, entry.shape)
    decoder: HeadDecoder | None = None
    files = sorted((shared / "corpus" / "datasets" / case.data / "images").iterdir())[:IMAGES]
    count = 0
    for file in files:
        fed, meta = adapter.pre(cv2.imread(str(file)))
        array, geometry, image = read_image(reader, file)
        assert np.abs(array - fed).max() <= 0.02 * np.abs(fed).max()  # a grey level or two, from other resizing
        outputs = session.run(None, {entry.name: fed})
        given = dict(zip(names, outputs, strict=True))
        decoder = decoder or find_decoder("auto", given, geometry.input_size, Selection(score=case.score))
        assert case.reported in decoder.description
        boxes, scores, labels = expected(bench, adapter, outputs, meta, image.size)
        found = decoder(given, [geometry])[0]
        np.testing.assert_array_equal(found.labels, labels)
        np.testing.assert_allclose(found.scores, scores, atol=1e-4)
        np.testing.assert_allclose(found.boxes, boxes, atol=1e-3)  # pixels
        count += len(found)
    assert count > 80
