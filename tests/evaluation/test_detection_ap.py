# SPDX-License-Identifier: Apache-2.0
"""Average precision: cases worked by hand, COCO's beside pycocotools itself, VOC's beside the rule written plainly."""

from __future__ import annotations

import builtins
import contextlib
import io
from typing import Any

import numpy as np
import pytest

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.detection_ap import coco, overlaps, voc
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.ground_truth import ANY_CLASS, Truth, classes_in, truth_of
from tests.evaluation.scenes_of_boxes import FIRST, NOWHERE, SECOND, found_of, random_scenes

BOTH = truth_of([FIRST, SECOND], [0, 0])


def ones(images: int) -> Any:
    return np.ones((1, images), np.int64)


def test_overlaps_of_boxes_drawn_on_paper() -> None:
    others = np.array([FIRST, (5, 0, 15, 10), (0, 0, 10, 5), (5, 5, 5, 5)], float)
    plain = overlaps(np.array([FIRST]), others, np.zeros(4, bool))
    np.testing.assert_allclose(plain, [[1, 50 / 150, 0.5, 0]])
    crowd = overlaps(np.array([FIRST]), others, np.array([False, True, True, True]))
    np.testing.assert_allclose(crowd, [[1, 0.5, 0.5, 0]])


# -------------------------------------------------------------------------------------------------------------- VOC


def test_voc_hit_miss_hit() -> None:
    """Precision 1 up to recall 1/2, then 2/3: the area is their mean; 6 of 11 recalls lie at or below 1/2."""
    measured = voc([found_of([FIRST, NOWHERE, SECOND])], [BOTH])
    assert measured.value("voc_ap") == pytest.approx((1 + 2 / 3) / 2)
    assert measured.value("voc_ap11") == pytest.approx((6 + 5 * 2 / 3) / 11)
    assert measured.facts == {"boxes": 2, "detections": 3}


def test_voc_counts_a_second_find_of_the_same_box_as_a_miss() -> None:
    measured = voc([found_of([FIRST, FIRST, SECOND])], [BOTH])
    assert measured.value("voc_ap") == pytest.approx((1 + 2 / 3) / 2)


def test_voc_looks_at_the_box_that_is_overlapped_most_even_if_taken() -> None:
    """The second detection reaches 0.5 with both boxes; the one it overlaps more is taken, so that it is a miss."""
    truth = truth_of([(0, 0, 10, 10), (0, 2, 10, 12)], [0, 0])
    found = found_of([(0, 0, 10, 10), (0, 0.5, 10, 10.5)])
    assert voc([found], [truth]).value("voc_ap") == pytest.approx(0.5)


def test_voc_at_exactly_one_half_is_a_hit() -> None:
    assert voc([found_of([(0, 0, 10, 5)])], [truth_of([FIRST], [0])]).value("voc_ap") == 1.0
    assert voc([found_of([(0, 0, 10, 4.9)])], [truth_of([FIRST], [0])]).value("voc_ap") == 0.0


def test_voc_difficult_boxes_count_neither_for_nor_against() -> None:
    truth = truth_of([FIRST, SECOND], [0, 0], difficult=[True, False])
    assert voc([found_of([FIRST, SECOND])], [truth]).value("voc_ap") == 1.0
    assert voc([found_of([SECOND])], [truth]).value("voc_ap") == 1.0
    assert voc([found_of([FIRST, SECOND])], [BOTH]).value("voc_ap") == 1.0
    assert voc([found_of([NOWHERE, SECOND])], [truth]).value("voc_ap") == 0.5


def test_voc_a_crowd_takes_only_what_no_object_takes() -> None:
    truth = truth_of([(0, 0, 100, 100), FIRST], [0, 0], crowd=[True, False])
    assert voc([found_of([NOWHERE, (50, 50, 61, 61), FIRST])], [truth]).value("voc_ap") == 1.0
    outside = truth_of([(0, 0, 40, 40), FIRST], [0, 0], crowd=[True, False])
    assert voc([found_of([NOWHERE, FIRST])], [outside]).value("voc_ap") == 0.5


def plain_voc(found: list[Detections], truths: list[Truth], label: int) -> tuple[float, float]:
    """The rule of the development kit, one detection after the other over all images."""
    rows = [
        (-float(one.scores[k]), image, k)
        for image, one in enumerate(found)
        for k in range(len(one))
        if one.labels[k] == label
    ]
    positives = sum(int((one.counted & (one.labels == label)).sum()) for one in truths)
    taken: set[tuple[int, int]] = set()
    true, seen, points = 0, 0, []
    for _, image, k in sorted(rows, key=lambda row: (row[0], row[1])):
        truth = truths[image]
        mine = np.flatnonzero(truth.labels == label)
        overlap = overlaps(found[image].boxes[k : k + 1], truth.boxes[mine], np.zeros(len(mine), bool))[0]
        if len(mine) and overlap.max() >= 0.5:
            best = int(mine[overlap.argmax()])
            if truth.difficult[best]:
                continue
            seen += 1
            if (image, best) not in taken:
                taken.add((image, best))
                true += 1
        else:
            seen += 1
        points.append((true / positives, true / seen))
    area, last = 0.0, 0.0
    for recall in sorted({recall for recall, _ in points}):
        area += (recall - last) * max(precision for at, precision in points if at >= recall)
        last = recall
    sampled = [max((p for at, p in points if at >= mark / 10), default=0.0) for mark in range(11)]
    return area, float(np.mean(sampled))


@pytest.mark.parametrize("seed", range(8))
def test_voc_is_the_rule_written_plainly(seed: int) -> None:
    found, truths = random_scenes(seed)
    truths = [Truth(one.boxes, one.labels, np.zeros(len(one), bool), one.difficult) for one in truths]
    measured = voc(found, truths)
    assert measured.classes == tuple(classes_in(truths))
    for column, label in enumerate(measured.classes, 1):
        np.testing.assert_allclose(measured.values[:, column], plain_voc(found, truths, label), atol=1e-12)
    np.testing.assert_allclose(measured.values[:, 0], measured.values[:, 1:].mean(1))


# ------------------------------------------------------------------------------------------------------------- COCO


def by_pycocotools(found: list[Detections], truths: list[Truth]) -> Any:
    """COCOeval used as its own documentation does, all area ranges and limits included."""
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    ids = sorted({int(label) for one in truths for label in one.labels} | {0, 1, 2, 3, 9})
    truth = COCO()
    truth.dataset = {"images": [{"id": 100 + k} for k in range(len(truths))], "categories": [{"id": k} for k in ids]}
    truth.dataset["annotations"] = [
        {"image_id": 100 + image, "category_id": int(label), "bbox": xywh(box), "iscrowd": int(crowd)}
        for image, one in enumerate(truths)
        for box, label, crowd in zip(one.boxes, one.labels, one.crowd, strict=True)
    ]
    for number, one in enumerate(truth.dataset["annotations"], 1):
        one.update(id=number, area=one["bbox"][2] * one["bbox"][3])
    rows = [
        {"image_id": 100 + image, "category_id": int(label), "bbox": xywh(box), "score": float(score)}
        for image, one in enumerate(found)
        for box, label, score in zip(one.boxes, one.labels, one.scores, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        judge = COCOeval(truth, truth.loadRes(rows), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return judge


def xywh(box: Any) -> list[float]:
    x1, y1, x2, y2 = map(float, box)
    return [x1, y1, x2 - x1, y2 - y1]


def no_difficult(truths: list[Truth]) -> list[Truth]:
    return [Truth(one.boxes, one.labels, one.crowd, np.zeros(len(one), bool)) for one in truths]


@pytest.mark.parametrize("seed", range(5))
def test_coco_figures_are_those_of_pycocotools(seed: int) -> None:
    found, truths = random_scenes(seed)
    truths = no_difficult(truths)
    stats = by_pycocotools(found, truths).stats
    measured = coco(found, truths)
    assert measured.value("map") == pytest.approx(stats[0], abs=1e-12)
    assert measured.value("ap50") == pytest.approx(stats[1], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_resampled_figures_of_equal_weights_are_the_figures(seed: int) -> None:
    pytest.importorskip("pycocotools")
    measured = coco(*random_scenes(seed))
    np.testing.assert_allclose(measured.resampled(ones(12))[0], measured.values, atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", range(6))
def test_a_weighted_image_is_that_image_repeated(seed: int) -> None:
    """COCOeval over the repeated list, image by image, is what the weights stand for; 0 leaves an image out."""
    pytest.importorskip("pycocotools")
    found, truths = random_scenes(seed, ties=False)
    weights = np.random.default_rng(seed).multinomial(12, [1 / 12] * 12)
    rows = np.repeat(np.arange(12), weights)
    for judge in (coco, voc):
        measured = judge(found, truths)
        repeated = judge([found[k] for k in rows], [truths[k] for k in rows])
        drawn = measured.resampled(weights[None])[0]
        for column, label in enumerate(measured.classes, 1):
            if label in repeated.classes:
                same = repeated.values[:, 1 + repeated.classes.index(label)]
                np.testing.assert_allclose(drawn[:, column], same, atol=1e-12)
            else:
                assert np.isnan(drawn[:, column]).all()
        np.testing.assert_allclose(drawn[:, 0], repeated.values[:, 0], atol=1e-12)


def test_coco_difficult_boxes_count_neither_for_nor_against() -> None:
    pytest.importorskip("pycocotools")
    truth = truth_of([FIRST, SECOND], [0, 0], difficult=[True, False])
    for found in ([FIRST, SECOND], [SECOND]):
        assert coco([found_of(found)], [truth]).value("map") == pytest.approx(1)
    twice, crowd = [found_of([FIRST, FIRST, SECOND])], truth_of([FIRST, SECOND], [0, 0], [True, False])
    assert coco(twice, [truth]).value("map") == pytest.approx(0.5), "one detection of it is forgiven, not two"
    assert coco(twice, [crowd]).value("map") == pytest.approx(1), "a crowd forgives any number"


def test_regions_of_any_class_forgive_every_class() -> None:
    pytest.importorskip("pycocotools")
    truth = truth_of([FIRST, SECOND, (40, 40, 70, 70)], [0, 1, ANY_CLASS], crowd=[False, False, True])
    found = found_of([NOWHERE, NOWHERE, FIRST, SECOND], labels=[0, 1, 0, 1])
    for judge in (coco, voc):
        assert judge([found], [truth]).values[0].tolist() == pytest.approx([1, 1, 1])


def test_classes_without_a_counted_box_have_no_figure_and_count_in_no_mean() -> None:
    pytest.importorskip("pycocotools")
    truth = truth_of([FIRST, SECOND], [4, 7], difficult=[False, True])
    for judge in (coco, voc):
        measured = judge([found_of([FIRST, NOWHERE], labels=[4, 2])], [truth])
        assert measured.classes == (4,)
        assert measured.value(measured.metrics[0]) == pytest.approx(1)
        assert measured.facts == {"boxes": 1, "detections": 2}


def test_images_that_show_a_class_are_counted() -> None:
    pytest.importorskip("pycocotools")
    truths = [truth_of([FIRST, SECOND], [0, 1]), truth_of([FIRST], [0]), truth_of([], [])]
    for judge in (coco, voc):
        assert judge([found_of([FIRST])] * 3, truths).images_of == (2, 1)


def test_nothing_found_is_nothing() -> None:
    pytest.importorskip("pycocotools")
    for judge in (coco, voc):
        measured = judge([found_of([])], [BOTH])
        assert measured.values[:, 0].tolist() == [0, 0]
        assert measured.resampled(ones(1))[0, :, 0].tolist() == [0, 0]


def test_nothing_to_find_is_refused() -> None:
    for judge in (coco, voc):
        with pytest.raises(QdqError, match=r"no box .* 1 images"):
            judge([found_of([FIRST])], [truth_of([FIRST], [0], difficult=[True])])


def test_without_pycocotools_voc_works_and_coco_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("pycocotools"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert voc([found_of([FIRST])], [BOTH]).value("voc_ap") == 0.5
    with pytest.raises(MissingPackageError, match=r"qdqtool\[eval\].*--metric voc") as caught:
        coco([found_of([FIRST])], [BOTH])
    assert caught.value.exit_code == 3


def test_pycocotools_stays_silent(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycocotools")
    coco([found_of([FIRST])], [BOTH])
    assert capsys.readouterr().out == ""
