# SPDX-License-Identifier: Apache-2.0
"""Mean IoU: class maps of outputs in the pixels of the picture, labels of every form, figures by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.geometry import Geometry
from qdqtool.errors import QdqError
from qdqtool.evaluation.labels_maps import are_maps, open_map_labels
from qdqtool.evaluation.metrics import judge
from qdqtool.evaluation.segmentation import class_counts, map_reader, mean_iou
from qdqtool.verbs.evaluate import evaluate
from tests.graphs import model_of

WHOLE = Geometry(8, 6, (1.0, 1.0), (0.0, 0.0), (8, 6))
RNG = np.random.default_rng(0)
NET = """net (float[N,3,6,8] x) => (float[N,3,6,8] y) <float[3,3,1,1] w = {1,0,0, 0,1,0, 0,0,1}>
{ y = Conv(x, w) }"""


def scores_for(classes: np.ndarray, count: int) -> np.ndarray:
    """Scores [N, C, H, W] whose best class is the one that is given."""
    return (classes[:, None] == np.arange(count)[:, None, None]).astype(np.float32)


@pytest.mark.parametrize("last", [False, True])
def test_an_output_of_the_pictures_size_is_its_best_classes(last: bool) -> None:
    classes = RNG.integers(0, 3, (2, 6, 8))
    scores = scores_for(classes, 3)
    outputs = {"y": np.moveaxis(scores, 1, 3) if last else scores}
    reader = map_reader("m", outputs)
    assert (reader.axis, reader.classes) == (3 if last else 1, 3)
    assert np.array_equal(reader(outputs, 1, WHOLE), classes[1])


@pytest.mark.parametrize(("scale", "threshold"), [(1.0, 0.5), (9.0, 0.0)])
def test_one_channel_is_a_probability_or_a_logit(scale: float, threshold: float) -> None:
    values = RNG.random((1, 1, 6, 8)).astype(np.float32)
    outputs = {"y": (values if scale == 1 else values - 0.5) * np.float32(scale)}
    reader = map_reader("m", outputs)
    assert (reader.classes, reader.threshold) == (2, threshold)
    assert np.array_equal(reader(outputs, 0, WHOLE), values[0, 0] > 0.5)


def test_class_numbers_are_read_as_they_are() -> None:
    numbers = RNG.integers(0, 5, (1, 3, 4))
    reader = map_reader("m", {"y": numbers})
    assert np.array_equal(reader({"y": numbers}, 0, WHOLE), numbers[0].repeat(2, 0).repeat(2, 1))


def test_a_letterbox_is_taken_off_and_what_a_crop_cut_off_does_not_count() -> None:
    """A picture of 4x2 pixels fills the middle rows of an input of 8x8; one of 12x8 is seen but for two columns."""
    classes = np.repeat(np.arange(8) % 3, 8).reshape(1, 8, 8)
    outputs = {"y": scores_for(classes, 3)}
    reader = map_reader("m", outputs)
    boxed = reader(outputs, 0, Geometry(4, 2, (2.0, 2.0), (0.0, 2.0), (8, 8)))
    rows = [outputs["y"][0, :, 2:4, 0].mean(1).argmax(), outputs["y"][0, :, 4:6, 0].mean(1).argmax()]
    assert np.array_equal(boxed, np.repeat(rows, 4).reshape(2, 4))
    cut = reader(outputs, 0, Geometry(12, 8, (1.0, 1.0), (-2.0, 0.0), (8, 8)))
    assert (cut[:, :2] == -1).all() and (cut[:, 10:] == -1).all()
    assert np.array_equal(cut[:, 2:10], classes[0])


def test_interpolation_is_that_of_pixel_centers() -> None:
    """Two cells across eight pixels: the border between the classes lies in the middle."""
    outputs = {"y": scores_for(np.array([[[0, 1]]]), 2)}
    found = map_reader("m", outputs)(outputs, 0, Geometry(8, 2, (1.0, 1.0), (0.0, 0.0), (8, 2)))
    assert found.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]] * 2


def test_the_figures_are_those_of_the_summed_confusion() -> None:
    truths, founds = RNG.integers(-1, 4, (5, 6, 8)), RNG.integers(0, 4, (5, 6, 8))
    truths[truths == 2] = 0  # a class that the labels do not show
    measured = mean_iou([class_counts("l", *pair, 4) for pair in zip(truths, founds, strict=True)])
    wanted = []
    for one in (0, 1, 3):
        counts = truths >= 0
        both, either = ((truths == one) & (founds == one)).sum(), (counts & ((truths == one) | (founds == one))).sum()
        wanted.append(both / either)
    assert measured.classes == (0, 1, 3)
    assert measured.values[0] == pytest.approx([np.mean(wanted), *wanted])
    drawn = measured.resampled(np.array([[2, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
    assert drawn[1, 0] == pytest.approx(measured.values[0])
    twice = mean_iou([class_counts("l", truths[k], founds[k], 4) for k in (0, 0, 2, 3, 4)])
    assert drawn[0, 0] == pytest.approx(twice.values[0])
    interval = judge(measured, measured).losses["miou"][0]
    assert (interval.value, interval.interval.low, interval.interval.high) == (0, 0, 0)


def test_a_class_that_a_draw_lacks_has_no_figure_there() -> None:
    truths, founds = np.zeros((2, 2, 2), np.int64), np.zeros((2, 2, 2), np.int64)
    truths[1], founds[1] = 1, 1
    found = mean_iou([class_counts("l", *pair, 2) for pair in zip(truths, founds, strict=True)])
    drawn = found.resampled(np.array([[2, 0]]))[0, 0]
    assert drawn[0] == 1 and drawn[1] == 1 and np.isnan(drawn[2])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(QdqError, match="holds class 3, the model tells 3 apart"):
        class_counts("l", np.full((2, 2), 3), np.zeros((2, 2), np.int64), 3)
    with pytest.raises(QdqError, match="class map of 2x3, its picture has 2x2"):
        class_counts("l", np.zeros((3, 2), np.int64), np.zeros((2, 2), np.int64), 3)
    with pytest.raises(QdqError, match="has 0 outputs of class maps"):
        map_reader("m", {"y": np.zeros((1, 10), np.float32)})
    maps = np.zeros((1, 2, 4, 4), np.float32)
    with pytest.raises(QdqError, match="has 2 outputs of class maps"):
        map_reader("m", {"y": maps, "aux": maps})


def test_evaluate_takes_class_maps(tmp_path: Path) -> None:
    truths, given = RNG.integers(0, 3, (4, 6, 8)), RNG.integers(0, 3, (4, 6, 8))
    model = tmp_path / "m.onnx"
    model.write_bytes(model_of(NET).SerializeToString())
    np.savez(tmp_path / "d.npz", x=scores_for(given, 3))
    truths[0, 0] = 255
    np.savez(tmp_path / "l.npz", masks=truths.astype(np.uint8))
    result = evaluate(model, tmp_path / "d.npz", tmp_path / "l.npz")
    counts = truths != 255
    each = [
        (counts & (truths == k) & (given == k)).sum() / (counts & ((truths == k) | (given == k))).sum()
        for k in range(3)
    ]
    assert result.metric == "miou" and result.labels == "arrays"
    assert result.value("miou") == pytest.approx(np.mean(each))
    assert result.facts == {"pixels": int(counts.sum())}


def test_a_folder_of_png_is_class_maps_unless_other_labels_lie_in_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow reads images")
    numbers = RNG.integers(0, 4, (6, 8)).astype(np.uint8)
    numbers[0, 0] = 255
    palette = image.fromarray(numbers).convert("P")
    palette.putdata(numbers.ravel().tolist())
    palette.putpalette(RNG.integers(0, 256, 768).astype(np.uint8).tolist())
    palette.save(tmp_path / "a.png")
    image.fromarray(numbers).save(tmp_path / "b.png")
    assert are_maps(tmp_path)
    labels = open_map_labels(tmp_path, [Path("x/a.jpg"), Path("x/b.jpg")])
    wanted = np.where(numbers == 255, -1, numbers.astype(np.int64))
    assert np.array_equal(labels.truth(0), wanted) and np.array_equal(labels.truth(1), wanted)
    with pytest.raises(QdqError, match=r"has no .png for 1 of 2 images, such as c.jpg"):
        open_map_labels(tmp_path, [Path("x/a.jpg"), Path("x/c.jpg")])
    image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(QdqError, match="is an image of mode RGB, whose pixels are no class numbers"):
        open_map_labels(tmp_path, [Path("x/a.jpg")]).truth(0)
    (tmp_path / "a.txt").write_text("0 0.5 0.5 1 1")
    assert not are_maps(tmp_path)
