# SPDX-License-Identifier: Apache-2.0
"""The models that ship: what their files hold, how well they do, and what their training scripts share."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from tests.ort_session import session_of

DETECTOR, CLASSIFIER, CELLS = "digits_detector.onnx", "tiny_classifier.onnx", "bccd_detector.onnx"
SCRIPTS = ("digits", "scenes", "detection_map")


@pytest.fixture(scope="module")
def scripts(models: Path) -> Iterator[dict[str, ModuleType]]:
    """The scripts of models/ that need no training package, imported as they import one another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(models))
        yield {name: importlib.import_module(name) for name in SCRIPTS}
        for name in SCRIPTS:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def scoring(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["detection_map"]


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {output: node for node in graph.node for output in node.output}


def attribute(node: onnx.NodeProto, name: str, default: object = None) -> object:
    found = [onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return found[0] if found else default


def shape_of(value: onnx.ValueInfoProto) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def readme_figures(models: Path) -> dict[str, float]:
    """The rows of the README's table of figures, by the first word of what was measured."""
    text = (models / "README.md").read_text(encoding="utf-8").partition("## Measured")[2].partition("## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {what.split()[0]: float(value) for _, what, value in rows[2:]}


# The files


@pytest.mark.parametrize("name", [DETECTOR, CLASSIFIER, CELLS])
def test_a_model_passes_the_checker_at_opset_13_and_an_old_ir_version(models: Path, name: str) -> None:
    model = onnx.load(models / name)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 13)]
    assert model.ir_version == 7


@pytest.mark.parametrize("name", [DETECTOR, CLASSIFIER, CELLS])
def test_the_names_can_be_read(models: Path, name: str) -> None:
    graph = onnx.load(models / name).graph
    names = [n for node in graph.node for n in (*node.input, *node.output) if n]
    names += [tensor.name for tensor in graph.initializer] + [node.name for node in graph.node]
    assert not [n for n in names if n.isdigit() or n.startswith("onnx::")]
    assert len({node.name for node in graph.node}) == len(graph.node)


def test_the_inputs_and_outputs_are_as_the_readme_says(models: Path) -> None:
    def faces(name: str) -> dict[str, list[str | int]]:
        graph = onnx.load(models / name).graph
        return {value.name: shape_of(value) for value in (*graph.input, *graph.output)}

    assert faces(DETECTOR) == {
        "images": ["batch", 1, 96, 96],
        "scores": ["batch", 10, 12, 12],
        "boxes": ["batch", 4, 12, 12],
    }
    assert faces(CLASSIFIER) == {"images": ["batch", 1, 16, 16], "logits": ["batch", 10]}


def test_the_folder_stays_small(models: Path) -> None:
    assert (models / DETECTOR).stat().st_size < 600_000
    files = [path for path in models.iterdir() if path.is_file()]  # caches of tools are folders
    assert sum(path.stat().st_size for path in files) < 5_000_000


# The graphs


def test_the_detector_keeps_a_batchnormalization_behind_every_convolution_without_bias(models: Path) -> None:
    graph = onnx.load(models / DETECTOR).graph
    made_by = producers(graph)
    without_bias = [node.output[0] for node in graph.node if node.op_type == "Conv" and len(node.input) == 2]
    normalized = [node.input[0] for node in graph.node if node.op_type == "BatchNormalization"]
    assert len(without_bias) >= 10
    assert sorted(normalized) == sorted(without_bias)
    constants = {tensor.name for tensor in graph.initializer}
    batch_norms = [node for node in graph.node if node.op_type == "BatchNormalization"]
    assert all(name in constants and name not in made_by for node in batch_norms for name in node.input[1:])


def test_the_detector_has_residual_additions_with_and_without_projection(models: Path) -> None:
    graph = onnx.load(models / DETECTOR).graph
    made_by = producers(graph)
    kinds = [sorted(made_by[name].op_type for name in node.input) for node in graph.node if node.op_type == "Add"]
    assert sorted(kinds) == [
        ["BatchNormalization", "BatchNormalization"],
        ["BatchNormalization", "MaxPool"],
        ["BatchNormalization", "Relu"],
    ]


def test_the_detector_ends_in_a_sigmoid_for_the_scores_and_a_convolution_for_the_boxes(models: Path) -> None:
    graph = onnx.load(models / DETECTOR).graph
    made_by = producers(graph)
    assert made_by["scores"].op_type == "Sigmoid"
    assert made_by[made_by["scores"].input[0]].op_type == "Conv"
    assert made_by["boxes"].op_type == "Conv"


def test_the_detector_merges_two_strides_by_a_nearest_resize_and_a_concat(models: Path) -> None:
    graph = onnx.load(models / DETECTOR).graph
    made_by = producers(graph)
    (concat,) = [node for node in graph.node if node.op_type == "Concat"]
    assert sorted(made_by[name].op_type for name in concat.input) == ["Relu", "Resize"]
    (resize,) = [node for node in graph.node if node.op_type == "Resize"]
    assert attribute(resize, "mode") == b"nearest"


def test_the_classifier_has_depthwise_convolutions_silu_a_residual_and_raw_logits(models: Path) -> None:
    graph = onnx.load(models / CLASSIFIER).graph
    made_by = producers(graph)
    weights = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    depthwise = [c for c in convolutions if attribute(c, "group", 1) == weights[c.input[1]][0] > 1]
    assert len(depthwise) == 3
    sigmoids = [node for node in graph.node if node.op_type == "Sigmoid"]
    products = [list(node.input) for node in graph.node if node.op_type == "Mul"]
    assert products == [[s.input[0], s.output[0]] for s in sigmoids]
    counts = Counter(node.op_type for node in graph.node)
    assert (counts["Add"], counts["GlobalAveragePool"], counts["BatchNormalization"]) == (1, 1, 0)
    assert made_by["logits"].op_type == "Gemm"


# The data


def test_the_calibration_files_feed_the_models_as_they_are(models: Path) -> None:
    for name, data, count in ((DETECTOR, "digits_calib.npz", 64), (CLASSIFIER, "digits8_calib.npz", 128)):
        session = session_of(models / name)
        feed = arrays(models / data)
        assert list(feed) == [i.name for i in session.get_inputs()]
        assert (feed["images"].dtype.str, len(feed["images"])) == ("<f4", count)
        assert all(len(output) == count for output in session.run(None, feed))


@pytest.mark.parametrize(
    ("data", "key"), [("digits_calib.npz", "images"), ("digits8_calib.npz", "images"), ("digits8_test.npz", "x")]
)
def test_pixels_are_steps_of_one_255th(models: Path, data: str, key: str) -> None:
    pixels = arrays(models / data)[key]
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    steps = np.rint(pixels * 255)
    assert np.array_equal(pixels, (steps.astype(np.float32) / np.float32(255)))
    assert len(np.unique(steps)) > 40


def test_the_held_out_scenes_are_labeled_consistently(models: Path) -> None:
    data = arrays(models / "digits_test.npz")
    assert {name: (a.dtype.str, a.ndim) for name, a in data.items()} == {
        "images": ("|u1", 3),
        "boxes": ("<f4", 2),
        "labels": ("<i8", 1),
        "scene": ("<i8", 1),
    }
    assert data["images"].shape == (200, 96, 96)
    boxes = data["boxes"]
    assert len(boxes) == len(data["labels"]) == len(data["scene"])
    assert boxes.min() >= 0
    assert boxes.max() <= 96
    assert (boxes[:, 2:] - boxes[:, :2]).min() >= 3
    assert (boxes[:, 2:] - boxes[:, :2]).max() <= 32
    assert set(data["labels"].tolist()) == set(range(10))
    per_scene = np.bincount(data["scene"], minlength=200)
    assert (per_scene.min(), per_scene.max()) == (1, 4)


def test_the_files_come_from_disjoint_digits(models: Path, scripts: dict[str, ModuleType]) -> None:
    """Draws the shipped data again from its own part of the digits; half a level of rounding may differ by machine."""
    pytest.importorskip("sklearn", reason="the source digits come with scikit-learn")
    digits, scenes = scripts["digits"].load_split(), scripts["scenes"]
    seen = [{image.tobytes() for image in part.images} for part in digits.values()]
    assert sum(len(part.labels) for part in digits.values()) == 1797
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
    test = scenes.labeled(scenes.compose_many(*scenes.TEST, digits["test"]))
    shipped = arrays(models / "digits_test.npz")
    assert all(np.array_equal(test[name], shipped[name]) for name in ("boxes", "labels", "scene"))
    assert (test["images"] != shipped["images"]).mean() < 1e-3
    calib = scenes.as_input(scenes.labeled(scenes.compose_many(*scenes.CALIB, digits["calib"]))["images"])
    assert (calib != arrays(models / "digits_calib.npz")["images"]).mean() < 1e-3
    small = arrays(models / "digits8_test.npz")
    assert np.array_equal(small["y"], digits["test"].labels)
    large = np.stack([scripts["digits"].resize(image, 16, 16) for image in digits["test"].images])
    assert np.abs(small["x"][:, 0] - large).max() <= 0.51 / 255


# How well they do


@pytest.mark.slow
def test_the_detector_finds_nine_digits_in_ten(models: Path, scoring: ModuleType) -> None:
    figures = scoring.evaluate(models / DETECTOR, models / "digits_test.npz")
    assert figures["ap50"] >= 0.90
    assert 0.60 <= figures["ap50_95"] < figures["ap50"]
    reported = readme_figures(models)
    # another processor's float32 may move a detection across a threshold
    assert [figures["ap50"], figures["ap50_95"]] == pytest.approx([reported["AP50:"], reported["AP50:95:"]], abs=0.005)


def test_the_classifier_knows_more_than_nine_in_ten(models: Path) -> None:
    data = arrays(models / "digits8_test.npz")
    session = session_of(models / CLASSIFIER)
    (logits,) = session.run(["logits"], {"images": data["x"]})
    share = (logits.argmax(1) == data["y"]).mean()
    assert share >= 0.93
    assert share == pytest.approx(readme_figures(models)["top-1"], abs=0.005)
    assert logits.min() < -1  # raw logits, no Softmax


def test_the_batch_does_not_change_what_is_found(models: Path, scoring: ModuleType) -> None:
    images = arrays(models / "digits_calib.npz")["images"][:10]
    together, apart = (scoring.run(models / DETECTOR, images, batch) for batch in (10, 3))
    for a, b in zip(together, apart, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)  # float32 sums in another order


# What the training scripts share


def test_parting_keeps_every_image_once_and_each_class_in_its_share(scripts: dict[str, ModuleType]) -> None:
    labels = np.repeat(np.arange(4), 100)
    parts = scripts["digits"].part(np.arange(400, dtype=np.float32), labels)
    assert sorted(np.concatenate([p.images for p in parts.values()]).tolist()) == list(range(400))
    assert {name: np.bincount(p.labels).tolist() for name, p in parts.items()} == {
        "train": [60] * 4,
        "calib": [15] * 4,
        "test": [25] * 4,
    }
    assert all(np.array_equal(labels[p.images.astype(int)], p.labels) for p in parts.values())


def test_resize_keeps_a_ramp_a_ramp(scripts: dict[str, ModuleType]) -> None:
    ramp = np.tile(np.arange(8, dtype=np.float32), (8, 1))
    twice = scripts["digits"].resize(ramp, 8, 16)
    # centers of the 16 pixels lie at (k + 0.5) / 2 - 0.5 of the source, clipped to its outer centers
    np.testing.assert_allclose(twice[0], np.clip((np.arange(16) + 0.5) / 2 - 0.5, 0, 7), atol=1e-6)
    assert np.array_equal(scripts["digits"].resize(ramp, 8, 8), ramp)


def test_scenes_repeat_and_their_boxes_hold_the_ink(scripts: dict[str, ModuleType]) -> None:
    scenes = scripts["scenes"]
    solid = scripts["digits"].Digits(np.ones((10, 8, 8), np.float32), np.arange(10))
    drawn = scenes.compose_many(3, 30, solid)
    for scene, again in zip(drawn, scenes.compose_many(3, 30, solid), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(scene, again, strict=True))
        sizes = scene.boxes[:, 2:] - scene.boxes[:, :2]
        assert ((sizes >= 16) & (sizes <= 32)).all()
        inside = np.zeros((96, 96), bool)
        for x1, y1, x2, y2 in scene.boxes.astype(int):
            inside[y1:y2, x1:x2] = True
        image = scene.image.astype(float)
        # a digit differs from its ground by 0.25 or more, unless it clips; waves of light reach 0.18
        assert abs(image[inside].mean() - image[~inside].mean()) > 15


def test_digits_in_a_scene_hardly_overlap(scripts: dict[str, ModuleType]) -> None:
    scenes = scripts["scenes"]
    solid = scripts["digits"].Digits(np.ones((10, 8, 8), np.float32), np.arange(10))
    for scene in scenes.compose_many(4, 60, solid):
        for i, a in enumerate(scene.boxes):
            for b in scene.boxes[:i]:
                both = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
                smaller = min((a[2:] - a[:2]).prod(), (b[2:] - b[:2]).prod())
                assert both <= 0.05 * smaller
