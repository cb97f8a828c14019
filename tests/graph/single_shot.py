# SPDX-License-Identifier: Apache-2.0
"""Single-shot detectors with few channels and random weights, in the structure that exporters give them.

Each function builds one graph and writes down, beside every head that it makes, which label that head has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tests.graph.netwriter import Net, WrittenDetector

# ---------------------------------------------------------------------- single shot, box and class apart


def detectnet_v2() -> WrittenDetector:
    net = Net("detectnet_v2")
    x = net.backbone()[-1]
    cov = net.op("Sigmoid", net.head(x, 3, "/output_cov", "score"))
    return net.done(cov, net.head(x, 12, "/output_bbox", "regression"))


def _priors(net: Net, boxes: str, count: int) -> str:
    """SSD's decode: variances, exponent, priors; then corners."""
    priors = net.random(count, 2), net.const(np.full((count, 2), 0.2))
    xy = net.op("Mul", net.op("Mul", net.cut(boxes, 0, 2, 2), net.const(0.1)), priors[1])
    wh = net.op("Exp", net.op("Mul", net.cut(boxes, 2, 2**31, -1), net.const(0.2)))
    center, size = net.op("Add", xy, priors[0]), net.op("Div", net.op("Mul", wh, priors[1]), net.const(2.0))
    return net.concat(net.op("Sub", center, size), net.op("Add", center, size), axis=2)


def _nms(net: Net, boxes: str, scores: str) -> str:
    """Boxes N, A, 4 and scores N, A, C with a background."""
    scores = net.cut(net.op("Transpose", scores, perm=[0, 2, 1]), 1, 2**31, 1)
    limits = net.ints(20), net.const([0.5]), net.const([0.01])
    return net.op("NonMaxSuppression", boxes, scores, *limits)


def _ssd_heads(net: Net, features: Sequence[str]) -> tuple[str, str]:
    boxes, scores = [], []
    for level, x in enumerate(features):
        boxes.append(net.rows(net.head(x, 16, f"/regression_headers.{level}", "regression", 3), 4))
        scores.append(net.rows(net.head(x, 12, f"/classification_headers.{level}", "score", 3), 3))
    return net.concat(*boxes, axis=1), net.op("Softmax", net.concat(*scores, axis=1), axis=2)


def ssd(raw: bool = False) -> WrittenDetector:
    net = Net("ssd")
    boxes, scores = _ssd_heads(net, net.backbone()[2:])
    if raw:
        return net.done(boxes, scores)
    decoded = _priors(net, boxes, 4 * (64 + 16))
    return net.done(decoded, scores, _nms(net, decoded, scores))


def dssd() -> WrittenDetector:
    net = Net("dssd")
    stem, small = net.backbone()[2:]
    weight = net.random(16, 16, 2, 2)
    up = net.op("ConvTranspose", small, weight, kernel_shape=[2, 2], strides=[2, 2], name="/deconv/ConvTranspose")
    lateral = net.norm(net.conv(stem, 16, "/lateral/conv"), "/lateral/bn")
    features = [net.act(net.op("Mul", net.norm(up, "/deconv/bn"), lateral)), small]
    for level, x in enumerate(features):
        skip, deep = net.conv(x, 16, f"/predict.{level}/skip", 1), net.block(x, 8, f"/predict.{level}/reduce", k=1)
        features[level] = net.op("Add", skip, net.conv(deep, 16, f"/predict.{level}/expand", 1))
    boxes, scores = _ssd_heads(net, features)
    return net.done(_priors(net, boxes, 4 * (64 + 16)), scores)


def yunet() -> WrittenDetector:
    net, outputs = Net("yunet"), []
    for stride, x in zip((4, 8, 16), net.backbone()[1:], strict=True):
        for kind, wide in {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}.items():
            label = "score" if wide == 1 else "regression"
            flat = net.rows(net.head(x, wide, f"/head/{kind}_{stride}", label), wide)
            outputs.append(net.op("Sigmoid", flat) if wide == 1 else flat)
    return net.done(*outputs)


# ---------------------------------------------------------------------- one convolution for boxes and classes


def nanodet() -> WrittenDetector:
    net, outputs = Net("nanodet"), []
    for level, x in enumerate(net.backbone(kind="LeakyRelu")[1:]):
        x = net.block(x, 16, f"/head/cls_convs.{level}.0", kind="LeakyRelu")
        y = net.head(x, 5 + 32, f"/head/gfl_cls.{level}", "mixed")
        scores, boxes = net.many("Split", y, net.ints(5, 32), axis=1, outputs=2)
        for part, wide in ((net.op("Sigmoid", scores), 5), (boxes, 32)):
            flat = net.op("Reshape", part, net.ints(1, wide, -1))
            outputs.append(net.op("Transpose", flat, perm=[0, 2, 1]))
    return net.done(*outputs)


def _anchor_map(net: Net, x: str, level: int, side: int, label: str) -> str:
    """N, 3 anchors, side, side, 9: four of a box, one of an object, four classes."""
    y = net.head(x, 27, f"/model.24/m.{level}", label)
    return net.op("Transpose", net.op("Reshape", y, net.ints(1, 3, 9, side, side)), perm=[0, 1, 3, 4, 2])


def _grid(net: Net, like: str) -> str:
    """The cells' offsets as a dynamic export computes them: 1, 1, H, W, 1 from the shape of the map itself."""
    side = net.op("Gather", net.op("Shape", like), net.const(3, np.int64), axis=0)
    cells = net.op("Range", net.const(0, np.int64), side, net.const(1, np.int64))
    return net.op("Reshape", net.op("Cast", cells, to=TensorProto.FLOAT), net.ints(1, 1, 1, -1, 1))


def yolov3() -> WrittenDetector:
    net, outputs = Net("yolov3"), []
    for level, (x, side) in enumerate(zip(net.backbone(kind="LeakyRelu")[2:], (8, 4), strict=True)):
        y = _anchor_map(net, x, level, side, "mixed")
        xy = net.op("Add", net.op("Sigmoid", net.cut(y, 0, 2, 4)), _grid(net, y))
        wh = net.op("Mul", net.op("Exp", net.cut(y, 2, 4, 4)), net.random(1, 3, 1, 1, 2))
        scaled = net.op("Mul", net.concat(xy, wh, axis=4), net.const(8.0 * (level + 1)))
        rest = net.op("Sigmoid", net.cut(y, 4, 2**31, 4))
        outputs.append(net.op("Reshape", net.concat(scaled, rest, axis=-1), net.ints(1, -1, 9)))
    return net.done(net.concat(*outputs, axis=1))


def yolov4() -> WrittenDetector:
    """As pytorch-YOLOv4 exports it: every anchor cut out on its own, boxes and confidences two outputs."""
    net, boxes, confs = Net("yolov4"), [], []
    for level, (x, side) in enumerate(zip(net.backbone(kind="LeakyRelu")[2:], (8, 4), strict=True)):
        y = net.head(x, 27, f"/head/conv{level}", "mixed")
        parts = {"xy": (0, 2), "wh": (2, 4), "obj": (4, 5), "cls": (5, 9)}
        cut = {k: net.concat(*(net.cut(y, 9 * a + lo, 9 * a + hi, 1) for a in range(3)), axis=1)
               for k, (lo, hi) in parts.items()}  # fmt: skip
        flat = {k: net.op("Reshape", v, net.ints(1, 3, parts[k][1] - parts[k][0], side * side)) for k, v in cut.items()}
        xy = net.op("Sub", net.op("Mul", net.op("Sigmoid", flat["xy"]), net.const(1.05)), net.const(0.025))
        xy = net.op("Add", xy, net.random(1, 1, 2, side * side))
        wh = net.op("Mul", net.op("Exp", flat["wh"]), net.random(1, 3, 2, 1))
        boxes.append(net.op("Div", net.concat(xy, wh, axis=2), net.const(float(side))))
        confs.append(net.op("Mul", net.op("Sigmoid", flat["cls"]), net.op("Sigmoid", flat["obj"])))
    return net.done(net.concat(*boxes, axis=3), net.concat(*confs, axis=3))


def yolov5(form: str = "split") -> WrittenDetector:
    """Decoded after a Split or after Slices, or `raw`: the three maps themselves."""
    net, outputs = Net("yolov5"), []
    for level, (x, side) in enumerate(zip(net.backbone(kind="Silu")[1:], (16, 8, 4), strict=True)):
        y = _anchor_map(net, x, level, side, "regression" if form == "raw" else "mixed")
        if form == "raw":
            outputs.append(y)
            continue
        y = net.op("Sigmoid", y)
        if form == "split":
            xy, wh, rest = net.many("Split", y, net.ints(2, 2, 5), axis=4, outputs=3)
        else:
            xy, wh, rest = net.cut(y, 0, 2, 4), net.cut(y, 2, 4, 4), net.cut(y, 4, 9, 4)
        xy = net.op("Add", net.op("Mul", xy, net.const(2.0)), net.random(1, 3, side, side, 2))
        wh = net.op("Pow", net.op("Mul", wh, net.const(2.0)), net.const(2.0))
        wh = net.op("Mul", wh, net.random(1, 3, side, side, 2))
        decoded = net.concat(net.op("Mul", xy, net.const(8.0)), wh, rest, axis=4)
        outputs.append(net.op("Reshape", decoded, net.ints(1, -1, 9)))
    return net.done(*outputs) if form == "raw" else net.done(net.concat(*outputs, axis=1))


def yolov7_end2end() -> WrittenDetector:
    """YOLOv7's --end2end: the plugin in the domain that torch's symbolic gives it, fed from one concatenated tensor."""
    net, rows = Net("yolov7_end2end"), []
    for level, (x, side) in enumerate(zip(net.backbone(kind="Silu")[2:], (8, 4), strict=True)):
        xy, wh, rest = net.many(
            "Split", net.op("Sigmoid", _anchor_map(net, x, level, side, "mixed")), net.ints(2, 2, 5), axis=4, outputs=3
        )
        xy = net.op("Add", net.op("Mul", xy, net.const(2.0)), net.random(1, 3, side, side, 2))
        wh = net.op("Mul", net.op("Mul", wh, wh), net.random(1, 3, side, side, 2))
        rows.append(net.op("Reshape", net.concat(xy, wh, rest, axis=4), net.ints(1, -1, 9)))
    y = net.concat(*rows, axis=1)
    scores = net.op("Mul", net.cut(y, 4, 5, 2), net.cut(y, 5, 9, 2))
    return net.done(*net.many("TRT::EfficientNMS_TRT", net.cut(y, 0, 4, 2), scores, outputs=4, max_output_boxes=20))


# ---------------------------------------------------------------------- concatenated before the decode


def yolov8(integral: str = "conv", dynamic: bool = False) -> WrittenDetector:
    """Box and class joined by level, then over levels, cut again; the integral as Conv, MatMul or Mul and ReduceSum."""
    net, maps = Net("yolov8"), []
    for level, x in enumerate(net.backbone(kind="Silu")[1:]):
        box, cls = (net.block(x, 16, f"/model.22/{cv}.{level}.0", kind="Silu") for cv in ("cv2", "cv3"))
        box = net.head(box, 64, f"/model.22/cv2.{level}.2", "regression")
        y = net.concat(box, net.head(cls, 5, f"/model.22/cv3.{level}.2", "score"), axis=1)
        target = net.ints(1, 69, -1)
        if dynamic:
            batch = net.op("Gather", net.op("Shape", y), net.ints(0), axis=0)
            target = net.concat(batch, net.ints(69), net.ints(-1), axis=0)
        maps.append(net.op("Reshape", y, target))
    box, cls = net.many("Split", net.concat(*maps, axis=2), net.ints(64, 5), axis=1, outputs=2)
    bins = net.op("Reshape", box, net.ints(1, 4, 16, -1))
    if integral == "conv":
        chances = net.op("Softmax", net.op("Transpose", bins, perm=[0, 2, 1, 3]), axis=1)
        steps = net.const(np.arange(16).reshape(1, 16, 1, 1), name="model.22.dfl.conv.weight")
        box = net.op("Conv", chances, steps, name="/model.22/dfl/conv/Conv", kernel_shape=[1, 1])
        box = net.op("Reshape", box, net.ints(1, 4, -1))
    else:
        chances = net.op("Softmax", net.op("Transpose", bins, perm=[0, 3, 1, 2]), axis=3)
        if integral == "matmul":
            box = net.op("MatMul", chances, net.const(np.arange(16)), name="/model.22/dfl/MatMul")
        else:
            box = net.op("ReduceSum", net.op("Mul", chances, net.const(np.arange(16))), net.ints(3), keepdims=0)
        box = net.op("Transpose", box, perm=[0, 2, 1])
    anchors = net.random(1, 2, 256 + 64 + 16)
    near, far = net.op("Sub", anchors, net.cut(box, 0, 2, 1)), net.op("Add", anchors, net.cut(box, 2, 4, 1))
    center = net.op("Div", net.op("Add", near, far), net.const(2.0))
    boxes = net.op("Mul", net.concat(center, net.op("Sub", far, near), axis=1), net.const(np.full((1, 336), 8.0)))
    return net.done(net.concat(boxes, net.op("Sigmoid", cls), axis=1))


def yolox() -> WrittenDetector:
    """Decoded in the graph: one tensor of boxes, objects and classes, of which only the box columns are computed on."""
    net, maps = Net("yolox"), []
    for level, x in enumerate(net.backbone(kind="Silu")[1:]):
        cls, reg = (net.block(x, 16, f"/head/{part}_convs.{level}", kind="Silu") for part in ("cls", "reg"))
        box = net.head(reg, 4, f"/head/reg_preds.{level}", "regression")
        obj = net.op("Sigmoid", net.head(reg, 1, f"/head/obj_preds.{level}", "score"))
        cls = net.op("Sigmoid", net.head(cls, 3, f"/head/cls_preds.{level}", "score"))
        maps.append(net.op("Reshape", net.concat(box, obj, cls, axis=1), net.ints(1, 8, -1)))
    y = net.op("Transpose", net.concat(*maps, axis=2), perm=[0, 2, 1])
    strides = net.const(np.full((1, 336, 1), 8.0))
    xy = net.op("Mul", net.op("Add", net.cut(y, 0, 2, -1), net.random(1, 336, 2)), strides)
    wh = net.op("Mul", net.op("Exp", net.cut(y, 2, 4, -1)), strides)
    return net.done(net.concat(xy, wh, net.cut(y, 4, 2**31, -1), axis=-1))


def fcos(joined: bool = False) -> WrittenDetector:
    """Shared towers, centerness and class multiplied under a root; `joined`: one tensor that is cut for the decode."""
    net, boxes, scores = Net("fcos"), [], []
    for level, x in enumerate(net.backbone()[1:]):
        x = net.conv(x, 16, f"/fpn/layer.{level}")
        cls, reg = (
            net.act(net.conv(x, 16, f"/head/{part}.{level}", share=f"head.{part}.0"))
            for part in ("cls_tower", "box_tower")
        )
        logits = net.head(cls, 4, f"/head/cls_logits.{level}", "score", 3, share="head.cls_logits")
        center = net.head(reg, 1, f"/head/ctrness.{level}", "score", 3, share="head.ctrness")
        sides = net.head(reg, 4, f"/head/bbox_pred.{level}", "regression", 3, share="head.bbox_pred")
        sides = net.op("Mul", net.op("Relu", net.op("Mul", sides, net.const(1.1))), net.const(float(4 << level)))
        product = net.op("Mul", net.op("Sigmoid", net.rows(logits, 4)), net.op("Sigmoid", net.rows(center, 1)))
        boxes.append(net.rows(sides, 4))
        scores.append(net.op("Pow", product, net.const(0.5)) if joined else net.op("Sqrt", product))
    box, score = net.concat(*boxes, axis=1), net.concat(*scores, axis=1)
    if joined:
        both = net.concat(box, score, axis=2)
        box, score = net.cut(both, 0, 4, 2), net.cut(both, 4, 8, 2)
    points = net.random(336, 2)
    near, far = net.op("Sub", points, net.cut(box, 0, 2, 2)), net.op("Add", points, net.cut(box, 2, 4, 2))
    return net.done(net.concat(near, far, axis=2), score)


# ---------------------------------------------------------------------- shared heads over a pyramid


def _pyramid(net: Net) -> list[str]:
    """P3 to P7 out of three stages."""
    c3, c4, c5 = net.backbone(5)[2:]
    p5 = net.conv(c5, 16, "/fpn/lateral5", 1)
    levels, top = [net.conv(p5, 16, "/fpn/output5")], p5
    for index, c in ((4, c4), (3, c3)):
        up = net.op("Resize", top, "", net.const([1, 1, 2, 2]), mode="nearest")
        top = net.op("Add", net.conv(c, 16, f"/fpn/lateral{index}", 1), up)
        levels.insert(0, net.conv(top, 16, f"/fpn/output{index}"))
    p6 = net.conv(levels[-1], 16, "/fpn/p6", 3, 2)
    return [*levels, p6, net.conv(net.act(p6), 16, "/fpn/p7", 3, 2)]


def retinanet(decode: bool = False) -> WrittenDetector:
    net, boxes, scores = Net("retinanet"), [], []
    for level, x in enumerate(_pyramid(net)):
        suffix = f"_{level}" if level else ""
        cls, box = (
            net.act(net.conv(x, 16, f"/head/{part}/conv{suffix}", share=f"head.{part}.conv.0"))
            for part in ("classification_head", "regression_head")
        )
        y = net.head(cls, 6, f"/head/cls_logits{suffix}", "score", 3, share="head.cls_logits")
        scores.append(net.rows(y, 3))
        y = net.head(box, 8, f"/head/bbox_reg{suffix}", "regression", 3, share="head.bbox_reg")
        boxes.append(net.rows(y, 4))
    box, score = net.concat(*boxes, axis=1), net.op("Sigmoid", net.concat(*scores, axis=1))
    if not decode:
        return net.done(score, box)
    box = _priors(net, box, 2 * (64 + 16 + 4 + 1 + 1))
    limits = net.ints(20), net.const([0.5]), net.const([0.01])
    return net.done(box, net.op("NonMaxSuppression", box, net.op("Transpose", score, perm=[0, 2, 1]), *limits))


def _separable(net: Net, x: str, out: int, name: str, label: str, level: int) -> str:
    """Depthwise and pointwise, both shared over levels; the pointwise one is the head."""
    deep = net.conv(x, net.width[x], f"{name}/conv_dw_{level}", groups=net.width[x], share=f"{name}/conv_dw")
    return net.head(deep, out, f"{name}/conv_pw_{level}", label, share=f"{name}/conv_pw")


def efficientdet() -> WrittenDetector:
    net = Net("efficientdet")
    boxes: list[str] = []
    scores: list[str] = []
    p = [net.conv(x, 8, f"/fpn/resample{i}", 1) for i, x in enumerate(net.backbone(kind="Silu")[1:])]
    weights = [net.const(value) for value in (0.6, 0.4, 0.3)]

    def fuse(name: str, *inputs: str) -> str:
        parts = [net.op("Mul", x, w) for x, w in zip(inputs, weights, strict=False)]
        total = net.op("Add", parts[0], parts[1]) if len(parts) == 2 else net.op("Sum", *parts)
        deep = net.conv(net.act(total, "Silu"), 8, f"{name}/conv_dw", groups=8)
        return net.norm(net.conv(deep, 8, f"{name}/conv_pw", 1), f"{name}/bn")

    up = [net.op("Resize", x, "", net.const([1, 1, 2, 2]), mode="nearest") for x in p[2:]]
    middle = fuse("/fpn/cell/up1", p[1], up[0])
    out = [fuse("/fpn/cell/up0", p[0], net.op("Resize", middle, "", net.const([1, 1, 2, 2]), mode="nearest"))]
    for name, level, inputs in (("/fpn/cell/down1", 1, [p[1], middle]), ("/fpn/cell/down2", 2, [p[2]])):
        down = net.op("MaxPool", out[-1], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        out.append(fuse(name, *inputs, down))
        assert level == len(out) - 1
    for level, x in enumerate(out):
        for part, wide, label, found in (("class", 6, "score", scores), ("box", 8, "regression", boxes)):
            deep = net.conv(x, 8, f"/{part}_net/conv_rep/conv_{level}", 1, share=f"{part}_net.conv_rep")
            deep = net.act(net.norm(deep, f"/{part}_net/bn_rep/{level}"), "Silu")
            found.append(net.rows(_separable(net, deep, wide, f"/{part}_net/predict", label, level), wide // 2))
    return net.done(net.op("Sigmoid", net.concat(*scores, axis=1)), net.concat(*boxes, axis=1))
