# SPDX-License-Identifier: Apache-2.0
"""Losses of detectors on boxes: values against the papers' formulas in float64, gradients by finite differences."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.decode.grids import all_cells
from qdqtool.evaluation.decode.head import HeadDecoder, RecognizedHead
from qdqtool.evaluation.decode.priors import PRIOR_SETS, make_priors
from qdqtool.evaluation.decode_options import Selection
from qdqtool.training.losses.box_losses import BoxLoss, box_loss
from qdqtool.training.losses.box_targets import IGNORED, hungarian, matched_priors, mined, simota, task_aligned
from qdqtool.training.losses.labels import label_feeds
from qdqtool.training.losses.loss_graph import LossGraph, append_losses
from qdqtool.training.losses.options import LossOptions
from tests.training.losses.loss_graphs import gradients_of, outputs_of

Floats = npt.NDArray[np.float64]
Values = dict[str, Floats]

SIZE, CLASSES, STRIDES = (64, 64), 3, (8, 16, 32)
WIDE = (128, 128)  # a place for each stride of RetinaNet
CELLS, STEPS = all_cells(SIZE, STRIDES)
CENTERS = (CELLS + 0.5) * STEPS
PLACES = len(CELLS)
PRIORS = make_priors(PRIOR_SETS["UltraFace"], SIZE)
TRUTH = np.array(
    [
        [[0, 6, 5, 29, 33], [2, 34, 30, 62, 60], [1, 40, 4, 52, 17]],
        [[1, 10, 20, 50, 58], [-1, 0, 0, 0, 0], [-1, 0, 0, 0, 0]],
    ],
    np.float32,
)  # class and corners; the second image has one box


def head(
    nodes: list[tuple[str, list[str], str, dict[str, Any]]], values: Values, outputs: list[str]
) -> onnx.ModelProto:
    """A head whose maps are parameters."""
    made = [helper.make_node(op, inputs, [name], **more) for op, inputs, name, more in nodes]
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in values.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(made, "head", [], ends, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def graph_of(
    model: onnx.ModelProto, decoder: str = "auto", size: tuple[int, int] = SIZE
) -> tuple[BoxLoss, LossGraph, dict[str, Any]]:
    """The loss of a head on `TRUTH`, and what it is fed."""
    found = outputs_of(model, {})
    loss = box_loss(find_decoder(decoder, found, size), size)
    known = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    described = (*model.graph.value_info, *model.graph.output)
    shapes = known | {one.name: tuple(d.dim_value for d in one.type.tensor_type.shape.dim) for one in described}
    graph = append_losses(model, (), LossOptions(boxes=loss), None, shapes)
    return loss, graph, label_feeds(graph.label_specs, loss.targets(TRUTH, found), "data")


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def entropy(x: Floats, y: Floats) -> Floats:
    return np.logaddexp(0, x) - x * y


def iou_and_distance(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    both = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both
    hull = np.maximum(a[..., 2:], b[..., 2:]) - np.minimum(a[..., :2], b[..., :2])
    apart = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) / 2
    return both / union, (apart**2).sum(-1) / (hull**2).sum(-1)


def by_corners(middle: Floats, sides: Floats) -> Floats:
    return np.concatenate((middle - sides / 2, middle + sides / 2), -1)


# ------------------------------------------------------------------ heads: a model, and its loss in float64


def rows_near_truth(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Centers and sides of a prediction at every place, not far from some box."""
    middle = CENTERS + rng.uniform(-3, 3, (2, PLACES, 2))
    return middle, rng.uniform(14, 30, (2, PLACES, 2))


def yolox() -> tuple[onnx.ModelProto, Callable[[Values, Mapping[str, Any]], float], Values]:
    rng = np.random.default_rng(1)
    middle, sides = rows_near_truth(rng)
    box = np.concatenate((middle / STEPS - CELLS, np.log(sides / STEPS)), -1).swapaxes(1, 2)
    values = {"box": box, "object": rng.normal(-2, 1, (2, 1, PLACES)), "named": rng.normal(-1, 1, (2, CLASSES, PLACES))}
    nodes = [
        ("Sigmoid", ["object"], "p_object", {}),
        ("Sigmoid", ["named"], "p_named", {}),
        ("Concat", ["box", "p_object", "p_named"], "map", {"axis": 1}),
        ("Transpose", ["map"], "output", {"perm": [0, 2, 1]}),
    ]

    def loss(v: Values, t: Mapping[str, Any]) -> float:
        rows = v["box"].swapaxes(1, 2)
        boxes = by_corners((rows[..., :2] + CELLS) * STEPS, np.exp(rows[..., 2:]) * STEPS)
        matched = np.asarray(t["boxes/matched"], np.float64)[..., 0]
        iou, _ = iou_and_distance(boxes, np.asarray(t["boxes/corners"], np.float64))
        named = entropy(v["named"].swapaxes(1, 2), t["boxes/classes"]).sum(-1)
        total = matched.sum()
        assert total > 4
        return float((5 * ((1 - iou**2) + named / 5) * matched).sum() / total) + float(
            entropy(v["object"][:, 0], matched).sum() / total
        )

    return head(nodes, values, ["output"]), loss, values


def yolov8() -> tuple[onnx.ModelProto, Callable[[Values, Mapping[str, Any]], float], Values]:
    rng = np.random.default_rng(2)
    middle, sides = rows_near_truth(rng)
    values = {"box": np.concatenate((middle, sides), -1).swapaxes(1, 2), "named": rng.normal(-1, 1, (2, 3, PLACES))}
    nodes = [
        ("Sigmoid", ["named"], "p_named", {}),
        ("Concat", ["box", "p_named"], "output", {"axis": 1}),
    ]

    def loss(v: Values, t: Mapping[str, Any]) -> float:
        rows = v["box"].swapaxes(1, 2)
        iou, far = iou_and_distance(by_corners(rows[..., :2], rows[..., 2:]), np.asarray(t["boxes/corners"], float))
        quality = np.asarray(t["boxes/classes"], np.float64)
        total = max(quality.sum(), 1.0)
        missed = (
            7.5 * ((1 - iou + far) * quality.sum(-1)).sum() + 0.5 * entropy(v["named"].swapaxes(1, 2), quality).sum()
        )
        return float(missed / total)

    return head(nodes, values, ["output"]), loss, values


def yolov8_maps() -> tuple[onnx.ModelProto, Callable[[Values, Mapping[str, Any]], float], Values]:
    rng = np.random.default_rng(3)
    values = {f"m{s}": rng.normal(0, 1, (2, 64 + CLASSES, 64 // s, 64 // s)) for s in STRIDES}
    nodes = [("Identity", [name], f"out_{name}", {}) for name in values]

    def loss(v: Values, t: Mapping[str, Any]) -> float:
        rows = np.concatenate([one.reshape(2, 64 + CLASSES, -1) for one in v.values()], 2).swapaxes(1, 2)
        bins = rows[..., :64].reshape(2, PLACES, 4, 16)
        shares = np.exp(bins - bins.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        away = (shares * np.arange(16)).sum(-1) * STEPS
        boxes = np.concatenate((CENTERS - away[..., :2], CENTERS + away[..., 2:]), -1)
        wanted = np.asarray(t["boxes/corners"], np.float64)
        quality = np.asarray(t["boxes/classes"], np.float64)
        weight, total = quality.sum(-1), max(quality.sum(), 1.0)
        iou, far = iou_and_distance(boxes, wanted)
        ideal = np.concatenate((CENTERS - wanted[..., :2], wanted[..., 2:] - CENTERS), -1) / STEPS
        ideal = np.clip(ideal, 0, 14.99)
        low = np.floor(ideal).astype(int)
        picked = [np.log(np.take_along_axis(shares, (low + k)[..., None], -1))[..., 0] for k in (0, 1)]
        dfl = -(picked[0] * (low + 1 - ideal) + picked[1] * (ideal - low)).mean(-1)
        box = 7.5 * ((1 - iou + far) * weight).sum() + 1.5 * (dfl * weight).sum()
        return float((box + 0.5 * entropy(rows[..., 64:], quality).sum()) / total)

    return head(nodes, values, [f"out_{name}" for name in values]), loss, values


def ssd(*, decoded: bool) -> tuple[onnx.ModelProto, Callable[[Values, Mapping[str, Any]], float], Values]:
    rng = np.random.default_rng(4)
    offsets = rng.normal(0, 0.5, (2, len(PRIORS), 4))
    if decoded:
        sides = np.exp(offsets[..., 2:] * 0.2) * PRIORS[:, 2:]
        offsets = by_corners(PRIORS[:, :2] + offsets[..., :2] * 0.1 * PRIORS[:, 2:], sides)
    values = {"offsets": offsets, "scores": rng.normal(0, 1, (2, len(PRIORS), CLASSES + 1))}
    nodes = [("Identity", ["offsets"], "boxes", {}), ("Softmax", ["scores"], "named", {"axis": 2})]

    def loss(v: Values, t: Mapping[str, Any]) -> float:
        x = v["offsets"]
        if decoded:
            sides = x[..., 2:] - x[..., :2]
            middle = ((x[..., :2] + x[..., 2:]) / 2 - PRIORS[:, :2]) / PRIORS[:, 2:] / 0.1
            x = np.concatenate((middle, np.log(sides / PRIORS[:, 2:]) / 0.2), -1)
        matched, numbers = np.asarray(t["boxes/matched"], np.float64), t["boxes/classes"]
        d = np.abs(x - t["boxes/offsets"])
        box = (np.where(d < 1, d * d / 2, d - 0.5).sum(-1) * matched).sum()
        log_p = v["scores"] - np.logaddexp.reduce(v["scores"], -1, keepdims=True)
        picked = np.take_along_axis(log_p, np.maximum(numbers, 0)[..., None], -1)[..., 0]
        assert (numbers == 0).sum() == 3 * matched.sum()
        return float((box - (picked * (numbers >= 0)).sum()) / matched.sum())

    return head(nodes, values, ["boxes", "named"]), loss, values


def giou(a: Floats, b: Floats) -> Floats:
    iou, _ = iou_and_distance(a, b)
    hull = (np.maximum(a[..., 2:], b[..., 2:]) - np.minimum(a[..., :2], b[..., :2])).prod(-1)
    areas = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1)
    union = areas / (1 + iou)
    return iou - (hull - union) / hull


def retinanet(form: str) -> tuple[onnx.ModelProto, Callable[[Values, Mapping[str, Any]], float], Values]:
    """EfficientDet's outputs: joined to one each, or maps of five strides, channels first or last."""
    rng = np.random.default_rng(6)
    strides, each = (8, 16, 32, 64, 128), 9
    cells = [(WIDE[0] // s) ** 2 for s in strides]
    values, nodes, names = {}, list[tuple[str, list[str], str, dict[str, Any]]](), [list[str](), list[str]()]
    for side, numbers, spread in ((0, CLASSES, -3.0), (1, 4, 0.0)):
        for stride, count in zip(strides, cells, strict=True):
            length = WIDE[0] // stride
            shape = {"joined": (2, count * each, numbers), "last": (2, length, length, each * numbers)}
            name = f"v{side}_{stride}"
            values[name] = rng.normal(spread, 0.5, shape.get(form, (2, each * numbers, length, length)))
            nodes.append(("Sigmoid" if side == 0 else "Identity", [name], f"o{name}", {}))
            names[side].append(f"o{name}")
    outputs = [*names[0], *names[1]]
    if form == "joined":
        nodes += [("Concat", names[0], "scores", {"axis": 1}), ("Concat", names[1], "boxes", {"axis": 1})]
        outputs = ["scores", "boxes"]

    def loss(v: Values, t: Mapping[str, Any]) -> float:
        def rows(side: int, numbers: int) -> Floats:
            maps = [v[f"v{side}_{stride}"] for stride in strides]
            maps = [one.transpose(0, 2, 3, 1) if form == "first" else one for one in maps]
            return np.concatenate([one.reshape(2, -1, numbers) for one in maps], 1)

        x, y = rows(0, CLASSES), np.asarray(t["boxes/classes"], np.float64)
        matched = np.asarray(t["boxes/matched"], np.float64)
        p = sigmoid(x)
        missed = np.where(y == 1, 0.25 * (1 - p) ** 2 * -np.log(p), 0.75 * p**2 * -np.log(1 - p)) * (y >= 0)
        d = np.abs(rows(1, 4) - t["boxes/offsets"])
        box = np.where(d < 1 / 9, d * d * 4.5, d - 1 / 18).sum(-1) * matched
        assert matched.sum() > 8 and (y < 0).any()
        return float((missed.sum() + box.sum()) / matched.sum())

    return head(nodes, values, outputs), loss, values


def detr(*, sigmoids: bool) -> tuple[onnx.ModelProto, Callable[[Values, Mapping[str, Any]], float], Values]:
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 1, (2, 9, CLASSES + 1))
    logits[..., -1] += 0 if sigmoids else 4
    values = {"logits": logits[..., :CLASSES] - 3 if sigmoids else logits, "raw": rng.normal(-0.5, 0.7, (2, 9, 4))}
    nodes = [("Sigmoid" if sigmoids else "Identity", ["logits"], "classes", {}), ("Sigmoid", ["raw"], "boxes", {})]

    def loss(v: Values, t: Mapping[str, Any]) -> float:
        boxes, matched = sigmoid(v["raw"]), np.asarray(t["boxes/matched"], np.float64)
        assert matched.sum(1).tolist() == [3, 1]
        numbers = np.asarray(t["boxes/classes"])
        log_p = v["logits"] - np.logaddexp.reduce(v["logits"], -1, keepdims=True)
        if sigmoids:
            p = sigmoid(v["logits"])
            each = np.where(numbers == 1, -0.25 * (1 - p) ** 2 * np.log(p), -0.75 * p**2 * np.log(1 - p))
            named = 2 * each.sum() / matched.sum()
        else:
            weight = np.where(numbers == CLASSES, 0.1, 1.0)
            named = -(np.take_along_axis(log_p, numbers[..., None], -1)[..., 0] * weight).sum() / weight.sum()
        wanted = np.asarray(t["boxes/corners"], np.float64) / 64
        apart = np.abs(
            boxes - np.concatenate(((wanted[..., :2] + wanted[..., 2:]) / 2, wanted[..., 2:] - wanted[..., :2]), -1)
        )
        over = 1 - giou(by_corners(boxes[..., :2], boxes[..., 2:]), wanted)
        return float(named + ((5 * apart.sum(-1) + 2 * over) * matched).sum() / matched.sum())

    return head(nodes, values, ["classes", "boxes"]), loss, values


def detectnet() -> tuple[onnx.ModelProto, Callable[[Values, Mapping[str, Any]], float], Values]:
    rng = np.random.default_rng(9)
    values = {"cover": rng.normal(-2, 1, (2, CLASSES, 4, 4)), "sides": rng.normal(0.4, 0.5, (2, 4 * CLASSES, 4, 4))}
    nodes = [("Sigmoid", ["cover"], "output_cov", {}), ("Identity", ["sides"], "output_bbox", {})]

    def loss(v: Values, t: Mapping[str, Any]) -> float:
        covered = np.asarray(t["boxes/coverage"], np.float64)
        assert set(covered.ravel()) == {0, 1}
        missed = np.abs(v["sides"] - t["boxes/distances"]) * t["boxes/weight"]
        return float((entropy(v["cover"], covered) * np.where(covered == 1, 0.05, 0.95)).mean() + 10 * missed.mean())

    return head(nodes, values, ["output_cov", "output_bbox"]), loss, values


HEADS = {
    "yolox": yolox,
    "yolov8": yolov8,
    "yolov8 maps": yolov8_maps,
    "ssd": lambda: ssd(decoded=False),
    "ssd decoded": lambda: ssd(decoded=True),
    "efficientdet joined": lambda: retinanet("joined"),
    "efficientdet maps first": lambda: retinanet("first"),
    "efficientdet maps last": lambda: retinanet("last"),
    "detr": lambda: detr(sigmoids=False),
    "rtdetr": lambda: detr(sigmoids=True),
    "detectnet_v2": detectnet,
}


@pytest.mark.parametrize("name", HEADS)
def test_value_and_gradient_are_those_of_the_formula(name: str) -> None:
    if "detr" in name:
        pytest.importorskip("scipy", reason="SciPy matches queries to boxes")
    model, reference, values = HEADS[name]()
    _, graph, feeds = graph_of(
        model, {"yolov8": "yolov8,classes=3"}.get(name, name.split()[0]), WIDE if "efficientdet" in name else SIZE
    )
    assert float(outputs_of(graph.proto, feeds)[graph.loss]) == pytest.approx(reference(values, feeds), rel=1e-5)
    gradients = gradients_of(graph, tuple(values), feeds)
    for parameter, gradient in gradients.items():
        flat = np.abs(gradient).ravel()
        for place in np.argsort(-flat)[:: max(flat.size // 40, 1)][:12]:  # large ones and small ones
            sides = []
            for step in (1e-6, -1e-6):
                moved = {key: one.copy() for key, one in values.items()}
                moved[parameter].flat[place] += step
                sides.append(reference(moved, feeds))
            wanted = (sides[0] - sides[1]) / 2e-6
            assert gradient.flat[place] == pytest.approx(wanted, rel=2e-3, abs=2e-6 * float(flat.max()) + 1e-8)


def test_a_head_without_a_loss_is_refused_by_one_line() -> None:
    queries = RecognizedHead(
        "queries", 1.0, lambda outputs, size: (np.zeros((1, 0, 4)), np.zeros((1, 0, 1), np.float32))
    )
    decoder = HeadDecoder("nms", queries, Selection())
    with pytest.raises(
        QdqError,
        match="nms has no loss on boxes; yolox, yolov8, ssd, efficientdet, detr, rtdetr, detectnet_v2 have one",
    ):
        box_loss(decoder, SIZE)


def test_matching_without_scipy_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    one = np.array([[0.0, 0, 1, 1]])
    with pytest.raises(MissingPackageError, match=r"SciPy: is not installed; pip install 'qdqtool\[detr\]'"):
        hungarian(one, np.ones((1, 1)), one, SIZE)


def test_probabilities_without_their_sigmoid_are_refused() -> None:
    model, _, _ = yolox()
    for node in model.graph.node:
        node.op_type = node.op_type.replace("Sigmoid", "Softplus")
    with pytest.raises(QdqError, match="output holds probabilities, and no Sigmoid that made them was found"):
        graph_of(model, "yolox,decoded=no")


# ------------------------------------------------------------------ targets


def test_simota_gives_a_box_as_many_places_as_its_best_ious_add_up_to() -> None:
    truth, labels = TRUTH[0, :2, 1:].astype(float), TRUTH[0, :2, 0].astype(int)
    boxes = np.tile(np.array([0.0, 0, 1, 1]), (PLACES, 1))
    near = np.flatnonzero((np.abs(CENTERS - (truth[0, :2] + truth[0, 2:]) / 2) < 1.5 * STEPS).all(-1))
    boxes[near[:3]] = truth[0]  # three perfect places: the ten best IoU add up to three
    found = simota(boxes, np.full((PLACES, CLASSES), 0.1), truth, labels, CENTERS, STEPS)
    assert np.flatnonzero(found.box == 0).tolist() == near[:3].tolist()
    assert found.quality[near[:3]].tolist() == [1, 1, 1]
    assert np.count_nonzero(found.box == 1) == 1  # the cheapest, however bad


def test_a_task_aligned_place_lies_in_its_box_and_the_best_has_its_iou() -> None:
    truth, labels = TRUTH[0, :, 1:].astype(float), TRUTH[0, :, 0].astype(int)
    rng = np.random.default_rng(5)
    boxes = np.concatenate((CENTERS - 12, CENTERS + 12), -1)
    scores = rng.uniform(0.01, 0.9, (PLACES, CLASSES))
    found = task_aligned(boxes, scores, truth, labels, CENTERS)
    for one, box in enumerate(truth):
        (rows,) = np.nonzero(found.box == one)
        assert 0 < len(rows) <= 10
        assert ((CENTERS[rows] > box[:2]) & (CENTERS[rows] < box[2:])).all()
        iou, _ = iou_and_distance(boxes[rows], box[None])
        assert found.quality[rows].max() == pytest.approx(iou.max(), rel=1e-4)


def test_every_box_has_its_best_prior_and_three_negatives_count_for_each() -> None:
    edges = by_corners(PRIORS[:, :2], PRIORS[:, 2:]) * 64
    tiny = np.array([[1.0, 1, 4, 4], [20, 20, 60, 60]])
    found = matched_priors(edges, tiny, 0.35)
    assert set(found.box) == {-1, 0, 1}
    positive = found.box >= 0
    background = np.linspace(1, 0, len(PRIORS))
    chosen = mined(background, positive)
    assert chosen.sum() == 3 * positive.sum()
    assert not (chosen & positive).any()
    assert background[chosen].max() <= background[~chosen & ~positive].min()


def test_an_anchor_between_background_and_answer_does_not_count() -> None:
    truth = np.array([[0.0, 0, 20, 20]])
    right = np.array([[0.0, 0, 20, 20], [0, 0, 20, 9], [0, 0, 20, 8], [0, 0, 20, 7], [30, 30, 50, 50]])
    found = matched_priors(right, truth, 0.5, 0.4)
    assert found.box.tolist() == [0, IGNORED, IGNORED, -1, -1]
    assert matched_priors(right[2:], truth, 0.5, 0.4).box.tolist() == [0, -1, -1]  # the best there is


def test_a_cell_in_the_ellipse_of_a_box_says_where_its_sides_are() -> None:
    model, _, _ = detectnet()
    loss, _, given = graph_of(model, "detectnet_v2")
    covered, weight = given["boxes/coverage"], given["boxes/weight"]
    assert np.argwhere(covered[0, 0]).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]  # radius 1 cell about (17.5, 19)
    assert weight[0, :4][:, covered[0, 0] == 1].ravel().tolist() == [1 / np.float32(4 * 28 / 23)] * 16
    x, y = 16.5, 16.5  # of cell 1, 1
    assert given["boxes/distances"][0, :4, 1, 1] * 35 == pytest.approx([x - 6, y - 5, 29 - x, 33 - y])
    predicted = {"output_cov": covered, "output_bbox": given["boxes/distances"]}
    decoder = find_decoder("detectnet_v2", predicted, SIZE)
    corners, scores = decoder.head.candidates(predicted, SIZE)
    for row in TRUTH[0]:
        own = corners[0][scores[0, :, int(row[0])] == 1]
        assert len(own) and own == pytest.approx(np.tile(row[1:], (len(own), 1)), abs=1e-4)
    assert loss.outputs == ("output_cov", "output_bbox")


def test_queries_are_matched_at_the_smallest_sum_of_costs() -> None:
    """Every assignment is tried; the costs are DETR's, term by term."""
    pytest.importorskip("scipy", reason="SciPy matches queries to boxes")
    rng = np.random.default_rng(8)
    truth, labels = TRUTH[0, :, 1:].astype(float), TRUTH[0, :, 0].astype(int)
    for _ in range(20):
        middle, sides = rng.uniform(8, 56, (6, 2)), rng.uniform(6, 40, (6, 2))
        boxes, scores = by_corners(middle, sides), rng.random((6, CLASSES))
        found = hungarian(boxes, -scores[:, labels], truth, SIZE)
        wanted = np.concatenate(((truth[:, :2] + truth[:, 2:]) / 2, truth[:, 2:] - truth[:, :2]), 1)
        apart = np.abs(np.concatenate((middle, sides), 1)[:, None] - wanted).sum(-1) / 64
        cost = 5 * apart - 2 * giou(boxes[:, None], truth[None]) - scores[:, labels]
        best = min(itertools.permutations(range(6), 3), key=lambda rows: cost[list(rows), range(3)].sum())
        assert [int(np.flatnonzero(found.box == one)[0]) for one in range(3)] == list(best)
        assert (found.box >= 0).sum() == 3
