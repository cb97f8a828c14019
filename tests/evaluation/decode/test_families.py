# SPDX-License-Identifier: Apache-2.0
"""Every family: boxes put into a synthetic head come back, by name and by recognition; other outputs are refused."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.decode.auto_detect import FAMILIES, find_decoder
from qdqtool.evaluation.decode.head import HeadDecoder, HeadOutputs
from qdqtool.evaluation.decode.yolox import _is_decoded
from qdqtool.evaluation.decode_options import Selection
from tests.evaluation.decode import head_makers as make
from tests.evaluation.decode import query_makers as queries
from tests.evaluation.decode.head_makers import Maker, boxes_in, check, identity

SIZE = (384, 256)
# name of the case -> family in --decoder, what makes its outputs, classes, sides of the boxes
CASES: dict[str, tuple[str, Maker, int, tuple[int, int]]] = {
    "yolox": ("yolox", make.yolox, 3, (36, 80)),
    "nanodet": ("nanodet", make.nanodet, 5, (36, 80)),
    "nanodet-plus": ("nanodet", make.nanodet_plus, 5, (40, 80)),
    "fastestdet": ("fastestdet", make.fastestdet, 4, (36, 80)),
    "yunet": ("yunet", make.yunet, 1, (36, 80)),
    "ssd, offsets": ("ssd", make.ssd, 2, (36, 80)),
    "ssd, decoded": ("ssd", partial(make.ssd, decoded=True), 2, (36, 80)),
    "ssd, logits": ("ssd", partial(make.ssd, logits=True), 2, (36, 80)),
    "retinaface": ("retinaface", make.retinaface, 1, (36, 80)),
    "yolov5, five axes": ("yolov5", make.yolov5, 3, (36, 80)),
    "yolov5, four axes": ("yolov5,classes=3", partial(make.yolov5, rank=4), 3, (36, 80)),
    "yolov5, decoded": ("yolov5", make.yolov5_decoded, 3, (36, 80)),
    "yolov8": ("yolov8", make.yolov8, 4, (40, 80)),
    "yolov8, two maps a stride": ("yolov8", partial(make.yolov8, split=True), 4, (40, 80)),
    "yolov8, decoded": ("yolov8", make.yolov8_decoded, 4, (36, 80)),
    "detectnet": ("detectnet_v2", make.detectnet, 3, (36, 80)),
    "efficientdet": ("efficientdet", make.efficientdet, 6, (36, 80)),
    "efficientdet, channels first": ("efficientdet", partial(make.efficientdet, form="nchw"), 6, (36, 80)),
    "efficientdet, channels last": ("efficientdet", partial(make.efficientdet, form="nhwc"), 6, (36, 80)),
    "nms, six": ("nms", make.ready, 5, (36, 80)),
    "nms, seven": ("nms", partial(make.ready, form="seven"), 5, (36, 80)),
    "nms, tensorflow": ("nms", partial(make.ready, form="tensorflow"), 5, (36, 80)),
    "detr": ("detr", queries.detr, 5, (36, 80)),
    "detr, chances": ("detr", partial(queries.detr, ready=True), 3, (36, 80)),
    "rtdetr": ("rtdetr", queries.rtdetr, 5, (36, 80)),
    "rtdetr, one class": ("rtdetr", queries.rtdetr, 1, (36, 80)),
    "rf-detr": ("rtdetr", partial(queries.rtdetr, form="rfdetr"), 4, (36, 80)),
    "rtdetr, rows": ("rtdetr", partial(queries.rtdetr, form="rows"), 5, (36, 80)),
    "rtdetr, picked": ("rtdetr", partial(queries.rtdetr, form="picked"), 5, (36, 80)),
    "rtdetr, parts": ("rtdetr", partial(queries.rtdetr, form="parts"), 5, (36, 80)),
    "nms, tensorrt": ("nms", partial(make.ready, form="tensorrt"), 5, (36, 80)),
}


def outputs_of(case: str, seed: int = 0) -> tuple[make.Outputs, list[make.Known]]:
    _, maker, classes, sides = CASES[case]
    known = boxes_in(SIZE, classes, seed, sides)
    return maker(known, SIZE, classes), known


def recognized(name: str, outputs: make.Outputs, size: tuple[int, int] = SIZE) -> HeadDecoder:
    return find_decoder(name, outputs, size, Selection(score=0.05))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_boxes_come_back_and_the_family_is_recognized(case: str, seed: int) -> None:
    outputs, known = outputs_of(case, seed)
    by_name = recognized(CASES[case][0], outputs)
    check(by_name(outputs, [identity(SIZE)])[0], known)
    settings = CASES[case][0].partition(",")[2]
    found = recognized("auto" + (f",{settings}" if settings else ""), outputs)
    assert (found.family, found.description) == (by_name.family, by_name.description)


@pytest.mark.parametrize("case", CASES)
def test_samples_of_a_batch_are_decoded_each_by_itself(case: str) -> None:
    (first, known), (second, others) = outputs_of(case, 3), outputs_of(case, 4)
    outputs = {name: np.concatenate((first[name], second[name])) for name in first}
    found = recognized(CASES[case][0], first)(outputs, [identity(SIZE)] * 2)
    check(found[0], known)
    check(found[1], others)


@pytest.mark.parametrize("case", CASES)
def test_each_family_refuses_the_outputs_of_the_others_with_a_reason(case: str) -> None:
    outputs, _ = outputs_of(case)
    own = CASES[case][0].partition(",")[0]
    for family in FAMILIES:
        if family == own:
            continue
        with pytest.raises(QdqError, match=f"--decoder {family}: does not fit"):
            recognized(family, outputs)


def test_told_says_what_was_seen_and_what_is_kept() -> None:
    reported = recognized("auto", outputs_of("yolox")[0]).description
    assert reported == "yolox: output [1, 2016, 8], 3 classes, strides 8, 16, 32; score above 0.05, NMS at IoU 0.65"
    found = find_decoder("auto", outputs_of("yunet")[0], SIZE, Selection(score=0.3, iou=0.5))
    assert found.description.endswith("faces; score above 0.3, NMS at IoU 0.5")
    assert "1 class and background" in recognized("ssd", make.ssd([], SIZE, 1, decoded=True)).description


def test_yolox_decoded_in_the_graph_shows_in_its_values() -> None:
    known = boxes_in(SIZE, 3, 5)
    raw = make.yolox(known, SIZE, 3)["output"]
    raw[..., 2:4] = np.where(raw[..., 4:5] > 0, raw[..., 2:4], 0.5)
    steps, cells = [], []
    for stride in (8, 16, 32):
        for line in range(SIZE[1] // stride):
            for column in range(SIZE[0] // stride):
                steps.append(stride)
                cells.append((column, line))
    step = np.array(steps, np.float32)[:, None]
    decoded = raw.copy()
    decoded[..., :2] = (raw[..., :2] + np.array(cells, np.float32)) * step
    decoded[..., 2:4] = np.exp(raw[..., 2:4]) * step
    for name in ("auto", "yolox,decoded=yes"):
        found = recognized(name, {"output": decoded})
        assert "decoded in the" in found.description
        check(found({"output": decoded}, [identity(SIZE)])[0], known)
    assert "strides" in recognized("yolox,decoded=no", {"output": decoded}).description
    assert "strides" in recognized("auto", {"output": raw}).description


def test_fastestdet_gives_a_cell_one_class_only() -> None:
    known = boxes_in(SIZE, 2, 6)
    outputs = make.fastestdet(known, SIZE, 2)
    for one in known:
        column, line = make.cell_of(one, 16)
        outputs["map"][0, 5 + (1 - one.label), line, column] = one.score * 0.9
    check(recognized("fastestdet", outputs)(outputs, [identity(SIZE)])[0], known)


def test_yunets_scores_are_cut_to_what_probabilities_can_be() -> None:
    """An INT8 model may give a little more than 1 or less than 0."""
    known = boxes_in(SIZE, 1, 10)
    for part, other in (("cls", "obj"), ("obj", "cls")):
        outputs = make.yunet(known, SIZE, 1)
        for stride in (8, 16, 32):
            found = outputs[f"obj_{stride}"] > 0
            outputs[f"{part}_{stride}"] = np.where(found, 1.3, -0.2).astype(np.float32)
            outputs[f"{other}_{stride}"] = np.where(found, 0.25, 0.9).astype(np.float32)
        with np.errstate(invalid="raise"):
            scores = recognized("yunet", outputs)(outputs, [identity(SIZE)])[0].scores
        np.testing.assert_allclose(scores, [0.5] * len(known))


def test_ssd_in_pixels_and_ssd_whose_shapes_alone_are_known() -> None:
    known = boxes_in(SIZE, 2, 7)
    outputs = make.ssd(known, SIZE, 2, decoded=True)
    outputs["boxes"] = (outputs["boxes"] + 5) * np.array(SIZE * 2, np.float32)  # shifted, so that the median tells
    found = recognized("ssd", outputs)(outputs, [dataclasses.replace(identity(SIZE), offset=(5.0 * 384, 5.0 * 256))])
    check(found[0], known)
    shapes = {name: value.shape for name, value in outputs.items()}
    with pytest.raises(QdqError, match="decoded=yes or decoded=no"):
        find_decoder("ssd", shapes, SIZE)
    assert "priors of UltraFace" in find_decoder("ssd,decoded=no", shapes, SIZE).description
    assert "decoded in the" in find_decoder("ssd,decoded=yes", shapes, SIZE).description


def test_ssd_with_priors_of_no_known_number() -> None:
    rng = np.random.default_rng(0)
    outputs = {"scores": np.zeros((1, 77, 3)), "boxes": rng.normal(size=(1, 77, 4))}
    with pytest.raises(QdqError, match="77 priors for 384x256"):
        recognized("ssd", outputs)


@pytest.mark.parametrize(("count", "reported"), [(8732, "SSD300 of VGG"), (3000, "SSD300 of MobileNet")])
def test_ssd300_is_known_by_its_number_of_priors(count: int, reported: str) -> None:
    rng = np.random.default_rng(0)
    outputs = {"scores": np.zeros((1, count, 21)), "boxes": rng.normal(size=(1, count, 4))}
    assert f"priors of {reported}" in recognized("auto", outputs, (300, 300)).description
    with pytest.raises(QdqError, match="no known set"):
        recognized("ssd", outputs, (320, 320))


def test_softmax_behind_logits_only() -> None:
    outputs, known = outputs_of("ssd, offsets")
    check(recognized("ssd", outputs)(outputs, [identity(SIZE)])[0], known)
    outputs["scores"] = outputs["scores"] * np.float32(1.05)  # what INT8 does to shares does not make them logits
    found = recognized("ssd", outputs)(outputs, [identity(SIZE)])[0]
    np.testing.assert_allclose(found.scores, [1.05 * one.score for one in known], rtol=1e-5)


def test_yolov5_anchors_can_be_given_and_must_be_as_many_as_the_maps_want() -> None:
    known = boxes_in(SIZE, 3, 8)
    outputs = make.yolov5(known, SIZE, 3)
    halved = ":".join(str(side / 2) for level in make.V5_ANCHORS for pair in level for side in pair)
    found = recognized(f"yolov5,anchors={halved}", outputs)(outputs, [identity(SIZE)])[0]
    for row, one in enumerate(known):
        wide = found.boxes[row, 2] - found.boxes[row, 0]
        assert wide == pytest.approx(one.sides[0] / 2, abs=0.01)
    with pytest.raises(QdqError, match="3 maps need 18 numbers as anchors=, there are 6"):
        recognized("yolov5,anchors=1:2:3:4:5:6", outputs)
    two = {name: outputs[name] for name in ("p8", "p16")}
    with pytest.raises(QdqError, match="2 maps need 12 numbers as anchors=, there are 0"):
        recognized("yolov5", two)


@pytest.mark.parametrize(
    ("shapes", "reported"),
    [
        ({"a": (1, 3, 32, 48, 8), "b": (1, 3, 16, 24, 8), "c": (1, 3, 8, 12, 9)}, "maps differ in classes"),
        ({"a": (1, 4, 32, 48, 8), "b": (1, 4, 16, 24, 8), "c": (1, 4, 8, 12, 8)}, "or have not three anchors"),
        (
            {"a": (1, 3, 32, 32, 8), "b": (1, 3, 16, 24, 8), "c": (1, 3, 8, 12, 8)},
            "another aspect ratio than the input",
        ),
        ({"a": (1, 3, 32, 48, 5), "b": (1, 3, 16, 24, 5), "c": (1, 3, 8, 12, 5)}, "a has 5 numbers an anchor"),
        ({"a": (1, 24, 32, 48), "b": (1, 27, 16, 24)}, "maps have 24, 27 channels, not 3"),
        ({"a": (1, 25, 32, 48), "b": (1, 25, 16, 24)}, "maps have 25 channels, not 3"),
    ],
)
def test_maps_that_are_not_yolov5s(shapes: dict[str, tuple[int, ...]], reported: str) -> None:
    with pytest.raises(QdqError, match=reported):
        find_decoder("yolov5", shapes, SIZE)


@pytest.mark.parametrize("case", ["nanodet", "ssd, offsets", "retinaface", "efficientdet", "detectnet"])
def test_an_output_too_many_is_another_model(case: str) -> None:
    outputs, _ = outputs_of(case)
    with pytest.raises(QdqError, match=f"--decoder {CASES[case][0].partition(',')[0]}: does not fit"):
        recognized(CASES[case][0], outputs | {"extra": np.zeros((1, 7, 7, 7), np.float32)})


def test_yolov5_maps_behind_a_sigmoid_get_no_second_one() -> None:
    known = boxes_in(SIZE, 3, 9)
    outputs = {name: 1 / (1 + np.exp(-value)) for name, value in make.yolov5(known, SIZE, 3).items()}
    found = recognized("yolov5", outputs)
    assert "after a sigmoid" in found.description
    check(found(outputs, [identity(SIZE)])[0], known, atol=0.01)


@pytest.mark.parametrize(("channels", "family"), [(255, "yolov5"), (144, "yolov8"), (84, ""), (85, "yolov8")])
def test_maps_whose_channels_fit_two_families_are_told_apart_or_refused(channels: int, family: str) -> None:
    shapes = {f"m{s}": (1, channels, SIZE[1] // s, SIZE[0] // s) for s in (8, 16, 32)}
    if family:
        assert find_decoder("auto", shapes, SIZE).family == family
        return
    with pytest.raises(QdqError, match=r"the outputs fit yolov5 \(.+23 classes.+; or yolov8 \(.+20 classes"):
        find_decoder("auto", shapes, SIZE)
    assert find_decoder("auto,classes=23", shapes, SIZE).family == "yolov5"
    assert find_decoder("auto,classes=20", shapes, SIZE).family == "yolov8"


def test_yolov8_with_masks_leaves_their_coefficients_out() -> None:
    outputs, known = outputs_of("yolov8, decoded")
    masks = np.ones((1, 32, outputs["output0"].shape[2]), np.float32)
    outputs = {"output0": np.concatenate((outputs["output0"], masks), 1), "output1": np.zeros((1, 32, 64, 96))}
    found = recognized("auto", outputs)
    assert "4 classes" in found.description
    check(found(outputs, [identity(SIZE)])[0], known)


def test_nms_rows_beyond_the_number_are_no_boxes() -> None:
    outputs, known = outputs_of("nms, tensorrt")
    outputs["num_dets"][:] = 2
    check(recognized("nms", outputs)(outputs, [identity(SIZE)])[0], known[:2])


def test_a_seen_output_is_listed_by_its_rank() -> None:
    seen = HeadOutputs({"a": (1, 2), "b": (1, 2, 3)})
    assert seen.of_rank(3) == {"b": (1, 2, 3)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("value", [3.4e38, -3.4e38, np.inf, np.nan])
def test_values_without_end_are_decoded_without_a_word(case: str, value: float) -> None:
    """What a damaged model gives out: boxes of it may be anything, numpy's warnings are for nobody."""
    outputs, _ = outputs_of(case)
    decoder = recognized(CASES[case][0], outputs)
    wild = {n: np.full_like(array, value) if array.dtype.kind == "f" else array for n, array in outputs.items()}
    count = len(next(iter(outputs.values())))
    with np.errstate(all="raise"):
        found = decoder(wild, [identity(SIZE)] * count)
    assert len(found) == count


@pytest.mark.filterwarnings("error")
def test_yolox_outputs_without_samples_are_not_decoded() -> None:
    assert not _is_decoded(np.zeros((0, 84, 7), np.float32))
