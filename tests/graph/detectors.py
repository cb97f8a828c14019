# SPDX-License-Identifier: Apache-2.0
"""Detectors in two stages and by queries, networks that are no detectors, and the list of every network at hand.

Each function builds one graph and writes down, beside every head that it makes, which label that head has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from onnx import TensorProto

from tests.graph import single_shot
from tests.graph.netwriter import Net, WrittenDetector

# ---------------------------------------------------------------------- points, regions, queries


def centernet(decode: bool = False) -> WrittenDetector:
    net = Net("centernet")
    x = net.backbone()[1]
    deep = {part: net.act(net.conv(x, 16, f"/{part}/{part}.0")) for part in ("hm", "wh", "reg")}
    heat = net.op("Sigmoid", net.head(deep["hm"], 3, "/hm/hm.2", "score"))
    size = net.head(deep["wh"], 2, "/wh/wh.2", "regression")
    offset = net.head(deep["reg"], 2, "/reg/reg.2", "regression")
    if not decode:
        return net.done(heat, size, offset)
    peak = net.op("MaxPool", heat, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    keep = net.op("Cast", net.op("Equal", peak, heat), to=TensorProto.FLOAT)
    best = net.op("Reshape", net.op("Mul", heat, keep), net.ints(1, -1))
    score, index = net.many("TopK", best, net.ints(10), axis=1, outputs=2)
    cell = net.op("Mod", index, net.const(256, np.int64))
    column = net.op("Cast", net.op("Mod", cell, net.const(16, np.int64)), to=TensorProto.FLOAT)
    pick = net.op("Expand", net.op("Unsqueeze", cell, net.ints(1)), net.ints(1, 2, 10))
    size, offset = (
        net.op("GatherElements", net.op("Reshape", part, net.ints(1, 2, -1)), pick, axis=2) for part in (size, offset)
    )
    center = net.op("Add", offset, net.op("Unsqueeze", column, net.ints(1)))
    half = net.op("Div", size, net.const(2.0))
    corners = net.concat(net.op("Sub", center, half), net.op("Add", center, half), axis=1)
    return net.done(score, net.op("Mul", corners, net.const(4.0)))


def _proposals(net: Net, x: str) -> str:
    """RPN: the best anchors by their logits, decoded, filtered by size, and kept by NMS; boxes K, 4."""
    deep = net.act(net.conv(x, 16, "/rpn/head/conv"))
    logits = net.rows(net.head(deep, 3, "/rpn/head/cls_logits", "score"), 1)
    deltas = net.rows(net.head(deep, 12, "/rpn/head/bbox_pred", "regression"), 4)
    flat = net.op("Reshape", logits, net.ints(1, -1))
    _, best = net.many("TopK", flat, net.ints(20), axis=1, outputs=2)
    best = net.op("Squeeze", best, net.ints(0))
    chance = net.op("Sigmoid", net.op("Gather", flat, best, axis=1))
    anchors = net.random(48, 4)
    center = net.op(
        "Add", net.op("Mul", net.cut(deltas, 0, 2, 2), net.cut(anchors, 2, 4, 1)), net.cut(anchors, 0, 2, 1)
    )
    size = net.op("Exp", net.op("Clip", net.cut(deltas, 2, 4, 2), "", net.const(4.13)))
    boxes = net.op("Gather", net.concat(center, net.op("Add", center, size), axis=2), best, axis=1)
    rows = net.op("Squeeze", boxes, net.ints(0))
    large = net.op("GreaterOrEqual", net.op("Gather", rows, net.const(2, np.int64), axis=1), net.const(-1e3))
    kept = net.op("Squeeze", net.op("NonZero", large), net.ints(0))
    boxes, chance = net.op("Gather", boxes, kept, axis=1), net.op("Gather", chance, kept, axis=1)
    chance = net.op("Unsqueeze", chance, net.ints(1))
    kept = net.op("NonMaxSuppression", boxes, chance, net.ints(8), net.const([0.7]), net.const([0.0]))
    kept = net.op("Gather", kept, net.const(2, np.int64), axis=1)
    return net.op("Gather", net.op("Squeeze", boxes, net.ints(0)), kept, axis=0)


def faster_rcnn() -> WrittenDetector:
    net = Net("faster_rcnn")
    x = net.conv(net.backbone()[-1], 16, "/fpn/layer_blocks.0")
    rois = _proposals(net, x)
    # torchvision sends each region to its level: indices made of the boxes carry no value into the second stage
    widths = net.op("Gather", rois, net.const(2, np.int64), axis=1)
    level = net.op("Greater", widths, net.const(-1e6))
    here = net.op("Squeeze", net.op("NonZero", level), net.ints(0))
    first = net.op("Mul", here, net.const(0, np.int64))
    regions = net.op("Gather", rois, here, axis=0)
    crops = net.op("RoiAlign", x, regions, first, output_height=4, output_width=4, spatial_scale=0.0625)
    crops = net.op("Gather", crops, here, axis=0)
    deep = net.op("Relu", net.gemm(net.op("Flatten", crops, axis=1), 256, 32, "/box_head/fc6"))
    deep = net.op("Relu", net.gemm(deep, 32, 32, "/box_head/fc7"))
    net.heads |= {"/box_predictor/cls_score/Gemm": "score", "/box_predictor/bbox_pred/Gemm": "regression"}
    scores = net.op("Softmax", net.gemm(deep, 32, 4, "/box_predictor/cls_score"), axis=-1)
    deltas = net.op("Reshape", net.gemm(deep, 32, 16, "/box_predictor/bbox_pred"), net.ints(-1, 4, 4))
    deltas = net.op("Div", deltas, net.const([10.0, 10.0, 5.0, 5.0]))
    center = net.op("Add", net.cut(deltas, 0, 2, 2), net.op("Unsqueeze", net.cut(rois, 0, 2, 1), net.ints(1)))
    size = net.op("Exp", net.cut(deltas, 2, 4, 2))
    boxes = net.op("Gather", net.concat(center, net.op("Add", center, size), axis=2), net.const(1, np.int64), axis=1)
    person = net.op("Gather", scores, net.ints(1), axis=1)
    limits = net.ints(8), net.const([0.5]), net.const([0.05])
    batch = net.op("Unsqueeze", boxes, net.ints(0))
    chance = net.op("Unsqueeze", net.op("Transpose", person, perm=[1, 0]), net.ints(0))
    kept = net.op("Gather", net.op("NonMaxSuppression", batch, chance, *limits), net.const(2, np.int64), axis=1)
    return net.done(net.op("Gather", boxes, kept, axis=0), net.op("Gather", person, kept, axis=0))


def _inverse_sigmoid(net: Net, x: str) -> str:
    low = net.op("Clip", x, net.const(1e-5), "")
    rest = net.op("Clip", net.op("Sub", net.const(1.0), x), net.const(1e-5), "")
    return net.op("Log", net.op("Div", low, rest))


def _mlp(net: Net, x: str, out: int, name: str, wide: int = 16) -> str:
    for index in range(2):
        x = net.op("Relu", net.matmul(x, wide if index == 0 else 16, 16, f"{name}/layers.{index}"))
    return net.matmul(x, 16, out, f"{name}/layers.2")


def _attention(net: Net, x: str, memory: str, name: str) -> str:
    """Learned queries are constant, and so is their projection, which exporters fold."""
    query = net.random(1, 10, 16) if x in net.weights else net.matmul(x, 16, 16, f"{name}/q")
    key, value = net.matmul(memory, 16, 16, f"{name}/k"), net.matmul(memory, 16, 16, f"{name}/v")
    weights = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 1]))
    weights = net.op("Softmax", net.op("Div", weights, net.const(4.0)), axis=-1)
    return net.op("Add", x, net.matmul(net.op("MatMul", weights, value), 16, 16, f"{name}/out"))


def _sequence(net: Net, x: str) -> str:
    return net.op("Transpose", net.op("Reshape", x, net.ints(1, 16, -1)), perm=[0, 2, 1])


def rt_detr() -> WrittenDetector:
    """Queries picked by TopK; each layer refines the box of the one before, so every box is on a way to the output."""
    net = Net("rt_detr")
    memory = _sequence(net, net.conv(net.backbone(kind="Silu")[2], 16, "/encoder/input_proj", 1))
    net.heads |= {"/decoder/enc_score_head/MatMul": "score", "/decoder/enc_bbox_head/layers.2/MatMul": "regression"}
    logits = net.matmul(memory, 16, 3, "/decoder/enc_score_head")
    _, best = net.many("TopK", net.op("ReduceMax", logits, axes=[-1], keepdims=0), net.ints(10), axis=1, outputs=2)
    unact = net.op("Add", _mlp(net, memory, 4, "/decoder/enc_bbox_head"), net.random(1, 64, 4))
    best = net.op("Unsqueeze", best, net.ints(2))
    unact = net.op("GatherElements", unact, net.op("Expand", best, net.ints(1, 10, 4)), axis=1)
    x = net.op("GatherElements", memory, net.op("Expand", best, net.ints(1, 10, 16)), axis=1)
    reference = net.op("Sigmoid", unact)
    for layer in range(2):
        x = net.op("Add", x, _mlp(net, reference, 16, f"/decoder/query_pos_head_{layer}", 4))
        x = _attention(net, _attention(net, x, x, f"/decoder/{layer}/self"), memory, f"/decoder/{layer}/cross")
        delta = _mlp(net, x, 4, f"/decoder/dec_bbox_head.{layer}")
        reference = net.op("Sigmoid", net.op("Add", delta, _inverse_sigmoid(net, reference)))
    net.heads |= {f"/decoder/dec_bbox_head.{layer}/layers.2/MatMul": "regression" for layer in range(2)}
    net.heads["/decoder/dec_score_head.1/MatMul"] = "score"
    scores = net.op("Sigmoid", net.matmul(x, 16, 3, "/decoder/dec_score_head.1"))
    score, index = net.many("TopK", net.op("Reshape", scores, net.ints(1, -1)), net.ints(5), axis=1, outputs=2)
    query = net.op("Unsqueeze", net.op("Div", index, net.const(3, np.int64)), net.ints(2))
    boxes = net.op("GatherElements", reference, net.op("Expand", query, net.ints(1, 5, 4)), axis=1)
    return net.done(boxes, score, net.op("Mod", index, net.const(3, np.int64)))


def detr() -> WrittenDetector:
    """Without post-processing: raw class logits, beside normalized boxes after a Sigmoid."""
    net = Net("detr")
    memory = _sequence(net, net.conv(net.backbone()[2], 16, "/input_proj", 1))
    x = _attention(net, net.random(1, 10, 16), memory, "/transformer/decoder/layers.0")
    net.heads |= {"/class_embed/MatMul": "last layer", "/bbox_embed/layers.2/MatMul": "regression"}
    logits = net.matmul(x, 16, 6, "/class_embed")
    return net.done(logits, net.op("Sigmoid", _mlp(net, x, 4, "/bbox_embed")))


# ---------------------------------------------------------------------- no detectors, or nearly


def classifier(form: str = "gemm") -> WrittenDetector:
    """Logits by Gemm, by a convolution and a global pool, or chances by Softmax."""
    net = Net("classifier")
    x = net.backbone()[-1]
    if form == "conv":
        y = net.op("GlobalAveragePool", net.op("Relu", net.head(x, 5, "/classifier/classifier.1", "last layer")))
        return net.done(net.op("Flatten", y, axis=1))
    net.heads["/fc/Gemm"] = "last layer"
    y = net.gemm(net.op("Flatten", net.op("GlobalAveragePool", x), axis=1), 16, 5, "/fc")
    return net.done(net.op("Softmax", y, axis=1) if form == "softmax" else y)


def landmarks() -> WrittenDetector:
    """Ten coordinates by one Gemm: no graph tells them from ten logits, so it is called what a classifier's is."""
    net = Net("landmarks")
    flat = net.op("Flatten", net.op("GlobalAveragePool", net.backbone()[-1]), axis=1)
    net.heads["/output_layer/Gemm"] = "last layer"
    return net.done(net.gemm(flat, 16, 10, "/output_layer"))


def age_gender() -> WrittenDetector:
    net = Net("age_gender")
    flat = net.op("Flatten", net.op("GlobalAveragePool", net.backbone()[-1]), axis=1)
    deep = net.op("Relu", net.gemm(flat, 16, 16, "/fc1"))
    net.heads |= {"/age/Gemm": "regression", "/gender/Gemm": "score"}
    return net.done(net.gemm(deep, 16, 1, "/age"), net.op("Softmax", net.gemm(deep, 16, 2, "/gender"), axis=1))


def mtcnn_rnet() -> WrittenDetector:
    net = Net("mtcnn_rnet")
    flat = net.op("Flatten", net.backbone(3, "Relu")[-1], axis=1)
    deep = net.op("Relu", net.gemm(flat, 16 * 64, 16, "/dense4"))
    kinds = {"/dense5_1/Gemm": "score", "/dense5_2/Gemm": "regression", "/dense5_3/Gemm": "regression"}
    net.heads |= kinds
    chance = net.op("Softmax", net.gemm(deep, 16, 2, "/dense5_1"), axis=1)
    return net.done(chance, net.gemm(deep, 16, 4, "/dense5_2"), net.gemm(deep, 16, 10, "/dense5_3"))


def segmentation(form: str = "sigmoid") -> WrittenDetector:
    """A mask after a Sigmoid, raw logits, or the class of each pixel."""
    net = Net("segmentation")
    features = net.backbone(3)
    up = net.op("Resize", features[1], "", net.const([1, 1, 2, 2]), mode="nearest")
    x = net.block(net.concat(up, features[0], axis=1), 8, "/decoder/fuse")
    y = net.head(x, 3, "/decoder/classifier", "regression" if form == "raw" else "score")
    y = net.op("Resize", y, "", net.const([1, 1, 2, 2]), mode="linear")
    if form == "argmax":
        return net.done(net.op("ArgMax", y, axis=1))
    return net.done(net.op("Sigmoid", y) if form == "sigmoid" else y)


def super_resolution(long_skip: bool = False) -> WrittenDetector:
    net = Net("super_resolution")
    x = "images"
    for index in range(3):
        x = net.op("Relu", net.conv(x, 8, f"/body/body.{index}"))
    y = net.op("DepthToSpace", net.head(x, 12, "/upsampler/upsampler.0", "regression", 3), blocksize=2, mode="CRD")
    if long_skip:
        y = net.op("Add", y, net.op("Resize", "images", "", net.const([1, 1, 2, 2]), mode="linear"))
    return net.done(y)


DETECTORS: dict[str, Callable[[], WrittenDetector]] = {
    "detectnet_v2": single_shot.detectnet_v2,
    "ssd": partial(single_shot.ssd, raw=True),
    "ssd-nms": single_shot.ssd,
    "dssd": single_shot.dssd,
    "yunet": single_shot.yunet,
    "nanodet": single_shot.nanodet,
    "yolov3": single_shot.yolov3,
    "yolov4": single_shot.yolov4,
    "yolov5": single_shot.yolov5,
    "yolov5-slices": partial(single_shot.yolov5, "slice"),
    "yolov5-raw": partial(single_shot.yolov5, "raw"),
    "yolov7-end2end": single_shot.yolov7_end2end,
    "yolov8": single_shot.yolov8,
    "yolov8-matmul": partial(single_shot.yolov8, "matmul"),
    "yolov8-reducesum": partial(single_shot.yolov8, "sum"),
    "yolov8-dynamic": partial(single_shot.yolov8, dynamic=True),
    "yolox": single_shot.yolox,
    "fcos": single_shot.fcos,
    "fcos-joined": partial(single_shot.fcos, joined=True),
    "retinanet": single_shot.retinanet,
    "retinanet-decode": partial(single_shot.retinanet, decode=True),
    "efficientdet": single_shot.efficientdet,
    "centernet": centernet,
    "centernet-decode": partial(centernet, decode=True),
    "faster_rcnn": faster_rcnn,
    "rt_detr": rt_detr,
    "detr": detr,
    "classifier": classifier,
    "classifier-conv": partial(classifier, "conv"),
    "classifier-softmax": partial(classifier, "softmax"),
    "landmarks": landmarks,
    "age_gender": age_gender,
    "mtcnn_rnet": mtcnn_rnet,
    "segmentation": segmentation,
    "segmentation-raw": partial(segmentation, "raw"),
    "segmentation-argmax": partial(segmentation, "argmax"),
    "super_resolution": super_resolution,
    "super_resolution-skip": partial(super_resolution, long_skip=True),
}
