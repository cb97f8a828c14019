# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Detection heads distinguished on small graphs in the shape of the detectors people bring."""

from __future__ import annotations

import pytest

from qdqtool.graph.channels.sizes import TensorSizes
from qdqtool.graph.heads import Head, find_heads, nodes_before_weights, nodes_behind, outputs_of
from qdqtool.rulebook import load_rules
from tests.graphs import view_of

IMAGE = "float[1,4,4,4] x"
W = "float[4,4,1,1] w, float[4,4,1,1] wb, float[4,4,1,1] ws, float[4,4,1,1] wo"


def heads_of(text: str) -> dict[str, Head]:
    return {head.key: head for head in find_heads(view_of(text), load_rules("gpu").heads)}


def labels_of(text: str) -> dict[str, str]:
    return {key: head.label for key, head in heads_of(text).items()}


def net(body: str, more: str = "", outputs: str = "float[N] z", inputs: str = IMAGE) -> str:
    return f"g ({inputs}) => ({outputs}) <{W}{', ' + more if more else ''}> {{ {body} }}"


SSD = net(
    """f0 = Conv(x, w) f = Relu(f0) loc = Conv(f, wb) conf = Conv(f, ws) lt = Transpose<perm=[0,2,3,1]>(loc) lr = Reshape(lt, rows) v = Mul(lr, variance) b = Add(v, priors)
    ct = Transpose<perm=[0,2,3,1]>(conf) cr = Reshape(ct, rows) p = Softmax<axis=2>(cr) s = Transpose<perm=[0,2,1]>(p) z = NonMaxSuppression(b, s, n)""",
    "int64[3] rows = {1,16,4}, float[1,1,4] variance, float[1,16,4] priors, int64[1] n = {5}",
)
SSD_OUT = net(
    "f = Conv(x, w) loc = Conv(f, wb) conf = Conv(f, ws) z = Reshape(loc, rows) r = Reshape(conf, rows) y = Softmax<axis=2>(r)",
    "int64[3] rows = {1,16,4}",
    outputs="float[N] z, float[N] y",
)
YOLOX = net(
    """f = Conv(x, w) reg = Conv(f, wb) o = Conv(f, wo) c = Conv(f, ws) os = Sigmoid(o) cs = Sigmoid(c) k = Concat<axis=1>(reg, os, cs)
    r = Reshape(k, rows) z = Transpose<perm=[0,2,1]>(r)""",
    "int64[3] rows = {1,12,16}",
)
YOLOV5 = net(
    """f = Conv(x, w) p = Conv(f, wb) r = Reshape(p, s) t = Transpose<perm=[0,1,3,4,2]>(r) g = Sigmoid(t) xy, wh, conf = Split<axis=4>(g, parts) a = Mul(xy, two) b = Add(a, grid) c = Mul(b, stride)
    d = Mul(wh, two) e = Pow(d, two) h = Mul(e, anchors) z = Concat<axis=4>(c, h, conf)""",
    "int64[5] s = {1,1,4,4,4}, int64[3] parts = {1,1,2}, float two = {2}, float stride = {8}, float[1,1,4,4,1] grid, float[1,1,4,4,1] anchors",
)
YOLOV8 = net(
    """f = Conv(x, w) box = Conv(f, wb) cls = Conv(f, ws) r = Reshape(box, s) t = Transpose<perm=[0,2,1,3]>(r) sm = Softmax<axis=1>(t) d = Conv(sm, bins) q = Reshape(d, s3) a = Sub(anchors, q) m = Mul(a, stride)
    cr = Reshape(cls, s3b) p = Sigmoid(cr) z = Concat<axis=1>(m, p)""",
    "int64[4] s = {1,1,4,16}, int64[3] s3 = {1,1,16}, int64[3] s3b = {1,4,16}, float[1,4,1,1] bins = {0,1,2,3}, float[1,1,16] anchors, float stride = {8}",
)
RETINANET = net(
    """f1 = Conv(x, w) f2 = MaxPool<kernel_shape=[2,2]>(f1) c1 = Conv(f1, ws) b1 = Conv(f1, wb) c2 = Conv(f2, ws) b2 = Conv(f2, wb) cr1 = Reshape(c1, rows) cr2 = Reshape(c2, rows)
    br1 = Reshape(b1, rows) br2 = Reshape(b2, rows) c = Concat<axis=1>(cr1, cr2) y = Sigmoid(c) z = Concat<axis=1>(br1, br2)""",
    "int64[3] rows = {1,-1,4}",
    outputs="float[N] z, float[N] y",
)
FASTER_RCNN = net(
    """f0 = Conv(x, w) f = Relu(f0) rb = Conv(f, wb) rs = Conv(f, ws) sg = Sigmoid(rs) sr = Reshape(sg, flat) v, i = TopK(sr, k) br = Reshape(rb, rows) bd = Exp(br) bm = Mul(bd, anchors) roi = Gather(bm, i)
    a = RoiAlign<output_height=1, output_width=1>(f, roi, which) hc = Conv(a, wo) h = Flatten(hc) cl = Gemm(h, fc) z = Softmax(cl) y = Gemm(h, fb)""",
    "int64[1] flat = {64}, int64[1] k = {5}, int64[2] rows = {16,4}, float[1,4] anchors, int64[5] which = {0,0,0,0,0}, float[4,3] fc, float[4,12] fb",
    outputs="float[N] z, float[N] y",
)
CENTERNET = net(
    "f = Conv(x, w) hm = Conv(f, ws) wh = Conv(f, wb) h = Sigmoid(hm) q = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(h) e = Equal(h, q) c = Cast<to=1>(e) m = Mul(h, c) r = Reshape(m, flat) "
    "v, i = TopK(r, k) wr = Reshape(wh, flat) z = Gather(wr, i)",
    "int64[1] flat = {64}, int64[1] k = {5}",
    outputs="float[N] z, float[N] v",
)
EFFICIENT_NMS = net(
    "f = Conv(x, w) b = Conv(f, wb) s = Conv(f, ws) n, z, o, l = EfficientNMS_TRT(b, s)", outputs="float[N] z"
)

DETECTORS = {
    "SSD to NMS": (SSD, {"loc": "regression", "conf": "score"}),
    "SSD to outputs": (SSD_OUT, {"loc": "regression", "conf": "score"}),
    "YOLOX": (YOLOX, {"reg": "regression", "o": "score", "c": "score"}),
    "YOLOv5": (YOLOV5, {"p": "mixed"}),
    "YOLOv8": (YOLOV8, {"box": "regression", "cls": "score"}),
    "RetinaNet": (RETINANET, {"c1": "score", "b1": "regression", "c2": "score", "b2": "regression"}),
    "Faster R-CNN": (FASTER_RCNN, {"rb": "regression", "rs": "score", "cl": "score", "y": "regression"}),
    "CenterNet": (CENTERNET, {"hm": "score", "wh": "regression"}),
    "EfficientNMS": (EFFICIENT_NMS, {"b": "regression", "s": "score"}),
}


@pytest.mark.parametrize(("text", "labels"), DETECTORS.values(), ids=DETECTORS)
def test_heads_of_detectors(text: str, labels: dict[str, str]) -> None:
    assert labels_of(text) == labels


def test_the_integral_of_dfl_is_no_head() -> None:
    learned = YOLOV8.replace("bins = {0,1,2,3}", "bins = {0.1,3,2,1}")
    assert "d" not in labels_of(YOLOV8)
    assert "d" in labels_of(learned), "with learned weights it would be the last weighted operator"
    rising = YOLOV8.replace("bins = {0,1,2,3}", "bins = {-2,-0.5,0.5,2}")
    assert labels_of(rising) == labels_of(YOLOV8), "bins of D-FINE, which are not of one width"
    assert "d" in labels_of(rising.replace("Softmax<axis=1>(t)", "Relu(t)")), "a weight may rise by chance"


def test_boxes_and_scores_that_are_joined_and_cut_apart_again_are_distinguished() -> None:
    text = net(
        """f = Conv(x, w) box = Conv(f, wb) cls = Conv(f, ws) k = Concat<axis=1>(box, cls) r = Reshape(k, s) b, c = Split<axis=1>(r, halves) m = Mul(b, stride) p = Sigmoid(c) z = Concat<axis=1>(m, p)""",
        "int64[3] s = {1,8,16}, int64[2] halves = {4,4}, float stride = {8}",
    )
    assert labels_of(text) == {"box": "regression", "cls": "score"}


CLASSIFIERS = {
    "Gemm": ("c = Conv(x, w) q = GlobalAveragePool(c) f = Flatten(q) z = Gemm(f, fc, b)", "last layer"),
    "Gemm without a pool": ("c = Conv(x, w) f = Flatten(c) z = Gemm(f, fw, b)", "last layer"),
    "MatMul and bias": ("c = Conv(x, w) q = ReduceMean<axes=[2,3], keepdims=0>(c) m = MatMul(q, fc) z = Add(m, b)", "last layer"),
    "Conv before the pool": ("c = Conv(x, w) q = GlobalAveragePool(c) z = Flatten(q)", "last layer"),
    "Conv after the pool": ("e = Conv(x, wb) q = GlobalAveragePool(e) c = Conv(q, w) z = Flatten(c)", "last layer"),
    "Gemm and softmax": ("c = Conv(x, w) f = Flatten(c) m = Gemm(f, fw, b) z = Softmax(m)", "last layer"),
    "a map": ("z = Conv(x, w)", "regression"),
    "a map made larger": ('c = Conv(x, w) z = Resize<mode="linear">(c, , sc)', "regression"),
    "a map of probabilities": ("c = Conv(x, w) z = Sigmoid(c)", "score"),
    "a vector with its decode": ("f = Flatten(x) c = Gemm(f, fw, b) s = Sigmoid(c) z = Mul(s, b)", "regression"),
    "a vector cut": ("f = Flatten(x) c = Gemm(f, fw, b) z, y = Split<axis=1>(c, parts)", "regression"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "label"), CLASSIFIERS.values(), ids=CLASSIFIERS)
def test_a_network_of_one_head(body: str, label: str) -> None:
    more = "float[4,3] fc, float[64,3] fw, float[3] b, float[4] sc = {1,1,2,2}, int64[2] parts = {1,2}"
    assert list(labels_of(net(body, more)).values()) == [label]


def test_raw_logits_beside_another_head_fall_to_the_safe_side() -> None:
    text = net(
        "c = Conv(x, w) f = Flatten(c) a = Gemm(f, fw) b = Gemm(f, fv)",
        "float[64,3] fw, float[64,4] fv",
        "float[N] a, float[N] b",
    )
    assert labels_of(text) == {"a": "regression", "b": "regression"}


def test_an_operator_that_feeds_another_weighted_one_is_no_head_though_it_is_given_out() -> None:
    text = net("c = Conv(x, w) d = Conv(c, wb) z = Sigmoid(d)", outputs="float[N] z, float[N] c")
    assert labels_of(text) == {"d": "score"}


def test_features_of_a_second_stage_are_no_head_without_a_first_stage() -> None:
    text = net(
        "f = Conv(x, w) a = RoiAlign(f, rois, i) c = Flatten(a) z = Gemm(c, fc)",
        "float[4,3] fc",
        inputs=f"{IMAGE}, float[5,4] rois, int64[5] i",
    )
    assert set(labels_of(text)) == {"z"}


def test_shape_arithmetic_behind_an_operator_is_not_its_tail() -> None:
    text = net("c = Conv(x, w) s = Shape(c) d = Conv(x, wb) e = Sigmoid(d) z = Reshape(e, s)")
    heads = heads_of(text)
    assert heads["d"].label == "score"
    assert "Shape" not in heads["d"].evidence


def test_a_head_says_what_its_label_rests_on_and_where_it_leads() -> None:
    head = heads_of(SSD)["loc"]
    assert head.outputs == ("z",) and "Mul" in head.evidence and "unbounded" in head.evidence
    assert heads_of(YOLOX)["o"].evidence.startswith("bounded on ")
    assert "split into" in heads_of(YOLOV5)["p"].evidence
    assert "decoded" in heads_of(YOLOV8)["box"].evidence


def test_a_graph_without_weights_has_no_heads() -> None:
    assert heads_of("g (float[4] x) => (float[4] z) { z = Sigmoid(x) }") == {}


def test_heads_are_the_same_with_pairs_in_the_graph() -> None:
    qdq = SSD.replace(
        "loc = Conv(f, wb)",
        "fq = QuantizeLinear(f, sc, o) fd = DequantizeLinear(fq, sc, o) wq = QuantizeLinear(wb, sc, o) wd = DequantizeLinear(wq, sc, o) loc = Conv(fd, wd)",
    )
    qdq = qdq.replace("int64[3] rows", "float sc = {0.1}, int8 o = {0}, int64[3] rows")
    assert labels_of(qdq) == labels_of(SSD)


def test_the_walk_behind_a_head_meets_each_node_once_and_ends_where_it_is_reported() -> None:
    view = view_of(YOLOV8)
    everything = [node.key for node in nodes_behind(view, ["box"], outputs_of)]
    assert sorted(everything) == ["a", "d", "m", "q", "r", "sm", "t", "z"]
    to_softmax = nodes_behind(view, ["box"], lambda node: [] if node.op == "Softmax" else outputs_of(node))
    assert [node.key for node in to_softmax] == ["r", "t", "sm"]
    twice = view_of(net("p = Conv(x, wb) a = Sigmoid(p) b = Exp(p) c = Mul(a, b) z = Mul(c, c)"))
    assert sorted(node.key for node in nodes_behind(twice, ["p"], outputs_of)) == ["a", "b", "c", "z"]


def test_what_lies_behind_two_heads_is_met_behind_the_first() -> None:
    view, met = view_of(YOLOX), set[int]()
    behind = [[node.key for node in nodes_behind(view, [key], outputs_of, met)] for key in ("reg", "o", "c")]
    assert behind == [["k", "r", "z"], ["os"], ["cs"]]


def test_nodes_before_weights_come_in_by_the_inputs_that_are_asked_for() -> None:
    view = view_of(net("f = Relu(x) s = Sigmoid(f) m = Mul(f, s) y = Conv(m, w) z = Relu(y)"))

    def keys(found: set[int]) -> list[str]:
        return [node.key for node in view.nodes if id(node) in found]

    assert keys(nodes_before_weights(view, lambda node: node.inputs)) == ["f", "s", "m"]
    assert keys(nodes_before_weights(view, lambda node: [] if node.op == "Sigmoid" else node.inputs[:1])) == ["f", "m"]
    assert keys(nodes_before_weights(view, lambda node: ())) == []


def test_the_product_that_makes_corners_hides_no_head() -> None:
    """Rows of DeepStream-Yolo's exports: both convolutions before the decode are heads, the product is none."""
    text = net(
        """f = Conv(x, w) box = Conv(f, wb) cls = Conv(f, ws) br = Reshape(box, rows) bt = Transpose<perm=[0,2,1]>(br) c = MatMul(bt, corners)
        cr = Reshape(cls, rows) ct = Transpose<perm=[0,2,1]>(cr) best = ReduceMax<axes=[2]>(ct) place = ArgMax<axis=2>(ct) label = Cast<to=1>(place) z = Concat<axis=2>(c, best, label)""",
        "int64[3] rows = {1,4,16}, float[4,4] corners = {1,0,1,0,0,1,0,1,-0.5,0,0.5,0,0,-0.5,0,0.5}",
    )
    assert set(labels_of(text)) == {"box", "cls"} and labels_of(text)["box"] == "regression"


def test_what_a_body_multiplies_is_behind_the_convolution_before_it() -> None:
    body = """f = Conv(x, w) r = Relu(f) m = ReduceMean<keepdims=0>(r) c = Greater(m, limit) z = If(c) <
        then_branch = one () => (float[N] a) { a = Conv(r, wb) }, else_branch = two () => (float[N] b) { b = Relu(r) }>"""
    assert labels_of(net(body, "float limit")) == {}
    assert labels_of(net(body.replace("Conv(r, wb)", "Relu(r)"), "float limit")) != {}


@pytest.mark.parametrize(
    ("text", "decoded"),
    [(SSD_OUT, {"loc": False, "conf": True}), (net("z = Conv(x, w)"), {"z": False})],
)
def test_raw_values_show_no_box(text: str, decoded: dict[str, bool]) -> None:
    assert {key: head.decoded for key, head in heads_of(text).items()} == decoded


def test_heads_are_found_in_time_that_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many heads that one Concat reads asks for the sizes of its own neighborhood."""
    asked = list[str]()
    real, weight = TensorSizes.size, TensorSizes.made_by_weight
    monkeypatch.setattr(TensorSizes, "size", lambda self, *of: asked.append("size") or real(self, *of))
    monkeypatch.setattr(TensorSizes, "made_by_weight", lambda self, node: asked.append("weight") or weight(self, node))
    counts = []
    for heads in (50, 100):
        asked.clear()
        steps = " ".join(f"a{i} = Conv(x, w) b{i} = Relu(a{i})" for i in range(heads))
        names = ", ".join(f"b{i}" for i in range(heads))
        assert len(heads_of(net(f"{steps} z = Concat<axis = 2>({names})"))) == heads
        counts.append(len(asked))
    assert counts[1] < 2.5 * counts[0]
