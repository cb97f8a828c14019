# SPDX-License-Identifier: Apache-2.0
"""The blood cell detector: its file, what its cells should say, the loss that trains it on; and its figures."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from PIL import Image

from qdqtool.cli.main import main
from qdqtool.data.geometry import Geometry
from qdqtool.evaluation.decode.auto_detect import find_decoder
from tests.ort_session import session_of

ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

MODEL = "bccd_detector.onnx"
PREPROCESS = "yolox,interpolation=area"
CELLS = 735
ANNOTATION = """<annotation>
<object><name>WBC</name><bndbox><xmin>60</xmin><ymin>90</ymin><xmax>240</xmax><ymax>300</ymax></bndbox></object>
<object><name>RBC</name><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>
</annotation>"""


@pytest.fixture(scope="module")
def cells(models: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(models))
        yield importlib.import_module("bccd")
        for name in ("bccd", "bccd_loss", "bccd_targets"):
            sys.modules.pop(name, None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data set of eleven photographs: each a bright cell on grey."""
    for folder in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (tmp_path / folder).mkdir(parents=True)
    names = [f"cell_{k}" for k in range(11)]
    for split in ("train", "val", "test"):
        (tmp_path / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    pixels = np.full((480, 640, 3), 90, np.uint8)
    pixels[90:300, 60:240] = (230, 60, 160)
    for name in names:
        Image.fromarray(pixels).save(tmp_path / "JPEGImages" / f"{name}.jpg", quality=95)
        (tmp_path / "Annotations" / f"{name}.xml").write_text(ANNOTATION, encoding="utf-8")
    return tmp_path


def boxes_of(*rows: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(rows, np.float32)


# The file


def test_the_detector_keeps_its_batchnormalization_and_is_what_yolox_decoders_read(models: Path) -> None:
    model = onnx.load(models / MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 13)]
    bare = [node.output[0] for node in model.graph.node if node.op_type == "Conv" and len(node.input) == 2]
    normalized = [node.input[0] for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert sorted(bare) == sorted(normalized)
    assert len(bare) > 30
    shapes = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.output]
    assert shapes == [["batch", CELLS, 8]]
    size = sum(math.prod(tensor.dims) for tensor in model.graph.initializer)
    assert 200_000 < size < 350_000
    assert (models / MODEL).stat().st_size < 1_500_000


# What its cells should say


def test_a_box_is_answered_for_by_the_stride_of_its_longer_side(cells: ModuleType) -> None:
    grid, stride = cells.grid()
    assert (len(grid), stride[0, 0], stride[-1, 0], grid[-1].tolist()) == (CELLS, 8, 32, [6, 4])
    rows = boxes_of((40, 40, 54, 54), (100, 60, 160, 120), (20, 60, 120, 158))
    for row, wanted in zip(rows, (8, 16, 32), strict=True):
        found = cells.targets(row[None], np.array([1]))
        mine = found.quality[:, 0] > 0
        assert set(stride[mine, 0].tolist()) == {wanted}
        assert (found.classes[mine] == (0, 1, 0)).all()
        assert (found.corners[mine] == row).all()
        assert not found.classes[~mine].any()
        center = ((grid[mine] + 0.5) * stride[mine] - (row[:2] + row[2:]) / 2) / wanted
        assert np.abs(center).max() < 1.5
        assert found.quality[mine, 0] == pytest.approx(np.exp(-np.square(center).sum(1) / 1.28))


def test_a_box_smaller_than_a_cell_is_answered_for_by_the_nearest(cells: ModuleType) -> None:
    found = cells.targets(boxes_of((8.5, 8.5, 10.5, 11)), np.array([2]))
    assert np.flatnonzero(found.quality).tolist() == [29]
    assert found.classes[29].tolist() == [0, 0, 1]


def test_a_cell_between_two_boxes_answers_for_the_nearer(cells: ModuleType) -> None:
    rows = boxes_of((40, 40, 72, 72), (58, 40, 90, 72))
    found = cells.targets(rows, np.array([0, 2]))
    grid, stride = cells.grid()
    middle = (grid[:560, 0] + 0.5) * 8
    mine = np.flatnonzero(found.quality[:560, 0])
    assert {tuple(found.corners[k]) for k in mine if middle[k] < 65} == {tuple(rows[0])}
    assert {tuple(found.corners[k]) for k in mine if middle[k] > 65} == {tuple(rows[1])}
    assert stride[mine].max() == 8


def test_no_boxes_no_answers(cells: ModuleType) -> None:
    found = cells.targets(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    assert [one.shape for one in found] == [(CELLS, 1), (CELLS, 3), (CELLS, 4)]
    assert not any(one.any() for one in found)


def said(cells: ModuleType, wanted: object) -> np.ndarray:
    """The output of a detector that says just what it should."""
    grid, stride = cells.grid()
    quality, classes, corners = wanted
    inside = quality[:, 0] > 0
    output = np.zeros((1, CELLS, 8), np.float32)
    output[0, inside, :2] = ((corners[:, :2] + corners[:, 2:]) / 2 / stride - grid)[inside]
    output[0, inside, 2:4] = np.log((corners[:, 2:] - corners[:, :2])[inside] / stride[inside])
    output[0, :, 4:5], output[0, :, 5:] = quality, classes
    return output


def test_a_decoder_finds_the_boxes_in_what_the_cells_should_say(cells: ModuleType) -> None:
    rows = boxes_of((40, 40, 54, 53), (100, 60, 160, 120), (20, 62, 120, 158), (150, 20, 184, 52))
    wanted = cells.targets(rows, np.array([2, 0, 1, 0]))
    output = {"detections": said(cells, wanted)}
    decoder = find_decoder("auto", output, (224, 160))
    assert decoder.description.startswith("yolox: detections [1, 735, 8], 3 classes, strides 8, 16, 32")
    (found,) = decoder(output, [Geometry(224, 160, (1.0, 1.0), (0.0, 0.0), (224, 160))])
    order = np.lexsort(found.boxes.T)
    assert found.boxes[order] == pytest.approx(rows[np.lexsort(rows.T)], abs=1e-3)
    assert sorted(found.labels.tolist()) == [0, 0, 1, 2]


# The photographs


def test_a_photograph_is_laid_into_the_input_as_the_preprocessing_does(cells: ModuleType, root: Path) -> None:
    from qdqtool.data.images import ImageFileReader, fit_reader
    from qdqtool.data.preprocess import parse_preprocess

    photo = cells.load(root, "train")[0]
    assert photo.boxes.tolist() == [[30, 45, 120, 150]]  # the box without an area is gone
    assert photo.labels.tolist() == [1]
    pixels, boxes, _ = cells.whole(photo)
    assert boxes.tolist() == [[20, 30, 80, 100]]
    reader = ImageFileReader(fit_reader(parse_preprocess(PREPROCESS), "images", ["batch", 3, 160, 224]))
    read = reader.read(cells.files_of(root, "train")[0])[0]
    assert pixels.shape == read.shape
    assert np.abs(pixels - read).mean() < 1
    assert (pixels[:, 50, 50] - (160, 60, 230)).max() < 4  # BGR


def test_windows_keep_boxes_on_their_cells(cells: ModuleType, root: Path) -> None:
    photo = cells.load(root, "train")[0]
    rng = np.random.default_rng(0)
    shapes = set()
    for _ in range(12):
        pixels, boxes, labels = cells.augmented(photo, rng)
        ((x1, y1, x2, y2),) = boxes.round().astype(int)
        shapes.add((x1, y1, x2, y2))
        assert 0 <= x1 < x2 <= 224 and 0 <= y1 < y2 <= 160
        bright = pixels[2] - pixels[1]  # red over green: the cell alone
        inside = bright[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2]
        assert inside.min() > 60
        assert np.count_nonzero(bright > 60) == pytest.approx((x2 - x1) * (y2 - y1), rel=0.1)
        assert labels.tolist() == [1]
    assert len(shapes) == 12


def test_links_part_the_images(cells: ModuleType, root: Path, tmp_path: Path) -> None:
    for _ in range(2):
        cells.link(root, tmp_path / "links")
    found = sorted((tmp_path / "links" / "test").iterdir())
    assert [one.resolve() for one in found] == sorted(cells.files_of(root, "test"))


# What fine-tuning is given


def test_targets_come_the_same_each_time_in_whole_tens(
    cells: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BCCD", str(root))
    script = importlib.import_module("bccd_targets")
    first, second = list(script.load_data()), list(script.load_data())
    assert len(first) == 40
    assert [{name: value.shape for name, value in one.items()} for one in first] == [
        {"images": (1, 3, 160, 224), "quality": (1, CELLS, 1), "classes": (1, CELLS, 3), "corners": (1, CELLS, 4)}
    ] * 40
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a)
    assert not np.array_equal(first[0]["images"], first[10]["images"])


def reference(output: np.ndarray, wanted: list[np.ndarray], grid: np.ndarray, stride: np.ndarray) -> list[float]:
    """The three parts of the loss in float64."""
    quality, classes, corners = (one.astype(np.float64) for one in wanted)
    raw = output.astype(np.float64)
    total = max(quality.sum(), 1)

    def entropy(p: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(-y * np.log(p) - (1 - y) * np.log(1 - p))

    score = np.square(quality - raw[..., 4:5]) * entropy(raw[..., 4:5], quality)
    center, half = (raw[..., :2] + grid) * stride, np.exp(raw[..., 2:4]) * stride / 2
    a1, a2, b1, b2 = center - half, center + half, corners[..., :2], corners[..., 2:]
    both = np.clip(np.minimum(a2, b2) - np.maximum(a1, b1), 0, None).prod(-1)
    union = (a2 - a1).prod(-1) + (b2 - b1).prod(-1) - both
    hull = (np.maximum(a2, b2) - np.minimum(a1, b1)).prod(-1)
    giou = both / union - (hull - union) / hull
    box = ((1 - giou) * quality[..., 0]).sum()
    return [score.sum() / total, (entropy(raw[..., 5:], classes) * quality).sum() / total, box / total]


def test_the_loss_script_computes_what_training_minimized(cells: ModuleType, models: Path) -> None:
    from qdqtool.training.losses.labels import LabelInputs
    from qdqtool.training.losses.nodes import Nodes
    from qdqtool.training.losses.script import script_terms
    from qdqtool.training.losses.targets import Targets

    shape = [2, CELLS, 8]
    value = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_node("Identity", ["raw"], ["detections"])
    ends = [value("raw", 1, shape)], [value("detections", 1, shape)]
    opset = [onnx.helper.make_opsetid("", 13)]
    proto = onnx.helper.make_model(onnx.helper.make_graph([made], "g", *ends), ir_version=8, opset_imports=opset)
    nodes = Nodes(proto, {"raw": tuple(shape), "detections": tuple(shape)})
    script = str(models / "bccd_loss.py")
    terms = script_terms(script, nodes, Targets(nodes, None), LabelInputs(nodes))
    assert [(name, weight) for name, _, weight in terms] == [("score", 1.0), ("class", 1.0), ("box", 2.0)]
    names = [nodes.named(part, name) for name, part, _ in terms]
    onnx.checker.check_model(proto, full_check=True)
    rng = np.random.default_rng(1)
    output = rng.normal(0.3, 0.5, shape).astype(np.float32)
    output[..., 4:] = rng.uniform(0.02, 0.98, (2, CELLS, 4))
    rows = boxes_of((40, 40, 54, 53), (100, 60, 160, 120), (150, 20, 184, 52))
    each = [cells.targets(rows, np.array([2, 0, 1])), cells.targets(rows[:1], np.array([1]))]
    wanted = [np.stack(column) for column in zip(*each, strict=True)]
    feeds = {"raw": output, **dict(zip(("quality", "classes", "corners"), wanted, strict=True))}
    session = session_of(proto)
    found = session.run(names, feeds)
    assert [float(one) for one in found] == pytest.approx(reference(output, wanted, *cells.grid()), rel=1e-4)


# How well it does


@pytest.mark.shared
@pytest.mark.slow
def test_the_figures_of_the_readme_are_those_of_the_test_split(
    shared: Path, models: Path, cells: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shared / "corpus" / "datasets" / "bccd" / "BCCD"
    if not data.is_dir():
        pytest.skip("no BCCD in the shared material")
    cells.link(data, tmp_path)
    words = ["--data", str(tmp_path / "test"), "--labels", str(data / "Annotations"), "--names", ",".join(cells.NAMES)]
    assert main(["evaluate", str(models / MODEL), *words, "--preprocess", PREPROCESS, "--metric", "voc", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["voc_ap"]["value"] >= 0.8
    reported = re.search(r"mean of the three \| ([\d.]+) \|", (models / "README.md").read_text(encoding="utf-8"))
    assert reported is not None
    # another processor's float32 may move a detection across a threshold
    assert figures["voc_ap"]["value"] == pytest.approx(float(reported[1]), abs=0.005)


def test_a_folder_that_is_not_of_the_data_set_is_one_line(models: Path, tmp_path: Path) -> None:
    (tmp_path / "JPEGImages").mkdir()
    command = [sys.executable, str(models / "bccd.py"), str(tmp_path), "--links", str(tmp_path / "links")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert done.stderr.endswith(f"{tmp_path} is not the folder of BCCD: it has no ImageSets/Main, Annotations\n")
    assert not (tmp_path / "links").exists()
