# SPDX-License-Identifier: Apache-2.0
"""The folder feed beside a program that prepares the same images with OpenCV: the evaluation of the shared models.

Two things may differ, and are told apart. Decoding: PNG copies of every image hold the same pixels for both sides, JPEG
may not (with libjpeg-turbo under both, as measured, it does). Resampling: OpenCV weighs in fixed point of 1/2048, which
moves a value by less than half a grey level before it is rounded, so one level at most. Each test prints what it found.
Left out, since `crop` cannot say it: the evaluation that cuts 244 out of 256. It is fed as .npz.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.data.resample import resize_area
from tests.graphs import model_of

pytest.importorskip("PIL", reason="Pillow reads the images")

Arrays = list[npt.NDArray[Any]]
IMAGES = 6
FOLDERS = {
    "coco": "coco_val128/images",
    "masks": "facemask_100/images",
    "faces": "ultraface_imgs/imgs",
    "imagenet": "imagenet_a400",
}
NANODET = "color=bgr,mean=103.53:116.28:123.675,std=57.375:57.12:58.395,resize=letterbox,pad=0,interpolation=area"
YUNET = "color=bgr,resize=letterbox-topleft,pad=0"


@dataclass(frozen=True)
class PresetCase:
    """One evaluation: images, the input they are for, our words for it, how the other side does it, units a level."""

    folder: str
    input: str
    spec: str
    reference: Callable[[Any, list[Path]], Arrays]
    level: float


def detector(name: str, *words: Any) -> Callable[[Any, list[Path]], Arrays]:
    """What the adapter's `pre` makes of each file."""

    def read(bench: Any, files: list[Path]) -> Arrays:
        adapter = getattr(bench, name)(*words)
        return [adapter.pre(bench.cv2.imread(str(file)))[0] for file in files]

    return read


def classifier(size: int, prepare: Callable[[Any], Any]) -> Callable[[Any, list[Path]], Arrays]:
    """What `imagenet` gives to the model: the one thing replaced is the model."""

    def read(bench: Any, files: list[Path]) -> Arrays:
        root = files[0].parents[2]
        return seen(bench, root, bench.imagenet(files[0].parent.name, size, prepare(bench)))

    return read


def person(bench: Any, files: list[Path]) -> Arrays:
    nothing = [{"boxes": np.zeros((0, 4))} for _ in files]
    data = SimpleNamespace(paths=[str(file) for file in files], gts=nothing)
    return seen(bench, files[0].parents[2], bench.vww(lambda: data, lambda x: x.astype(np.float32) / 255))


def seen(bench: Any, root: Path, task: Callable[[None], object]) -> Arrays:
    """The arrays that a task hands to its model."""
    found: Arrays = []

    def predict(_: object, images: Any, prepare: Callable[[Any], Any], *__: object) -> Any:
        found.extend(one[None] for one in prepare(images))
        return np.zeros((len(images), 1000), np.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "predict", predict)
        patch.setattr(bench, "A", SimpleNamespace(root=str(root)))
        task(None)
    return found


def torch_like(size: int, spec: str) -> PresetCase:
    level = 1 / 255 / 0.224  # the smallest of the deviations: the most that a grey level makes
    return PresetCase("imagenet", f"N,3,{size},{size}", spec, classifier(size, lambda b: b.nchw(b.IMN)), level)


CASES = {
    "yolox": PresetCase("coco", "yolox_nano_coco", "yolox", detector("YOLOX"), 1),
    "fastestdet": PresetCase("coco", "fastestdet_coco", "color=bgr,scale=1/255", detector("FastestDet"), 1 / 255),
    "nanodet": PresetCase("coco", "nanodet_m_320_coco", NANODET, detector("NanoDet", 320), 1 / 57.12),
    "ultraface-masks": PresetCase("masks", "ultraface_rfb320", "ultraface", detector("UltraFace"), 1 / 128),
    "ultraface-faces": PresetCase("faces", "ultraface_rfb320", "ultraface", detector("UltraFace"), 1 / 128),
    "ssd": PresetCase("masks", "ultraface_slim320", "ssd", detector("UltraFace"), 1 / 128),
    "yunet": PresetCase("masks", "yunet_s_320", YUNET, detector("YuNet", 320), 1),
    "yunet-free-size": PresetCase("masks", "yunet_n_dynamic", f"{YUNET},size=640", detector("YuNet", 640), 1),
    "blazeface": PresetCase(
        "masks",
        "blazeface_front",
        "resize=letterbox-topleft,pad=0,scale=1/127.5,mean=1",
        detector("BlazeFace", 128),
        1 / 127.5,
    ),
    "imagenet-128": torch_like(128, "imagenet,interpolation=area"),
    "imagenet-160": torch_like(160, "imagenet,interpolation=area"),
    "imagenet-224": torch_like(224, "imagenet,interpolation=area"),
    "pixels-160": PresetCase(
        "imagenet", "N,160,160,3", "resize=crop,interpolation=area", classifier(160, lambda b: b.ident), 1
    ),
    "mobilenet": PresetCase(
        "imagenet",
        "mobilenetv1_025_128",
        "resize=crop,interpolation=area,scale=1/127.5,mean=1",
        classifier(128, lambda b: b.n1),
        1 / 127.5,
    ),
    "squeezenet": PresetCase(
        "imagenet",
        "squeezenet11_fp32",
        "resize=crop,interpolation=area,color=bgr,mean=103.94:116.78:123.68",
        classifier(224, lambda b: b.caffe),
        1,
    ),
    "person": PresetCase("coco", "mlperf_vww_fp32", "interpolation=area,scale=1/255", person, 1 / 255),
}
# What would be another preprocessing, and must be seen as one.
WRONG = {
    "order of colors": ("yolox", "yolox,color=rgb"),
    "where it pads": ("yolox", "yolox,resize=letterbox"),
    "what it pads with": ("yolox", "yolox,pad=0"),
    "aspect ratio": ("yolox", "yolox,resize=stretch"),
    "filter": ("ultraface-masks", "ultraface,interpolation=antialias"),
    "deviation": ("ultraface-masks", "ultraface,std=127"),
    "mean": ("ultraface-masks", "ultraface,mean=128"),
    "no crop": ("imagenet-160", "imagenet,interpolation=area,resize=stretch"),
    "filter that skips": ("imagenet-160", "imagenet,interpolation=linear"),
}


@pytest.fixture(scope="module")
def bench(shared: Path) -> Iterator[ModuleType]:
    """The evaluation script, loaded from its file; nothing of it stays in the interpreter."""
    pytest.importorskip("cv2", reason="OpenCV is the witness here, and no dependency")
    pytest.importorskip("onnxruntime", reason="the evaluation script imports it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setitem(sys.modules, "detlib", loaded(shared / "corpus/scripts/detlib.py"))
        yield loaded(shared / "corpus/scripts/bench.py")


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"corpus_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def copies(shared: Path, bench: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Path]]:
    """(folder, "jpeg" or "png") -> some of its images. The names stay, as the script looks for *.jpg."""
    root = tmp_path_factory.mktemp("images")
    made: dict[tuple[str, str], list[Path]] = {}
    for name, where in FOLDERS.items():
        files = sorted((shared / "corpus/datasets" / where).glob("*.jpg"))
        for file in files[:: len(files) // IMAGES][:IMAGES]:
            png = bench.cv2.imencode(".png", bench.cv2.imread(str(file)), [bench.cv2.IMWRITE_PNG_COMPRESSION, 1])[1]
            for kind, content in (("jpeg", file.read_bytes()), ("png", png.tobytes())):
                copy = root / kind / "datasets" / name / file.name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
                made.setdefault((name, kind), []).append(copy)
    return made


@pytest.fixture(scope="module")
def decoded(bench: Any, copies: dict[tuple[str, str], list[Path]]) -> dict[tuple[str, str], int]:
    """(folder, kind) -> the largest difference between what the two decoders give, in grey levels."""
    from PIL import Image

    def difference(file: Path) -> int:
        ours = np.asarray(Image.open(file).convert("RGB"), np.int16)
        theirs = bench.cv2.imread(str(file))[..., ::-1]
        assert ours.shape == theirs.shape
        return int(np.abs(ours - theirs).max())

    return {key: max(map(difference, files)) for key, files in copies.items()}


def ours(shared: Path, case: PresetCase, files: list[Path], spec: str | None = None) -> Arrays:
    """What the folder feed gives for the model's input."""
    if "," in case.input:
        model = model_of(f"g (float[{case.input}] x) => (float[{case.input}] y) {{ y = Identity(x) }}")
    else:
        model = onnx.load(shared / "corpus/models" / f"{case.input}.onnx")
    inputs = inputs_of(model.graph)
    feed = open_loader(files[0].parent, inputs, DataOptions(preprocess=spec or case.spec))
    return [batch[inputs[0].name] for batch in feed]


def levels(case: PresetCase, got: Arrays, want: Arrays) -> tuple[float, float]:
    """Largest and mean difference, in grey levels of the input's unit."""
    assert [one.shape for one in got] == [one.shape for one in want]
    off = np.stack([np.abs(a.astype(np.float64) - b) for a, b in zip(got, want, strict=True)]) / case.level
    return float(off.max()), float(off.mean())


def mean_limit(case: PresetCase) -> float:
    """An area mean rounds otherwise at ties alone; a linear weight in 1/2048 turns about a tenth of the roundings."""
    return 0.02 if "interpolation=area" in case.spec else 0.2


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_same_arrays_as_the_evaluation(
    shared: Path,
    bench: Any,
    copies: dict[tuple[str, str], list[Path]],
    decoded: dict[tuple[str, str], int],
    name: str,
) -> None:
    case = CASES[name]
    for kind in ("png", "jpeg"):
        files, decoders = copies[case.folder, kind], decoded[case.folder, kind]
        largest, mean = levels(case, ours(shared, case, files), case.reference(bench, files))
        text = f"{name} {kind}: decoders {decoders}, then {largest:.3f} at most and {mean:.5f} in the mean, grey levels"
        print(text, f"(one is {case.level:.5f} of the input)")
        assert largest <= 1 + decoders + 1e-3, text  # resampling is a mean: it makes no difference of decoders larger
        assert mean <= mean_limit(case) + decoders, text


@pytest.mark.shared
def test_decoders_agree_on_what_is_lossless(decoded: dict[tuple[str, str], int]) -> None:
    assert {key: off for key, off in decoded.items() if key[1] == "png"} == {(name, "png"): 0 for name in FOLDERS}


@pytest.mark.shared
@pytest.mark.parametrize("what", WRONG)
def test_another_preprocessing_is_seen(
    shared: Path, bench: Any, copies: dict[tuple[str, str], list[Path]], what: str
) -> None:
    name, spec = WRONG[what]
    case = CASES[name]
    files = copies[case.folder, "png"]
    largest, mean = levels(case, ours(shared, case, files, spec), case.reference(bench, files))
    assert largest > 1.5 or mean > 2 * mean_limit(case), (largest, mean)


@pytest.mark.shared
@pytest.mark.parametrize("size", [128, 160, 224])
def test_the_preset_imagenet_differs_in_the_filter_alone(
    shared: Path, bench: Any, copies: dict[tuple[str, str], list[Path]], size: int
) -> None:
    """The preset is torchvision's antialiased filter, the script averages areas: the same picture, a little softer.

    At 224 nothing is resized, as the images' shorter side is 256: equal but for float32 rounding.
    """
    case = torch_like(size, "imagenet")
    files = copies[case.folder, "png"]
    largest, mean = levels(case, ours(shared, case, files), case.reference(bench, files))
    print(f"imagenet {size}: {largest:.3f} at most, {mean:.5f} in the mean, grey levels")
    assert mean < (1e-3 if size == 224 else 2)


@pytest.mark.parametrize(("size", "wide", "high"), [(128, 365, 146), (160, 458, 183), (224, 640, 256)])
def test_crop_rounds_the_shorter_side_first(tmp_path: Path, size: int, wide: int, high: int) -> None:
    """128 / 0.875 is 146.29: 146 rows, and 2.5 times as many columns; 146.29 * 2.5 would be 366."""
    from PIL import Image

    pixels = np.random.default_rng(size).integers(0, 256, (200, 500, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    model = model_of(f"g (float[N,{size},{size},3] x) => (float[N,{size},{size},3] y) {{ y = Identity(x) }}")
    feed = open_loader(tmp_path, inputs_of(model.graph), DataOptions(preprocess="resize=crop,interpolation=area"))
    top, left = (high - size) // 2, (wide - size) // 2
    want = resize_area(pixels, wide, high)[top : top + size, left : left + size]
    assert np.array_equal(next(iter(feed))["x"][0], want)
